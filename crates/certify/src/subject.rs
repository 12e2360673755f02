//! What is compared with plain decoding.

use crate::known_answers::{AnswerNumbers, Decoding, MakeDecoding};
use crate::known_models::{KNOWN_PROMPT, KnownPair};
use forerun::{
    AdditionalDrafter, Canceller, DrafterKind, Forerun, ForerunError, Request, TokenId,
    TokenLogprob,
};
use forerun_core::Need;
use forerun_decode::Decoder;
use forerun_draft::{Drafter, ModelDrafter};
use std::ops::ControlFlow;

/// What is compared with plain decoding: an engine, or a decoder of your own.
pub trait Subject {
    /// Continues a text, as [`Forerun::generate_interruptibly`] does.
    ///
    /// # Errors
    /// As [`Forerun::generate_interruptibly`].
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError>;

    /// Returns whether drafts are verified as a whole, so that they can be verified in blocks.
    fn verifies_whole_drafts(&self) -> bool;

    /// Returns how it decodes with a pair of known models in place of its own; `None` if it cannot.
    fn decoding(&self) -> Option<MakeDecoding<'_>> {
        None
    }
}

/// The answer of a [`Subject`].
#[derive(Clone, Debug, Default)]
pub struct SubjectAnswer {
    /// The tokens after the prompt.
    pub tokens: Vec<TokenId>,
    /// The log-probabilities at the position of each of them, as the request asks for them.
    pub logprobs: Vec<TokenLogprob>,
    /// How many of the tokens were drafted and accepted.
    pub accepted: usize,
}

impl Subject for Forerun {
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError> {
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = self.generate_interruptibly(prompt, request, canceller, go_on)?;
        Ok(SubjectAnswer {
            accepted: answer.statistics.accepted.iter().sum::<u64>() as usize,
            logprobs: answer.logprobs.unwrap_or_default(),
            tokens: answer.tokens,
        })
    }

    fn verifies_whole_drafts(&self) -> bool {
        self.plan().method().offers(Need::WholeDrafts)
    }

    fn decoding(&self) -> Option<MakeDecoding<'_>> {
        Some(Box::new(|pair| with_known_models(self, pair)))
    }
}

/// Returns how an engine decodes with a pair of known models. Drafters that need no model stay, and all others draft with a
/// known model.
fn with_known_models<'a>(engine: &'a Forerun, pair: &KnownPair) -> Decoding<'a> {
    let (plan, decoders) = (engine.plan(), engine.decoders());
    let method = plan.method();
    let additional = plan.additional_drafters().iter().map(|drafter| match drafter {
        AdditionalDrafter::Model(_) => DrafterKind::Model,
        AdditionalDrafter::Tokens(kind) => *kind,
    });
    let drafters = [plan.drafter()].into_iter().chain(additional).enumerate();
    let drafters = drafters.filter(|(_, kind)| *kind != DrafterKind::None);
    let drafter = |(index, kind): (usize, DrafterKind)| -> Box<dyn Drafter> {
        let model = pair.drafters[index % pair.drafters.len()];
        kind.make_on_tokens().unwrap_or_else(|| Box::new(ModelDrafter::new(model)))
    };
    Decoding {
        drafters: drafters.map(drafter).collect(),
        replicas: plan.placement().replicas(),
        decoder: Box::new(move |answer| -> Box<dyn Decoder> {
            // Most answers are decoded as with a seed. Without one, draft lengths may follow times and acceptance.
            let is_seeded = !answer.is_multiple_of(4);
            decoders.decoder(method, KNOWN_PROMPT.len(), is_seeded, None)
        }),
        randomness: Box::new(AnswerNumbers::unchanged),
        feedback: plan.drafter().needs(Need::Feedback) && method.offers(Need::Feedback),
        verifies_whole_drafts: engine.verifies_whole_drafts(),
    }
}
