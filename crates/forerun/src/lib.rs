//! Parallel speculative decoding as a library.
//!
//! A small drafter proposes tokens and a large target verifies them. The text is exactly what the
//! target would write alone.
//!
//! 1. Fill in [`Options`]: the models, the method, the drafter, the devices. Every field but the
//!    target has a default.
//! 2. [`Plan::new`] checks the options against each other and against this machine.
//! 3. [`Forerun::open`] loads the models and starts one worker per device group.
//! 4. [`Forerun::generate`] streams the answer to a [`Request`], and returns an [`Answer`] with its
//!    tokens, statistics and trace. [`Chat`] does the same for conversations.
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
//! # Layers
//! This crate turns text into tokens and tokens into text. It may use every crate of the engine, and
//! none of them depends on it.

mod answer;
mod answer_stream;
mod chat;
mod chat_output;
mod chat_template;
mod decoding;
mod demonstration;
mod drafter;
mod drafter_builders;
mod drafter_context;
mod drafter_parts;
mod easyspec;
mod engine;
mod engine_method;
mod error;
mod gguf;
#[cfg(feature = "gpu")]
mod gpus;
mod grammar;
#[cfg(feature = "hub")]
mod hub;
mod integers;
mod layer_analysis;
mod loader;
mod memory;
mod model_id;
mod model_source;
mod model_summary;
mod open_model;
mod placed_weights;
mod plan;
mod progress;
mod quality;
mod ranks;
mod registry;
mod repetition;
mod request;
mod scoring;
mod synthetic_pair;
mod text_stream;
mod text_windows;
mod tokenizer;
mod translation;
mod unknown_value;
mod workers;

pub use answer::{Answer, Commit, tokens_per_second};
pub use answer_stream::{AnswerEvent, AnswerStream, AnswerToken, TokenOrigin};
pub use chat::{Chat, ChatError, Reply};
pub use chat_output::{ChatParser, ChatPart, ChatSyntax, Tool, UnknownSyntax, with_tools_as_text};
pub use chat_template::{
    ChatTemplate, ChatTemplateError, EncodeError, Message, PromptEnd, TemplateArguments,
};
pub use decoding::AnswerDecoders;
pub use demonstration::RandomPair;
pub use easyspec::{EasySpec, LayerStrategy};
pub use engine::{Canceller, Forerun};
pub use engine_method::MethodError;
pub use error::ForerunError;
#[cfg(feature = "gpu")]
pub use forerun_gpu::{
    AdapterKind, CudaLaunches, GpuAdapter, GpuDevice, GpuError, GpuFailure, GpuLoadError, GpuModel,
    GpuRules, KernelTime, PassCost as GpuPassCost, PassTimes as GpuPassTimes, Probe as GpuProbe,
};
pub use gguf::{ExportError, GgufExport, GgufOptions, export_gguf};
pub use grammar::{Grammar, GrammarError, GrammarKind};
#[cfg(feature = "hub")]
pub use hub::{
    HubAccess, HubAnswer, HubCache, HubError, HubFile, HubModel, HubRevision, TokenPlace,
};
pub use integers::{large_integer, too_large as integer_too_large};
pub use layer_analysis::{
    LayerAnalysis, LayerAnalysisError, LayerAnalysisOptions, LayerReport, PassCost, PassCosts,
    SearchStep, barrier_us,
};
pub use loader::Loader;
pub use model_id::ModelId;
pub use model_source::ModelSource;
pub use model_summary::{ModelFormat, ModelSummary};
pub use plan::{
    AdditionalDrafter, DraftTokens, Lookup, Method, Options, Plan, PlanError, Tree,
    WorkerDescription, WorkerDevice, WorkerModel, typical_placement,
};
pub use progress::{Progress, Step};
pub use quality::{QualityBench, QualityError, QualityOptions, QualityReport, TypeQuality};
pub use ranks::{DECODING_RANK, Rank, RankError, RankFacts, RankSite};
pub use registry::{DrafterEntry, DrafterKind};
pub use repetition::repeats_itself;
pub use request::{MAX_LOGPROBS, Request, RequestError, VerificationChoice};
pub use synthetic_pair::{
    AcceptanceCalibration, CalibrationStep, GrownPair, GrownPairOptions, ResidualCalibration,
    SyntheticPair, SyntheticPairError, SyntheticPairOptions, grow_pair, make_pair,
    synthetic_pair_label,
};
pub use text_stream::TextStream;
pub use tokenizer::{SpecialTokens, Tokenizer, TokenizerError};
pub use unknown_value::UnknownValue;

pub use forerun_cache::{PAGE_ROWS, PageEvent};
pub use forerun_core::Need;
pub use forerun_core::trace::{DeviceUse, Occupancy, Span, SpanKind, SpanOutcome, Trace};
pub use forerun_core::{
    Constraint, Sampling, SamplingError, SamplingOptions, TokenId, TokenLogprob, Verification,
};
pub use forerun_cpu::ceiling::CeilingOptions;
pub use forerun_cpu::layer_probe::{Similarities, Strategy, StrategyScore};
pub use forerun_cpu::measure;
pub use forerun_cpu::quality::Quality;
pub use forerun_cpu::{
    Exchange, GroupParallelism, Isa, IsaError, Team, TeamError, Transformer, Weights,
};
pub use forerun_decode::{
    AnswerDecoder, Decisions, DecoderOptions, DraftLength, DraftPattern, Drafting, MethodEntry,
};
pub use forerun_decode::{Finish, PearlOptions, PearlSchedule, Statistics, VerificationRecord};
pub use forerun_draft::{
    CalibrationPolicy, DefaultShape, DraftContext, Drafter, DrafterTraits, UnknownCalibrationPolicy,
};
pub use forerun_formats::checkpoint::Dtype;
pub use forerun_formats::{
    BlockType, CacheType, Checkpoint, Config, EmbeddedModel, Family, LoadError, Mix, ModelTypes,
    RopeScaling, SpeculatorKind, SuggestedSampling, UnknownCacheType, UnknownWeightType,
    WeightType, WeightTypes,
};
pub use forerun_lm::{LayerGroups, LayerGroupsError, ModelError};
pub use forerun_model::{Forward, ModelProbe};
pub use forerun_runtime::{
    ClusterHandle, CpuQuota, DeviceGroup, Placement, PlacementError, RemoteProcess, RemoteWorkers,
    Runtime, ThreadCluster, ThreadLimit, Topology, Workers, available_cores, available_memory,
    default_cores,
};
