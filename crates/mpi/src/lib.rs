//! Workers on the ranks of an MPI job.
//!
//! All ranks run the same program with the same options. `Group::join` makes a process a member of
//! the job. Rank 0 decodes (`Group::into_workers`); the others run the jobs that it sends
//! (`Group::serve`). Jobs and completions travel as the messages of `forerun-wire`.
//!
//! * One thread of each process calls MPI at a time. A thread of its own polls, and sleeps between
//!   polls, for longer the longer nothing happens, so an idle rank needs almost no processor time.
//! * Rank 0 and the others exchange heartbeats. A rank that sends nothing for a while ends the job
//!   with an error that names it. So does a panic on any thread. `mpirun` ends the job of a process
//!   that dies.
//! * Ranks that compute a target together (`Group::exchange`) pass its activations to each other.
//!   Who waits for them sends and receives itself, without another thread in between.
//! * The heartbeats measure the offsets of the ranks' clocks, so completions are on the clock of
//!   rank 0.
//!
//! Without the feature `mpi`, this crate is empty, and needs no MPI to be built.

#[cfg(feature = "mpi")]
mod clock;
#[cfg(feature = "mpi")]
mod error;
#[cfg(feature = "mpi")]
mod exchange;
#[cfg(feature = "mpi")]
mod group;
#[cfg(feature = "mpi")]
mod transport;

#[cfg(feature = "mpi")]
pub use clock::ClockReport;
#[cfg(feature = "mpi")]
pub use error::MpiError;
#[cfg(feature = "mpi")]
pub use exchange::RankExchange;
#[cfg(feature = "mpi")]
pub use group::{Group, GroupOptions, Observer, RankWorkers};
