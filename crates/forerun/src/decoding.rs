//! The decoder of an answer, and what earlier answers have taught it.

use crate::plan::{Method, Plan};
use forerun_decode::{
    Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Pearl, PearlDraftLength,
    PearlSchedule, Speculative, SpeculativeDraftLength,
};

/// How a drafter drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftPattern {
    /// Positions in a row that it can make at the most.
    pub(crate) positions: Option<usize>,
    /// Whether it makes all of them in one forward.
    pub(crate) one_forward: bool,
}

/// What answers taught about drafting, by method; each answer starts with it.
pub(crate) struct LearnedDraftLengths {
    pattern: DraftPattern,
    speculative: SpeculativeDraftLength,
    pearl: PearlDraftLength,
    dsi: DsiLookahead,
}

/// A decoder of one answer.
pub(crate) enum ChosenDecoder {
    Autoregressive(Autoregressive),
    Speculative(Speculative),
    Pearl(Pearl),
    Dsi(Dsi),
}

/// Draft tokens in a row where sampled text must not depend on measured times.
const REPRODUCIBLE_LENGTH: usize = 4;

impl LearnedDraftLengths {
    /// Nothing yet.
    pub(crate) fn new(plan: &Plan, pattern: DraftPattern) -> Self {
        Self::of(plan, pattern, plan.length(), plan.shape().length())
    }

    /// A decoder for an answer to a prompt of that many tokens. It starts with what was learned; but
    /// where a seed promises the same text, nothing may follow measured times.
    pub(crate) fn decoder(
        &self,
        method: Method,
        plan: &Plan,
        prompt_tokens: usize,
        reproducible: bool,
    ) -> ChosenDecoder {
        let mut learned = self.for_new_answer(prompt_tokens);
        if reproducible {
            // An asked length stays, and an adapting one becomes this.
            let (mode, length) = match plan.length() {
                DraftLength::Fixed => (DraftLength::Fixed, plan.shape().length()),
                DraftLength::Auto => (DraftLength::Fixed, REPRODUCIBLE_LENGTH),
                // Acceptance alone decides.
                DraftLength::Assisted => (DraftLength::Assisted, plan.shape().length()),
            };
            learned = Self::of(plan, self.pattern, mode, length);
        }
        match method {
            Method::Autoregressive => ChosenDecoder::Autoregressive(Autoregressive),
            Method::Speculative => {
                ChosenDecoder::Speculative(Speculative::new(learned.speculative))
            }
            Method::Pearl => {
                let decoder = Pearl::new(plan.pearl(), learned.pearl);
                ChosenDecoder::Pearl(if reproducible { decoder.reproducible() } else { decoder })
            }
            Method::Dsi => {
                let decoder = Dsi::new(plan.placement().replicas(), learned.dsi);
                let decoder = decoder.with_drafters(drafters(plan));
                ChosenDecoder::Dsi(if reproducible { decoder.reproducible() } else { decoder })
            }
        }
    }

    fn of(plan: &Plan, pattern: DraftPattern, mode: DraftLength, length: usize) -> Self {
        let shape = plan.shape().with_draft_tokens(pattern.positions.unwrap_or(length).min(length));
        let speculative = SpeculativeDraftLength::new(shape, mode);
        let eager = plan.pearl().schedule == PearlSchedule::Eager;
        let pearl = PearlDraftLength::new(length, mode, eager);
        // Each drafter's tokens are verified by its share of the replicas.
        let replicas = plan.placement().replicas().div_ceil(drafters(plan));
        let dsi = DsiLookahead::new(length, mode, replicas);
        let per_forward =
            if pattern.one_forward { pattern.positions.unwrap_or(usize::MAX) } else { 1 };
        Self {
            pattern,
            speculative: if pattern.one_forward {
                speculative.in_one_forward()
            } else {
                speculative
            },
            pearl: pearl.with_tokens_per_forward(per_forward),
            dsi: dsi.with_tokens_per_forward(per_forward),
        }
    }

    fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        Self {
            pattern: self.pattern,
            speculative: self.speculative.for_new_answer(prompt_tokens),
            pearl: self.pearl.for_new_answer(),
            dsi: self.dsi.for_new_answer(),
        }
    }

    /// Keeps what an answer has taught.
    pub(crate) fn learn(&mut self, decoder: ChosenDecoder) {
        match decoder {
            ChosenDecoder::Autoregressive(_) => {}
            ChosenDecoder::Speculative(decoder) => {
                self.speculative = decoder.draft_length().clone();
            }
            ChosenDecoder::Pearl(decoder) => self.pearl = decoder.draft_length().clone(),
            ChosenDecoder::Dsi(decoder) => self.dsi = decoder.lookahead().clone(),
        }
    }
}

fn drafters(plan: &Plan) -> usize {
    1 + plan.additional_drafters().len()
}

impl ChosenDecoder {
    pub(crate) fn as_dyn(&mut self) -> &mut dyn Decoder {
        match self {
            Self::Autoregressive(decoder) => decoder,
            Self::Speculative(decoder) => decoder,
            Self::Pearl(decoder) => decoder,
            Self::Dsi(decoder) => decoder,
        }
    }
}
