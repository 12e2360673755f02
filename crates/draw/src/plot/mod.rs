//! Plots with axes, as SVG and, with the feature `png`, as PNG: heatmaps and lines of tables, and
//! the curves of training runs.

mod heatmap;
mod label;
mod lines;
mod picture;
mod table;
mod training;

pub use heatmap::{Heatmap, HeatmapColours};
pub use label::label;
pub use lines::Lines;
pub use picture::{Drawn, Picture};
pub use table::{Merge, Table};
pub use training::{AcceptanceCurves, LossCurves, Point};

use std::path::PathBuf;

/// The extensions of pictures.
const FORMATS: &str = match cfg!(feature = "png") {
    true => ".svg or .png",
    false => ".svg (.png needs the feature `png`)",
};

/// An error of reading a table or drawing a plot.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The table cannot be read.
    #[error("cannot read {file}: {cause}")]
    Read {
        /// The table.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A line of the table is malformed.
    #[error("{file}, line {line}: {reason}")]
    Row {
        /// The table.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The table has no such column.
    #[error("there is no column {name}; the table has {columns}")]
    NoColumn {
        /// The requested column.
        name: String,
        /// The columns of the table.
        columns: String,
    },
    /// A column contains text where numbers are needed.
    #[error("column {name} contains {found:?} where a number is needed")]
    NotANumber {
        /// The column.
        name: String,
        /// The text found.
        found: String,
    },
    /// The filter leaves no row.
    #[error("no row is left to draw: check the conditions of `only`")]
    Empty,
    /// Several rows have the same coordinates.
    #[error(
        "several rows have the same coordinates; they differ in {columns}: choose one of them \
         with `only = COLUMN=VALUE`, or combine them with `merge = max`, `merge = min` or `merge = mean`"
    )]
    Ambiguous {
        /// The columns in which the rows differ.
        columns: String,
    },
    /// The file's name has an unknown extension.
    #[error("cannot draw {0}: its name must end in {FORMATS}")]
    Format(PathBuf),
    /// The drawing library failed.
    #[error("cannot draw the picture: {0}")]
    Draw(String),
    /// The picture cannot be written.
    #[error("cannot write {file}: {cause}")]
    Write {
        /// The picture.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
}
