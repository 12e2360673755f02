//! Group-wise parallel training (ParallelSpec, arXiv 2410.05589, §4.1 and figure 3): the rows of a
//! sequence, and its attention mask.
//!
//! A *group* is a token, its anchor, followed by masks. All groups of a sequence are computed in one
//! pass. A causal sequence is the case without masks.

use std::ops::Range;

/// The rows of one sequence: its tokens in order, then the first mask of every group, then the second
/// mask of every group, and so on. The token that opens a group is the group's anchor. The depth of a
/// row is its distance from its anchor: 0 for a token, k for the k-th mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    tokens: usize,
    masks: usize,
    anchors: Vec<usize>,
}

/// Consecutive rows of one depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) depth: usize,
    pub(crate) rows: Range<usize>,
    /// Number of tokens that the last row attends to. The others attend to fewer.
    pub(crate) tokens: usize,
}

impl Groups {
    /// Creates the rows of a causal sequence of tokens, without masks.
    pub(crate) fn causal(tokens: usize) -> Self {
        Self { tokens, masks: 0, anchors: Vec::new() }
    }

    /// Creates the rows of a sequence with `masks` masks after each of the tokens at `anchors`.
    ///
    /// # Panics
    /// If the anchors are not strictly increasing, or one is not a token.
    pub(crate) fn new(tokens: usize, masks: usize, anchors: Vec<usize>) -> Self {
        assert!(anchors.is_sorted_by(|a, b| a < b), "anchors must be strictly increasing");
        assert!(anchors.last().is_none_or(|&last| last < tokens), "an anchor must be a token");
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

    /// Returns the number of rows: tokens and masks.
    pub(crate) fn rows(&self) -> usize {
        self.tokens + self.masks * self.anchors.len()
    }

    /// Returns the row at a depth of a group. Groups are counted from 0.
    pub(crate) fn row(&self, group: usize, depth: usize) -> usize {
        match depth {
            0 => self.anchors[group],
            _ => self.tokens + (depth - 1) * self.anchors.len() + group,
        }
    }

    /// Returns the anchor and the depth of a row. A token is its own anchor, whether or not it opens a
    /// group.
    pub(crate) fn anchor_and_depth(&self, row: usize) -> (usize, usize) {
        match row.checked_sub(self.tokens) {
            None => (row, 0),
            Some(mask) => {
                let groups = self.anchors.len();
                (self.anchors[mask % groups], 1 + mask / groups)
            }
        }
    }

    /// Returns the position of a row for the rotary embedding: masks continue the text after their
    /// anchor.
    pub(crate) fn position(&self, row: usize) -> usize {
        let (anchor, depth) = self.anchor_and_depth(row);
        anchor + depth
    }

    /// Returns whether a row attends to a key (figure 3): to tokens up to its anchor, and to the masks
    /// of its own group up to itself. Tests compare the attention kernels with this.
    #[cfg(test)]
    pub(crate) fn attends(&self, row: usize, key: usize) -> bool {
        let ((anchor, depth), (key_anchor, key_depth)) =
            (self.anchor_and_depth(row), self.anchor_and_depth(key));
        match key_depth {
            0 => key_anchor <= anchor,
            _ => key_anchor == anchor && key_depth <= depth,
        }
    }

    /// Returns the rows of the masks that a row attends to. The last of them is the row itself.
    pub(crate) fn visible_masks(
        &self,
        row: usize,
        depth: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let groups = self.anchors.len();
        (0..depth).rev().map(move |distance| row - distance * groups)
    }

    /// Splits the rows into blocks of one depth with at most `size` rows each.
    pub(crate) fn blocks(&self, size: usize) -> impl Iterator<Item = Block> {
        let rows_of_mask = move |mask: usize| (mask + 1, self.row(0, mask + 1), self.anchors.len());
        let masks = (0..self.masks).filter(move |_| !self.anchors.is_empty()).map(rows_of_mask);
        std::iter::once((0, 0, self.tokens)).chain(masks).flat_map(move |(depth, first, count)| {
            (0..count).step_by(size).map(move |start| {
                let rows = first + start..first + count.min(start + size);
                let tokens = self.anchor_and_depth(rows.end - 1).0 + 1;
                Block { depth, rows, tokens }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 3 with two masks for each of three tokens. `1`: the row attends to the key.
    #[test]
    fn the_attention_mask_is_that_of_figure_3() {
        let groups = Groups::new(3, 2, vec![0, 1, 2]);
        assert_eq!(groups.rows(), 9);
        let line = |row: usize| -> String {
            (0..9).map(|key| if groups.attends(row, key) { '1' } else { '.' }).collect()
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
    fn blocks_and_visible_masks_agree_with_the_attention_mask() {
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
                        let (anchor, depth) = groups.anchor_and_depth(row);
                        assert_eq!(depth, block.depth);
                        assert!(anchor < block.tokens);
                        let tokens = (0..groups.tokens()).filter(|&token| token <= anchor);
                        let visible: Vec<usize> =
                            tokens.chain(groups.visible_masks(row, depth)).collect();
                        let expected: Vec<usize> =
                            (0..groups.rows()).filter(|&key| groups.attends(row, key)).collect();
                        assert_eq!(visible, expected);
                    }
                    rows.extend(block.rows);
                }
                assert!(rows.into_iter().eq(0..groups.rows()));
            }
        }
    }

    #[test]
    fn row_is_the_inverse_of_anchor_and_depth() {
        let groups = Groups::new(9, 3, vec![1, 4, 8]);
        for depth in 0..=3 {
            for (group, &anchor) in groups.anchors().iter().enumerate() {
                assert_eq!(groups.anchor_and_depth(groups.row(group, depth)), (anchor, depth));
            }
        }
    }
}
