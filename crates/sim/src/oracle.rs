//! A target and drafters whose text and acceptance are given.

use forerun_core::{
    Distribution, Draft, DraftShape, Job, JobOutput, Key, KeyedRandomness, Proposal, Purpose,
    Scores, TokenId, TokenTree,
};
use serde::{Deserialize, Serialize};

/// Tokens that there are: few, so that rows of them cost threads no time.
pub(crate) const VOCABULARY: usize = 256;

/// When a drafter proposes the target's token behind a true prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptanceModel {
    /// At every position with the same probability, independently.
    Iid(f64),
    /// With a probability that depends on the place in the draft; the last one goes on.
    ByPlace(Vec<f64>),
    /// As was recorded at every position behind the prompt; beyond the record, never.
    Recorded(Vec<bool>),
}

/// What models would answer. The text is a function of the seed; the target is greedy and always right,
/// and a drafter is right as [`AcceptanceModel`] says. Both are functions of the tokens before, as models are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oracle {
    /// Chooses the text and where drafters err.
    pub seed: u64,
    /// Where drafters are right; the drafter of that index, or the last one.
    pub drafters: Vec<AcceptanceModel>,
}

impl Oracle {
    fn uniform(&self, position: usize, purpose: Purpose, candidate: TokenId) -> f64 {
        let randomness = KeyedRandomness { seed: self.seed, sample: 0 };
        randomness.uniform(Key { position, purpose, candidate })
    }

    /// The text's token at a position.
    #[must_use]
    pub fn token(&self, position: usize) -> TokenId {
        (self.uniform(position, Purpose::Sample, 0) * VOCABULARY as f64) as TokenId
    }

    /// The first tokens of the text.
    #[must_use]
    pub fn text(&self, tokens: usize) -> Vec<TokenId> {
        (0..tokens).map(|position| self.token(position)).collect()
    }

    fn is_right(&self, drafter: usize, position: usize, place: usize, prompt_len: usize) -> bool {
        let last = self.drafters.len().saturating_sub(1);
        let uniform = || self.uniform(position, Purpose::Draft, drafter as TokenId);
        match self.drafters.get(drafter.min(last)) {
            None => false,
            Some(AcceptanceModel::Iid(probability)) => uniform() < *probability,
            Some(AcceptanceModel::ByPlace(probabilities)) => {
                let own = probabilities.get(place).or(probabilities.last());
                own.is_some_and(|&probability| uniform() < probability)
            }
            Some(AcceptanceModel::Recorded(record)) => {
                record.get(position.wrapping_sub(prompt_len)).copied().unwrap_or(false)
            }
        }
    }
}

/// An oracle at work: it remembers the text as far as it was asked for.
pub(crate) struct Player {
    oracle: Oracle,
    text: Vec<TokenId>,
}

impl Player {
    pub(crate) fn new(oracle: Oracle) -> Self {
        Self { oracle, text: Vec::new() }
    }

    /// The answer of a drafter (of that index) or the target; `None` for a draft that is no chain.
    pub(crate) fn answer(&mut self, drafter: usize, job: &Job) -> Option<JobOutput> {
        match job {
            Job::Draft { tokens, prompt_len, shape, .. } => {
                let DraftShape::Chain { length } = *shape else { return None };
                let chain = self.draft(drafter, tokens, *prompt_len, length);
                let tree = TokenTree::chain(&chain);
                Some(JobOutput::Draft(Draft { tree, proposal: Proposal::Deterministic }))
            }
            Job::Score { tokens, tree, .. } => {
                let rows = self.rows(tokens, tree).into_iter().map(Distribution::point).collect();
                Some(JobOutput::Score(Scores { rows, ..Scores::default() }))
            }
        }
    }

    /// The chain that a drafter proposes behind `tokens`.
    pub(crate) fn draft(
        &mut self,
        drafter: usize,
        tokens: &[TokenId],
        prompt_len: usize,
        length: usize,
    ) -> Vec<TokenId> {
        let mut is_true = self.knows(tokens, length);
        let next = |(place, position): (usize, usize)| {
            is_true = is_true && self.oracle.is_right(drafter, position, place, prompt_len);
            if is_true { self.text[position] } else { wrong(self.text[position], drafter) }
        };
        (tokens.len()..).take(length).enumerate().map(next).collect()
    }

    /// The target's token behind `tokens` and behind each node of `tree`.
    pub(crate) fn rows(&mut self, tokens: &[TokenId], tree: &TokenTree) -> Vec<TokenId> {
        // Whether what leads to a row is the text; row 0 is the prefix.
        let mut is_true = Vec::with_capacity(tree.len() + 1);
        is_true.push(self.knows(tokens, tree.max_depth() + 1));
        for node in 0..tree.len() {
            let parent = tree.parent(node).map_or(0, |parent| parent + 1);
            let position = tokens.len() + tree.depth(node) - 1;
            is_true.push(is_true[parent] && tree.token(node) == self.text[position]);
        }
        let row = |(row, is_true): (usize, bool)| {
            let depth = row.checked_sub(1).map_or(0, |node| tree.depth(node));
            let token = self.text[tokens.len() + depth];
            if is_true { token } else { wrong(token, 0) }
        };
        is_true.into_iter().enumerate().map(row).collect()
    }

    /// Learns the text up to `more` positions behind `tokens`, and tells whether these are it.
    fn knows(&mut self, tokens: &[TokenId], more: usize) -> bool {
        let missing = self.text.len()..tokens.len() + more;
        self.text.extend(missing.map(|position| self.oracle.token(position)));
        self.text.starts_with(tokens)
    }
}

/// Another token than that of the text, and than other drafters' wrong ones.
fn wrong(token: TokenId, drafter: usize) -> TokenId {
    let step = 1 + drafter % (VOCABULARY - 1);
    (token + step as TokenId) % VOCABULARY as TokenId
}
