//! What is compared with plain decoding.

use crate::known_answers::{DecoderSetup, DecoderSource, MakeDecoderSetup};
use crate::known_models::KnownPair;
use forerun::{
    AdditionalDrafter, Canceller, DrafterKind, Engine, ForerunError, Request, TokenId, TokenLogprob,
};
use forerun_core::Need;
use forerun_decode::Statistics;
use forerun_draft::{Drafter, ModelDrafter};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What is compared with plain decoding: an engine, or a decoder of your own.
pub trait Subject {
    /// Continues a text, as [`Engine::generate_interruptibly`] does.
    ///
    /// # Errors
    /// As [`Engine::generate_interruptibly`].
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError>;

    /// Returns whether it drafts, so that it must have drafted enough.
    fn drafts(&self) -> bool {
        true
    }

    /// Returns whether drafts are verified as a whole, so that they can be verified in blocks.
    fn verifies_whole_drafts(&self) -> bool;

    /// Returns how it decodes with a pair of known models in place of its own; `None` if it cannot.
    fn decoder_setup(&self) -> Option<MakeDecoderSetup<'_>> {
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
    /// What was drafted, what of it was accepted, and what failed.
    pub statistics: Statistics,
}

impl Subject for Engine {
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError> {
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = self.generate_interruptibly(prompt, request, canceller, go_on)?;
        Ok(SubjectAnswer {
            statistics: answer.statistics,
            logprobs: answer.logprobs.unwrap_or_default(),
            tokens: answer.tokens,
        })
    }

    fn drafts(&self) -> bool {
        self.plan().method().drafts()
    }

    fn verifies_whole_drafts(&self) -> bool {
        self.plan().method().offers(Need::WholeDrafts)
    }

    fn decoder_setup(&self) -> Option<MakeDecoderSetup<'_>> {
        Some(Box::new(|pair| with_known_models(self, pair)))
    }
}

/// Returns how an engine decodes with a pair of known models. Drafters that need no model stay, and
/// all others draft with a known model.
fn with_known_models(engine: &Engine, pair: &KnownPair) -> DecoderSetup {
    let plan = engine.plan();
    let method = plan.method();
    let additional = plan.additional_drafters().iter().map(|drafter| match drafter {
        AdditionalDrafter::Model(_) => DrafterKind::Model,
        AdditionalDrafter::Tokens(kind) => *kind,
    });
    let kinds = [plan.drafter()].into_iter().chain(additional);
    let kinds: Vec<_> = kinds.filter(|kind| *kind != DrafterKind::None).collect();
    let drafter = |(index, kind): (usize, &DrafterKind)| -> Box<dyn Drafter> {
        let model = pair.drafters[index % pair.drafters.len()];
        kind.make_on_tokens().unwrap_or_else(|| Box::new(ModelDrafter::new(model)))
    };
    let is_replaced = |kind: &&DrafterKind| !kind.is_on_tokens() && **kind != DrafterKind::Model;
    let source = |reproducible| DecoderSource::Engine {
        decoders: Box::new(engine.decoders()),
        method,
        reproducible,
    };
    // The target's devices may have each drafter once more.
    let places = if engine.decoders().options().repeats_drafters { 2 } else { 1 };
    let drafters = (0..places).flat_map(|_| kinds.iter().enumerate().map(drafter)).collect();
    DecoderSetup {
        drafters,
        replaced: kinds.iter().filter(is_replaced).map(ToString::to_string).collect(),
        replicas: plan.placement().replicas(),
        // Without drafts, nothing depends on times.
        decoders: match method.drafts() {
            true => vec![source(true), source(false)],
            false => vec![source(true)],
        },
        randomness: Box::new(|randomness| Arc::new(randomness)),
        feedback: plan.drafter().needs(Need::Feedback) && method.offers(Need::Feedback),
        drafts: method.drafts(),
        verifies_whole_drafts: engine.verifies_whole_drafts(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::{DraftTokens, Lookup, Method, MethodOptions, Options, RandomPair, Tree};

    /// An engine's decoders keep its options with known models, and its drafters stay or are
    /// replaced in order.
    #[test]
    fn decoders_are_those_of_the_engine() {
        let pair = RandomPair::make().unwrap();
        let open = |options: Options| {
            let options = Options {
                model: pair.target().into(),
                draft_model: Some(pair.drafter().into()),
                ..options
            };
            Engine::open(options).unwrap()
        };
        let setup = |engine: &Engine| with_known_models(engine, &KnownPair::ALL[0]);
        let options = |setup: &DecoderSetup| {
            let of = |source: &DecoderSource| match source {
                DecoderSource::Engine { decoders, .. } => decoders.options().clone(),
                DecoderSource::Function(_) => panic!("not of an engine"),
            };
            of(&setup.decoders[1])
        };

        let speculative = setup(&open(Options {
            method: Some(MethodOptions::Speculative { tree: Tree::Auto, lookup: Lookup::Suffix }),
            ..Options::default()
        }));
        assert_eq!(speculative.drafters.len(), 1);
        let of_speculative = options(&speculative);
        assert!(of_speculative.lookup.is_some() && of_speculative.trees.is_some());
        assert!(speculative.verifies_whole_drafts && speculative.drafts);

        let pearl = setup(&open(Options {
            method: Some(Method::Pearl.into()),
            draft_tokens: DraftTokens::Fixed(5),
            ..Options::default()
        }));
        let of_pearl = options(&pearl);
        assert_eq!(of_pearl.draft_tokens, 5);
        assert!(of_pearl.lookup.is_none() && !pearl.verifies_whole_drafts);

        let dsi = setup(&open(Options {
            method: Some(Method::Dsi.into()),
            additional_drafters: vec![AdditionalDrafter::Tokens(DrafterKind::PromptLookup)],
            ..Options::default()
        }));
        assert_eq!((dsi.drafters.len(), options(&dsi).drafters()), (2, 2));
        assert_eq!(options(&dsi).targets, dsi.replicas);
        let auto = setup(&open(Options {
            method: Some(Method::Auto.into()),
            additional_drafters: vec![AdditionalDrafter::Model(pair.target().into())],
            ..Options::default()
        }));
        let places = 1 + usize::from(options(&auto).repeats_drafters);
        assert_eq!((auto.drafters.len(), options(&auto).drafters()), (2 * places, 2));
        let expected = options(&auto).additional_drafters[0].expected_passes;
        assert_eq!(expected, Some(1.0), "it is the target itself");
        assert!(dsi.replaced.is_empty());

        let method = Some(Method::Autoregressive.into());
        let plain = setup(&open(Options { method, ..Options::default() }));
        assert!(plain.drafters.is_empty() && !plain.drafts);
        assert_eq!(plain.decoders.len(), 1);
    }
}
