//! Measures the acceptance of a synthetic pair by speculative decoding.

use super::SyntheticPairError;
use forerun::{DraftTokens, Engine, Loader, Method, Options, Plan, Request, VerificationChoice};
use forerun_core::trace::{SpanKind, SpanOutcome, Trace};
use forerun_core::{SamplingOptions, TokenId, Verification};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;

/// The number of draft tokens per round while acceptance is measured.
pub(super) const DRAFT_TOKENS: usize = 4;
/// The number of tokens of the random prompts.
pub(super) const PROMPT_TOKENS: usize = 16;
/// The number of preceding tokens that make positions distinct.
const CONTEXT: usize = 8;

/// The measured acceptance of a synthetic pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AcceptanceCalibration {
    /// Accepted over tested draft tokens at distinct positions. A position whose eight preceding
    /// tokens have occurred before, as in repetitive text, does not count.
    pub rate: f64,
    /// The number of distinct positions that were tested.
    pub positions: usize,
    /// Accepted over tested draft tokens at all positions.
    pub rate_of_all: f64,
    /// The number of all positions that were tested.
    pub all_positions: usize,
    /// The share of distinct ones among the answers' sequences of four tokens.
    pub distinct_4_grams: f64,
}

/// How the acceptance of a pair is measured.
pub(super) struct AcceptanceMeasurement<'a> {
    /// The seeds of the prompts.
    pub(super) seeds: Vec<u64>,
    /// Returns the tokens of the prompt with a seed.
    pub(super) prompt: PromptOf<'a>,
    /// The temperature; 0 is greedy.
    pub(super) temperature: f32,
    /// The number of tokens of each answer.
    pub(super) max_tokens: usize,
    /// Whether answers go on after an end-of-text token.
    pub(super) ignore_eos: bool,
}

/// Returns the tokens of the prompt with a seed.
pub(super) type PromptOf<'a> = &'a dyn Fn(&Engine, u64) -> Result<Vec<TokenId>, SyntheticPairError>;

/// Measures the acceptance of the pair on disk, by speculative decoding of prompts.
pub(super) fn measure_pair(
    [target, drafter]: [&Path; 2],
    measurement: &AcceptanceMeasurement<'_>,
) -> Result<AcceptanceCalibration, SyntheticPairError> {
    let plan = Plan::new(Options {
        model: target.into(),
        draft_model: Some(drafter.into()),
        method: Some(Method::Speculative.into()),
        draft_tokens: DraftTokens::Fixed(DRAFT_TOKENS),
        ..Options::default()
    })?;
    let engine = Engine::open_with(&plan, &mut Loader::new().offline(true))?;
    let mut counts = AcceptanceCounts::default();
    for &seed in &measurement.seeds {
        let tokens = (measurement.prompt)(&engine, seed)?;
        let request = Request {
            sampling: SamplingOptions {
                temperature: measurement.temperature,
                ..SamplingOptions::default()
            },
            max_tokens: measurement.max_tokens,
            seed: Some(seed),
            verification: VerificationChoice::Always(Verification::Rejection),
            ignore_eos: measurement.ignore_eos,
            ..Request::default()
        };
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_tokens(tokens.clone(), &request, go_on)?;
        counts.add(tokens, &answer.tokens, &answer.trace);
    }
    Ok(counts.acceptance())
}

/// Returns the seed of a prompt: one of those that the search uses, or one of the others.
pub(super) fn prompt_seed(seed: u64, prompt: u64, other_prompts: bool) -> u64 {
    // The search uses the even numbers.
    seed ^ (2 * prompt + u64::from(other_prompts)).wrapping_mul(0x9e37_79b9)
}

/// Draws `count` tokens uniformly from the vocabulary.
pub(super) fn random_tokens(seed: u64, count: usize, vocab_size: usize) -> Vec<TokenId> {
    let mut state = seed;
    let mut next = || {
        // Steele's SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    (0..count).map(|_| (next() % vocab_size.max(1) as u64) as TokenId).collect()
}

/// Counters of tested draft tokens and of the sequences of four tokens in the answers.
#[derive(Default)]
struct AcceptanceCounts {
    contexts: HashSet<Vec<TokenId>>,
    /// Draft tokens tested and accepted at distinct positions.
    distinct: [usize; 2],
    /// Draft tokens tested and accepted at all positions.
    all: [usize; 2],
    distinct_grams: HashSet<Vec<TokenId>>,
    all_grams: usize,
}

impl AcceptanceCounts {
    /// Adds an answer of speculative decoding, where every target pass tests a draft and adds one
    /// token of the target's own.
    fn add(&mut self, prompt: Vec<TokenId>, answer: &[TokenId], trace: &Trace) {
        let grams = answer.windows(4);
        self.all_grams += grams.len();
        self.distinct_grams.extend(grams.map(<[TokenId]>::to_vec));
        let mut position = prompt.len();
        let mut text = prompt;
        text.extend(answer);
        let mut passes: Vec<_> =
            trace.spans.iter().filter(|span| span.kind == SpanKind::Score).collect();
        passes.sort_by_key(|span| span.start_ns);
        for pass in passes {
            let rejected = pass.outcome == SpanOutcome::Rejected;
            for offset in 0..pass.accepted + usize::from(rejected) {
                let accepted = usize::from(offset < pass.accepted);
                let count = |counts: &mut [usize; 2]| {
                    counts[0] += 1;
                    counts[1] += accepted;
                };
                count(&mut self.all);
                let end = (position + offset).min(text.len());
                if self.contexts.insert(text[end.saturating_sub(CONTEXT)..end].to_vec()) {
                    count(&mut self.distinct);
                }
            }
            position += pass.accepted + 1;
        }
    }

    fn acceptance(&self) -> AcceptanceCalibration {
        let rate = |[tested, accepted]: [usize; 2]| accepted as f64 / tested.max(1) as f64;
        AcceptanceCalibration {
            rate: rate(self.distinct),
            positions: self.distinct[0],
            rate_of_all: rate(self.all),
            all_positions: self.all[0],
            distinct_4_grams: self.distinct_grams.len() as f64 / self.all_grams.max(1) as f64,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun::RandomPair;

    #[test]
    fn repeated_contexts_count_once_among_distinct_positions() {
        let pair = RandomPair::make().unwrap();
        let plan = Plan::new(Options {
            model: pair.target().into(),
            draft_model: Some(pair.drafter().into()),
            draft_tokens: DraftTokens::Fixed(3),
            ..Options::default()
        });
        let engine = Engine::open_plan(&plan.unwrap()).unwrap();
        let request = Request { max_tokens: 60, ignore_eos: true, ..Request::default() };
        let mut counts = AcceptanceCounts::default();
        let (mut tested, mut accepted) = (0, 0);
        for _ in 0..2 {
            let prompt = random_tokens(5, PROMPT_TOKENS, 258);
            let go_on = |_: &str| ControlFlow::Continue(());
            let answer = engine.generate_tokens(prompt.clone(), &request, go_on).unwrap();
            counts.add(prompt, &answer.tokens, &answer.trace);
            tested += answer.statistics.tested.iter().sum::<u64>() as usize;
            accepted += answer.statistics.accepted.iter().sum::<u64>() as usize;
        }
        assert_eq!(counts.all, [tested, accepted]);
        // The second answer repeats the first, so none of its positions is new.
        assert!(counts.distinct[0] * 2 <= tested, "{:?} of {tested}", counts.distinct);
        assert!(counts.distinct[0] > 0 && counts.acceptance().distinct_4_grams <= 0.5);
    }
}
