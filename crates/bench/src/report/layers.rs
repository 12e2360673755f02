//! EasySpec's figure 4: what layers at a time, width and calibration make of speed and acceptance.

use crate::metrics::{Measured, Metric};
use crate::summary::{Cell, OVERALL, Summary};
use forerun_draw::Line;
use std::collections::BTreeSet;

/// What the figure shows.
pub(super) const METRICS: [Metric; 2] = [Metric::TokensPerSecond, Metric::AcceptanceRate];

/// What must be known before it.
pub(super) const NOTE: &str = "By layers that are computed at the same time (lp), width of the draft and \
     calibration of the drafter's cache; lp 1 is the drafter as it is.";

/// Configurations that differ in nothing but layers at a time, width and calibration.
pub(super) struct LayerSweep<'a> {
    /// Layers at a time, ascending.
    pub(super) sizes: Vec<usize>,
    rows: Vec<Row<'a>>,
}

/// A width and a calibration: a cell for each of the sizes.
struct Row<'a> {
    name: String,
    cells: Vec<Option<&'a Cell>>,
}

impl<'a> LayerSweep<'a> {
    /// Those of a run, if there are several sizes, and no two configurations have the same place.
    pub(super) fn of(summary: &'a Summary) -> Option<Self> {
        let points = || {
            summary.configurations.iter().filter_map(|entry| Some((entry.point.as_ref()?, entry)))
        };
        let sizes: BTreeSet<usize> = points().map(|(point, _)| point.layers).collect();
        let sizes: Vec<usize> = sizes.into_iter().collect();
        let mut rows: Vec<Row<'a>> = Vec::new();
        for (point, entry) in points() {
            let name = format!("width {}, {}", point.width, point.calibration);
            let place = rows.iter().position(|row| row.name == name).unwrap_or(rows.len());
            if place == rows.len() {
                rows.push(Row { name, cells: vec![None; sizes.len()] });
            }
            let column = sizes.iter().position(|size| *size == point.layers)?;
            if rows[place].cells[column].replace(&entry.cells[OVERALL]).is_some() {
                return None;
            }
        }
        (sizes.len() > 1).then_some(Self { sizes, rows })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.name.as_str())
    }

    /// A metric in every row.
    pub(super) fn values(
        &self,
        metric: Metric,
    ) -> impl Iterator<Item = (&str, Vec<Option<Measured>>)> {
        self.rows.iter().map(move |row| {
            let value = |cell: &Option<&Cell>| cell.and_then(|cell| cell.get(metric));
            (row.name.as_str(), row.cells.iter().map(value).collect())
        })
    }

    /// The same as lines over layers at a time.
    pub(super) fn lines(&self, metric: Metric) -> Vec<Line> {
        let line = |(colour, (name, values)): (usize, (&str, Vec<Option<Measured>>))| {
            let points = self.sizes.iter().zip(values);
            let points = points.filter_map(|(&size, value)| Some((size, value?.into()))).collect();
            Line { name: name.to_owned(), colour, points }
        };
        self.values(metric).enumerate().map(line).collect()
    }
}
