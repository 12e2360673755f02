//! A target and drafters whose text and acceptance are given.

use forerun_core::{
    Distribution, Draft, DraftShape, Job, JobOutput, Key, KeyedRandomness, Proposal, Purpose,
    Scores, TokenId, TokenTree,
};
use serde::{Deserialize, Serialize};

/// Tokens that there are.
const VOCABULARY: u64 = 32_000;

/// When a drafter proposes the target's token behind a true prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceptance {
    /// At every position with the same probability, independently.
    Iid(f64),
    /// With a probability that depends on the place in the draft; the last one goes on.
    ByPlace(Vec<f64>),
    /// As was recorded at every position behind the prompt; beyond the record, never.
    Recorded(Vec<bool>),
}

/// What models would answer. The text is a function of the seed; the target is greedy and always right,
/// and a drafter is right as [`Acceptance`] says. Both are functions of the tokens before, as models are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oracle {
    /// Chooses the text and where drafters err.
    pub seed: u64,
    /// Where drafters are right; the drafter of that index, or the last one.
    pub drafters: Vec<Acceptance>,
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

    /// A token that the text does not have at a position.
    fn wrong(&self, position: usize) -> TokenId {
        (self.token(position) + 1) % VOCABULARY as TokenId
    }

    fn is_right(&self, drafter: usize, position: usize, place: usize, prompt_len: usize) -> bool {
        let last = self.drafters.len().saturating_sub(1);
        let uniform = || self.uniform(position, Purpose::Draft, drafter as TokenId);
        match self.drafters.get(drafter.min(last)) {
            None => false,
            Some(Acceptance::Iid(probability)) => uniform() < *probability,
            Some(Acceptance::ByPlace(probabilities)) => {
                let own = probabilities.get(place).or(probabilities.last());
                own.is_some_and(|&probability| uniform() < probability)
            }
            Some(Acceptance::Recorded(record)) => {
                record.get(position - prompt_len).copied().unwrap_or(false)
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
        let (Job::Draft { tokens, .. } | Job::Score { tokens, .. }) = job;
        let known = self.text.len();
        self.text.extend((known..tokens.len()).map(|position| self.oracle.token(position)));
        let is_text = self.text[..tokens.len()] == **tokens;
        let oracle = &self.oracle;
        match job {
            Job::Draft { tokens, prompt_len, shape, .. } => {
                let DraftShape::Chain { length } = *shape else { return None };
                let mut is_true = is_text;
                let mut chain = Vec::with_capacity(length);
                for (place, position) in (tokens.len()..).take(length).enumerate() {
                    is_true = is_true && oracle.is_right(drafter, position, place, *prompt_len);
                    let token =
                        if is_true { oracle.token(position) } else { oracle.wrong(position) };
                    chain.push(token);
                }
                let tree = TokenTree::chain(&chain);
                Some(JobOutput::Draft(Draft { tree, proposal: Proposal::Deterministic }))
            }
            Job::Score { tokens, tree, .. } => {
                // Whether what leads to a row is the text; row 0 is the prefix.
                let mut is_true = vec![is_text];
                for node in 0..tree.len() {
                    let parent = tree.parent(node).map_or(0, |parent| parent + 1);
                    let position = tokens.len() + tree.depth(node) - 1;
                    is_true.push(is_true[parent] && tree.token(node) == oracle.token(position));
                }
                let row = |(row, is_true): (usize, bool)| {
                    let depth = row.checked_sub(1).map_or(0, |node| tree.depth(node));
                    let position = tokens.len() + depth;
                    let token =
                        if is_true { oracle.token(position) } else { oracle.wrong(position) };
                    Distribution::point(token)
                };
                let rows = is_true.into_iter().enumerate().map(row).collect();
                Some(JobOutput::Score(Scores { rows, logprobs: None }))
            }
        }
    }
}
