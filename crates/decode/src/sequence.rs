//! One sequence: its tokens, its limits, and the only place where tokens are committed.

use crate::Statistics;
use forerun_core::{
    Draft, Features, Randomness, Sampling, Scores, SequenceId, TargetFeedback, TokenId,
    TokenLogprob, Verdict, VerifiedDraft,
};
use std::sync::Arc;

/// Where a sequence must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens to generate at the most.
    pub max_tokens: usize,
    /// Tokens of prompt and answer together at the most.
    pub context_length: usize,
    /// Tokens that end the answer; they are committed, and nothing after them is.
    pub eos: Vec<TokenId>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token.
    Eos,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    Context,
    /// The caller said so: a stop string, or an interrupt.
    Stopped,
}

/// What one verification came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerificationRecord {
    /// Tokens that were committed: those of a draft, then the target's own, if it had one.
    pub committed: usize,
    /// How many of them, the first ones, are a draft's.
    pub accepted: usize,
    /// Candidates for the place behind the accepted ones, in their order, all of them rejected.
    pub rejected: Vec<TokenId>,
}

/// Tokens that are certain, and what is needed to add more.
pub struct Sequence {
    id: SequenceId,
    tokens: Vec<TokenId>,
    prompt_len: usize,
    limits: Limits,
    sampling: Sampling,
    randomness: Arc<dyn Randomness + Send + Sync>,
    /// Whether log-probabilities are wanted, and how many of the best in each place.
    logprobs_wanted: Option<usize>,
    logprobs: Vec<TokenLogprob>,
    /// The target's features of the committed tokens but the last, where they are wanted: the last one
    /// was the target's own, which it has not read yet.
    features: Option<Features>,
    /// What the target made of the last draft, where that is wanted.
    last_draft: Option<Arc<VerifiedDraft>>,
    finish: Option<Finish>,
    statistics: Statistics,
    verifications: Vec<VerificationRecord>,
}

impl Sequence {
    /// A sequence that starts with `prompt`, which must hold a token. Draws come from `sampling`'s
    /// key.
    #[must_use]
    pub fn new(id: SequenceId, prompt: Vec<TokenId>, sampling: Sampling, limits: Limits) -> Self {
        let randomness = Arc::new(sampling.randomness);
        Self::with_randomness(id, prompt, sampling, limits, randomness)
    }

    /// The same with another source of verification's draws, as enumeration needs.
    #[must_use]
    pub fn with_randomness(
        id: SequenceId,
        prompt: Vec<TokenId>,
        sampling: Sampling,
        limits: Limits,
        randomness: Arc<dyn Randomness + Send + Sync>,
    ) -> Self {
        let mut sequence = Self {
            id,
            prompt_len: prompt.len(),
            tokens: prompt,
            limits,
            sampling,
            randomness,
            logprobs_wanted: None,
            logprobs: Vec::new(),
            features: None,
            last_draft: None,
            finish: None,
            statistics: Statistics::default(),
            verifications: Vec::new(),
        };
        sequence.finish = sequence.limit_reached();
        sequence
    }

    /// The same sequence, which will tell the log-probability of every token and of as many of the
    /// most probable ones in its place.
    #[must_use]
    pub fn with_logprobs(mut self, top: usize) -> Self {
        self.logprobs_wanted = Some(top);
        self
    }

    /// The same sequence, which will collect the target's features for its drafter. The decoder must
    /// verify every draft before the next one.
    #[must_use]
    pub fn with_features(mut self) -> Self {
        self.features = Some(Features::new());
        self
    }

    /// The same sequence, which will tell its drafter what the target made of each draft. The decoder
    /// must verify every draft before the next one.
    #[must_use]
    pub fn with_draft_feedback(mut self) -> Self {
        self.last_draft = Some(Arc::default());
        self
    }

    /// The name under which workers keep caches.
    #[must_use]
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// Prompt and committed tokens.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The committed tokens behind the prompt.
    #[must_use]
    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// Number of the prompt's tokens.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Whether log-probabilities are wanted, and how many of the best in each place.
    #[must_use]
    pub fn logprobs_wanted(&self) -> Option<usize> {
        self.logprobs_wanted
    }

    /// Log-probabilities of the committed tokens behind the prompt, if they are wanted.
    #[must_use]
    pub fn logprobs(&self) -> Option<&[TokenLogprob]> {
        self.logprobs_wanted.map(|_| &self.logprobs[..])
    }

    /// The target's features of the first tokens, if they are wanted.
    #[must_use]
    pub fn features(&self) -> Option<&Features> {
        self.features.as_ref()
    }

