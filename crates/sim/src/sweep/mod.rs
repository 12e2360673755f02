//! Sweeps: the simulation of a grid of parameters on all cores, written to a table that can be
//! resumed.
//!
//! All configurations use the same seeds (common random numbers), so that neighbours differ by
//! their parameters and not by chance. A row depends on its configuration only, not on the number
//! of threads or on interruptions.

mod grid;
mod heatmaps;
mod run;
mod table;

pub use grid::{Axis, Sweep};
pub use heatmaps::Heatmaps;
pub use run::{Progress, run};
pub use table::{PlainTimeCache, RESULTS, Table};

use std::path::PathBuf;

/// A source of table rows. The rows are computed on all cores and written to a file.
pub trait RowSource: Sync {
    /// Data that each thread caches between rows.
    type Cache: Default;

    /// Returns the number of rows.
    fn count(&self) -> usize;

    /// Returns the header line, including the line break.
    fn header(&self) -> String;

    /// Returns the beginning of a row: everything that the row depends on. `None` if there is no
    /// such row.
    fn identity(&self, index: usize) -> Option<String>;

    /// Computes a whole row, including the line break, and returns it with the number of decoding
    /// rounds that were simulated for it.
    ///
    /// # Errors
    /// Returns [`SweepError::Configuration`] if the row cannot be simulated.
    fn row(&self, index: usize, cache: &mut Self::Cache) -> Result<(String, u64), SweepError>;
}

/// An invalid sweep, or a failure to read or write its files.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A file cannot be read.
    #[error("cannot read {file}: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {file}: {cause}")]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A sweep or calibration file is invalid.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A configuration cannot be simulated.
    #[error("cannot simulate configuration {number} ({values}): {reason}")]
    Configuration {
        /// The number of the configuration, from 1.
        number: usize,
        /// Its parameters.
        values: String,
        /// What is wrong.
        reason: String,
    },
    /// The table file has rows of another sweep.
    #[error(
        "{file} has rows of another sweep (line {line} does not belong to this one): set `out` to another \
         file, or delete {file}"
    )]
    OtherRows {
        /// The table file.
        file: PathBuf,
        /// The first line that does not belong to this sweep, from 1.
        line: usize,
    },
}
