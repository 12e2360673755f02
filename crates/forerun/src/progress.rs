//! What takes long before the first token, for whoever shows it.

/// A part of opening models that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A file comes from the hub; counted in bytes.
    Download {
        /// The model's id.
        model: &'a str,
        /// The file's name.
        file: &'a str,
    },
    /// Weights are read and packed; counted in layers.
    Load {
        /// The model as the plan names it.
        model: &'a str,
    },
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The step.
    pub step: Step<'a>,
    /// Bytes or layers that are done, those of an earlier run included.
    pub done: u64,
    /// All of them; the step has ended where `done` reaches it.
    pub total: u64,
}
