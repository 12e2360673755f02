//! The curves of a training run, by step.

use super::Picture;
use super::picture::{Drawn, SIZE, legend};
use plotters::coord::Shift;
use plotters::prelude::*;

/// A point of a curve: the step and its value.
pub type Point = (f64, f64);

/// Height of the upper chart of [`LossCurves`]; the learning rate has the rest.
const LOSS_HEIGHT: u32 = 420;
/// Largest number of points of a curve: more are not visible, and make the file large.
const POINTS: usize = 1200;
/// A point of the smoothed curve is the mean of one record in this many.
const SMOOTHING: usize = 50;

const GRID: RGBColor = RGBColor(225, 225, 225);
const RAW: RGBColor = RGBColor(170, 200, 225);
const SMOOTH: RGBColor = RGBColor(31, 119, 180);
const VALIDATION: RGBColor = RGBColor(214, 39, 40);
const RATE: RGBColor = RGBColor(44, 130, 60);

/// Colours of positions, the first one first (ColorBrewer's Dark2, and two greys).
const COLORS: [RGBColor; 9] = [
    RGBColor(27, 158, 119),
    RGBColor(217, 95, 2),
    RGBColor(117, 112, 179),
    RGBColor(231, 41, 138),
    RGBColor(102, 166, 30),
    RGBColor(230, 171, 2),
    RGBColor(166, 118, 29),
    RGBColor(102, 102, 102),
    RGBColor(170, 170, 170),
];

/// Training loss, raw and smoothed, with validation loss; below them the learning rate.
#[derive(Clone, Debug)]
pub struct LossCurves {
    title: String,
    unit: &'static str,
    loss: Vec<Point>,
    smoothed: Vec<Point>,
    validation: Vec<Point>,
    learning_rate: Vec<Point>,
}

impl LossCurves {
    /// Curves of finite values in ascending order of steps; `unit` labels the axis of the losses.
    #[must_use]
    pub fn new(
        title: &str,
        unit: &'static str,
        loss: &[Point],
        validation: Vec<Point>,
        learning_rate: &[Point],
    ) -> Self {
        Self {
            title: title.to_owned(),
            unit,
            smoothed: thinned(&smoothed(loss)),
            loss: thinned(loss),
            validation,
            learning_rate: thinned(learning_rate),
        }
    }

    /// The last step of any curve.
    fn last_step(&self) -> f64 {
        let all = [&self.loss, &self.validation, &self.learning_rate];
        all.into_iter().flatten().map(|point| point.0).fold(1.0, f64::max)
    }
}

/// Acceptance of a drafter on held-out text, a curve for each position of its drafts.
#[derive(Clone, Debug)]
pub struct AcceptanceCurves {
    /// The title of the picture.
    pub title: String,
    /// By position: the share of sampled tokens that the target would accept.
    pub sampled: Vec<Vec<Point>>,
    /// By position: the share of positions where drafter and target agree on the most probable
    /// token.
    pub greedy: Vec<Vec<Point>>,
}

/// Replaces each point by the mean of its neighbourhood, which is symmetric so that the curve does
/// not lag, and shrinks towards both ends.
fn smoothed(points: &[Point]) -> Vec<Point> {
    let reach = points.len() / SMOOTHING / 2;
    let mut sums = vec![0.0];
    sums.extend(points.iter().scan(0.0, |sum, point| {
        *sum += point.1;
        Some(*sum)
    }));
    let mean = |(at, point): (usize, &Point)| {
        let reach = reach.min(at).min(points.len() - 1 - at);
        let (first, end) = (at - reach, at + reach + 1);
        (point.0, (sums[end] - sums[first]) / (end - first) as f64)
    };
    points.iter().enumerate().map(mean).collect()
}

/// Returns evenly spread points, including the last one.
fn thinned(points: &[Point]) -> Vec<Point> {
    let stride = points.len().div_ceil(POINTS).max(1);
    let mut thin: Vec<Point> = points.iter().rev().step_by(stride).copied().collect();
    thin.reverse();
    thin
}

/// The range of the values, with a margin.
fn range<'a>(points: impl Iterator<Item = &'a Point>) -> std::ops::Range<f64> {
    let (low, high) = points.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
        (low.min(point.1), high.max(point.1))
    });
    let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(f64::MIN_POSITIVE);
    low - margin..high + margin
}

