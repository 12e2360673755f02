//! Parallel speculative decoding as a library.
//!
//! A small drafter proposes tokens and a large target verifies them. The text is exactly what the
//! target would write alone.
//!
//! ```no_run
//! use forerun::{Engine, Request};
//!
//! let engine = Engine::open("model.gguf")?;
//! println!("{}", engine.complete("Hi", &Request::default())?.text);
//! # Ok::<(), forerun::ForerunError>(())
//! ```
//!
//! 1. [`Engine::open`] takes a path, a hub id or [`Options`]: the models, the method, the drafter,
//!    the devices. It checks them, loads the models and starts one worker per device group.
//! 2. [`Engine::generate`] streams the answer to a [`Request`], and returns an [`Answer`] with its
//!    tokens, statistics and trace. [`Engine::chat`] does the same for conversations.
//!
//! ```no_run
#![doc = include_str!("../examples/embed.rs")]
//! ```
//!
//! # Errors
//! [`PlanError`] and [`ForerunError`] name options in backticks by the fields of [`Options`] and
//! [`Request`], as in "set `draft_model`". Two names stand for the field `layers`:
//! `layer_parallel_size` for [`LayerStrategy::Parallel`], and `layer_groups` for
//! [`LayerStrategy::Groups`].
//!
//! # Names
//! This page has what [`Options`], [`Request`], [`Answer`] and [`Chat`] need. The modules have the
//! rest by subject, such as [`draft`] for drafters of your own. Examples that name `forerun_core` or
//! another crate of the engine work with these names, too.
//!
//! # Layers
//! This crate opens engines and answers requests. It may use every crate of the engine, and none of
//! them depends on it. `forerun-text` turns text into tokens, `forerun-hub` downloads models.

mod answer;
mod answer_stream;
mod chat;
mod decoding;
mod demonstration;
mod drafter;
mod drafter_builders;
mod drafter_context;
mod drafter_parts;
mod easyspec;
mod embeddings;
mod engine;
mod engine_method;
mod error;
mod gguf;
#[cfg(feature = "gpu")]
mod gpus;
mod loader;
mod memory;
mod model_source;
mod model_summary;
mod open_model;
mod page_folder;
mod placed_weights;
mod plan;
mod progress;
mod ranks;
mod registry;
mod request;
mod scoring;
mod translation;
mod workers;

pub use answer::{Answer, Commit};
pub use answer_stream::{AnswerEvent, AnswerStream, AnswerToken, TokenOrigin};
pub use chat::{Chat, ChatError, Reply};
pub use demonstration::RandomPair;
pub use easyspec::LayerStrategy;
pub use engine::{Canceller, Engine};
pub use error::ForerunError;
pub use forerun_core::{SamplingOptions, TokenId, TokenLogprob, UnknownValue, Verification};
pub use forerun_decode::{Finish, PearlOptions, PearlSchedule, Statistics, VerificationRecord};
pub use forerun_draft::CalibrationPolicy;
pub use forerun_formats::{CacheType, WeightType, WeightTypes};
#[cfg(feature = "hub")]
pub use forerun_hub as hub;
pub use forerun_runtime::Placement;
pub use forerun_text as text;
pub use forerun_text::{ChatTemplate, Grammar, Message};
pub use loader::Loader;
pub use model_source::ModelSource;
pub use plan::{
    AdditionalDrafter, DraftTokens, DrafterOptions, Lookup, Method, MethodOptions, Options, Plan,
    PlanError, Tree,
};
pub use progress::{Progress, Step};
pub use registry::DrafterKind;
pub use request::{Request, RequestError, VerificationChoice};

/// Models on disk: their configurations, types and tensors, and their export.
pub mod checkpoint {
    pub use crate::gguf::{ExportError, GgufExport, GgufOptions, export_gguf};
    pub use crate::model_summary::{ModelFormat, ModelSummary};
    pub use crate::open_model::OpenModel;
    pub use crate::plan::NamedAdapter;
    pub use forerun_formats::checkpoint::Dtype;
    pub use forerun_formats::{
        BlockType, Checkpoint, Config, EmbeddedModel, Family, LoadError, Mix, ModelTypes, Pooling,
        PoolingMode, RopeScaling, SpeculatorKind, SuggestedSampling, UnknownCacheType,
        UnknownWeightType,
    };
}

/// CPUs as devices: teams of threads, packed weights, and measurements of both.
pub mod cpu {
    pub use forerun_cpu::{
        Exchange, GroupParallelism, Isa, IsaError, Team, TeamError, Transformer, Weights, measure,
    };
    pub use forerun_model::{Forward, ModelProbe};
}

/// Drafters of your own, and what describes drafters.
pub mod draft {
    pub use crate::easyspec::EasySpec;
    pub use crate::registry::DrafterEntry;
    pub use forerun_core::{
        Draft, DraftShape, Proposal, Randomness, SequenceId, TargetFeedback, TokenTree,
    };
    pub use forerun_draft::{
        DefaultShape, DraftContext, Drafter, DrafterTraits, UnknownCalibrationPolicy,
    };
    pub use forerun_lm::{LayerGroups, LayerGroupsError, ModelError};
}

/// GPUs as devices.
#[cfg(feature = "gpu")]
pub mod gpu {
    pub use forerun_gpu::{
        AdapterKind, CudaLaunches, GpuAdapter, GpuDevice, GpuError, GpuFailure, GpuLoadError,
        GpuModel, GpuRules, KernelTime, PassCost, PassTimes, Probe,
    };
}

/// Methods of your own: decoders, and the options that they and their jobs get.
pub mod method {
    pub use crate::decoding::AnswerDecoders;
    pub use forerun_core::{Constraint, Dry, Need, Sampling, SamplingError};
    pub use forerun_decode::{
        AnswerDecoder, DecoderOptions, DraftLength, DraftPattern, Drafting, MethodEntry,
    };
}

/// The processors of this machine, and which of them run what.
pub mod placement {
    pub use crate::plan::typical_placement;
    pub use forerun_runtime::{
        CpuQuota, DeviceGroup, Pace, PassTimes, PlacementError, ThreadLimit, Topology,
        available_cores, available_memory, default_cores,
    };
}

/// Workers, in this process and in others, and the cache pages that they publish.
pub mod runtime {
    pub use crate::plan::{WorkerDescription, WorkerDevice, WorkerModel};
    pub use crate::ranks::{DECODING_RANK, Rank, RankError, RankFacts, RankSite};
    pub use forerun_cache::{PAGE_ROWS, PageEvent};
    pub use forerun_runtime::{
        ClusterHandle, RemoteProcess, RemoteWorkers, Runtime, ThreadCluster, Workers,
    };
}

/// What the devices did, and when.
pub mod trace {
    pub use crate::answer::{PacedPasses, tokens_per_second};
    pub use forerun_core::trace::{
        Decision, DecisionReason, DeviceUse, Occupancy, Span, SpanKind, SpanOutcome, Trace,
    };
}
