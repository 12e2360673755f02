//! An oracle that stands in for the models: given text, given acceptance.

use forerun_core::{
    Distribution, Draft, DraftShape, Job, JobOutput, Key, KeyedRandomness, Purpose, ScoreJob,
    Scores, SequenceId, TokenId, TokenTree, node_of_row, row_of,
};
use forerun_decode::{TreeLimits, typical_tree};
use serde::{Deserialize, Serialize};

/// Size of the vocabulary. It is small, so that rows of logits cost threads almost no time.
pub(crate) const VOCABULARY: usize = 256;

/// When a drafter proposes the target's next token, given a prefix of the target's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptanceModel {
    /// With the same probability at every position, independently.
    Iid(f64),
    /// With a probability for each position in the draft. The last one applies to all further
    /// positions.
    ByPosition(Vec<f64>),
    /// As recorded for each position after the prompt; never after the end of the record.
    Recorded(Vec<bool>),
    /// As recorded for each position after the prompt: the length of the longest draft that begins
    /// there, and how many of its tokens are the target's. Drafts are empty after the end of the
    /// record.
    Drafts(Vec<(usize, usize)>),
    /// As recorded for each position after the prompt: what a draft holds that begins there.
    /// `None`: nothing is drafted, as after the end of the record. Otherwise, by depth, the rank of
    /// the target's token among the drafter's candidates after the target's own tokens, 0 for the
    /// best. It ends where the token is not among the candidates.
    Ranks(Vec<Option<Vec<usize>>>),
    /// With a probability that depends on the text and on the position in the draft.
    Varying {
        /// The probability at each position after the prompt. They repeat.
        text: Vec<f64>,
        /// Factors for each position in the draft. The last one applies to all further positions.
        depth: Vec<f64>,
        /// Of wrong drafts: the target's token is not among the drafter's `n` best with probability
        /// `n` to the minus this power.
        #[serde(default = "one")]
        rank_power: f64,
    },
}

fn one() -> f64 {
    1.0
}

impl AcceptanceModel {
    /// Returns all probabilities and factors, which must be from 0 to 1.
    pub(crate) fn probabilities(&self) -> impl Iterator<Item = &f64> {
        let (first, second): (&[f64], &[f64]) = match self {
            Self::Iid(probability) => (std::slice::from_ref(probability), &[]),
            Self::ByPosition(probabilities) => (probabilities, &[]),
            Self::Recorded(_) | Self::Drafts(_) | Self::Ranks(_) => (&[], &[]),
            Self::Varying { text, depth, .. } => (text, depth),
        };
        first.iter().chain(second)
    }
}

/// The tokens before a draft.
#[derive(Clone, Copy)]
pub(crate) struct Prefix<'a> {
    pub(crate) tokens: &'a [TokenId],
    /// The number of them that are the prompt.
    pub(crate) prompt_len: usize,
}

/// The outputs of simulated models.
///
/// The seed determines the text. The target decodes greedily and always continues the text. A
/// drafter proposes the target's token as often as its [`AcceptanceModel`] says. Like real models,
/// both are functions of the preceding tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oracle {
    /// The seed of the text and of the drafters' errors.
    pub seed: u64,
    /// The acceptance of each drafter. The last entry applies to all further drafters.
    pub drafters: Vec<AcceptanceModel>,
}

impl Oracle {
    /// Returns the oracle of one of several sequences, or of a branch. Sequence 0 has the oracle
    /// itself; every other one has a text and errors of its own, and begins elsewhere in a text of
    /// varying acceptance.
    #[must_use]
    pub fn of_sequence(&self, sequence: SequenceId) -> Self {
        let number = sequence.base().0;
        let mut drafters = self.drafters.clone();
        for drafter in drafters.iter_mut().filter(|_| number > 0) {
            if let AcceptanceModel::Varying { text, .. } = drafter {
                let key = Key { position: text.len(), purpose: Purpose::Sample, candidate: 0 };
                let place = KeyedRandomness { seed: number, sample: 0 }.uniform(key);
                let first = (place * text.len() as f64) as usize;
                text.rotate_left(first);
            }
        }
        Self { seed: self.seed.wrapping_add(number), drafters }
    }

