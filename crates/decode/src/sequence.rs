//! A sequence: its tokens and limits, and the only place where tokens are committed.

use crate::Statistics;
use forerun_core::{
    Distribution, Draft, Features, Randomness, Sampling, Scores, SequenceId, TargetFeedback,
    TokenId, TokenLogprob, Verdict, Verification, VerifiedDraft, verify, verify_block,
};
use std::sync::Arc;

/// The limits at which a sequence ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of tokens to generate.
    pub max_tokens: usize,
    /// The maximum number of tokens of prompt and answer together.
    pub context_length: usize,
    /// The tokens that end the answer. They are committed, and nothing after them is.
    pub eos: Vec<TokenId>,
}

/// The reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token was generated.
    Eos,
    /// The maximum number of tokens was generated.
    MaxTokens,
    /// The context is full.
    Context,
    /// The caller stopped the sequence, as after a stop string or an interrupt.
    Stopped,
}

/// The result of one verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerificationRecord {
    /// The number of committed tokens: those of the draft, then the target's own token, if any.
    pub committed: usize,
    /// The number of them that are draft tokens. These come first.
    pub accepted: usize,
    /// The rejected candidates for the position after the accepted tokens, in their order.
    pub rejected: Vec<TokenId>,
}

/// A sequence of verified tokens, with the options and limits for generating more.
pub struct Sequence {
    id: SequenceId,
    tokens: Vec<TokenId>,
    prompt_len: usize,
    limits: Limits,
    sampling: Sampling,
    randomness: Arc<dyn Randomness + Send + Sync>,
    /// The number of most probable tokens to report at each position with their log-probabilities;
    /// `None` if log-probabilities are not requested.
    requested_logprobs: Option<usize>,
    logprobs: Vec<TokenLogprob>,
    /// The target's features of all committed tokens but the last, if they are requested. The
    /// target has not read the last token yet.
    features: Option<Features>,
    /// The last draft with the target's tokens, if draft feedback is requested.
    last_draft: Option<Arc<VerifiedDraft>>,
    finish: Option<Finish>,
    statistics: Statistics,
    verifications: Vec<VerificationRecord>,
}

impl Sequence {
    /// Creates a sequence that starts with `prompt`, which must not be empty. Random numbers come
    /// from `sampling.randomness`.
    #[must_use]
    pub fn new(id: SequenceId, prompt: Vec<TokenId>, sampling: Sampling, limits: Limits) -> Self {
        let randomness = Arc::new(sampling.randomness);
        Self::with_randomness(id, prompt, sampling, limits, randomness)
    }

    /// Creates a sequence with another source of random numbers for verification, such as an
    /// enumeration of all outcomes in tests.
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
            requested_logprobs: None,
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

    /// Requests the log-probability of every token, and those of the `top` most probable tokens at
    /// its position.
    #[must_use]
    pub fn with_logprobs(mut self, top: usize) -> Self {
        self.requested_logprobs = Some(top);
        self
    }

    /// Collects the target's features for the drafter. The decoder must use the scores in the order
    /// of their positions.
    #[must_use]
    pub fn with_features(mut self) -> Self {
        self.features = Some(Features::new());
        self
    }

    /// Passes the target's tokens for each draft to the drafter. The decoder must verify every
    /// draft before the next one.
    #[must_use]
    pub fn with_draft_feedback(mut self) -> Self {
        self.last_draft = Some(Arc::default());
        self
    }

    /// Returns the id under which workers keep the sequence's caches.
    #[must_use]
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// Returns the tokens of the prompt, followed by the committed ones.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the committed tokens after the prompt.
    #[must_use]
    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// Returns the number of prompt tokens.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Returns the number of most probable tokens to report at each position; `None` if
    /// log-probabilities are not requested.
    #[must_use]
    pub fn requested_logprobs(&self) -> Option<usize> {
        self.requested_logprobs
    }

    /// Returns the log-probabilities of the committed tokens after the prompt, if they are
    /// requested.
    #[must_use]
    pub fn logprobs(&self) -> Option<&[TokenLogprob]> {
        self.requested_logprobs.map(|_| &self.logprobs[..])
    }

    /// Returns the target's features of the first tokens, if they are requested.
    #[must_use]
    pub fn features(&self) -> Option<&Features> {
        self.features.as_ref()
    }

    /// Returns the requested feedback from the target, for a draft job.
    #[must_use]
    pub(crate) fn feedback(&self) -> TargetFeedback {
        let features = self.features.clone().unwrap_or_default();
        TargetFeedback { features, last_draft: self.last_draft.clone() }
    }

    /// Returns the sampling options.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Returns the source of random numbers for verification.
    #[must_use]
    pub fn randomness(&self) -> &dyn Randomness {
        &*self.randomness
    }

    /// Returns why the sequence ended; `None` if it has not.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Returns the counters of this sequence.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the record of each verification. Their committed tokens together are the tokens
    /// after the prompt.
    #[must_use]
    pub fn verifications(&self) -> &[VerificationRecord] {
        &self.verifications
    }

    /// Returns the counters, for decoders to add their times.
    pub(crate) fn statistics_mut(&mut self) -> &mut Statistics {
        &mut self.statistics
    }

    /// Reports that a drafter has failed.
    pub(crate) fn report_failed_drafter(&mut self, drafter: usize, reason: &str) {
        self.statistics.failures.push(format!("drafter {drafter} failed: {reason}"));
    }

