//! The decoders of an engine's answers, and the draft lengths that they learn from earlier answers.

use crate::plan::{Lookup, Method, Plan};
use forerun_core::{DraftShape, Role};
use forerun_decode::{
    AnswerDecoder, DecoderOptions, DraftLength, DraftPattern, DrafterSize, MakeGuesser,
    SharedGoodput,
};
use forerun_draft::SuffixDrafter;

/// The decoders of an engine's answers. Each answer starts with what the last decoder of its method
/// learned.
pub struct AnswerDecoders {
    options: DecoderOptions,
    last: Vec<(Method, Box<dyn AnswerDecoder>)>,
}

impl AnswerDecoders {
    /// Creates the state of an engine that has not answered yet. `patterns`: what each drafter can
    /// draft in a forward pass, as far as that is known.
    pub(crate) fn new(plan: &Plan, patterns: &[DraftPattern]) -> Self {
        let drafter = |index: usize| {
            let pattern = patterns.get(index).copied().unwrap_or_default();
            DrafterSize { pattern, expected_passes: expected_passes(plan, index, pattern) }
        };
        let DrafterSize { pattern, expected_passes } = drafter(0);
        let options = DecoderOptions {
            shape: plan.shape().clone(),
            draft_tokens: plan.trees().map_or(plan.shape().length(), |trees| trees.depth),
            length: plan.length(),
            trees: plan.trees(),
            goodput: SharedGoodput::default(),
            pattern,
            expected_passes,
            drafter: 0,
            additional_drafters: (1..=plan.additional_drafters().len()).map(drafter).collect(),
            pearl: plan.pearl(),
            lookup: lookup(plan.lookup()),
            targets: plan.placement().replicas(),
            repeats_drafters: plan.repeats_drafters(),
            reproducible: false,
        };
        Self { options, last: Vec::new() }
    }

    /// Returns the options that the decoders are built from.
    #[must_use]
    pub fn options(&self) -> &DecoderOptions {
        &self.options
    }

    /// Returns what each drafter can draft in a forward pass.
    pub(crate) fn patterns(&self) -> Vec<DraftPattern> {
        let additional = self.options.additional_drafters.iter().map(|drafter| drafter.pattern);
        std::iter::once(self.options.pattern).chain(additional).collect()
    }

    /// Returns a decoder for an answer to a prompt of `prompt_tokens` tokens. It starts with the
    /// learned draft lengths, unless the answer must be `reproducible`: then nothing may depend on
    /// measured times, or on other answers. `shape` is that of this answer's drafts alone.
    #[must_use]
    pub fn decoder(
        &self,
        method: Method,
        prompt_tokens: usize,
        reproducible: bool,
        shape: Option<DraftShape>,
    ) -> Box<dyn AnswerDecoder> {
        if let Some(shape) = shape {
            return method.decoder(&DecoderOptions {
                draft_tokens: shape.length(),
                shape,
                length: DraftLength::Fixed,
                trees: None,
                reproducible,
                ..self.options.clone()
            });
        }
        if reproducible {
            let (goodput, options) = (SharedGoodput::default(), self.options.clone());
            return method.decoder(&DecoderOptions { reproducible, goodput, ..options });
        }
        match self.last.iter().find(|(of, _)| *of == method) {
            Some((_, last)) => last.for_next_answer(&self.options, prompt_tokens),
            None => {
                let first = method.decoder(&self.options);
                first.for_next_answer(&self.options, prompt_tokens)
            }
        }
    }

    /// Keeps what an answer's decoder learned, for the next answer.
    pub fn learn(&mut self, method: Method, decoder: Box<dyn AnswerDecoder>) {
        self.last.retain(|(of, _)| *of != method);
        self.last.push((method, decoder));
    }
}

/// Returns the time of a drafter's pass in passes of the target by the bytes that they read; `None`
/// if drafter and target compute on different kinds of devices, or if one pass drafts all
/// positions.
fn expected_passes(plan: &Plan, drafter: usize, pattern: DraftPattern) -> Option<f64> {
    // The placement's drafters are those with models, in their order.
    let models = plan.drafters_with_models();
    let place = models.iter().position(|&(index, _)| index == drafter).unwrap_or_default();
    let [is_drafter_on_gpu, is_target_on_gpu] =
        [Role::Drafter(place), Role::Target(0)].map(|role| plan.placement().gpu_of(role).is_some());
    (is_drafter_on_gpu == is_target_on_gpu && !pattern.one_forward)
        .then(|| f64::from(pattern.pass_per_mille) / 1_000.0)
}

/// Returns what guesses tokens from earlier text; `None` without guesses.
fn lookup(lookup: Lookup) -> Option<MakeGuesser> {
    match lookup {
        Lookup::None => None,
        Lookup::Suffix => Some(|| Box::new(SuffixDrafter::new())),
    }
}
