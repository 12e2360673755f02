//! Progress reports of data preparation.

/// A phase of data preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Hashing the source files, to identify them later. Counts bytes of files.
    Hashing,
    /// Counting the text in all documents. Counts bytes of files.
    Counting,
    /// Splitting a tokenizer's sample into words. Counts bytes of text.
    Sampling,
    /// Learning a tokenizer's merges. There is no progress within this phase.
    Merging,
    /// Encoding documents into tokens. Counts bytes of files.
    Encoding,
}

/// The progress of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// Bytes processed. [`Phase`] documents what they are bytes of.
    pub done_bytes: u64,
    /// Bytes to process in this phase.
    pub total_bytes: u64,
}

/// A progress callback. It is called from the thread that reads.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);