    /// Returns how many tokens may still be committed.
    #[must_use]
    pub fn remaining(&self) -> usize {
        let to_max = self.limits.max_tokens.saturating_sub(self.generated().len());
        to_max.min(self.limits.context_length.saturating_sub(self.tokens.len()))
    }

    /// Ends the sequence, unless it has already ended.
    pub fn stop(&mut self) {
        self.finish.get_or_insert(Finish::Stopped);
    }

    /// Verifies a draft that was drawn in one job after the committed tokens, with the rule of the
    /// sampling options. `rows` are those of the target, as for [`verify`].
    #[must_use]
    pub fn verify_whole(&self, draft: &Draft, rows: &[Distribution]) -> Verdict {
        let rule = match self.sampling.verification {
            Verification::Block => verify_block,
            Verification::Rejection | Verification::Coupled => verify,
        };
        rule(draft, rows, self.tokens.len(), self.randomness())
    }

    /// Commits the tokens that a verdict on `scores` accepted, then the target's own token, if any.
    /// Stops where the sequence ends, and updates the statistics. Returns how many draft tokens
    /// were committed.
    pub fn commit(&mut self, draft: &Draft, verdict: &Verdict, scores: &Scores) -> usize {
        let before = self.tokens.len();
        let accepted = verdict.accepted.iter().map(|&node| draft.tree.token(node));
        // The row of each token is the row after the token before it.
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
            // The rows are of the tokens that had no features, then of the nodes.
            let tokens = before.saturating_sub(features.len());
            let path = verdict.accepted[..accepted].iter().map(|&node| tokens + node);
            // A last token that was tested, but not scored, has none.
            features.push(rows.gather((0..tokens).chain(path)));
        }
        if let Some(last_draft) = &mut self.last_draft {
            *last_draft = Arc::new(VerifiedDraft::new(&draft.tree, scores));
        }
        // A rejection after the end of the sequence does not count.
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
    use forerun_core::{FeatureRows, Node, TokenTree};

    const EOS: TokenId = 9;

    fn sequence(max_tokens: usize) -> Sequence {
        let limits = Limits { max_tokens, context_length: 8, eos: vec![EOS] };
        Sequence::new(SequenceId(0), vec![1, 2], Sampling::greedy(), limits)
    }

    fn commit(sequence: &mut Sequence, accepted: &[TokenId], token: TokenId) -> usize {
        let draft = Draft::deterministic(TokenTree::chain(accepted));
        let accepted = (0..accepted.len()).collect();
        let verdict = Verdict { accepted, token: Some(token), rejected: false };
        sequence.commit(&draft, &verdict, &Scores::default())
    }

    #[test]
    fn a_sequence_can_end_at_any_token_of_a_round() {
        // All ends that a round of two accepted tokens and a bonus token can reach.
        /// max_tokens, the round's tokens, the committed tokens, the reason, accepted draft tokens.
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

    /// The target returns features of all tokens without any. The sequence keeps those of committed
    /// tokens.
    #[test]
    fn features_are_kept_for_all_committed_tokens_but_the_last() {
        let mut sequence = sequence(100).with_features();
        let mut round = |nodes: usize, accepted: Vec<Node>| {
            let (known, tokens) = (sequence.features().map_or(0, Features::len), &sequence.tokens);
            let mut tree = TokenTree::new();
            for node in 0..nodes {
                tree.push(None, 3 + node as TokenId);
            }
            let draft = Draft::deterministic(tree);
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
    fn rejected_tokens_are_recorded_with_committed_ones() {
        let mut sequence = sequence(5);
        let mut tree = TokenTree::chain(&[3, 4]);
        tree.push(Some(0), 5);
        tree.push(Some(0), 6);
        let draft = Draft::deterministic(tree);
        let mut commit = |accepted: &[Node], token, rejected| {
            let verdict = Verdict { accepted: accepted.to_vec(), token, rejected };
            sequence.commit(&draft, &verdict, &Scores::default());
            sequence.verifications().last().cloned()
        };
        let record = |committed, accepted, rejected: &[TokenId]| {
            Some(VerificationRecord { committed, accepted, rejected: rejected.to_vec() })
        };
        assert_eq!(commit(&[0], Some(7), true), record(2, 1, &[4, 5, 6]));
        assert_eq!(commit(&[0], None, false), record(1, 1, &[]));
        assert_eq!(commit(&[], Some(7), true), record(1, 0, &[3]));
        // The sequence ends with the accepted token, so no token after it counts as tested.
        assert_eq!(commit(&[0], Some(7), true), record(1, 1, &[]));
        let committed: usize =
            sequence.verifications().iter().map(|verification| verification.committed).sum();
        assert_eq!(committed, sequence.generated().len());
    }

    #[test]
    fn a_full_context_ends_the_sequence() {
        let mut sequence = sequence(100);
        assert_eq!(sequence.remaining(), 6);
        commit(&mut sequence, &[3, 3, 3], 3);
        assert_eq!(sequence.remaining(), 2);
        commit(&mut sequence, &[3, 3, 3], 3);
        assert_eq!(sequence.generated().len(), 6);
        assert_eq!(sequence.finish(), Some(Finish::Context));
    }

    #[test]
    fn a_sequence_without_room_is_finished_at_the_start() {
        assert_eq!(sequence(0).finish(), Some(Finish::MaxTokens));
    }
}
