//! Progress reports while models are downloaded, loaded and exported.

/// A long-running step of opening a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A file is downloaded from the hub. Progress counts bytes.
    Download {
        /// The model's hub id.
        model: &'a str,
        /// The file's name in the repository.
        file: &'a str,
    },
    /// The hub cannot be reached, so the model comes from the cache as it was last seen. Reported
    /// once.
    Cached {
        /// The model's hub id.
        model: &'a str,
    },
    /// Weights are read and packed. Progress counts layers.
    Load {
        /// The model as the plan names it.
        model: &'a str,
        /// The types of its matrices in memory, such as `q4_0 and bf16`.
        types: &'a str,
    },
    /// The first layers of a model are on a GPU, the others will be on cores. Progress counts the
    /// layers on the GPU, and all. Reported once.
    Split {
        /// The model as the plan names it.
        model: &'a str,
        /// The number of the GPU.
        gpu: usize,
    },
    /// A model is written in another format. Progress counts tensors. It cannot be cancelled.
    Export {
        /// The model as it was given.
        model: &'a str,
    },
}

/// The progress of one step, passed to [`Loader::on_progress`](crate::Loader::on_progress).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The step that is running.
    pub step: Step<'a>,
    /// Bytes, layers or tensors done so far, including bytes that an earlier run has downloaded.
    pub done: u64,
    /// Bytes, layers or tensors in total. The step is finished when `done` reaches it.
    pub total: u64,
}
