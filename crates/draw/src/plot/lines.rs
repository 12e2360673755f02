//! Lines: a value over one axis, with a line for each value of another column.

use super::label::{label, short};
use super::picture::{Drawn, legend};
use super::table::number;
use super::{Merge, Picture, PlotError, Table};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Lines and their points.
#[derive(Clone, Debug)]
pub struct Lines {
    title: String,
    x: String,
    value: String,
    /// Name and points of each line.
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Distinguishable colours (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Largest number of points of a line that are drawn as dots.
const DOTS: usize = 40;

impl Lines {
    /// Creates lines of a table's column over another one, a line for each value of the column
    /// `by`. `remark` is appended to the label of the value.
    ///
    /// # Errors
    /// If a column is missing or contains text, or several rows have the same coordinates and
    /// `merge` refuses that.
    pub fn new(
        table: &Table,
        (x, by): (&str, Option<&str>),
        (value, remark): (&str, &str),
        merge: Merge,
        title: &str,
    ) -> Result<Self, PlotError> {
        let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (coordinates, found) in table.points(&[by.unwrap_or(x), x], value, merge)? {
            let point = (number(x, &coordinates[1])?, found);
            let name = by.map_or(String::new(), |by| format!("{by} {}", coordinates[0]));
            match lines.iter_mut().find(|line| line.0 == name) {
                Some(line) => line.1.push(point),
                None => lines.push((name, vec![point])),
            }
        }
        for (_, points) in &mut lines {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        // Names are ordered by the number at their end.
        let order = |name: &str| name.rsplit(' ').next().and_then(|last| last.parse::<f64>().ok());
        lines.sort_by(|a, b| {
            order(&a.0).partial_cmp(&order(&b.0)).unwrap_or(std::cmp::Ordering::Equal)
        });
        Ok(Self { title: title.to_owned(), x: label(x), value: label(value) + remark, lines })
    }

    fn range(&self, of: fn(&(f64, f64)) -> f64) -> Range<f64> {
        let values = || self.lines.iter().flat_map(|line| line.1.iter().map(of));
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        let margin = if low < high { (high - low) * 0.04 } else { 0.5 };
        low - margin..high + margin
    }
}

impl Picture for Lines {
    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, area: &DrawingArea<B, Shift>) -> Drawn {
        area.fill(&WHITE)?;
        let area = area.titled(&self.title, ("sans-serif", 20))?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(48)
            .y_label_area_size(70)
            .build_cartesian_2d(self.range(|point| point.0), self.range(|point| point.1))?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .x_desc(&self.x)
            .y_desc(&self.value)
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| short(*y))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .draw()?;
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(line)?;
            if !name.is_empty() {
                drawn.label(name).legend(legend(colour));
            }
            if points.len() <= DOTS {
                let dots = points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
                chart.draw_series(dots)?;
            }
        }
        if self.lines.iter().any(|line| !line.0.is_empty()) {
            chart
                .configure_series_labels()
                .background_style(WHITE.mix(0.9))
                .border_style(GRID)
                .position(SeriesLabelPosition::UpperLeft)
                .label_font(("sans-serif", 14))
                .draw()?;
        }
        area.present()?;
        Ok(())
    }
}
