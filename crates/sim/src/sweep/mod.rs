//! Many simulations at once: a grid of parameters, all cores, a table that is continued.
//!
//! Every configuration is simulated with the same seeds (common random numbers), so that neighbours
//! differ by what was changed and not by luck. What a row says depends on its configuration alone:
//! neither on the number of threads nor on how often the sweep was interrupted.

mod grid;
mod heatmaps;
mod run;
mod table;

pub use grid::{Axis, Sweep};
pub use heatmaps::Heatmaps;
pub use run::{Progress, run};
pub use table::{Plain, RESULTS, Table};

use std::path::PathBuf;

/// Rows of a table that are computed on all cores and kept in a file, which is continued.
pub trait Rows: Sync {
    /// What a thread remembers from row to row.
    type Memory: Default;

    /// Number of rows.
    fn count(&self) -> usize;

    /// The first line, with its end.
    fn header(&self) -> String;

    /// What a row begins with: all that it depends on. `None` if there is no such row.
    fn identity(&self, index: usize) -> Option<String>;

    /// A whole row with its end, and how many rounds of decoding were simulated for it.
    ///
    /// # Errors
    /// If it cannot be simulated.
    fn row(&self, index: usize, memory: &mut Self::Memory) -> Result<(String, u64), SweepError>;
}

/// A sweep that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A file that cannot be read.
    #[error("cannot read {file}: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {file}: {cause}")]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Not a sweep, or not a calibration.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A configuration that cannot be simulated.
    #[error("configuration {number} ({values}): {reason}")]
    Configuration {
        /// Its number, from 1 on.
        number: usize,
        /// Its parameters.
        values: String,
        /// What is wrong.
        reason: String,
    },
    /// A table of something else.
    #[error(
        "{file} has rows of another sweep (line {line} is not this sweep's): write to another file \
         with --out, or delete it"
    )]
    OtherRows {
        /// The table.
        file: PathBuf,
        /// The first line that does not fit, from 1 on.
        line: usize,
    },
}
