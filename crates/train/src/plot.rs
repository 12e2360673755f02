//! A run as a picture: losses above, the learning rate below.

mod acceptance;

pub use acceptance::plot_acceptance;

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::files::write_atomically;
use crate::metrics::{MetricsError, Record, TrainingRecord, read_metrics};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 640;
/// Of the height, what the losses take.
const LOSS_HEIGHT: u32 = 420;
/// Points of a line at most: more are not seen, and make the file large.
const POINTS: usize = 1200;
/// One over the part of all records that a point of the smoothed line is the mean of.
const SMOOTHING: usize = 50;

const GRID: RGBColor = RGBColor(225, 225, 225);
const RAW: RGBColor = RGBColor(170, 200, 225);
const SMOOTH: RGBColor = RGBColor(31, 119, 180);
const VALIDATION: RGBColor = RGBColor(214, 39, 40);
const RATE: RGBColor = RGBColor(44, 130, 60);

/// A picture that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] MetricsError),
    /// The log has no step of training yet.
    #[error("the log {0} has no training loss to draw yet")]
    Empty(PathBuf),
    /// The picture's name does not end in `.svg`.
    #[error("cannot draw {0}: pictures are SVG, so name it with `.svg` at the end")]
    Format(PathBuf),
    /// The picture cannot be drawn.
    #[error("cannot draw {path}: {reason}")]
    Draw {
        /// The picture.
        path: PathBuf,
        /// What the library says.
        reason: String,
    },
    /// The picture cannot be written.
    #[error("cannot write {path}: {cause}")]
    Write {
        /// The picture.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
}

/// A point of a line: the step, and its value.
type Point = (f64, f64);

/// Draws the log of a run as an SVG file: training loss as it was and smoothed, validation loss,
/// and below them the learning rate, all by step.
///
/// # Errors
/// If the log cannot be read or has nothing to draw, or the picture cannot be written.
pub fn plot_losses(log: &Path, picture: &Path, title: &str) -> Result<(), PlotError> {
    is_svg(picture)?;
    let lines = Lines::of(&read_metrics(log)?);
    if lines.loss.is_empty() {
        return Err(PlotError::Empty(log.to_owned()));
    }
    write(picture, |svg| draw(svg, &lines, title))
}

fn is_svg(picture: &Path) -> Result<(), PlotError> {
    match picture.extension() {
        Some(extension) if extension == "svg" => Ok(()),
        _ => Err(PlotError::Format(picture.to_owned())),
    }
}

/// Writes what `draw` draws.
fn write(
    picture: &Path,
    draw: impl FnOnce(&mut String) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), PlotError> {
    let mut svg = String::new();
    forerun_plot::use_own_font();
    draw(&mut svg)
        .map_err(|error| PlotError::Draw { path: picture.to_owned(), reason: error.to_string() })?;
    write_atomically(picture, svg.as_bytes())
        .map_err(|cause| PlotError::Write { path: picture.to_owned(), cause })
}

/// What is drawn.
struct Lines {
    /// What losses are: a drafter's are sums over positions, and of several kinds.
    unit: &'static str,
    loss: Vec<Point>,
    smoothed: Vec<Point>,
    validation: Vec<Point>,
    learning_rate: Vec<Point>,
}

impl Lines {
    fn of(records: &[Record]) -> Self {
        let of_training = |value: fn(&TrainingRecord) -> f64| -> Vec<Point> {
            let training = records.iter().filter_map(|record| match record {
                Record::Training(training) => Some(training),
                Record::Evaluation(_) | Record::Acceptance(_) => None,
            });
            // What is not finite has no place in a picture.
            training
                .map(|record| (record.step as f64, value(record)))
                .filter(|point| point.1.is_finite())
                .collect()
        };
        let loss = of_training(|record| record.loss);
        let validation = records.iter().filter_map(|record| match record {
            Record::Evaluation(record) => Some((record.step as f64, record.validation_loss)),
            Record::Acceptance(record) => Some((record.step as f64, record.validation_loss)),
            Record::Training(_) => None,
        });
        let of_drafter = records.iter().any(|record| matches!(record, Record::Acceptance(_)));
        Self {
            unit: if of_drafter { "loss" } else { "cross-entropy (nats per token)" },
            smoothed: thinned(&smoothed(&loss)),
            loss: thinned(&loss),
            validation: validation.filter(|point| point.1.is_finite()).collect(),
            learning_rate: thinned(&of_training(|record| record.learning_rate)),
        }
    }

    /// The last step of any line.
    fn last_step(&self) -> f64 {
        let all = [&self.loss, &self.validation, &self.learning_rate];
        all.into_iter().flatten().map(|point| point.0).fold(1.0, f64::max)
    }
}

/// The mean of each point and as many before as behind it, so that the line does not lag; towards the
/// ends there are fewer of them.
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

/// Evenly spread points, the last among them.
fn thinned(points: &[Point]) -> Vec<Point> {
    let stride = points.len().div_ceil(POINTS).max(1);
    let mut thin: Vec<Point> = points.iter().rev().step_by(stride).copied().collect();
    thin.reverse();
    thin
}

/// The least and the greatest value, with some air around.
fn range<'a>(points: impl Iterator<Item = &'a Point>) -> std::ops::Range<f64> {
    let (low, high) = points.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
        (low.min(point.1), high.max(point.1))
    });
    let air = ((high - low) * 0.05).max(high.abs() * 1e-3).max(f64::MIN_POSITIVE);
    low - air..high + air
}

