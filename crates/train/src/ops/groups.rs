//! The rows of a sequence in training, and its attention mask.
//!
//! A *group* is an anchor, which is one of the tokens, with rows after it. All groups of a sequence
//! are computed in one pass. There are two patterns:
//!
//! - ParallelSpec (group-wise parallel training, arXiv 2410.05589, §4.1 and figure 3): tokens and
//!   the masks after an anchor are one causal sequence. A sequence without masks is the plain
//!   causal case.
//! - DFlash (arXiv 2602.06036, §4): tokens are context, which has no queries. The rows of a group
//!   are a block: a row for the anchor, and masks. They attend to one another and to the tokens
//!   before the anchor.

use std::ops::Range;

/// The rows of one sequence: its tokens in order, then the first further row of every group, then
/// the second one of every group, and so on. The depth of a row is its distance from its anchor: 0
/// for a token and for the first row of a block, k for the k-th mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    tokens: usize,
    /// Number of rows of a group that are not tokens.
    further_rows: usize,
    anchors: Vec<usize>,
    pattern: Pattern,
}

/// What rows attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// Tokens up to the anchor, and masks of the group up to the row.
    Causal,
    /// Tokens before the anchor, and all rows of the block. Tokens attend to nothing.
    Block,
}

/// Consecutive rows of one depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Number of keys of a row that are not tokens.
    pub(crate) own_keys: usize,
    pub(crate) rows: Range<usize>,
    /// Number of tokens that the last row attends to. The others attend to fewer.
    pub(crate) tokens: usize,
}

impl Groups {
    /// Creates the rows of a causal sequence of tokens, without masks.
    pub(crate) fn causal(tokens: usize) -> Self {
        Self { tokens, further_rows: 0, anchors: Vec::new(), pattern: Pattern::Causal }
    }

    /// Creates the rows of a sequence with `masks` masks after each of the tokens at `anchors`.
    ///
    /// # Panics
    /// If the anchors are not strictly increasing, or one is not a token.
    pub(crate) fn new(tokens: usize, masks: usize, anchors: Vec<usize>) -> Self {
        assert!(anchors.is_sorted_by(|a, b| a < b), "anchors must be strictly increasing");
        assert!(anchors.last().is_none_or(|&last| last < tokens), "an anchor must be a token");
        Self { tokens, further_rows: masks, anchors, pattern: Pattern::Causal }
    }

