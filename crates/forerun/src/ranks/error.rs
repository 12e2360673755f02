//! Why the ranks of a job cannot work together.

use std::path::PathBuf;

/// Why the ranks of a job cannot work together.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RankError {
    /// The placement names ranks, but the engine is opened in a single process.
    #[error(
        "the placement {0:?} names ranks of an MPI job, which only `generate`, `serve` and programs that open a \
         `Rank` use: name cores instead, as in target=cpu:0"
    )]
    NoJob(String),
    /// A rank runs another version of this program.
    #[error(
        "rank {rank} runs forerun {found}, but rank 0 runs {expected}: install the same version on all machines"
    )]
    Version {
        /// The rank.
        rank: usize,
        /// Its version.
        found: String,
        /// The version of rank 0.
        expected: String,
    },
    /// A rank has another plan.
    #[error(
        "rank {rank} has other options than rank 0: start all ranks with the same command line and configuration"
    )]
    Plan {
        /// The rank.
        rank: usize,
    },
    /// A rank has other files of a model.
    #[error(
        "the model {model} of rank {rank} differs from that of rank 0: copy the same files to all machines"
    )]
    Model {
        /// The rank.
        rank: usize,
        /// The model, as the options name it.
        model: String,
    },
    /// Two ranks compute the same model with different instruction sets.
    #[error(
        "rank {rank} computes {model} with {found}, and rank {other} with {expected}, so their results could differ: \
         set FORERUN_ISA to the lower one on all ranks, as in mpirun -x FORERUN_ISA=avx2"
    )]
    Isa {
        /// The model.
        model: String,
        /// The rank.
        rank: usize,
        /// Its instruction set.
        found: String,
        /// A rank before it with the model.
        other: usize,
        /// The instruction set of that rank.
        expected: String,
    },
    /// A thread cannot be started.
    #[error("cannot start the thread of a part of a model: {0}")]
    Thread(String),
    /// A model's file cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        message: String,
    },
}