    fn uniform(&self, position: usize, purpose: Purpose, candidate: TokenId) -> f64 {
        let randomness = KeyedRandomness { seed: self.seed, sample: 0 };
        randomness.uniform(Key { position, purpose, candidate })
    }

    /// Returns the token of the text at a position.
    #[must_use]
    pub fn token(&self, position: usize) -> TokenId {
        (self.uniform(position, Purpose::Sample, 0) * VOCABULARY as f64) as TokenId
    }

    /// Returns the first `tokens` tokens of the text.
    #[must_use]
    pub fn text(&self, tokens: usize) -> Vec<TokenId> {
        (0..tokens).map(|position| self.token(position)).collect()
    }

    /// Returns the rank of the target's token among the tokens of a drafter that is wrong at this
    /// position. It is above `n` with a probability of `1/n`: the power law that SSD measures
    /// (arXiv 2603.03251), with exponent 1 unless the acceptance has another one.
    fn rank(&self, drafter: usize, position: usize) -> usize {
        let uniform = self.uniform(position, Purpose::Accept, drafter as TokenId);
        let power = match self.acceptance(drafter) {
            Some(AcceptanceModel::Varying { rank_power, .. }) => *rank_power,
            _ => 1.0,
        };
        1 + uniform.max(1e-6).powf(-1.0 / power) as usize
    }

    fn acceptance(&self, drafter: usize) -> Option<&AcceptanceModel> {
        self.drafters.get(drafter).or(self.drafters.last())
    }

    /// Whether a drafter proposes the target's token at a position of the text, which is number
    /// `depth` (from 0) of its draft.
    fn is_right(&self, drafter: usize, position: usize, depth: usize, prompt_len: usize) -> bool {
        let uniform = || self.uniform(position, Purpose::Draft, drafter as TokenId);
        match self.acceptance(drafter) {
            None => false,
            Some(AcceptanceModel::Iid(probability)) => uniform() < *probability,
            Some(AcceptanceModel::ByPosition(probabilities)) => {
                let probability = probabilities.get(depth).or(probabilities.last());
                probability.is_some_and(|&probability| uniform() < probability)
            }
            Some(AcceptanceModel::Recorded(record)) => {
                record.get(position.wrapping_sub(prompt_len)).copied().unwrap_or(false)
            }
            Some(AcceptanceModel::Drafts(record)) => {
                let start = (position - depth).wrapping_sub(prompt_len);
                record.get(start).is_some_and(|&(_, accepted)| depth < accepted)
            }
            Some(AcceptanceModel::Ranks(_)) => {
                self.rank_in_draft(drafter, position, depth, prompt_len) == Some(0)
            }
            Some(AcceptanceModel::Varying { text, depth: factors, .. }) => {
                let place = position.wrapping_sub(prompt_len).checked_rem(text.len()).unwrap_or(0);
                let factor = factors.get(depth).or(factors.last()).copied().unwrap_or(1.0);
                text.get(place).is_some_and(|&probability| uniform() < probability * factor)
            }
        }
    }
}

impl Oracle {
    /// Returns the rank of the target's token at a position of the text, which is number `depth`
    /// (from 0) of a draft after the target's own tokens. `None`: it is not among the drafter's
    /// candidates.
    fn rank_in_draft(
        &self,
        drafter: usize,
        position: usize,
        depth: usize,
        prompt_len: usize,
    ) -> Option<usize> {
        match self.acceptance(drafter) {
            Some(AcceptanceModel::Ranks(record)) => {
                let draft = record.get((position - depth).wrapping_sub(prompt_len))?.as_ref()?;
                draft.get(depth).copied()
            }
            _ if self.is_right(drafter, position, depth, prompt_len) => Some(0),
            _ => Some(self.rank(drafter, position) - 1),
        }
    }

