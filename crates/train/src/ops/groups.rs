//! The rows that a sequence is computed with, and which of them sees which.
//!
//! ParallelSpec (arXiv 2410.05589, §4.1 and figure 3) trains a drafter of several tokens at once:
//! tokens open *groups*, a token and its masks, and all groups of a sequence are computed in one
//! pass. A plain causal sequence is the case without masks.

use std::ops::Range;

/// Rows of one sequence: its tokens in order, then the first mask of every group, then the second
/// one of every group, and so on. The token that opens a group is the group's anchor; how far behind
/// it a row stands is the row's depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    tokens: usize,
    masks: usize,
    anchors: Vec<usize>,
}

/// Neighbouring rows of one depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) depth: usize,
    pub(crate) rows: Range<usize>,
    /// Tokens that the last of them sees, which are the most.
    pub(crate) tokens: usize,
}

impl Groups {
    /// Tokens alone.
    pub(crate) fn causal(tokens: usize) -> Self {
        Self { tokens, masks: 0, anchors: Vec::new() }
    }

    /// `masks` masks behind each of the tokens at `anchors`, which rise.
    pub(crate) fn new(tokens: usize, masks: usize, anchors: Vec<usize>) -> Self {
        assert!(anchors.is_sorted_by(|a, b| a < b), "anchors in order, each once");
        assert!(anchors.last().is_none_or(|&last| last < tokens), "anchors are tokens");
        Self { tokens, masks, anchors }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn masks(&self) -> usize {
        self.masks
    }

    pub(crate) fn anchors(&self) -> &[usize] {
        &self.anchors
    }

    /// Rows in all.
    pub(crate) fn rows(&self) -> usize {
        self.tokens + self.masks * self.anchors.len()
    }

    /// The row of a group, counted from 0, at a depth.
    pub(crate) fn row(&self, group: usize, depth: usize) -> usize {
        match depth {
            0 => self.anchors[group],
            _ => self.tokens + (depth - 1) * self.anchors.len() + group,
        }
    }

    /// Anchor and depth of a row. A token is its own anchor, whether or not it opens a group.
    pub(crate) fn place(&self, row: usize) -> (usize, usize) {
        match row.checked_sub(self.tokens) {
            None => (row, 0),
            Some(mask) => {
                let groups = self.anchors.len();
                (self.anchors[mask % groups], 1 + mask / groups)
            }
        }
    }

    /// Where a row stands in the text: masks continue it behind their anchor.
    pub(crate) fn position(&self, row: usize) -> usize {
        let (anchor, depth) = self.place(row);
        anchor + depth
    }

    /// The mask of figure 3, in words: tokens up to the anchor, and masks of the own group up to
    /// itself. What attention computes is held against this.
    #[cfg(test)]
    pub(crate) fn sees(&self, row: usize, key: usize) -> bool {
        let ((anchor, depth), (key_anchor, key_depth)) = (self.place(row), self.place(key));
        match key_depth {
            0 => key_anchor <= anchor,
            _ => key_anchor == anchor && key_depth <= depth,
        }
    }

    /// Rows of the masks that a row sees, itself the last.
    pub(crate) fn own(&self, row: usize, depth: usize) -> impl Iterator<Item = usize> + use<> {
        let groups = self.anchors.len();
        (0..depth).rev().map(move |before| row - before * groups)
    }

    /// All rows, at most `size` at a time.
    pub(crate) fn blocks(&self, size: usize) -> impl Iterator<Item = Block> {
        let of_masks = move |mask: usize| (mask + 1, self.row(0, mask + 1), self.anchors.len());
        let masks = (0..self.masks).filter(move |_| !self.anchors.is_empty()).map(of_masks);
        std::iter::once((0, 0, self.tokens)).chain(masks).flat_map(move |(depth, first, count)| {
            (0..count).step_by(size).map(move |start| {
                let rows = first + start..first + count.min(start + size);
                let tokens = self.place(rows.end - 1).0 + 1;
                Block { depth, rows, tokens }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 3 with two masks for each of three tokens: `1` is seen.
    #[test]
    fn the_mask_is_that_of_the_figure() {
        let groups = Groups::new(3, 2, vec![0, 1, 2]);
        assert_eq!(groups.rows(), 9);
        let line = |row: usize| -> String {
            (0..9).map(|key| if groups.sees(row, key) { '1' } else { '.' }).collect()
        };
        let lines: Vec<String> = (0..9).map(line).collect();
        let expected = [
            "1........",
            "11.......",
            "111......", // tokens
            "1..1.....",
            "11..1....",
            "111..1...", // first masks
            "1..1..1..",
            "11..1..1.",
            "111..1..1", // second masks
        ];
        assert_eq!(lines, expected);
        let positions: Vec<usize> = (0..9).map(|row| groups.position(row)).collect();
        assert_eq!(positions, [0, 1, 2, 1, 2, 3, 2, 3, 4]);
    }

    #[test]
    fn blocks_and_own_masks_say_what_the_mask_says() {
        for groups in [
            Groups::causal(7),
            Groups::new(7, 3, vec![0, 2, 3, 6]),
            Groups::new(5, 2, vec![4]),
            Groups::new(5, 2, Vec::new()),
        ] {
            for size in [1, 2, 3, 100] {
                let mut rows = Vec::new();
                for block in groups.blocks(size) {
                    assert!(block.rows.len() <= size);
                    for row in block.rows.clone() {
                        let (anchor, depth) = groups.place(row);
                        assert_eq!(depth, block.depth);
                        assert!(anchor < block.tokens);
                        let tokens = (0..groups.tokens()).filter(|&token| token <= anchor);
                        let seen: Vec<usize> = tokens.chain(groups.own(row, depth)).collect();
                        let expected: Vec<usize> =
                            (0..groups.rows()).filter(|&key| groups.sees(row, key)).collect();
                        assert_eq!(seen, expected);
                    }
                    rows.extend(block.rows);
                }
                assert!(rows.into_iter().eq(0..groups.rows()));
            }
        }
    }

    #[test]
    fn rows_and_places_are_inverse() {
        let groups = Groups::new(9, 3, vec![1, 4, 8]);
        for depth in 0..=3 {
            for (group, &anchor) in groups.anchors().iter().enumerate() {
                assert_eq!(groups.place(groups.row(group, depth)), (anchor, depth));
            }
        }
    }
}
