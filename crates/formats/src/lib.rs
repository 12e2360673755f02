//! Model files: checkpoints, configurations and the layouts of drafters.
//!
//! A file becomes an [`Architecture`], which says what a model computes, and a [`TensorSource`],
//! which has its weights. This crate may access files. It has no kernels, threads or caches:
//! devices pack the weights and compute the model.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod adapter;
mod architecture;
mod block_type;
pub mod blocks;
pub mod checkpoint;
pub mod config;
mod embedded_model;
mod importance;
mod json_options;
mod known_ends;
mod load_error;
mod mix;
mod model_types;
pub mod speculator;
mod table_enum;
mod tensor;
mod weight_type;

pub use adapter::{Adapter, LowRankUpdate};
pub use architecture::{
    Activation, Architecture, Attention, AttentionNorm, BlockConv, BlockHeads, CandidateSelector,
    ConfidenceInput, DraftHeads, ExpertGroups, Experts, Factors, FeatureNorm, FeatureSource, Head,
    Input, Latent, Layer, MarkovHead, MarkovKind, Mlp, MlpInput, Norm, OwnInput, PositionTable,
    QkNorms, Recurrent, RecurrentRule, Rope, Router, Weighting,
};
pub use block_type::{BlockType, UnknownBlockType};
pub use checkpoint::{Checkpoint, TensorSource};
pub use config::{
    Config, Family, GlobalHeads, MixtureLayers, NormPlacement, Pooling, PoolingMode,
    RecurrentLayers, RopeScaling, SharedKeys, SuggestedSampling, Yarn,
};
pub use embedded_model::EmbeddedModel;
pub use importance::Importance;
pub use known_ends::known_ends;
pub use load_error::LoadError;
pub use mix::Mix;
pub use model_types::{MatrixTypes, ModelTypes, UnknownWeightType, WeightTypes};
pub use speculator::{DraftBlock, Speculator, SpeculatorArchitecture, SpeculatorKind};
pub use tensor::{BlockHeadTensor, ExpertTensor, HeadTensor};
pub use weight_type::{
    CacheType, QUANT_BLOCK, UnknownCacheType, WeightType, hadamard, quantize_to_i4, quantize_to_i8,
    round_to_i8,
};