    /// Returns the length of the draft that a drafter proposes after a prefix, at most `length`.
    fn draft_length(&self, drafter: usize, prefix: Prefix<'_>, length: usize) -> usize {
        let place = prefix.tokens.len().wrapping_sub(prefix.prompt_len);
        match self.acceptance(drafter) {
            Some(AcceptanceModel::Drafts(record)) => {
                record.get(place).map_or(0, |&(longest, _)| longest.min(length))
            }
            Some(AcceptanceModel::Ranks(record)) => {
                if record.get(place).is_some_and(Option::is_some) { length } else { 0 }
            }
            _ => length,
        }
    }
}

/// An oracle that caches the text it has generated so far.
pub(crate) struct CachedOracle {
    oracle: Oracle,
    text: Vec<TokenId>,
}

impl CachedOracle {
    pub(crate) fn new(oracle: Oracle) -> Self {
        Self { oracle, text: Vec::new() }
    }

    /// Returns the output of a job, or `None` if the job requests a draft that is neither a chain,
    /// nor a single depth, nor a tree of ranked candidates. `drafter` is the index of the drafter
    /// and is ignored for the target.
    pub(crate) fn answer(&mut self, drafter: usize, job: &Job) -> Option<JobOutput> {
        match job {
            Job::Draft { tokens, prompt_len, shape, .. } => {
                let prefix = Prefix { tokens, prompt_len: *prompt_len };
                let tree = match *shape {
                    DraftShape::Chain { length } | DraftShape::ConfidentChain { length, .. } => {
                        TokenTree::chain(&self.draft(drafter, prefix, length))
                    }
                    DraftShape::Top { width, depth: 1, .. } => {
                        let mut tree = TokenTree::new();
                        for token in self.best(drafter, prefix, width) {
                            tree.push(None, token);
                        }
                        tree
                    }
                    DraftShape::Ranked { ref children } => {
                        self.ranked_tree(drafter, prefix, children)
                    }
                    // A simulated drafter has no probabilities, so these are typical ranks.
                    DraftShape::Top { depth, budget: Some(nodes), .. } => {
                        let shape = typical_tree(TreeLimits { depth, nodes });
                        let DraftShape::Ranked { children } = shape else { return None };
                        self.ranked_tree(drafter, prefix, &children)
                    }
                    _ => return None,
                };
                Some(JobOutput::Draft(Draft::deterministic(tree)))
            }
            Job::Score(ScoreJob { tokens, tree, .. }) => {
                let rows = self.rows(tokens, tree).into_iter().map(Distribution::point).collect();
                Some(JobOutput::Score(Scores { rows, ..Scores::default() }))
            }
        }
    }

    /// Returns the chain of up to `length` tokens that a drafter proposes after a prefix.
    pub(crate) fn draft(
        &mut self,
        drafter: usize,
        prefix: Prefix<'_>,
        length: usize,
    ) -> Vec<TokenId> {
        let Prefix { tokens, prompt_len } = prefix;
        let length = self.oracle.draft_length(drafter, prefix, length);
        let mut is_text = self.is_text(tokens, length);
        let next = |(depth, position): (usize, usize)| {
            is_text = is_text && self.oracle.is_right(drafter, position, depth, prompt_len);
            if is_text { self.text[position] } else { wrong(self.text[position], drafter) }
        };
        (tokens.len()..).take(length).enumerate().map(next).collect()
    }

