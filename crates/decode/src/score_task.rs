//! DSI's verification tasks: which rows a job scores, and where they are in its output.

use forerun_core::{Scores, TokenId, TokenTree};

/// A job that scores consecutive rows along a chain, and the rows after siblings of the chain's tokens. Rows are named by the
/// absolute position that they predict.
///
/// The siblings are those of the tokens that the job adds, and of the token before its first row. The last job has tested
/// that token, but could not score its siblings if they were not drafted yet. To have them in its tree, this job scores the
/// row before the token again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScoreTask {
    pub(crate) replica: usize,
    pub(crate) first_row: usize,
    /// The number of committed tokens when the task was created.
    committed: usize,
    /// The tokens after the committed ones, up to the last row.
    tokens: Vec<TokenId>,
    /// The siblings whose rows are scored, too, each with its position.
    siblings: Vec<Sibling>,
    /// The number of nodes of the scored tree.
    nodes: usize,
    /// The number of rows of the output before the first one along the chain.
    skipped: usize,
    /// Whether drafters worked when it was submitted.
    pub(crate) while_drafting: bool,
    /// The number of tokens that its rows have accepted so far.
    pub(crate) accepted: usize,
}

/// A token next to the one of the chain, with its position.
pub(crate) type Sibling = (usize, TokenId);

/// Returns the largest number of rows along the chain, at least 1, in a job that scores up to `rows` rows, with `n_siblings`
/// siblings of each token.
pub(crate) fn rows_along_chain(rows: usize, n_siblings: usize) -> usize {
    match n_siblings {
        0 => rows,
        // Each row brings the siblings of a token, and one row may be scored again for them.
        _ => (rows.saturating_sub(1) / (n_siblings + 1)).max(1),
    }
}

impl ScoreTask {
    /// Creates a task from `first_row` to the row after the last of `tokens`, which follow `committed` committed tokens.
    pub(crate) fn new(
        first_row: usize,
        committed: usize,
        tokens: Vec<TokenId>,
        siblings: Vec<Sibling>,
        while_drafting: bool,
    ) -> Self {
        let skipped = usize::from(siblings.iter().any(|&(position, _)| position < first_row));
        let along_chain = committed + tokens.len() - first_row;
        let nodes = skipped + along_chain + siblings.len();
        let (replica, accepted) = (0, 0);
        Self {
            replica,
            first_row,
            committed,
            tokens,
            siblings,
            nodes,
            skipped,
            while_drafting,
            accepted,
        }
    }

    /// Returns the task on this replica.
    pub(crate) fn on(self, replica: usize) -> Self {
        Self { replica, ..self }
    }

    /// Returns the number of rows along the chain.
    pub(crate) fn rows(&self) -> usize {
        self.committed + self.tokens.len() + 1 - self.first_row
    }

    /// Returns the number of nodes of the scored tree.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the number of all scored rows.
    pub(crate) fn scored_rows(&self) -> usize {
        self.nodes + 1
    }

    /// Returns the tokens from a position on, up to the last row.
    pub(crate) fn path(&self, position: usize) -> &[TokenId] {
        self.tokens.get(position - self.committed..).unwrap_or_default()
    }

    /// Returns the tokens between the `frontier` committed ones and the tree to score, and the tree: first the chain, then
    /// the siblings.
    pub(crate) fn request(&self, frontier: usize) -> (&[TokenId], TokenTree) {
        let first = self.first_row - self.skipped;
        let (ahead, tokens) = self.path(frontier).split_at(first - frontier);
        let mut tree = TokenTree::chain(tokens);
        for &(position, token) in &self.siblings {
            tree.push((position - first).checked_sub(1), token);
        }
        (ahead, tree)
    }

    /// Returns the task to submit again if it has failed, when there are `frontier` committed tokens.
    pub(crate) fn again(&self, frontier: usize) -> Self {
        let Self { first_row, committed, while_drafting, .. } = *self;
        let open = self.siblings.iter().filter(|&&(position, _)| position >= frontier);
        Self::new(
            first_row,
            committed,
            self.tokens.clone(),
            open.copied().collect(),
            while_drafting,
        )
    }

    /// Returns the task with its output, without the rows before the first one along the chain.
    pub(crate) fn with_output(self, output: Scores) -> (Self, Scores) {
        let scores = output.skip_rows(self.skipped);
        (Self { skipped: 0, ..self }, scores)
    }

    /// Returns the task after its rows have accepted `further` more tokens.
    pub(crate) fn after_accepting(self, further: usize) -> Self {
        Self { accepted: self.accepted + further, ..self }
    }

    /// Returns what is left of the task without the rows before `first_row`.
    pub(crate) fn starting_with(self, first_row: usize) -> Self {
        // The rows after siblings of committed tokens stay in the output, so those siblings stay in the list.
        Self { first_row, ..self }
    }

