//! Transformer inference: checkpoints, kernels, the key/value cache and the forward pass.
//!
//! This crate may use files (to read checkpoints), threads (a [`Team`] is a device) and tensors. It
//! has no notion of drafting, verification or scheduling: the crates above it see only tokens and
//! distributions.

mod cached_transformer;
pub mod checkpoint;
pub mod config;
mod cpu_pages;
mod eagle_model;
mod features;
pub mod forward;
mod hydra_model;
mod json_options;
mod kernels;
pub mod layer_probe;
mod load_error;
pub mod measure;
mod medusa_heads;
pub mod model_cost;
pub mod pipeline;
pub mod quality;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
mod sequence_runner;
pub mod speculator;
pub mod team;
pub mod transformer;
pub mod weights;

pub use cached_transformer::CachedTransformer;
pub use checkpoint::Checkpoint;
pub use config::{Config, Family, RopeScaling, SuggestedSampling};
pub use cpu_pages::CpuPages;
pub use eagle_model::EagleModel;
pub use features::FeatureSource;
pub use forward::{Cancelled, Forward, Pass, SequencePass};
pub use hydra_model::HydraModel;
pub use kernels::{Isa, IsaError, PackedMatrix, UnknownWeightType, WeightType};
pub use load_error::LoadError;
pub use medusa_heads::MedusaHeads;
pub use pipeline::{AlternatingModel, ExclusiveDevice, PipelineError, PipelineParallelModel};
#[cfg(any(test, feature = "testing"))]
pub use reference::ReferenceModel;
pub use sequence_runner::SequenceRunner;
pub use speculator::{Speculator, SpeculatorKind};
pub use team::{AffinityGuard, Team, TeamError};
pub use transformer::{GroupParallelism, Transformer};
pub use weights::Weights;