    /// What a draft job brings of the target's: what was asked for.
    #[must_use]
    pub(crate) fn feedback(&self) -> TargetFeedback {
        let features = self.features.clone().unwrap_or_default();
        TargetFeedback { features, last_draft: self.last_draft.clone() }
    }

    /// The sampling options.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Where verification's draws come from.
    #[must_use]
    pub fn randomness(&self) -> &dyn Randomness {
        &*self.randomness
    }

    /// Why the sequence ended, once it has.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Counters of this sequence.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// What each verification came to; their committed tokens are those behind the prompt.
    #[must_use]
    pub fn verifications(&self) -> &[VerificationRecord] {
        &self.verifications
    }

    /// Counters, for decoders to add their times to.
    pub(crate) fn statistics_mut(&mut self) -> &mut Statistics {
        &mut self.statistics
    }

    /// Tokens that may still be committed.
    #[must_use]
    pub fn remaining(&self) -> usize {
        let to_max = self.limits.max_tokens.saturating_sub(self.generated().len());
        to_max.min(self.limits.context_length.saturating_sub(self.tokens.len()))
    }

    /// Ends the sequence by the caller's wish.
    pub fn stop(&mut self) {
        self.finish.get_or_insert(Finish::Stopped);
    }

    /// Commits what a verdict on `scores` accepted and the target's own token behind it, if it has one,
    /// up to the end of the sequence, and counts it. Returns how many of the draft's tokens were committed.
    pub fn commit(&mut self, draft: &Draft, verdict: &Verdict, scores: &Scores) -> usize {
        let before = self.tokens.len();
        let accepted = verdict.accepted.iter().map(|&node| draft.tree.token(node));
        // Each token comes from the row behind the one before it.
        let rows = [None].into_iter().chain(verdict.accepted.iter().copied().map(Some));
        let mut committed = 0;
        for (token, at) in accepted.chain(verdict.token).zip(rows) {
            if self.finish.is_some() {
                break;
            }
            self.tokens.push(token);
            self.logprobs.extend(scores.logprob(at, token));
            committed += 1;
            self.finish = if self.limits.eos.contains(&token) {
                Some(Finish::Eos)
            } else {
                self.limit_reached()
            };
        }
        let accepted = committed.min(verdict.accepted.len());
        if let (Some(features), Some(rows)) = (&mut self.features, &scores.features) {
            // They came for the tokens that had none, then for the nodes.
            let tokens = before.saturating_sub(features.len());
            let path = verdict.accepted[..accepted].iter().map(|&node| tokens + node);
            features.push(rows.gather((0..tokens).chain(path)));
        }
        if let Some(last_draft) = &mut self.last_draft {
            *last_draft = Arc::new(VerifiedDraft::new(&draft.tree, scores));
        }
        // A rejection that stands behind the end of the sequence was none.
        let rejected = verdict.rejected && committed > accepted;
        self.statistics.count_round(draft.tree.len(), accepted, rejected, committed);
        let last = verdict.accepted[..accepted].last().copied();
        let tested = draft.tree.children(last).filter(|_| rejected);
        let rejected = tested.map(|node| draft.tree.token(node)).collect();
        self.verifications.push(VerificationRecord { committed, accepted, rejected });
        accepted
    }

