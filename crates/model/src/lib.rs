//! Transformer inference: checkpoints, kernels, the key/value cache and the forward pass.
//!
//! This crate may use files (to read checkpoints), threads (a [`Team`] is a device) and tensors. It
//! has no notion of drafting, verification or scheduling: the crates above it see only tokens and
//! distributions.

mod caches;
pub mod checkpoint;
pub mod config;
mod eagle_model;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod features;
pub mod forward;
mod hydra_model;
mod json_options;
mod kernels;
pub mod kv_cache;
pub mod language_model;
pub mod layer_probe;
pub mod layers;
mod load_error;
pub mod measure;
mod medusa_heads;
pub mod model_cost;
pub mod pipeline;
pub mod quality;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
pub mod speculator;
pub mod team;
pub mod transformer;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use config::{Config, Family, RopeScaling, SuggestedSampling};
pub use eagle_model::EagleModel;
pub use features::FeatureSource;
pub use forward::{Forward, Pass};
pub use hydra_model::HydraModel;
pub use kernels::{Isa, IsaError, PackedMatrix, UnknownWeightType, WeightType};
pub use language_model::{
    CachedTransformer, FeatureHeads, FeatureModel, LanguageModel, LayeredModel, Logits,
    LogitsContext, ModelError, ScoreContext, score,
};
pub use layers::{GroupParallelism, LayerGroups, LayerGroupsError, LayerOrder};
pub use load_error::LoadError;
pub use medusa_heads::MedusaHeads;
pub use pipeline::{
    AlternatingModel, ExclusiveDevice, PassAssignment, PipelineError, PipelineParallelModel,
};
#[cfg(any(test, feature = "testing"))]
pub use reference::ReferenceModel;
pub use speculator::{Speculator, SpeculatorKind};
pub use team::{AffinityGuard, Team, TeamError};
pub use transformer::Transformer;
pub use weights::Weights;
