//! What a Transformer is here: checkpoints, kernels, the key/value cache and the forward pass.
//!
//! This crate may touch files (to read checkpoints), threads (a team is a device) and tensors. It
//! knows nothing of drafts, verdicts or schedules: above it, everything is tokens and
//! distributions.

mod caches;
pub mod checkpoint;
pub mod config;
mod eagle_model;
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
pub use layers::{GroupWork, LayerGroups, LayerGroupsError, LayerOrder};
pub use load_error::LoadError;
pub use medusa_heads::MedusaHeads;
pub use pipeline::{
    AlternatingModel, ExclusiveDevice, PassAssignment, PipelineError, PipelineParallelModel,
};
pub use reference::ReferenceModel;
pub use speculator::{Speculator, SpeculatorKind};
pub use team::{AffinityGuard, Team, TeamError};
pub use transformer::Transformer;
pub use weights::Weights;