    /// Returns what is left of the task if `sibling` was committed: the row after it. `None` if that row is not scored.
    pub(crate) fn after_sibling(&self, sibling: Sibling) -> Option<Self> {
        let index = self.siblings.iter().position(|other| *other == sibling)?;
        let (position, token) = sibling;
        let before = &self.tokens[..position - self.committed];
        Some(Self {
            first_row: position + 1,
            tokens: [before, &[token]].concat(),
            siblings: Vec::new(),
            skipped: self.skipped + self.rows() + index,
            ..*self
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::Distribution;

    /// Returns the scores of a tree whose rows name the nodes that they follow.
    fn scores(task: &ScoreTask) -> Scores {
        let rows = (0..task.scored_rows()).map(|row| Distribution::point(row as TokenId));
        Scores { rows: rows.collect(), ..Scores::default() }
    }

    fn rows(scores: &Scores) -> Vec<TokenId> {
        scores.rows.iter().filter_map(Distribution::as_point).collect()
    }

    /// Ten tokens are committed. Rows 12 to 14 follow the tokens 21, 22 and 23, which is at position 13.
    fn task() -> ScoreTask {
        let siblings = vec![(11, 31), (12, 32), (12, 42), (13, 33)];
        ScoreTask::new(12, 10, vec![20, 21, 22, 23], siblings, true)
    }

    #[test]
    fn siblings_are_next_to_the_chain() {
        let task = task();
        assert_eq!((task.rows(), task.nodes(), task.scored_rows()), (3, 7, 8));
        let (ahead, tree) = task.request(10);
        assert_eq!((ahead, tree.tokens()), (&[20][..], &[21, 22, 23, 31, 32, 42, 33][..]));
        let parents: Vec<_> = (0..tree.len()).map(|node| tree.parent(node)).collect();
        assert_eq!(parents, [None, Some(0), Some(1), None, Some(0), Some(0), Some(1)]);
        assert_eq!(task.request(11).0, &[] as &[TokenId]);
        assert_eq!(task.path(12), [22, 23]);
        // The first row of the output follows 20 again.
        let (task, scores) = task.clone().with_output(scores(&task));
        assert_eq!(rows(&scores)[..task.rows()], [1, 2, 3]);
    }

    #[test]
    fn jobs_with_siblings_are_limited() {
        for n_siblings in 0..=16 {
            let scored_rows = |count: usize| {
                // The first ones are those of the token before the first row.
                let siblings = (11..11 + count)
                    .flat_map(|position| (0..n_siblings).map(move |token| (position, token)));
                let tokens = vec![20; count + 1];
                ScoreTask::new(12, 10, tokens, siblings.collect(), true).scored_rows()
            };
            let count = rows_along_chain(64, n_siblings as usize);
            assert!(scored_rows(count) <= 64 && scored_rows(count + 1) > 64, "{n_siblings}");
        }
    }

    #[test]
    fn the_row_after_a_sibling_is_found_in_both_outputs() {
        let task = task();
        for (sibling, tokens, row) in [
            ((11, 31), vec![20, 31], 4),
            ((12, 42), vec![20, 21, 42], 6),
            ((13, 33), vec![20, 21, 22, 33], 7),
        ] {
            // The job is in flight, or its output is there.
            let left = task.after_sibling(sibling).unwrap();
            assert_eq!(
                (left.rows(), left.first_row, left.path(10)),
                (1, sibling.0 + 1, &tokens[..])
            );
            assert_eq!(left.nodes(), task.nodes());
            let (left, last) = left.with_output(scores(&task));
            assert_eq!((rows(&last)[0], left.rows()), (row, 1));
            let (arrived, output) = task.clone().with_output(scores(&task));
            let (left, last) = arrived.after_sibling(sibling).unwrap().with_output(output);
            assert_eq!((rows(&last)[0], left.rows()), (row, 1));
        }
        assert_eq!(task.after_sibling((12, 31)), None);
        assert_eq!(task.after_sibling((14, 33)), None);
    }

    #[test]
    fn what_is_left_of_a_task_has_the_rows_after_its_siblings() {
        let (task, output) = task().with_output(scores(&task()));
        let (left, output) = (task.starting_with(13), output.skip_rows(1));
        assert_eq!((left.rows(), &rows(&output)[..2]), (2, &[2, 3][..]));
        let (left, last) = left.after_sibling((13, 33)).unwrap().with_output(output);
        assert_eq!((rows(&last)[0], left.rows(), left.first_row), (7, 1, 14));
        assert_eq!(left.path(10), [20, 21, 22, 33]);
    }

    #[test]
    fn a_failed_task_is_submitted_again_without_siblings_of_committed_tokens() {
        let again = task().again(12);
        let (ahead, tree) = again.request(12);
        assert_eq!((ahead, tree.tokens()), (&[] as &[TokenId], &[22, 23, 32, 42, 33][..]));
        assert_eq!((again.rows(), again.nodes()), (3, 5));
        let again = task().after_sibling((12, 42)).unwrap().again(13);
        assert_eq!((again.rows(), again.nodes()), (1, 0));
        assert!(again.request(13).1.is_empty());
    }
}
