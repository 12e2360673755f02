//! The errors of a group of ranks.

use forerun_wire::WireError;

/// Why ranks cannot work together.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum MpiError {
    /// MPI cannot be used from several threads, or is in use already.
    #[error("this MPI library cannot be started: {0}")]
    Unusable(&'static str),
    /// The group has not formed.
    #[error(
        "the ranks have not found each other after {seconds} s: check that all processes of mpirun have started, \
         and that their machines reach each other"
    )]
    NotFormed { seconds: u64 },
    /// The placement names a rank that does not exist.
    #[error(
        "the placement names rank {rank}, but there {}: start {} processes, as in `mpirun -n {} forerun ...`",
        match size { 1 => "is only this process".to_owned(), size => format!("are only {size} ranks") },
        rank + 1,
        rank + 1
    )]
    NoSuchRank { rank: usize, size: usize },
    /// A rank could not load its models, or has other options.
    #[error("rank {rank}: {message}")]
    Rank { rank: usize, message: String },
    /// A rank has sent a message that cannot be read.
    #[error("rank {rank} sent a message that cannot be read: {cause}")]
    Message { rank: usize, cause: WireError },
    /// A thread cannot be started.
    #[error("cannot start the thread for MPI: {0}")]
    Thread(String),
}