    /// Returns the `count` best tokens of a drafter after its best one at a position. `is_text`:
    /// whether the tokens before it are the text.
    fn others(
        &self,
        drafter: usize,
        position: usize,
        best: TokenId,
        count: usize,
        is_text: bool,
    ) -> Vec<TokenId> {
        let (right, rank) = (self.text[position], self.oracle.rank(drafter, position));
        let is_ranked = best != right && is_text;
        // All other tokens are wrong.
        let wrong = (0..VOCABULARY as TokenId).map(|step| (right + step) % VOCABULARY as TokenId);
        let mut wrong = wrong.filter(|token| *token != right && *token != best);
        let is_right = |place: usize| is_ranked && place + 1 == rank;
        let token = |place| if is_right(place) { Some(right) } else { wrong.next() };
        (1..=count).map_while(token).collect()
    }

    /// Returns the `width` best tokens of a drafter after a prefix, best first.
    fn best(&mut self, drafter: usize, prefix: Prefix<'_>, width: usize) -> Vec<TokenId> {
        let tokens = prefix.tokens;
        let mut best = self.draft(drafter, prefix, 1);
        if best.is_empty() {
            return best;
        }
        let is_text = self.is_text(tokens, 1);
        let others = self.others(drafter, tokens.len(), best[0], width.saturating_sub(1), is_text);
        best.extend(others);
        best
    }

    /// Returns the candidates of a drafter after a prefix: for each row of the tree, its number of
    /// best ones.
    fn ranked_tree(&mut self, drafter: usize, prefix: Prefix<'_>, children: &[usize]) -> TokenTree {
        let Prefix { tokens, prompt_len } = prefix;
        let mut tree = TokenTree::new();
        if self.oracle.draft_length(drafter, prefix, 1) == 0 {
            return tree;
        }
        // Whether the path to each row is the text, as far as it is known.
        let mut is_text = vec![self.is_text(tokens, children.len() + 1)];
        for (row, &count) in children.iter().enumerate() {
            let Some(&is_text_here) = is_text.get(row) else { break };
            let parent = node_of_row(row);
            let depth = parent.map_or(0, |node| tree.depth(node));
            let position = tokens.len() + depth;
            let right = self.text[position];
            let rank = self.oracle.rank_in_draft(drafter, position, depth, prompt_len);
            for candidate in 0..count {
                let is_right = is_text_here && Some(candidate) == rank;
                tree.push(parent, if is_right { right } else { wrong(right, drafter + candidate) });
                is_text.push(is_right);
            }
        }
        tree
    }

    /// Returns the target's next token after `tokens` and after each node of `tree`.
    pub(crate) fn rows(&mut self, tokens: &[TokenId], tree: &TokenTree) -> Vec<TokenId> {
        // Whether the path to each row is the text. Row 0 is the prefix.
        let mut is_text = Vec::with_capacity(tree.len() + 1);
        is_text.push(self.is_text(tokens, tree.max_depth() + 1));
        for node in 0..tree.len() {
            let parent = row_of(tree.parent(node));
            let position = tokens.len() + tree.depth(node) - 1;
            is_text.push(is_text[parent] && tree.token(node) == self.text[position]);
        }
        let row = |(row, is_text): (usize, bool)| {
            let depth = node_of_row(row).map_or(0, |node| tree.depth(node));
            let token = self.text[tokens.len() + depth];
            if is_text { token } else { wrong(token, 0) }
        };
        is_text.into_iter().enumerate().map(row).collect()
    }

    /// Returns whether `tokens` is a prefix of the text. Generates the text up to `more` positions
    /// after `tokens` first.
    fn is_text(&mut self, tokens: &[TokenId], more: usize) -> bool {
        let missing = self.text.len()..tokens.len() + more;
        self.text.extend(missing.map(|position| self.oracle.token(position)));
        self.text.starts_with(tokens)
    }
}

/// Returns a token that differs from the text's token and from the wrong tokens of other drafters.
fn wrong(token: TokenId, drafter: usize) -> TokenId {
    let step = 1 + drafter % (VOCABULARY - 1);
    (token + step as TokenId) % VOCABULARY as TokenId
}
