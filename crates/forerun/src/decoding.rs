//! The decoder of an answer, and what earlier answers have taught it.

use crate::plan::{Method, Plan};
use forerun_decode::{
    Autoregressive, Controller, Decoder, DraftLength, Dsi, Lookahead, Pace, Pearl, Schedule,
    Speculative,
};

/// How a drafter drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pattern {
    /// Positions in a row that it can make at the most.
    pub(crate) positions: Option<usize>,
    /// Whether it makes all of them in one forward.
    pub(crate) at_once: bool,
}

/// What answers taught about drafting, by method; each answer starts with it.
pub(crate) struct Learned {
    pattern: Pattern,
    controller: Controller,
    pace: Pace,
    lookahead: Lookahead,
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

impl Learned {
    /// Nothing yet.
    pub(crate) fn new(plan: &Plan, pattern: Pattern) -> Self {
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
            Method::Speculative => ChosenDecoder::Speculative(Speculative::new(learned.controller)),
            Method::Pearl => {
                let decoder = Pearl::new(plan.pearl(), learned.pace);
                ChosenDecoder::Pearl(if reproducible { decoder.reproducible() } else { decoder })
            }
            Method::Dsi => {
                let decoder = Dsi::new(plan.placement().replicas(), learned.lookahead);
                let decoder = decoder.with_drafters(drafters(plan));
                ChosenDecoder::Dsi(if reproducible { decoder.reproducible() } else { decoder })
            }
        }
    }

    fn of(plan: &Plan, pattern: Pattern, mode: DraftLength, length: usize) -> Self {
        let shape = plan.shape().of_length(pattern.positions.unwrap_or(length).min(length));
        let controller = Controller::new(shape, mode);
        let pace = Pace::new(length, mode, plan.pearl().schedule == Schedule::Eager);
        // Each drafter's tokens are verified by its share of the replicas.
        let replicas = plan.placement().replicas().div_ceil(drafters(plan));
        let lookahead = Lookahead::new(length, mode, replicas);
        let in_one = if pattern.at_once { pattern.positions.unwrap_or(usize::MAX) } else { 1 };
        Self {
            pattern,
            controller: if pattern.at_once { controller.at_once() } else { controller },
            pace: pace.in_forwards_of(in_one),
            lookahead: lookahead.in_forwards_of(in_one),
        }
    }

    fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        Self {
            pattern: self.pattern,
            controller: self.controller.for_new_answer(prompt_tokens),
            pace: self.pace.for_new_answer(),
            lookahead: self.lookahead.for_new_answer(),
        }
    }

    /// Keeps what an answer has taught.
    pub(crate) fn learn(&mut self, decoder: ChosenDecoder) {
        match decoder {
            ChosenDecoder::Autoregressive(_) => {}
            ChosenDecoder::Speculative(decoder) => {
                self.controller = decoder.controller().clone();
            }
            ChosenDecoder::Pearl(decoder) => self.pace = decoder.pace().clone(),
            ChosenDecoder::Dsi(decoder) => self.lookahead = decoder.lookahead().clone(),
        }
    }
}

fn drafters(plan: &Plan) -> usize {
    1 + plan.further_drafters().len()
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
