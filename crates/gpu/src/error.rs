//! Errors of GPUs: of opening them, of loading models on them, and of passes.

use crate::arithmetic::ARITHMETIC;
use crate::cuda::API;
use crate::rules::{INEXACT, SOFTWARE};
use forerun_cache::StorageError;
use forerun_formats::LoadError;
use forerun_model::PassError;

/// A GPU that cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum GpuError {
    /// The environment variable `FORERUN_GPU_API` has an unknown value.
    #[error("{API} is {0:?}, but must be cuda: set it to that, or unset it")]
    UnknownApi(String),
    /// An environment variable chooses CUDA, and this crate is built without it.
    #[error(
        "{variable} chooses CUDA, which this build does not have: build it with the feature `cuda`, or unset {variable}"
    )]
    WithoutCuda { variable: &'static str },
    /// The environment variable `FORERUN_GPU_ARITHMETIC` has an unknown value.
    #[error(
        "{ARITHMETIC} is {0:?}, but must be exact or tensor: set it to one of them, or unset it"
    )]
    UnknownArithmetic(String),
    /// The arithmetic of tensor cores is asked for, and the GPU does not have it.
    #[error("GPU {adapter} cannot use tensor cores: {reason}; set {ARITHMETIC}=exact, or unset it")]
    NoTensorArithmetic { adapter: String, reason: &'static str },
    /// The GPU failed while its tensor cores were probed.
    #[error(
        "{0}. It failed when its tensor cores were probed: unset {ARITHMETIC} to do without them"
    )]
    TensorProbe(GpuFailure),
    /// There is no adapter with this number.
    #[error("there is no GPU {index}; found {found}; install the Vulkan driver of the GPU")]
    NoAdapter { index: usize, found: String },
    /// There is no hardware. `software` names a driver that computes on the processor, if there is
    /// one.
    #[error(
        "no GPU was found for gpu:{index}; install the Vulkan driver of the GPU, and see `forerun doctor`; a container \
         needs the driver's files, too (with NVIDIA's toolkit, NVIDIA_DRIVER_CAPABILITIES=graphics,compute), or the feature \
         `cuda` and NVRTC{}",
        software.as_ref().map_or_else(String::new, |name| {
            format!("; {name} computes on the processor and is for tests: {SOFTWARE}=1 allows it")
        })
    )]
    NoGpu { index: usize, software: Option<String> },
    /// The adapter is no hardware, but others are.
    #[error(
        "gpu:{index} is {name}, which computes on the processor and is for tests ({SOFTWARE}=1 allows it); `forerun \
         devices` lists the others"
    )]
    Software { index: usize, name: String },
    /// The driver does not compute the defined bits. `lax_interface` is the interface to it, if it
    /// may change arithmetic there.
    #[error(
        "GPU {adapter}: its driver computes other bits than those that forerun defines ({found}), so a text could depend \
         on how it is verified; {advice}, or set {INEXACT}=1 to use it nevertheless",
        advice = match lax_interface {
            None => "update the driver".to_owned(),
            Some(interface) => format!("forerun cannot forbid this through {interface}: place the model on cores"),
        }
    )]
    OtherBits { adapter: String, found: String, lax_interface: Option<String> },
    /// GPUs with replicas of a model compute different bits.
    #[error(
        "the replicas of a model need GPUs that compute the same bits, but {first} and {second} do not; use one of them, \
         or equal GPUs with equal drivers"
    )]
    DifferentBits { first: String, second: String },
    /// The adapter lacks a feature.
    #[error("GPU {adapter}: the driver has no {feature}; update the driver")]
    MissingFeature { adapter: String, feature: &'static str },
    /// A limit of the adapter is too small.
    #[error("GPU {adapter}: expected a {limit} of at least {expected}, found {found}")]
    Limit { adapter: String, limit: &'static str, expected: u64, found: u64 },
    /// The driver refused to open the adapter.
    #[error("GPU {adapter}: cannot be opened: {cause}")]
    Open { adapter: String, cause: String },
    /// The GPU failed while it was probed.
    #[error(transparent)]
    Failure(#[from] GpuFailure),
}

/// An open GPU that cannot do what is asked of it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum GpuFailure {
    /// The GPU has too little free memory. It can be used further.
    #[error(
        "GPU {adapter}: there is no memory for {what} of {} MiB; choose a smaller type or a smaller cache, give the GPU \
         fewer layers of the target (`--gpu-layers`), or place the model on the CPU",
        bytes.div_ceil(1 << 20)
    )]
    OutOfMemory { adapter: String, what: String, bytes: u64 },
    /// The GPU was lost, or its driver reported an error that should not happen. It cannot be used
    /// again.
    #[error(
        "GPU {adapter} has failed: {reason}; load the models on it again, or place them on the CPU (`target=cpu:0-3`, \
         `drafter=cpu:0`)"
    )]
    Lost { adapter: String, reason: String },
}

impl From<GpuFailure> for PassError {
    fn from(failure: GpuFailure) -> Self {
        Self::Device { message: failure.to_string() }
    }
}

impl From<GpuFailure> for StorageError {
    fn from(failure: GpuFailure) -> Self {
        Self(failure.to_string())
    }
}

/// A model that cannot be loaded on a GPU.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum GpuLoadError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The caller stopped the upload.
    #[error("loading was cancelled")]
    Cancelled,
    /// The model has a piece that GPUs do not compute yet.
    #[error("GPUs do not compute {piece} yet; place the model on the CPU")]
    Unsupported { piece: String },
    /// More layers were asked for than GPUs compute.
    #[error(
        "GPUs do not compute {piece} yet: give the GPU at most {layers} of this model's layers (`--gpu-layers {layers}`)"
    )]
    UnsupportedLayers { piece: String, layers: usize },
    /// More layers were asked for than there is memory for.
    #[error(
        "GPU {adapter}: there is memory for {layers} of this model's layers, not for {asked}, with caches of 8,192 tokens \
         and the other models on it: choose a smaller type or fewer layers (`--gpu-layers {layers}`)"
    )]
    TooManyLayers { adapter: String, layers: usize, asked: usize },
    /// The GPU has too little free memory, or was lost.
    #[error(transparent)]
    Failure(#[from] GpuFailure),
}

impl GpuLoadError {
    pub(crate) fn unsupported(piece: impl Into<String>) -> Self {
        Self::Unsupported { piece: piece.into() }
    }
}
