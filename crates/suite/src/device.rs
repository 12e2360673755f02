//! What a device under test offers.

use forerun_formats::{
    Architecture, CacheType, Checkpoint, Config, DraftHeads, FeatureSource, Mix, ModelTypes,
    Speculator, TensorSource, WeightType,
};
use forerun_model::{Forward, ForwardHeads, HeadsModel};
use forerun_reference::Arithmetic;
use std::fmt::Debug;
use std::sync::Arc;

/// A device under test. Its methods panic where the device refuses something: a device offers what
/// it computes, and tests of its refusals are its own.
pub trait Device: Send + Sync + Sized + 'static {
    /// A way to compute with bits of its own, such as an instruction set.
    type Variant: Copy + Debug + PartialEq + Send + Sync;
    /// The weights of a model, which several models share.
    type Weights: Send + Sync;
    /// A model.
    type Model: Forward + 'static;
    /// Draft heads.
    type Heads: ForwardHeads + 'static;

    /// The largest number of threads on which tests run a model. One if the caller cannot choose.
    const THREADS: usize;

    /// The largest number of best tokens of a row for which the device does not return the whole
    /// row. Zero if it always does.
    const BEST_TOKENS: usize;

    /// Returns the device. Prints a message if the machine has none.
    fn get() -> Option<&'static Self>;

    /// Returns what the device computes.
    fn offer(&self) -> Offer<Self::Variant>;

    /// Returns how much is tested.
    fn effort(&self) -> Effort;

    /// Returns the order in which the device adds, which the reference repeats.
    fn arithmetic(&self, types: ModelTypes, variant: Self::Variant) -> Arithmetic;

    /// Loads a model.
    fn load(&self, model: (&Architecture, &dyn TensorSource), types: ModelTypes) -> Self::Weights;

    /// Loads a part of a target.
    fn load_target(&self, of: &Checkpoint, types: ModelTypes, part: TargetPart) -> Self::Weights;

    /// Loads the layers of a drafter that belongs to a target.
    fn load_layers(&self, of: DrafterSource<'_, Self>, layers: Architecture) -> Self::Weights;

    /// Loads the heads of a drafter that belongs to a target, and creates their language model.
    fn heads(
        &self,
        of: DrafterSource<'_, Self>,
        heads: DraftHeads,
        run: Run<Self::Variant>,
    ) -> HeadsModel<Self::Heads, Self::Model>;

    /// Creates a model.
    fn model(&self, weights: &Arc<Self::Weights>, run: Run<Self::Variant>) -> Self::Model;

    /// Returns a model that keeps features.
    fn with_features(model: Self::Model, features: FeatureSource) -> Self::Model;

    /// Returns the best way to compute, on all threads.
    fn best(&self) -> Run<Self::Variant> {
        let variant = *self.offer().variants.last().unwrap();
        Run { variant, threads: Self::THREADS }
    }

    /// Returns the ways to compute by turns, without an end.
    fn turns(&self) -> impl Iterator<Item = Run<Self::Variant>> {
        let runs = self.offer().variants.into_iter().map(|variant| Run { variant, ..self.best() });
        runs.collect::<Vec<_>>().into_iter().cycle()
    }
}

/// What a device computes.
#[derive(Clone, Debug)]
pub struct Offer<V> {
    /// The ways to compute, the best one last.
    pub variants: Vec<V>,
    /// Models with the features of all families: some of the [`examples`](crate::examples), or like
    /// them. The first one is plain.
    pub configs: Vec<Config>,
    /// All types of weights, f32 first.
    pub weight_types: Vec<WeightType>,
    /// A type of weights of each kind, f32 first: floats, bytes, and blocks that differ in more
    /// than their number of bits.
    pub kinds_of_weights: Vec<WeightType>,
    /// All types of caches.
    pub cache_types: Vec<CacheType>,
    /// The mixes of llama.cpp, among which is `Q4_K_M`.
    pub mixes: Vec<Mix>,
}

/// A drafter's tensors, its target on the device, and the types that it shall have.
pub type DrafterSource<'a, D> = (&'a Speculator, &'a <D as Device>::Weights, ModelTypes);

/// How a device runs a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run<V> {
    /// The way to compute.
    pub variant: V,
    /// The number of threads.
    pub threads: usize,
}

/// What a drafter finds of its target on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPart {
    /// Everything.
    Whole,
    /// The embedding, the final norm and the head.
    WithoutLayers,
    /// The final norm.
    FinalNorm,
}

/// How much is tested. A device states this, because a software driver or an emulator takes a
/// thousand times as long as cores. `usize::MAX` stands for everything.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Random cases of each test of row invariance.
    pub row_cases: u32,
    /// Random schedules of requests that share passes.
    pub schedules: u32,
    /// The number of moments at which passes of a plain model are cancelled, and of others.
    pub moments: [usize; 2],
    /// The number of types and variants, by turns, in which each example has a deep tree.
    pub kinds_of_deep_trees: usize,
    /// Every so many-th example takes part in tests that cores pass in a second.
    pub step_of_examples: usize,
    /// Every so many-th example has a long prompt.
    pub step_of_long_prompts: usize,
    /// The number of examples that are compared with the reference in all types.
    pub whole_examples: usize,
    /// Of the other examples, every so many-th type is compared.
    pub step_of_types: usize,
    /// The number of examples that are compared with all types of caches.
    pub examples_with_caches: usize,
    /// The number of types, by turns, in which each drafter is compared.
    pub types_of_drafters: usize,
}
