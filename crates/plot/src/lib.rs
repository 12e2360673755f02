//! Pictures of tables: heatmaps and lines, as SVG and as PNG.
//!
//! This crate may touch files. It brings its own font, so that pictures of dots are the same on a
//! machine without any; an SVG names a family and leaves letters to its viewer.

mod heatmap;
mod label;
mod lines;
mod picture;
mod table;

pub use heatmap::{Heatmap, HeatmapColours};
pub use label::label;
pub use lines::Lines;
pub use picture::{Picture, use_own_font};
pub use table::{Merge, Table};

use std::path::PathBuf;

/// A picture that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// A table that cannot be read.
    #[error("cannot read {file}: {cause}")]
    Read {
        /// The table.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A line that is no row.
    #[error("{file}, line {line}: {reason}")]
    Row {
        /// The table.
        file: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A column that there is not.
    #[error("there is no column {name}; there are {columns}")]
    NoColumn {
        /// What was asked for.
        name: String,
        /// What there is.
        columns: String,
    },
    /// A column of words where numbers are needed.
    #[error("column {name} has {found:?}, where a number is needed")]
    NotANumber {
        /// The column.
        name: String,
        /// What stands there.
        found: String,
    },
    /// No row is left.
    #[error("no row is left to draw: check what --only asks for")]
    Empty,
    /// Several rows in one place.
    #[error(
        "several rows share a place in the picture; they differ in {columns}: choose one of each \
         with --only COLUMN=VALUE, or say --merge max, min or mean"
    )]
    Ambiguous {
        /// The columns in which they differ.
        columns: String,
    },
    /// A file that is no picture.
    #[error("cannot draw {0}: name it with .svg or .png at the end")]
    Format(PathBuf),
    /// The picture cannot be drawn.
    #[error("cannot draw the picture: {0}")]
    Draw(String),
    /// The picture cannot be written.
    #[error("cannot write {file}: {cause}")]
    Write {
        /// The picture.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
}
