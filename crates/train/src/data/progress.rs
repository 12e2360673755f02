//! How far the preparation of data has come.

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Source files are read to know them again (bytes of files).
    Hashing,
    /// Documents are read to know how much text there is (bytes of files).
    Counting,
    /// A tokenizer's sample is cut into words and counted (bytes of text).
    Sampling,
    /// A tokenizer's vocabulary is made from the counts; the library tells no steps.
    Merging,
    /// Documents become tokens (bytes of files).
    Encoding,
}

/// A phase, and how much of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Bytes that are done; the phase says of what.
    pub done_bytes: u64,
    /// Bytes that there are in all.
    pub total_bytes: u64,
}

/// Who is told of progress. It is called from whichever thread reads.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);
