//! One sequence: its tokens, its limits, and the only place where tokens are committed.

use crate::Statistics;
use forerun_core::{
    Draft, Randomness, Sampling, Scores, SequenceId, TokenId, TokenLogprob, Verdict,
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
    finish: Option<Finish>,
    statistics: Statistics,
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
            finish: None,
            statistics: Statistics::default(),
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
        // A rejection that stands behind the end of the sequence was none.
        let rejected = verdict.rejected && committed > accepted;
        self.statistics.count_round(draft.tree.len(), accepted, rejected, committed);
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
    use forerun_core::{Proposal, TokenTree};

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