fn draw(svg: &mut String, lines: &Lines, title: &str) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    // White, whatever the viewer's own background is.
    root.fill(&WHITE)?;
    let (upper, lower) = root.titled(title, ("sans-serif", 22))?.split_vertically(LOSS_HEIGHT);
    let steps = 0.0..lines.last_step();

    let losses = range(lines.loss.iter().chain(&lines.validation));
    let mut chart = ChartBuilder::on(&upper)
        .margin(10)
        .margin_right(30)
        .x_label_area_size(24)
        .y_label_area_size(72)
        .build_cartesian_2d(steps.clone(), losses)?;
    let mut mesh = chart.configure_mesh();
    mesh.y_desc(lines.unit).x_label_formatter(&step_label);
    mesh.light_line_style(WHITE).bold_line_style(GRID).label_style(("sans-serif", 14)).draw()?;
    let legend = |color: RGBColor| {
        move |(x, y): (i32, i32)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
    };
    let raw = LineSeries::new(lines.loss.iter().copied(), RAW);
    chart.draw_series(raw)?.label("training loss").legend(legend(RAW));
    let smooth = LineSeries::new(lines.smoothed.iter().copied(), SMOOTH.stroke_width(2));
    chart.draw_series(smooth)?.label("training loss, smoothed").legend(legend(SMOOTH));
    if !lines.validation.is_empty() {
        let held_out =
            LineSeries::new(lines.validation.iter().copied(), VALIDATION.stroke_width(2));
        chart.draw_series(held_out)?.label("validation loss").legend(legend(VALIDATION));
        let dots = lines.validation.iter().map(|&point| Circle::new(point, 3, VALIDATION.filled()));
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
        .build_cartesian_2d(steps, range(lines.learning_rate.iter().chain(&[(0.0, 0.0)])))?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step").y_desc("learning rate").y_labels(5).x_label_formatter(&step_label);
    mesh.y_label_formatter(&rate_label);
    mesh.light_line_style(WHITE).bold_line_style(GRID).label_style(("sans-serif", 14)).draw()?;
    let rate = LineSeries::new(lines.learning_rate.iter().copied(), RATE.stroke_width(2));
    chart.draw_series(rate)?;
    root.present()?;
    Ok(())
}

/// Steps are whole numbers.
fn step_label(step: &f64) -> String {
    format!("{step:.0}")
}

/// Rates are small, so they are written with an exponent.
fn rate_label(rate: &f64) -> String {
    if rate.abs() < 1e-12 { "0".to_owned() } else { format!("{rate:.1e}") }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::metrics::{EvaluationRecord, MetricsLog};

    fn write_log(path: &Path, steps: u64) {
        let mut log = MetricsLog::create(path).unwrap();
        for step in 1..=steps {
            let x = step as f64 / steps as f64;
            let loss = 3.0 + 5.3 * (-6.0 * x).exp() + 0.2 * (step as f64 * 2.7).sin();
            let record = TrainingRecord {
                step,
                tokens: step * 8192,
                loss: if step == 5 { f64::NAN } else { loss },
                learning_rate: 1e-3 * (x * 20.0).min(1.0) * (0.55 + 0.45 * (3.1 * x).cos()),
                gradient_norm: 1.0,
                tokens_per_s: 1e4,
                elapsed_s: step as f64,
            };
            log.write(&Record::Training(record)).unwrap();
            if step % (steps / 10).max(1) == 0 {
                let evaluation = EvaluationRecord {
                    step,
                    tokens: step * 8192,
                    validation_loss: 3.1 + 5.3 * (-6.0 * x).exp(),
                    bits_per_byte: 1.5,
                    elapsed_s: step as f64,
                };
                log.write(&Record::Evaluation(evaluation)).unwrap();
            }
        }
    }

    #[test]
    fn the_picture_has_all_lines_and_says_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (log, picture) = (folder.path().join("log.jsonl"), folder.path().join("loss.svg"));
        for steps in [1, 2, 20_000] {
            write_log(&log, steps);
            plot_losses(&log, &picture, "target <8M> & Co").unwrap();
            let svg = std::fs::read_to_string(&picture).unwrap();
            for text in [
                "target &lt;8M&gt; &amp; Co",
                "cross-entropy (nats per token)",
                "training loss, smoothed",
                "validation loss",
                "learning rate",
            ] {
                assert!(svg.contains(text), "{steps}: {text}");
            }
            assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"));
            // However long the run, the file stays small.
            assert!(svg.len() < 200_000, "{}", svg.len());
        }
        if let Some(copy) = std::env::var_os("FORERUN_PLOT_COPY") {
            std::fs::copy(&picture, copy).unwrap();
        }
    }

    #[test]
    fn smoothing_keeps_a_constant_and_thinning_the_last_point() {
        let points: Vec<Point> = (0..5000).map(|step| (f64::from(step), 2.0)).collect();
        assert!(smoothed(&points).iter().all(|point| (point.1 - 2.0).abs() < 1e-9));
        let thin = thinned(&points);
        assert!(thin.len() <= POINTS && thin.last() == points.last());
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.jsonl");
        let error = |picture: &str| {
            plot_losses(&log, &folder.path().join(picture), "").unwrap_err().to_string()
        };
        assert!(error("a.svg").contains("cannot read the log"));
        MetricsLog::create(&log).unwrap();
        assert!(error("a.svg").contains("no training loss"));
        assert!(error("a.png").contains("`.svg`"));
    }
}