    /// Creates the rows of a sequence with a block of `size` rows at each of the tokens at
    /// `anchors`: the anchor, and `size - 1` masks.
    ///
    /// # Panics
    /// If the anchors are not strictly increasing, or one is not a token.
    pub(crate) fn draft_blocks(tokens: usize, size: usize, anchors: Vec<usize>) -> Self {
        Self { pattern: Pattern::Block, ..Self::new(tokens, size, anchors) }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of rows of a group that are not tokens: its masks, or all rows of its
    /// block.
    pub(crate) fn further_rows(&self) -> usize {
        self.further_rows
    }

    pub(crate) fn anchors(&self) -> &[usize] {
        &self.anchors
    }

    pub(crate) fn rows(&self) -> usize {
        self.tokens + self.further_rows * self.anchors.len()
    }

    /// Returns the row at a depth of a group. Groups are counted from 0.
    pub(crate) fn row(&self, group: usize, depth: usize) -> usize {
        match depth.checked_sub(self.first_depth()) {
            None => self.anchors[group],
            Some(number) => self.tokens + number * self.anchors.len() + group,
        }
    }

    /// Returns the depth of the first rows of groups that are not tokens.
    fn first_depth(&self) -> usize {
        usize::from(self.pattern == Pattern::Causal)
    }

    /// Returns the anchor and the depth of a row. A token is its own anchor, whether or not it
    /// opens a group.
    pub(crate) fn anchor_and_depth(&self, row: usize) -> (usize, usize) {
        match row.checked_sub(self.tokens) {
            None => (row, 0),
            Some(further) => {
                let groups = self.anchors.len();
                (self.anchors[further % groups], self.first_depth() + further / groups)
            }
        }
    }

    /// Returns the position of a row for the rotary embedding: the rows of a group continue the
    /// text after their anchor.
    pub(crate) fn position(&self, row: usize) -> usize {
        let (anchor, depth) = self.anchor_and_depth(row);
        anchor + depth
    }

    /// Returns whether a row attends to a key. Tests compare the attention kernels with this.
    #[cfg(test)]
    pub(crate) fn attends(&self, row: usize, key: usize) -> bool {
        let is_token = |row| row < self.tokens;
        let ((anchor, depth), (key_anchor, key_depth)) =
            (self.anchor_and_depth(row), self.anchor_and_depth(key));
        match self.pattern {
            // Figure 3 of ParallelSpec.
            Pattern::Causal if is_token(key) => key_anchor <= anchor,
            Pattern::Causal => key_anchor == anchor && key_depth <= depth,
            Pattern::Block if is_token(row) => false,
            Pattern::Block if is_token(key) => key < anchor,
            Pattern::Block => key_anchor == anchor,
        }
    }

    /// Returns the keys that a row attends to and that are not tokens: rows of its own group.
    pub(crate) fn own_keys(&self, row: usize) -> impl Iterator<Item = usize> + use<> {
        let groups = self.anchors.len();
        let (first, count) = match row.checked_sub(self.tokens) {
            None => (row, 0),
            Some(further) => (self.tokens + further % groups, self.own_key_count(further / groups)),
        };
        (0..count).map(move |number| first + number * groups)
    }

    /// Returns the number of keys that are not tokens, for the rows of the groups with this number.
    fn own_key_count(&self, number: usize) -> usize {
        match self.pattern {
            Pattern::Causal => number + 1,
            Pattern::Block => self.further_rows,
        }
    }

    /// Returns the number of tokens that a row with this anchor attends to.
    pub(crate) fn visible_tokens(&self, anchor: usize) -> usize {
        anchor + usize::from(self.pattern == Pattern::Causal)
    }

    /// Splits the rows with queries into blocks of one depth with at most `size` rows each.
    pub(crate) fn blocks(&self, size: usize) -> impl Iterator<Item = Block> {
        let groups = self.anchors.len();
        let tokens = (self.pattern == Pattern::Causal).then_some((0, 0, self.tokens));
        let rows_of_groups = move |number: usize| {
            (self.own_key_count(number), self.tokens + number * groups, groups)
        };
        let further = (0..self.further_rows).filter(move |_| groups > 0).map(rows_of_groups);
        tokens.into_iter().chain(further).flat_map(move |(own_keys, first, count)| {
            (0..count).step_by(size).map(move |start| {
                let rows = first + start..first + count.min(start + size);
                let tokens = self.visible_tokens(self.anchor_and_depth(rows.end - 1).0);
                Block { own_keys, rows, tokens }
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

    /// Blocks of three rows at the second and the fourth of five tokens.
    #[test]
    fn a_draft_block_attends_to_itself_and_to_the_tokens_before_its_anchor() {
        let groups = Groups::draft_blocks(5, 3, vec![1, 3]);
        assert_eq!(groups.rows(), 11);
        let line = |row: usize| -> String {
            (0..11).map(|key| if groups.attends(row, key) { '1' } else { '.' }).collect()
        };
        let lines: Vec<String> = (5..11).map(line).collect();
        let expected = [
            "1....1.1.1.",
            "111...1.1.1", // anchors
            "1....1.1.1.",
            "111...1.1.1", // first masks
            "1....1.1.1.",
            "111...1.1.1", // second masks
        ];
        assert_eq!(lines, expected);
        let positions: Vec<usize> = (0..11).map(|row| groups.position(row)).collect();
        assert_eq!(positions, [0, 1, 2, 3, 4, 1, 3, 2, 4, 3, 5]);
    }

    #[test]
    fn blocks_and_visible_masks_agree_with_the_attention_mask() {
        for groups in [
            Groups::causal(7),
            Groups::new(7, 3, vec![0, 2, 3, 6]),
            Groups::new(5, 2, vec![4]),
            Groups::new(5, 2, Vec::new()),
            Groups::draft_blocks(7, 3, vec![0, 2, 3, 6]),
            Groups::draft_blocks(5, 2, vec![4]),
            Groups::draft_blocks(5, 2, Vec::new()),
        ] {
            for size in [1, 2, 3, 100] {
                let mut rows = Vec::new();
                for block in groups.blocks(size) {
                    assert!(block.rows.len() <= size);
                    for row in block.rows.clone() {
                        let (anchor, _) = groups.anchor_and_depth(row);
                        let tokens = groups.visible_tokens(anchor);
                        assert!(tokens <= block.tokens);
                        assert_eq!(groups.own_keys(row).count(), block.own_keys);
                        let visible: Vec<usize> = (0..tokens).chain(groups.own_keys(row)).collect();
                        let expected: Vec<usize> =
                            (0..groups.rows()).filter(|&key| groups.attends(row, key)).collect();
                        assert_eq!(visible, expected);
                    }
                    rows.extend(block.rows);
                }
                // The tokens before blocks have no queries.
                let first = if groups.first_depth() == 0 { groups.tokens() } else { 0 };
                assert!(rows.into_iter().eq(first..groups.rows()));
            }
        }
    }

    #[test]
    fn row_is_the_inverse_of_anchor_and_depth() {
        let masks = Groups::new(9, 3, vec![1, 4, 8]);
        let blocks = Groups::draft_blocks(9, 4, vec![1, 4, 8]);
        for (groups, depth) in
            [masks, blocks].iter().flat_map(|groups| (0..=3).map(move |d| (groups, d)))
        {
            for (group, &anchor) in groups.anchors().iter().enumerate() {
                assert_eq!(groups.anchor_and_depth(groups.row(group, depth)), (anchor, depth));
            }
        }
    }
}
