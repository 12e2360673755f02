//! Parallel speculative decoding, for programs that embed it.
//!
//! A small drafter proposes tokens, the large target checks them, and the text is exactly the
//! target's. [`Forerun::open`] loads what a [`Plan`] names onto the device groups that it names;
//! [`Forerun::generate`] streams text.
//!
//! This crate is the end where text lives. It may touch everything below; nothing below knows it.
//!
//! ```no_run
#![doc = include_str!("../examples/embed.rs")]
//! ```

mod answer;
mod chat;
mod chat_template;
mod decoding;
mod demonstration;
mod drafter;
mod drafter_weights;
mod easyspec;
mod engine;
mod error;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod layer_analysis;
mod loader;
mod open_model;
mod plan;
mod progress;
mod quality;
mod request;
mod sink;
mod synthetic_pair;
mod text_stream;
mod tokenizer;
mod translation;
mod workers;

pub use answer::{Answer, Commit};
pub use chat::{Chat, ChatError, Reply};
pub use chat_template::{ChatTemplate, ChatTemplateError, EncodeError, Message};
pub use demonstration::RandomPair;
pub use easyspec::{EasySpec, LayerStrategy};
pub use engine::{Canceller, Forerun};
pub use error::ForerunError;
pub use gguf::{ExportError, GgufExport, export_gguf};
#[cfg(feature = "hub")]
pub use hub::{HubError, ModelId};
pub use layer_analysis::{
    LayerAnalysis, LayerAnalysisError, LayerAnalysisOptions, LayerReport, PassCost, PassCosts,
    SearchStep, barrier_us,
};
pub use loader::Loader;
pub use plan::{
    AdditionalDrafter, DraftTokens, DrafterKind, Method, Options, Plan, PlanError, Tree,
    UnknownValue,
};
pub use progress::{Progress, Step};
pub use quality::{QualityBench, QualityError, QualityOptions, QualityReport};
pub use request::{MAX_LOGPROBS, Request, RequestError, VerificationChoice};
pub use synthetic_pair::{
    AcceptanceCalibration, CalibrationStep, ResidualCalibration, SyntheticPair, SyntheticPairError,
    SyntheticPairOptions, make_pair, synthetic_pair_label,
};
pub use text_stream::TextStream;
pub use tokenizer::{Tokenizer, TokenizerError};

pub use forerun_core::trace::{DeviceUse, Occupancy, Span, SpanKind, SpanOutcome, Trace};
pub use forerun_core::{Sampling, SamplingError, TokenId, TokenLogprob, Verification};
pub use forerun_decode::{Finish, PearlOptions, PearlSchedule, Statistics, VerificationRecord};
pub use forerun_draft::{CalibrationPolicy, UnknownCalibrationPolicy};
pub use forerun_model::checkpoint::Dtype;
pub use forerun_model::checkpoint::gguf::GgufType;
pub use forerun_model::layer_probe::{Similarities, Strategy, StrategyScore};
pub use forerun_model::quality::Quality;
pub use forerun_model::{
    Checkpoint, Config, Family, GroupWork, Isa, IsaError, LayerGroups, LayerGroupsError, LoadError,
    RopeScaling, SpeculatorKind, SuggestedSampling, Team, TeamError, UnknownWeightType, WeightType,
    Weights,
};
pub use forerun_model::{measure, model_cost};
pub use forerun_runtime::{
    Placement, PlacementError, ThreadCluster, available_cores, cores_within_quota,
};
