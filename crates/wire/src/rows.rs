//! Compact forms of rows: distributions and features.

use crate::WireError;
use forerun_core::{Distribution, FeatureRows, TokenId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;

/// Numbers as their bytes, so that they are copied, not visited one by one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floats<'a>(pub(crate) Cow<'a, [f32]>);

impl Serialize for Floats<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&bytes_of(&self.0))
    }
}

impl<'de> Deserialize<'de> for Floats<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Vec<f32>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("numbers of four bytes each")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<f32>, E> {
                match bytes.as_chunks::<4>() {
                    (values, []) => {
                        Ok(values.iter().map(|&value| f32::from_le_bytes(value)).collect())
                    }
                    _ => Err(E::invalid_length(bytes.len(), &self)),
                }
            }
        }

        deserializer.deserialize_bytes(Visitor).map(|values| Self(Cow::Owned(values)))
    }
}

/// Returns the bytes of numbers, in little-endian order.
pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(values)];
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
    bytes
}

/// A distribution. All forms are exact: the row that is read has the bits of the row that was
/// written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum CompactRow<'a> {
    /// A token of weight 1, as in greedy and coupled rows.
    Point(TokenId),
    /// The weights of the first tokens of the vocabulary. An empty row has none.
    First(Floats<'a>),
    /// The tokens that the filters kept.
    Listed {
        /// The first token, then the number of tokens skipped before each further one.
        gaps: Vec<TokenId>,
        weights: Floats<'a>,
    },
}

impl<'a> CompactRow<'a> {
    pub(crate) fn new(row: &'a Distribution) -> Self {
        let (tokens, weights) = row.parts();
        match (tokens, row.as_point()) {
            (_, Some(token)) if weights[0].to_bits() == 1.0_f32.to_bits() => Self::Point(token),
            (None, _) => Self::First(Floats(Cow::Borrowed(weights))),
            (Some(tokens), _) => {
                let before = [None].into_iter().chain(tokens.iter().map(Some));
                let gap = |(&token, before): (&TokenId, Option<&TokenId>)| {
                    before.map_or(token, |before| token - before - 1)
                };
                let gaps = tokens.iter().zip(before).map(gap).collect();
                Self::Listed { gaps, weights: Floats(Cow::Borrowed(weights)) }
            }
        }
    }

    pub(crate) fn into_distribution(self) -> Result<Distribution, WireError> {
        match self {
            Self::Point(token) => Ok(Distribution::point(token)),
            Self::First(weights) => Ok(Distribution::from_parts(None, weights.0.into_owned())?),
            Self::Listed { gaps, weights } => {
                let mut next: Option<TokenId> = Some(0);
                let token = |gap| {
                    let token = next?.checked_add(gap)?;
                    next = token.checked_add(1);
                    Some(token)
                };
                let tokens: Option<Vec<TokenId>> = gaps.into_iter().map(token).collect();
                let tokens = tokens.ok_or(WireError::Invalid("a token id exceeds 32 bits"))?;
                Ok(Distribution::from_parts(Some(tokens), weights.0.into_owned())?)
            }
        }
    }
}

/// The features of some tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CompactFeatures<'a> {
    width: usize,
    values: Floats<'a>,
}

impl<'a> CompactFeatures<'a> {
    pub(crate) fn new(rows: &'a FeatureRows) -> Self {
        Self { width: rows.width(), values: Floats(Cow::Borrowed(rows.values())) }
    }

    pub(crate) fn into_rows(self) -> Result<FeatureRows, WireError> {
        let values = self.values.0.into_owned();
        match values.len().checked_rem(self.width) {
            Some(0) => Ok(FeatureRows::new(self.width, values)),
            None if values.is_empty() => Ok(FeatureRows::new(self.width, values)),
            _ => Err(WireError::Invalid("features do not fill whole rows")),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn written(row: &CompactRow<'_>) -> Vec<u8> {
        postcard::to_allocvec(row).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Distribution, WireError> {
        postcard::from_bytes::<CompactRow<'_>>(bytes)?.into_distribution()
    }

    #[test]
    fn rows_keep_their_bits() {
        let many = (0..300).map(|token| (token, 1.0 / (token as f32 + 3.0)));
        let sparse = (0..300).map(|token| (token * token, 1.0 / (token as f32 + 3.0)));
        let rows = [
            (Distribution::default(), 2),
            (Distribution::point(0), 2),
            (Distribution::point(100_000), 4),
            (Distribution::from_weights([(5, 0.3)]), 8),
            (Distribution::from_weights([(0, 0.3)]), 6),
            (Distribution::from_weights([(5, f32::MIN_POSITIVE / 8.0), (u32::MAX, f32::MAX)]), 17),
            (Distribution::from_weights(many), 3 + 4 * 300),
            (Distribution::from_weights(sparse), 1_740),
        ];
        for (row, bytes) in rows {
            let compact = written(&CompactRow::new(&row));
            assert_eq!(read(&compact).unwrap(), row);
            assert_eq!(compact.len(), bytes, "{row:?}");
        }
    }

    #[test]
    fn invalid_rows_are_rejected() {
        let floats = |values: &[f32]| Floats(Cow::Owned(values.to_vec()));
        let listed = |gaps: &[TokenId], weights: &[f32]| CompactRow::Listed {
            gaps: gaps.to_vec(),
            weights: floats(weights),
        };
        for row in [
            CompactRow::First(floats(&[1.0, 0.0])),
            CompactRow::First(floats(&[f32::NAN])),
            listed(&[1], &[f32::INFINITY]),
            listed(&[1, 2], &[1.0]),
            listed(&[u32::MAX, 0], &[1.0, 1.0]),
            listed(&[1, u32::MAX], &[1.0, 1.0]),
        ] {
            assert!(matches!(read(&written(&row)), Err(WireError::Invalid(_))), "{row:?}");
        }
        assert!(matches!(read(&[1, 3, 0, 0, 0]), Err(WireError::Malformed(_))));
    }

    #[test]
    fn features_fill_whole_rows() {
        for (width, values, valid) in [(2, 4, true), (2, 3, false), (0, 0, true), (0, 1, false)] {
            let values = Floats(vec![1.0; values].into());
            let rows = CompactFeatures { width, values }.into_rows();
            assert_eq!(rows.is_ok(), valid);
            assert!(rows.is_err() || rows.unwrap().width() == width);
        }
    }
}
