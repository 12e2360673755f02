//! How much of a prompt a pass reads while answers wait for its end.

use forerun_core::SequenceId;
use std::collections::HashMap;

/// Chooses the part of a prompt that shares a pass with running answers: as many tokens as take the
/// time of a pass without it, and at least 16. So answers go on while a prompt is read.
#[derive(Debug, Default)]
pub(crate) struct PromptParts {
    /// The number of passes.
    passes: u64,
    /// The last pass of each sequence whose prompt has been read.
    running: HashMap<SequenceId, u64>,
    /// The usual time of a pass without a prompt.
    pass_ns: Option<f64>,
    /// The usual time of a token of a prompt.
    token_ns: Option<f64>,
}

/// What a pass has computed for a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassPart {
    pub(crate) sequence: SequenceId,
    pub(crate) tokens: usize,
    pub(crate) is_complete: bool,
}

/// The fewest tokens in a part of a prompt.
const LEAST: usize = 16;
/// More tokens than this are a prompt, even if one pass computes them all.
const PROMPT: usize = 32;
/// An answer that has missed so many passes is not waiting for them: a chat keeps its sequence.
const PASSES_AWAY: u64 = 8;
/// What a new time counts.
const NEWER: f64 = 0.1;

impl PromptParts {
    /// Returns the most tokens of a sequence's prompt in the next pass. `None`: no other answer
    /// waits, or too little is known.
    pub(crate) fn most(&self, sequence: SequenceId) -> Option<usize> {
        let waits = |(other, last): (&SequenceId, &u64)| {
            *other != sequence.base() && self.passes - last < PASSES_AWAY
        };
        let tokens = self.pass_ns? / self.token_ns?;
        self.running.iter().any(waits).then(|| (tokens as usize).max(LEAST))
    }

    /// Learns from a pass of `ns` nanoseconds.
    pub(crate) fn add(&mut self, parts: &[PassPart], ns: f64) {
        let is_prompt = |part: &&PassPart| part.tokens > PROMPT || !part.is_complete;
        let tokens: usize = parts.iter().filter(is_prompt).map(|part| part.tokens).sum();
        let has_others = parts.iter().any(|part| part.tokens > 0 && !is_prompt(&part));
        let (time, new) = match (tokens, has_others) {
            (0, false) => return,
            (0, true) => (&mut self.pass_ns, ns),
            (_, true) => {
                let others_ns = self.pass_ns.unwrap_or(0.0).min(ns / 2.0);
                (&mut self.token_ns, (ns - others_ns) / tokens as f64)
            }
            (_, false) => (&mut self.token_ns, ns / tokens as f64),
        };
        let usual = time.unwrap_or(new);
        *time = Some(usual + NEWER * (new - usual));
        self.passes += 1;
        let read = parts.iter().filter(|part| part.is_complete);
        self.running.extend(read.map(|part| (part.sequence.base(), self.passes)));
    }

    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.running.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_takes_as_long_as_the_answers_that_wait() {
        let part = |sequence, tokens, is_complete| PassPart {
            sequence: SequenceId(sequence),
            tokens,
            is_complete,
        };
        let mut parts = PromptParts::default();
        parts.add(&[part(1, 256, true)], 256_000.0);
        for _ in 0..100 {
            parts.add(&[part(1, 4, true)], 60_000.0);
            parts.add(&[part(1, 4, true), part(2, 60, false)], 120_000.0);
        }
        // The answer itself waits for nobody.
        assert_eq!(parts.most(SequenceId(1)), None);
        assert_eq!(parts.most(SequenceId(2)), Some(60));
        parts.add(&[part(2, 10, true)], 60_000.0);
        assert_eq!(parts.most(SequenceId(1)), Some(60));
        (0..100).for_each(|_| parts.add(&[part(1, 1, true)], 1_000.0));
        assert_eq!(parts.most(SequenceId(3)), Some(LEAST));
        // The second answer has not taken part for long.
        assert_eq!(parts.most(SequenceId(1)), None);
        parts.release(SequenceId(1));
        parts.release(SequenceId(2));
        assert_eq!(parts.most(SequenceId(3)), None);
    }
}
