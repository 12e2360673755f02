//! Features: the target's hidden states, as drafters read them.
//!
//! The model decides which hidden states they are. Here they are rows of numbers. The list of a
//! sequence's features grows with the sequence and shares its parts, so a job can carry the whole
//! list without copying numbers.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The features of some tokens: `[rows, width]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FeatureRows {
    width: usize,
    values: Vec<f32>,
}

impl FeatureRows {
    /// Creates rows of `width` numbers each. Numbers that do not fill a row are dropped.
    #[must_use]
    pub fn new(width: usize, mut values: Vec<f32>) -> Self {
        values.truncate(values.len().checked_div(width).unwrap_or(0) * width);
        Self { width, values }
    }

    /// Returns the number of values in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the values of all rows, one row after another.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the row at `index`, if it exists.
    #[must_use]
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        let start = index.checked_mul(self.width)?;
        self.values.get(start..start.checked_add(self.width)?)
    }

    /// Returns copies of the rows at `indices`, skipping those that do not exist.
    #[must_use]
    pub fn gather(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let rows = indices.into_iter().filter_map(|index| self.row(index));
        Self { width: self.width, values: rows.flatten().copied().collect() }
    }
}

/// The features of the first tokens of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Parts in the order of their tokens; none is empty.
    parts: Vec<Arc<FeatureRows>>,
}

impl Features {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of tokens that have features.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Returns whether no token has features.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the features of the next tokens.
    pub fn push(&mut self, rows: FeatureRows) {
        if !rows.is_empty() {
            self.parts.push(Arc::new(rows));
        }
    }

    /// Returns the parts of the list, in the order of their tokens. None is empty.
    #[must_use]
    pub fn parts(&self) -> &[Arc<FeatureRows>] {
        &self.parts
    }

    /// Iterates over the features of the tokens from `first` on.
    pub fn rows_from(&self, first: usize) -> impl Iterator<Item = &[f32]> + '_ {
        let (mut parts, mut skipped) = (&self.parts[..], first);
        // Skip whole parts at once: the list is long, and usually only its end is read.
        while let Some((part, later)) = parts.split_first()
            && part.len() <= skipped
        {
            (parts, skipped) = (later, skipped - part.len());
        }
        parts.iter().flat_map(|part| (0..part.len()).filter_map(|row| part.row(row))).skip(skipped)
    }
}

/// Creates a list from its parts, in the order of their tokens.
impl FromIterator<Arc<FeatureRows>> for Features {
    fn from_iter<I: IntoIterator<Item = Arc<FeatureRows>>>(parts: I) -> Self {
        Self { parts: parts.into_iter().filter(|part| !part.is_empty()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that encode the tokens they belong to.
    fn rows(tokens: std::ops::Range<usize>) -> FeatureRows {
        FeatureRows::new(2, tokens.flat_map(|token| [token as f32, -(token as f32)]).collect())
    }

    #[test]
    fn rows_are_found_in_every_part() {
        let mut features = Features::new();
        for part in [0..3, 3..3, 3..4, 4..9] {
            features.push(rows(part));
        }
        assert_eq!(features.len(), 9);
        for first in 0..12 {
            let found: Vec<f32> = features.rows_from(first).map(|row| row[0]).collect();
            let expected: Vec<f32> = (first..9).map(|token| token as f32).collect();
            assert_eq!(found, expected, "from {first}");
        }
        let longer = features.clone();
        assert_eq!(longer.parts().iter().cloned().collect::<Features>(), features);
        features.push(rows(9..10));
        assert_eq!((longer.len(), features.len()), (9, 10), "a clone is independent");
    }

    #[test]
    fn missing_rows_are_skipped() {
        let four = rows(0..4);
        assert_eq!(four.gather([0, 3, 9]), FeatureRows::new(2, vec![0.0, -0.0, 3.0, -3.0]));
        assert_eq!((four.row(4), four.row(usize::MAX)), (None, None));
        assert_eq!(FeatureRows::new(0, vec![1.0]).len(), 0);
        assert_eq!(FeatureRows::new(2, vec![1.0; 5]).len(), 2);
        assert!(Features::new().is_empty() && Features::new().rows_from(0).next().is_none());
    }
}
