//! Heatmaps: a value over two axes, shown as colour.

use super::label::{label, short};
use super::picture::Drawn;
use super::table::number;
use super::{Merge, Picture, PlotError, Table};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Coloured cells, with a colour bar.
#[derive(Clone, Debug)]
pub struct Heatmap {
    title: String,
    axes: [String; 2],
    value: String,
    /// Boundaries between cells along each axis.
    edges: [Vec<f64>; 2],
    /// Column, row and value of each cell.
    cells: Vec<(usize, usize, f64)>,
    colours: HeatmapColours,
}

/// The mapping from values to colours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeatmapColours {
    /// Larger values get the colour of this one.
    pub largest: Option<f64>,
    /// Smaller values are pink, like the slowdowns in the figures of the DSI paper.
    pub pink_below: Option<f64>,
}

/// Width of the colour bar, including its labels.
const BAR: u32 = 130;
/// Steps of the colour bar.
const STEPS: usize = 128;

impl Heatmap {
    /// Creates a heatmap of a table's column over two other columns. `remark` is appended to the
    /// label of the value.
    ///
    /// # Errors
    /// If a column is missing or contains text, or several rows have the same coordinates and
    /// `merge` refuses that.
    pub fn new(
        table: &Table,
        [x, y]: [&str; 2],
        (value, remark): (&str, &str),
        merge: Merge,
        title: &str,
    ) -> Result<Self, PlotError> {
        let mut points = Vec::new();
        for (coordinates, found) in table.points(&[x, y], value, merge)? {
            points.push((number(x, &coordinates[0])?, number(y, &coordinates[1])?, found));
        }
        let values = |of: fn(&(f64, f64, f64)) -> f64| {
            let mut values: Vec<f64> = points.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            values
        };
        let (xs, ys) = (values(|point| point.0), values(|point| point.1));
        let index = |all: &[f64], own: f64| all.partition_point(|&other| other < own);
        let cell = |&(x, y, value): &(f64, f64, f64)| (index(&xs, x), index(&ys, y), value);
        Ok(Self {
            title: title.to_owned(),
            axes: [label(x), label(y)],
            value: label(value) + remark,
            cells: points.iter().map(cell).collect(),
            edges: [edges(&xs), edges(&ys)],
            colours: HeatmapColours::default(),
        })
    }

    /// Returns the heatmap with other colours.
    #[must_use]
    pub fn with_colours(self, colours: HeatmapColours) -> Self {
        Self { colours, ..self }
    }

    fn range(&self) -> Range<f64> {
        let values = || self.cells.iter().map(|cell| cell.2);
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        let high = self.colours.largest.map_or(high, |largest| high.min(largest));
        if low < high { low..high } else { low - 0.5..low + 0.5 }
    }

    fn colour_of(&self, value: f64, range: &Range<f64>) -> RGBColor {
        if self.colours.pink_below.is_some_and(|limit| value < limit) {
            return PINK;
        }
        colour((value - range.start) / (range.end - range.start))
    }
}

/// Returns the boundaries halfway between neighbouring values.
fn edges(values: &[f64]) -> Vec<f64> {
    let between = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let (first, last) = (values[0], values[values.len() - 1]);
    let half = |near: f64, next: Option<&f64>| next.map_or(0.5, |next| (next - near).abs() / 2.0);
    let below = first - half(first, values.get(1));
    let above = last + half(last, values.len().checked_sub(2).map(|index| &values[index]));
    [below].into_iter().chain(between).chain([above]).collect()
}

impl Picture for Heatmap {
    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, area: &DrawingArea<B, Shift>) -> Drawn {
        area.fill(&WHITE)?;
        let area = area.titled(&self.title, ("sans-serif", 20))?;
        let (map, bar) = area.split_horizontally(area.dim_in_pixel().0 as i32 - BAR as i32);
        let [xs, ys] = &self.edges;
        let range = self.range();
        let mut chart = ChartBuilder::on(&map)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(70)
            .build_cartesian_2d(xs[0]..xs[xs.len() - 1], ys[0]..ys[ys.len() - 1])?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc(&self.axes[0])
            .y_desc(&self.axes[1])
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| short(*y))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .draw()?;
        chart.draw_series(self.cells.iter().map(|&(column, row, value)| {
            let corners = [(xs[column], ys[row]), (xs[column + 1], ys[row + 1])];
            Rectangle::new(corners, self.colour_of(value, &range).filled())
        }))?;
        let mut scale = ChartBuilder::on(&bar)
            .margin_top(12)
            .margin_bottom(60)
            .margin_right(14)
            .set_label_area_size(LabelAreaPosition::Right, 84)
            .build_cartesian_2d(0.0..1.0, range.clone())?;
        scale
            .configure_mesh()
            .disable_mesh()
            .disable_x_axis()
            .y_desc(&self.value)
            .y_label_formatter(&|value| short(*value))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .draw()?;
        let step = (range.end - range.start) / STEPS as f64;
        scale.draw_series((0..STEPS).map(|index| {
            let low = range.start + index as f64 * step;
            let corners = [(0.0, low), (1.0, low + step)];
            Rectangle::new(corners, self.colour_of(low + step / 2.0, &range).filled())
        }))?;
        area.present()?;
        Ok(())
    }
}

/// Distinguishable from all of [`COLOURS`].
const PINK: RGBColor = RGBColor(255, 160, 200);
/// From dark to bright, also distinguishable with colour blindness: points of matplotlib's viridis.
const COLOURS: [[u8; 3]; 9] = [
    [68, 1, 84],
    [71, 44, 122],
    [59, 81, 139],
    [44, 113, 142],
    [33, 144, 141],
    [39, 173, 129],
    [92, 200, 99],
    [170, 220, 50],
    [253, 231, 37],
];

/// Returns the colour of a share from 0 to 1.
fn colour(share: f64) -> RGBColor {
    let at = share.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let below = (at as usize).min(COLOURS.len() - 2);
    let part = |channel: usize| {
        let [low, high] = [below, below + 1].map(|index| f64::from(COLOURS[index][channel]));
        (low + (high - low) * (at - below as f64)).round() as u8
    };
    RGBColor(part(0), part(1), part(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_meet_halfway_and_colours_span_the_scale() {
        assert_eq!(edges(&[1.0, 2.0, 4.0]), [0.5, 1.5, 3.0, 5.0]);
        assert_eq!(edges(&[3.0]), [2.5, 3.5]);
        assert_eq!(colour(0.0), RGBColor(68, 1, 84));
        assert_eq!(colour(1.0), RGBColor(253, 231, 37));
        assert_eq!(colour(0.5), RGBColor(33, 144, 141));
    }

    #[test]
    fn colours_end_at_the_largest_value_and_slowdowns_are_pink() {
        let map = Heatmap {
            title: String::new(),
            axes: Default::default(),
            value: String::new(),
            edges: [vec![0.0, 1.0, 2.0, 3.0], vec![0.0, 1.0]],
            cells: vec![(0, 0, 0.5), (1, 0, 1.0), (2, 0, 30.0)],
            colours: HeatmapColours { largest: Some(2.0), pink_below: Some(1.0) },
        };
        let range = map.range();
        assert_eq!(range, 0.5..2.0);
        let colours = [0.5, 2.0, 30.0].map(|value| map.colour_of(value, &range));
        assert_eq!(colours, [PINK, colour(1.0), colour(1.0)]);
        let whole = map.with_colours(HeatmapColours::default());
        assert_eq!(whole.range(), 0.5..30.0);
        assert_eq!(whole.colour_of(0.5, &whole.range()), colour(0.0));
    }
}
