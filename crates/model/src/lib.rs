//! Language models made of a device's forward passes and of cache pages.
//!
//! A device implements [`Forward`] (and [`ForwardHeads`] for draft heads): it computes passes of
//! any [`Architecture`](forerun_formats::Architecture) that it supports, and has the memory of the
//! cache pages. This crate turns requests into passes. It knows neither files nor kernels, and no
//! component here depends on the device.

mod block_model;
mod cached_transformer;
mod draft_logits;
mod eagle_model;
mod forward;
mod heads_model;
mod model_probe;
mod sequence_runner;
mod split_model;
mod target_keys_model;

pub use block_model::BlockModel;
pub use cached_transformer::{CachedTransformer, DEFAULT_CACHE_BYTES, DRAFTER_CACHE_BYTES};
pub use eagle_model::EagleModel;
pub use forward::{
    CacheOverflow, Cancelled, Forward, ForwardHeads, ForwardLayers, ForwardRest, HeadOutput,
    HeadRow, LayersOutput, Pass, PassError, PassOutput, RowFeature, SequencePass,
};
pub use heads_model::HeadsModel;
pub use model_probe::ModelProbe;
pub use sequence_runner::SequenceRunner;
pub use split_model::{SplitModel, SplitPages};
pub use target_keys_model::TargetKeysModel;
