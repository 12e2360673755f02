//! The choice of an answer's decoder, and the draft lengths that it learns from earlier answers.

use crate::plan::{Method, Plan};
use forerun_decode::{
    Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Pearl, PearlDraftLength,
    PearlSchedule, Speculative, SpeculativeDraftLength,
};

/// The number of positions that a drafter can draft, and in how many forward passes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftPattern {
    /// The largest number of positions in a row, if limited.
    pub(crate) positions: Option<usize>,
    /// Whether all positions take one forward pass together.
    pub(crate) one_forward: bool,
}

/// The draft-length policies as earlier answers left them, by method. Each answer starts with them.
pub(crate) struct LearnedDraftLengths {
    pattern: DraftPattern,
    speculative: SpeculativeDraftLength,
    pearl: PearlDraftLength,
    dsi: DsiLookahead,
}

/// The decoder of one answer.
pub(crate) enum ChosenDecoder {
    Autoregressive(Autoregressive),
    Speculative(Speculative),
    Pearl(Pearl),
    Dsi(Dsi),
}

/// The draft length if sampled text must not depend on measured times.
const REPRODUCIBLE_LENGTH: usize = 4;

impl LearnedDraftLengths {
    /// Creates the policies of an engine that has not answered yet.
    pub(crate) fn new(plan: &Plan, pattern: DraftPattern) -> Self {
        Self::with_length(plan, pattern, plan.length(), plan.shape().length())
    }

    /// Returns a decoder for an answer to a prompt of `prompt_tokens` tokens. It starts with the
    /// learned draft lengths, unless the answer must be `reproducible`: then nothing may depend on
    /// measured times.
    pub(crate) fn decoder(
        &self,
        method: Method,
        plan: &Plan,
        prompt_tokens: usize,
        reproducible: bool,
    ) -> ChosenDecoder {
        let mut learned = self.for_new_answer(prompt_tokens);
        if reproducible {
            // A requested length stays, and an adaptive one becomes a fixed one.
            let (mode, length) = match plan.length() {
                DraftLength::Fixed => (DraftLength::Fixed, plan.shape().length()),
                DraftLength::Auto => (DraftLength::Fixed, REPRODUCIBLE_LENGTH),
                // It follows acceptance only, not times.
                DraftLength::Assisted => (DraftLength::Assisted, plan.shape().length()),
            };
            learned = Self::with_length(plan, self.pattern, mode, length);
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

    fn with_length(plan: &Plan, pattern: DraftPattern, mode: DraftLength, length: usize) -> Self {
        let shape = plan.shape().with_draft_tokens(pattern.positions.unwrap_or(length).min(length));
        let speculative = SpeculativeDraftLength::new(shape, mode);
        let eager = plan.pearl().schedule == PearlSchedule::Eager;
        let pearl = PearlDraftLength::new(length, mode, eager);
        // Each drafter's tokens are verified on its share of the replicas.
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

    /// Keeps the draft lengths that an answer's decoder arrived at.
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