impl Picture for LossCurves {
    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, area: &DrawingArea<B, Shift>) -> Drawn {
        // White, whatever the viewer's own background is.
        area.fill(&WHITE)?;
        let (upper, lower) =
            area.titled(&self.title, ("sans-serif", 22))?.split_vertically(LOSS_HEIGHT);
        let steps = 0.0..self.last_step();

        let losses = range(self.loss.iter().chain(&self.validation));
        let mut chart = ChartBuilder::on(&upper)
            .margin(10)
            .margin_right(30)
            .x_label_area_size(24)
            .y_label_area_size(72)
            .build_cartesian_2d(steps.clone(), losses)?;
        let mut mesh = chart.configure_mesh();
        mesh.y_desc(self.unit).x_label_formatter(&step_label);
        mesh.light_line_style(WHITE)
            .bold_line_style(GRID)
            .label_style(("sans-serif", 14))
            .draw()?;
        let raw = LineSeries::new(self.loss.iter().copied(), RAW);
        chart.draw_series(raw)?.label("training loss").legend(legend(RAW));
        let smooth = LineSeries::new(self.smoothed.iter().copied(), SMOOTH.stroke_width(2));
        chart.draw_series(smooth)?.label("training loss, smoothed").legend(legend(SMOOTH));
        if !self.validation.is_empty() {
            let held_out =
                LineSeries::new(self.validation.iter().copied(), VALIDATION.stroke_width(2));
            chart.draw_series(held_out)?.label("validation loss").legend(legend(VALIDATION));
            let dots =
                self.validation.iter().map(|&point| Circle::new(point, 3, VALIDATION.filled()));
            chart.draw_series(dots)?;
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.9)).border_style(RGBColor(200, 200, 200));
        labels.position(SeriesLabelPosition::UpperRight).label_font(("sans-serif", 14)).draw()?;

        let mut chart = ChartBuilder::on(&lower)
            .margin(10)
            .margin_right(30)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(steps, range(self.learning_rate.iter().chain(&[(0.0, 0.0)])))?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("step").y_desc("learning rate").y_labels(5).x_label_formatter(&step_label);
        mesh.y_label_formatter(&rate_label);
        mesh.light_line_style(WHITE)
            .bold_line_style(GRID)
            .label_style(("sans-serif", 14))
            .draw()?;
        let rate = LineSeries::new(self.learning_rate.iter().copied(), RATE.stroke_width(2));
        chart.draw_series(rate)?;
        area.present()?;
        Ok(())
    }
}

impl Picture for AcceptanceCurves {
    fn draw<B: DrawingBackend<ErrorType: 'static>>(&self, area: &DrawingArea<B, Shift>) -> Drawn {
        let steps = self.sampled.iter().flatten().map(|point| point.0).fold(1.0, f64::max);
        // White, whatever the viewer's background is.
        area.fill(&WHITE)?;
        let area = area.titled(&self.title, ("sans-serif", 22))?;
        let (upper, lower) = area.split_vertically(SIZE.1 / 2 - 16);
        draw_acceptance(&upper, &self.sampled, steps, "sampled tokens (overlap)")?;
        draw_acceptance(&lower, &self.greedy, steps, "most probable tokens")?;
        area.present()?;
        Ok(())
    }
}

fn draw_acceptance<B: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<B, Shift>,
    lines: &[Vec<Point>],
    steps: f64,
    what: &str,
) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(30)
        .x_label_area_size(40)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..steps, 0.0..1.0)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step").y_desc(format!("accepted: {what}")).x_label_formatter(&step_label);
    mesh.light_line_style(WHITE).bold_line_style(GRID).label_style(("sans-serif", 14)).draw()?;
    for (position, (line, color)) in lines.iter().zip(COLORS.iter().cycle()).enumerate() {
        let series = LineSeries::new(line.iter().copied(), color.stroke_width(2));
        let drawn = chart.draw_series(series)?;
        drawn.label(format!("position {}", position + 1)).legend(legend(*color));
        chart.draw_series(line.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
    }
    let mut labels = chart.configure_series_labels();
    labels.background_style(WHITE.mix(0.9)).border_style(RGBColor(200, 200, 200));
    labels.position(SeriesLabelPosition::UpperLeft).label_font(("sans-serif", 14)).draw()?;
    Ok(())
}

/// Formats a step as a whole number.
fn step_label(step: &f64) -> String {
    format!("{step:.0}")
}

/// Formats a learning rate with an exponent.
fn rate_label(rate: &f64) -> String {
    if rate.abs() < 1e-12 { "0".to_owned() } else { format!("{rate:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_keeps_a_constant_and_thinning_the_last_point() {
        let points: Vec<Point> = (0..5000).map(|step| (f64::from(step), 2.0)).collect();
        assert!(smoothed(&points).iter().all(|point| (point.1 - 2.0).abs() < 1e-9));
        let thin = thinned(&points);
        assert!(thin.len() <= POINTS && thin.last() == points.last());
    }
}
