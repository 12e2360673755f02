//! The pictures of a run: losses and learning rate, and a drafter's acceptance by position.

use std::path::{Path, PathBuf};

use forerun_draw::plot::{AcceptanceCurves, LossCurves, Picture, Point};

use crate::metrics::{MetricsError, PositionAcceptance, Record, TrainingRecord, read_metrics};

/// An error of drawing a run's pictures.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] MetricsError),
    /// The log contains no training step yet.
    #[error("the log {0} contains no training loss yet")]
    Empty(PathBuf),
    /// The picture's name does not end in `.svg`.
    #[error("cannot draw {0}: pictures are SVG files, so the name must end in .svg")]
    Format(PathBuf),
    /// The drawing library failed.
    #[error("cannot draw {path}: {reason}")]
    Draw {
        /// The picture.
        path: PathBuf,
        /// The library's error.
        reason: String,
    },
    /// The picture cannot be written.
    #[error("cannot write {path}: {cause}")]
    Write {
        /// The picture.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
}

/// Draws the log of a run as an SVG file: training loss, raw and smoothed, and validation loss;
/// below them the learning rate; all by step.
///
/// # Errors
/// If the log cannot be read or contains no loss, or the picture cannot be written.
pub fn plot_losses(log: &Path, picture: &Path, title: &str) -> Result<(), PlotError> {
    require_svg(picture)?;
    let records = read_metrics(log)?;
    let of_training = |value: fn(&TrainingRecord) -> f64| -> Vec<Point> {
        let training = records.iter().filter_map(|record| match record {
            Record::Training(record) => Some((record.step as f64, value(record))),
            Record::Evaluation(_) | Record::Acceptance(_) => None,
        });
        training.filter(is_finite).collect()
    };
    let loss = of_training(|record| record.loss);
    if loss.is_empty() {
        return Err(PlotError::Empty(log.to_owned()));
    }
    let validation = records.iter().filter_map(|record| match record {
        Record::Evaluation(record) => Some((record.step as f64, record.validation_loss)),
        Record::Acceptance(record) => Some((record.step as f64, record.validation_loss)),
        Record::Training(_) => None,
    });
    // A drafter's losses are sums over positions, and of several kinds.
    let of_drafter = records.iter().any(|record| matches!(record, Record::Acceptance(_)));
    let unit = if of_drafter { "loss" } else { "cross-entropy (nats per token)" };
    let rates = of_training(|record| record.learning_rate);
    let curves =
        LossCurves::new(title, unit, &loss, validation.filter(is_finite).collect(), &rates);
    write(picture, &curves)
}

/// Draws the acceptance by position from the log of a drafter's run, by step, as an SVG file. Draws
/// nothing if the log contains no acceptance.
///
/// # Errors
/// If the log cannot be read, or the picture cannot be written.
pub fn plot_acceptance(log: &Path, picture: &Path, title: &str) -> Result<(), PlotError> {
    require_svg(picture)?;
    let records = read_metrics(log)?;
    let curves = AcceptanceCurves {
        title: title.to_owned(),
        sampled: by_position(&records, |rates| rates.overlap),
        greedy: by_position(&records, |rates| rates.agreement),
    };
    if curves.sampled.is_empty() { Ok(()) } else { write(picture, &curves) }
}

/// A curve for each position.
fn by_position(records: &[Record], rate: fn(&PositionAcceptance) -> f64) -> Vec<Vec<Point>> {
    let mut curves: Vec<Vec<Point>> = Vec::new();
    for record in records {
        let Record::Acceptance(record) = record else { continue };
        curves.resize(curves.len().max(record.acceptance.len()), Vec::new());
        for (curve, rates) in curves.iter_mut().zip(&record.acceptance) {
            curve.extend(Some((record.step as f64, rate(rates))).filter(is_finite));
        }
    }
    curves
}

/// Whether a point can be drawn.
fn is_finite(point: &Point) -> bool {
    point.1.is_finite()
}

fn require_svg(picture: &Path) -> Result<(), PlotError> {
    match picture.extension() {
        Some(extension) if extension == "svg" => Ok(()),
        _ => Err(PlotError::Format(picture.to_owned())),
    }
}

fn write(picture: &Path, curves: &impl Picture) -> Result<(), PlotError> {
    let path = picture.to_owned();
    let svg = curves
        .to_svg()
        .map_err(|error| PlotError::Draw { path: path.clone(), reason: error.to_string() })?;
    forerun_output::write(picture, svg).map_err(|cause| PlotError::Write { path, cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{AcceptanceRecord, EvaluationRecord, MetricsLog};

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
    fn the_picture_contains_every_curve_with_its_name() {
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
    }

    #[test]
    fn bad_logs_and_names_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log.jsonl");
        let error = |picture: &str| {
            plot_losses(&log, &folder.path().join(picture), "").unwrap_err().to_string()
        };
        assert!(error("a.svg").contains("cannot read the log"));
        MetricsLog::create(&log).unwrap();
        assert!(error("a.svg").contains("no training loss"));
        assert!(error("a.png").contains(".svg"));
    }

    fn acceptance_record(step: u64) -> Record {
        let rates = |position: u32| PositionAcceptance {
            overlap: 0.8_f64.powi(position as i32 + 1) * step as f64 / 300.0,
            agreement: if step == 100 && position == 3 { f64::NAN } else { 0.5 },
        };
        Record::Acceptance(AcceptanceRecord {
            step,
            tokens: step * 2048,
            validation_loss: 4.0,
            acceptance: (0..9).map(rates).collect(),
            elapsed_s: step as f64,
        })
    }

    #[test]
    fn each_position_has_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let (log, picture) = (folder.path().join("log.jsonl"), folder.path().join("a.svg"));
        let mut metrics = MetricsLog::create(&log).unwrap();
        plot_acceptance(&log, &picture, "none yet").unwrap();
        assert!(!picture.exists());
        (1..4).for_each(|step| metrics.write(&acceptance_record(step * 100)).unwrap());
        plot_acceptance(&log, &picture, "eagle & co").unwrap();
        let svg = std::fs::read_to_string(&picture).unwrap();
        for text in ["eagle &amp; co", "overlap", "most probable", "position 1", "position 9"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"));
    }
}
