//! Errors of opening a GPU and of loading models on it.

use forerun_formats::LoadError;

/// A GPU that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no adapter with this number.
    #[error("there is no GPU {index}; found {found}; install the Vulkan driver of the GPU")]
    NoAdapter {
        /// The number that was asked for.
        index: usize,
        /// The adapters that exist, in words.
        found: String,
    },
    /// The adapter lacks a feature.
    #[error("GPU {adapter}: the driver has no {feature}; update the driver")]
    MissingFeature {
        /// The adapter's name.
        adapter: String,
        /// The missing feature.
        feature: &'static str,
    },
    /// A limit of the adapter is too small.
    #[error("GPU {adapter}: expected a {limit} of at least {expected}, found {found}")]
    Limit {
        /// The adapter's name.
        adapter: String,
        /// The limit.
        limit: &'static str,
        /// The smallest value that works.
        expected: u64,
        /// The adapter's value.
        found: u64,
    },
    /// The driver refused to open the adapter.
    #[error("GPU {adapter}: cannot be opened: {cause}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// The driver's reason.
        cause: String,
    },
}

/// A model that cannot be loaded on a GPU.
#[derive(Debug, thiserror::Error)]
pub enum GpuLoadError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model has a piece that GPUs do not compute yet.
    #[error("GPUs do not compute {piece} yet; place the model on the CPU")]
    Unsupported {
        /// The piece and where it is.
        piece: String,
    },
    /// The GPU has too little free memory.
    #[error(
        "GPU {adapter}: there is no memory for {what} of {} MiB: choose a smaller type, or place the model on the CPU",
        bytes.div_ceil(1 << 20)
    )]
    OutOfMemory {
        /// The adapter's name.
        adapter: String,
        /// What was to be allocated.
        what: String,
        /// Its size in bytes.
        bytes: u64,
    },
}

impl GpuLoadError {
    pub(crate) fn unsupported(piece: impl Into<String>) -> Self {
        Self::Unsupported { piece: piece.into() }
    }
}