    fn limit_reached(&self) -> Option<Finish> {
        if self.generated().len() >= self.limits.max_tokens {
            Some(Finish::MaxTokens)
        } else if self.tokens.len() >= self.limits.context_length {
            Some(Finish::Context)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::{FeatureRows, Node, Proposal, TokenTree};

    const EOS: TokenId = 9;

    fn sequence(max_tokens: usize) -> Sequence {
        let limits = Limits { max_tokens, context_length: 8, eos: vec![EOS] };
        Sequence::new(SequenceId(0), vec![1, 2], Sampling::greedy(), limits)
    }

    fn commit(sequence: &mut Sequence, accepted: &[TokenId], token: TokenId) -> usize {
        let draft = Draft { tree: TokenTree::chain(accepted), proposal: Proposal::Deterministic };
        let accepted = (0..accepted.len()).collect();
        let verdict = Verdict { accepted, token: Some(token), rejected: false };
        sequence.commit(&draft, &verdict, &Scores::default())
    }

    #[test]
    fn the_end_may_fall_on_any_token_and_nothing_follows_it() {
        // Everything that a round of two accepted tokens and a bonus can run into.
        /// max_tokens, the round's tokens, what is committed, why it ends, accepted draft tokens.
        type Case = (usize, [TokenId; 3], &'static [TokenId], Option<Finish>, usize);
        let table: &[Case] = &[
            (9, [3, 4, 5], &[3, 4, 5], None, 2),
            (9, [EOS, 4, 5], &[EOS], Some(Finish::Eos), 1),
            (9, [3, EOS, 5], &[3, EOS], Some(Finish::Eos), 2),
            (9, [3, 4, EOS], &[3, 4, EOS], Some(Finish::Eos), 2),
            (1, [3, 4, 5], &[3], Some(Finish::MaxTokens), 1),
            (2, [3, 4, 5], &[3, 4], Some(Finish::MaxTokens), 2),
            (3, [3, 4, 5], &[3, 4, 5], Some(Finish::MaxTokens), 2),
            (2, [3, EOS, 5], &[3, EOS], Some(Finish::Eos), 2),
        ];
        for &(max_tokens, [a, b, c], generated, finish, accepted) in table {
            let mut sequence = sequence(max_tokens);
            assert_eq!(commit(&mut sequence, &[a, b], c), accepted);
            assert_eq!(sequence.generated(), generated);
            assert_eq!(sequence.finish(), finish);
            assert_eq!(sequence.statistics().committed, generated.len() as u64);
        }
    }

    /// Features come for all that was not known, and stay for what was committed and read.
    #[test]
    fn features_are_those_of_the_committed_tokens_but_the_last() {
        let mut sequence = sequence(100).with_features();
        let mut round = |nodes: usize, accepted: Vec<Node>| {
            let (known, tokens) = (sequence.features().map_or(0, Features::len), &sequence.tokens);
            let mut tree = TokenTree::new();
            for node in 0..nodes {
                tree.push(None, 3 + node as TokenId);
            }
            let draft = Draft { tree, proposal: Proposal::Deterministic };
            let all = tokens[known..].iter().chain(draft.tree.tokens());
            let features = FeatureRows::new(1, all.map(|&token| token as f32).collect());
            let scores = Scores { features: Some(features), ..Scores::default() };
            let verdict = Verdict { accepted, token: Some(7), rejected: false };
            sequence.commit(&draft, &verdict, &scores);
            let features = sequence.features().into_iter().flat_map(|all| all.rows_from(0));
            let features: Vec<TokenId> = features.map(|row| row[0] as TokenId).collect();
            assert_eq!(features, sequence.tokens[..sequence.tokens.len() - 1]);
        };
        round(0, vec![]);
        round(3, vec![1]);
        round(2, vec![]);
        round(0, vec![]);
    }

    #[test]
    fn what_was_rejected_is_told_with_what_was_committed() {
        let mut sequence = sequence(5);
        let mut tree = TokenTree::chain(&[3, 4]);
        tree.push(Some(0), 5);
        tree.push(Some(0), 6);
        let draft = Draft { tree, proposal: Proposal::Deterministic };
        let mut commit = |accepted: &[Node], token, rejected| {
            let verdict = Verdict { accepted: accepted.to_vec(), token, rejected };
            sequence.commit(&draft, &verdict, &Scores::default());
            sequence.verifications().last().cloned()
        };
        let feedback = |committed, accepted, rejected: &[TokenId]| {
            Some(VerificationRecord { committed, accepted, rejected: rejected.to_vec() })
        };
        assert_eq!(commit(&[0], Some(7), true), feedback(2, 1, &[4, 5, 6]));
        assert_eq!(commit(&[0], None, false), feedback(1, 1, &[]));
        assert_eq!(commit(&[], Some(7), true), feedback(1, 0, &[3]));
        // The sequence ends with the accepted token: nothing behind it was tested.
        assert_eq!(commit(&[0], Some(7), true), feedback(1, 1, &[]));
        let committed: usize = sequence.verifications().iter().map(|own| own.committed).sum();
        assert_eq!(committed, sequence.generated().len());
    }

    #[test]
    fn the_context_ends_a_sequence() {
        let mut sequence = sequence(100);
        assert_eq!(sequence.remaining(), 6);
        commit(&mut sequence, &[3, 3, 3], 3);
        assert_eq!(sequence.remaining(), 2);
        commit(&mut sequence, &[3, 3, 3], 3);
        assert_eq!(sequence.generated().len(), 6);
        assert_eq!(sequence.finish(), Some(Finish::Context));
    }

    #[test]
    fn a_sequence_without_room_is_finished_from_the_start() {
        assert_eq!(sequence(0).finish(), Some(Finish::MaxTokens));
    }
}
