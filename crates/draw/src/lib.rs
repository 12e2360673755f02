//! All drawing: timelines of traces, the charts of benchmark reports, and plots of tables and logs.
//!
//! Timelines and report charts are plain SVG text and need no library. Plots with axes (heatmaps,
//! lines, training curves) use `plotters` and are behind the feature `plots`; the feature `png`
//! adds PNG files and embeds a font, so that pictures look the same on every machine.

mod chart;
#[cfg(feature = "plots")]
pub mod plot;
mod svg;
mod timeline;

pub use chart::{Axes, Bar, Curve, Line, Value, bars, curves, lines, number, stacks};
pub use svg::escaped;
pub use timeline::{TIMELINE_STYLE, inline_timeline, timeline};
