//! Mutants: published and likely mistakes in keys, drafts, verification and sampling options.
//!
//! A mutant is made for given models. So the enumeration finds it on tables, and `forerun certify`
//! finds it on checkpoints.

mod blocks;
mod drafts;
mod explicit;
mod keys;
mod lookups;
mod residual;
mod sampling;

use forerun_core::{
    DraftShape, Guesser, Key, Node, Randomness, Sampling, TokenId, TokenTree, Verification,
};
use forerun_decode::Decoder;
use forerun_draft::Drafter;
use std::rc::Rc;

/// The models that mutants run on.
pub(crate) trait Models {
    /// Returns the target's logits after a prefix.
    fn target_row(&self, prefix: &[TokenId]) -> Vec<f32>;

    /// Returns the draft model's logits after a prefix.
    fn draft_row(&self, prefix: &[TokenId]) -> Vec<f32>;

    /// Returns the logits of the draft model with approximate layers, after `tokens` and the path
    /// to a node.
    fn layer_parallel_row(
        &self,
        tokens: &[TokenId],
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Vec<f32>;

    /// Returns a drafter with the draft model.
    fn drafter(&self) -> Box<dyn Drafter>;

    /// Returns a drafter with another model.
    fn other_drafter(&self) -> Box<dyn Drafter>;

    /// Returns a drafter with the draft model and approximate layers.
    fn layer_parallel_drafter(&self) -> Box<dyn Drafter>;

    /// Returns what guesses tokens in place of drafts.
    fn guesser(&self) -> Box<dyn Guesser>;
}

/// Models that several drafters and decoders use.
pub(crate) type SharedModels = Rc<dyn Models>;
type MakeDrafter = Rc<dyn Fn() -> Box<dyn Drafter>>;
type MakeDecoder = Rc<dyn Fn() -> Box<dyn Decoder>>;

/// A source of numbers with changed keys.
pub(crate) struct ChangedKeys<R> {
    pub(crate) randomness: R,
    /// Changes keys before they are looked up.
    pub(crate) change: fn(Key) -> Key,
}

impl<R: Randomness> Randomness for ChangedKeys<R> {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        self.randomness.locate((self.change)(key), thresholds)
    }
}

/// A decoder with its drafters and keys.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) drafters: Vec<MakeDrafter>,
    pub(crate) decoder: MakeDecoder,
    /// Changes keys before they are looked up.
    pub(crate) keys: fn(Key) -> Key,
    /// Whether drafts are verified as a whole, so that they can be verified in blocks.
    pub(crate) verifies_whole_drafts: bool,
}

impl Setup {
    /// Returns a setup with one drafter and the right keys.
    fn new(
        drafter: impl Fn() -> Box<dyn Drafter> + 'static,
        decoder: impl Fn() -> Box<dyn Decoder> + 'static,
    ) -> Self {
        Self {
            drafters: vec![Rc::new(drafter)],
            decoder: Rc::new(decoder),
            keys: |key| key,
            verifies_whole_drafts: true,
        }
    }

    /// Returns the same setup of a method that drafts while the target verifies.
    fn in_parallel(self) -> Self {
        Self { verifies_whole_drafts: false, ..self }
    }

    /// Returns a setup that drafts with the draft model.
    fn with_model(models: &SharedModels, decoder: impl Fn() -> Box<dyn Decoder> + 'static) -> Self {
        let models = Rc::clone(models);
        Self::new(move || models.drafter(), decoder)
    }
}

/// A mistake.
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// The verification that it changes.
    pub(crate) rule: Verification,
    /// Sampling options that show it.
    pub(crate) sampling: Sampling,
    /// The same setup without the mistake.
    pub(crate) original: Setup,
    pub(crate) mutated: Setup,
    /// By how much the distribution of some table is wrong, at least.
    pub(crate) least_deviation: f64,
}

impl Mutant {
    fn new(name: impl Into<String>, original: Setup, mutated: Setup) -> Self {
        Self {
            name: name.into(),
            rule: Verification::Rejection,
            sampling: crate::options::sampling(1.0, 0, 1.0),
            original,
            mutated,
            least_deviation: 1e-3,
        }
    }

    /// Returns a mutant with changed keys.
    fn of_keys(name: impl Into<String>, original: Setup, keys: fn(Key) -> Key) -> Self {
        let mutated = Setup { keys, ..original.clone() };
        Self::new(name, original, mutated)
    }
}

/// Returns what mutants of drafts are made with, without a mistake.
pub(crate) fn without_mistake(models: &SharedModels, shape: DraftShape) -> Setup {
    drafts::unchanged(models, shape)
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let topics = [
        keys::mutants,
        drafts::mutants,
        residual::mutants,
        lookups::mutants,
        blocks::mutants,
        sampling::mutants,
    ];
    topics.iter().flat_map(|mutants| mutants(models)).collect()
}
