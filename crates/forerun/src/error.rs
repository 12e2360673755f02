//! The errors of opening an engine and of generating an answer.

use crate::model_source::ModelSource;
use crate::plan::PlanError;
use crate::ranks::RankError;
use crate::registry::DrafterKind;
use crate::request::RequestError;
use forerun_core::TokenId;
use forerun_cpu::IsaError;
use forerun_decode::DecodeError;
use forerun_formats::{LoadError, SpeculatorKind};
use forerun_lm::LayerGroupsError;
use forerun_runtime::StartError;
use forerun_text::GrammarError;
use forerun_text::TokenizerError;
use std::path::PathBuf;

/// Why an engine could not be opened, or an answer not be generated.
///
/// Messages say what is wrong, where, and what to do. They name options in backticks by the fields
/// of [`Options`](crate::Options) and [`Request`](crate::Request).
#[derive(Debug, thiserror::Error)]
pub enum ForerunError {
    /// A checkpoint cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The models do not fit in memory.
    #[error(
        "the models need {} MiB of memory, but only {} MiB are available (limits of control groups and of \
         `ulimit -v` count, swap does not): set `weight_type = int8`, choose smaller models, or free memory",
        needed.div_ceil(1 << 20),
        available >> 20
    )]
    Memory {
        /// The memory that weights, caches and passes need at least, in bytes.
        needed: u64,
        /// The available memory in bytes.
        available: u64,
    },
    /// The folder of cached pages cannot be used.
    #[error("cannot keep cached pages in {}, as `cache_dir` asks", path.display())]
    CacheDir {
        /// The folder.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: std::io::Error,
    },
    /// A path that does not exist, or a hub id, in a build without the feature `hub`.
    #[cfg(not(feature = "hub"))]
    #[error(
        "{}: no such file or directory; if it is a hub id: this build has no hub, enable the feature `hub`",
        path.display()
    )]
    NoHub {
        /// The path or id.
        path: PathBuf,
    },
    /// A GPU in a build without the feature `gpu`.
    #[cfg(not(feature = "gpu"))]
    #[error("gpu:{gpu} needs a build with GPU support: build with `--features gpu`")]
    NoGpuSupport {
        /// The number of the GPU.
        gpu: usize,
    },
    /// A GPU cannot be used.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(Box<forerun_gpu::GpuError>),
    /// A model cannot be loaded on a GPU.
    #[cfg(feature = "gpu")]
    #[error("cannot load {model} on a GPU")]
    LoadOnGpu {
        /// The model.
        model: String,
        /// The reason.
        #[source]
        cause: Box<forerun_gpu::GpuLoadError>,
    },
    /// What a drafter on a GPU shares with a target that is elsewhere cannot be loaded there.
    #[cfg(feature = "gpu")]
    #[error(
        "the drafter {drafter} on gpu:{gpu} needs a copy of the target's {part} there, which cannot be loaded; write, for \
         example, \"drafter=cpu:0\""
    )]
    SharedOnGpu {
        /// The drafter.
        drafter: String,
        /// The number of the GPU.
        gpu: usize,
        /// The part of the target, in words.
        part: &'static str,
        /// The reason.
        #[source]
        cause: Box<forerun_gpu::GpuLoadError>,
    },
    /// A drafter that one device computes is placed on several ranks.
    #[error(
        "the drafter {drafter} uses weights and hidden states of the target, and cannot be split between ranks, but the \
         placement puts it on {ranks}; give it one rank, as in \"drafter=rank:0\", or draft with a model of its own"
    )]
    DrafterOnRanks {
        /// The drafter.
        drafter: String,
        /// Its ranks.
        ranks: String,
    },
    /// A model cannot be split into as many pipeline stages as there are ranks for it.
    #[error("cannot put the layers of {model} on {ranks}: {cause}")]
    Stages {
        /// The model, as the options name it.
        model: String,
        /// The group of the placement.
        ranks: String,
        /// How many stages are possible.
        cause: Box<LoadError>,
    },
    /// A model that is part of the program, where one on disk is needed.
    #[error("{0} is part of this program and has no path: give the path of a model")]
    Embedded(&'static str),
    /// A hub model cannot be fetched.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(Box<forerun_hub::HubError>),
    /// A file in the hub's cache is malformed.
    #[cfg(feature = "hub")]
    #[error(
        "{cause}; if the file was damaged in the cache, delete {file} and run again to download it"
    )]
    Cached {
        /// What is wrong with the file.
        cause: Box<Self>,
        /// The file with the content, which may be the target of a link.
        file: PathBuf,
    },
    /// The loader's progress callback stopped the loading.
    #[error("loading was cancelled; an interrupted download resumes the next time")]
    Cancelled,
    /// A tokenizer cannot be loaded, or cannot encode a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The environment variable `FORERUN_ISA` names an instruction set that is unknown or missing.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The ranks of an MPI job do not fit together, or there are none.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A worker cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An option of the request is out of range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The request's grammar cannot be used, or its answer not be completed.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A drafter with another vocabulary is asked for trees, but only chains can be translated.
    #[error(
        "the drafter {drafter} has another vocabulary than the target {target} ({}): its drafts are \
         translated by their text, and only chains can be; leave `tree` out, or choose a drafter with \
         the target's tokenizer",
        if drafter_size == target_size {
            format!("both have {target_size} tokens, but not the same ones")
        } else {
            format!("{drafter_size} tokens against {target_size} tokens")
        }
    )]
    UntranslatableTree {
        /// The target's checkpoint.
        target: PathBuf,
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// The size of the target's vocabulary.
        target_size: usize,
        /// The size of the drafter's vocabulary.
        drafter_size: usize,
    },
    /// A drafter has another vocabulary, but its kind cannot translate drafts.
    #[error(
        "the drafter {drafter} has another vocabulary than the target {target}, and \
         `drafter = {kind}` cannot translate drafts: choose a drafter with the target's tokenizer, or \
         set `drafter = model`"
    )]
    UntranslatableDrafter {
        /// The kind of drafter.
        kind: DrafterKind,
        /// The target's checkpoint.
        target: PathBuf,
        /// The drafter's checkpoint.
        drafter: PathBuf,
    },
    /// The draft model is of another kind than the requested drafter.
    #[error(
        "{path} holds {found}, which `drafter = {requested}` cannot use: set `drafter = {}`",
        DrafterKind::of(*found)
    )]
    WrongDrafterKind {
        /// The draft model.
        path: PathBuf,
        /// What the draft model is.
        found: SpeculatorKind,
        /// The requested drafter.
        requested: DrafterKind,
    },
    /// The draft model holds no drafter of the requested kind.
    #[error(
        "{path} holds no drafter for `drafter = {requested}`: name a folder with the tensors of one, \
         or set `drafter = model` for a whole model"
    )]
    NotADrafter {
        /// The draft model.
        path: PathBuf,
        /// The requested drafter.
        requested: DrafterKind,
    },
    /// The drafter's files do not fit the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The layer groups do not fit the drafter.
    #[error("{cause}: {}", drafter.display())]
    LayerGroups {
        /// What does not fit.
        cause: LayerGroupsError,
        /// The drafter's checkpoint.
        drafter: PathBuf,
    },
    /// The tokenizer's vocabulary, without added tokens, is larger than its model's.
    #[error(
        "the tokenizer {tokenizer} has tokens up to {largest}, but the model {model} has only \
         {expected} tokens: they do not belong together, so copy the model's own tokenizer there"
    )]
    TokenizerSize {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// The checkpoint.
        model: PathBuf,
        /// The tokenizer's largest token.
        largest: TokenId,
        /// The number of the model's tokens.
        expected: usize,
    },
    /// The context is to be longer than the model's.
    #[error(
        "`context_length` is {found}, but the model {model} has a context of {context}: give at most that, or leave \
         `context_length` out"
    )]
    ContextLength {
        /// The number of tokens.
        found: usize,
        /// The model's context length in tokens.
        context: usize,
        /// The target.
        model: ModelSource,
    },
    /// The prompt is empty.
    #[error("the prompt is empty: give some text to continue")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens, but the model {model} has a context of {context}: shorten \
         the prompt to at most {} tokens", context - 1
    )]
    PromptTooLong {
        /// The number of the prompt's tokens.
        prompt: usize,
        /// The model's context length in tokens.
        context: usize,
        /// The target.
        model: ModelSource,
    },
    /// The prompt is too long to be tokenized as a whole.
    #[error(
        "the prompt has {bytes} bytes, about {tokens} tokens, but the model {model} has a context of \
         {context}: shorten the prompt to at most {} tokens", context - 1
    )]
    PromptFarTooLong {
        /// The length of the prompt in bytes.
        bytes: usize,
        /// An estimate of the number of the prompt's tokens.
        tokens: usize,
        /// The model's context length in tokens.
        context: usize,
        /// The target.
        model: ModelSource,
    },
    /// A text to be scored or embedded is too long.
    #[error(
        "the text has {tokens} tokens, but the context of the model {model} has room for {context}: shorten or split it"
    )]
    TextTooLong {
        /// The number of the text's tokens.
        tokens: usize,
        /// The most tokens of a text.
        context: usize,
        /// The target.
        model: ModelSource,
    },
    /// A text to be embedded is given as tokens that the model lacks.
    #[error(
        "a text has the token {token}, but the model has only {vocab_size}: encode it with the model's own tokenizer"
    )]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// The number of the model's tokens.
        vocab_size: usize,
    },
    /// A model that generates text is asked for embeddings.
    #[error(
        "the model {model} generates text and gives no embeddings: choose a model for embeddings, such as all-MiniLM-L6-v2 \
         or Qwen3-Embedding"
    )]
    NoEmbeddings {
        /// The model.
        model: ModelSource,
    },
    /// A model for embeddings is asked to generate text, or to draft it.
    #[error(
        "the model {model} gives embeddings of texts and generates none: choose another model, or ask for embeddings \
         (`embed`)"
    )]
    OnlyEmbeddings {
        /// The model.
        model: ModelSource,
    },
    /// Decoding failed. The text that was streamed before is the target's nonetheless.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

#[cfg(feature = "hub")]
impl From<forerun_hub::FetchError> for ForerunError {
    fn from(error: forerun_hub::FetchError) -> Self {
        match error {
            forerun_hub::FetchError::Hub(error) => Self::Hub(Box::new(error)),
            forerun_hub::FetchError::Index(error) => Self::Load(error),
            forerun_hub::FetchError::Cancelled => Self::Cancelled,
        }
    }
}
