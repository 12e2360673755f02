//! The log of a run: one JSON object per line.
//!
//! Each line is written at once. A resumed run appends to the same file. Before that, the records
//! of steps that will be repeated are removed, so no step is recorded twice.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};

/// The record of a training step. Values that are not finite are `null` in the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingRecord {
    /// Number of completed steps, including this one.
    pub step: u64,
    /// Number of tokens trained on, including this step's.
    pub tokens: u64,
    /// The loss of the step. For a language model without a teacher: the mean cross-entropy in nats
    /// per token.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// The learning rate of the step.
    #[serde(deserialize_with = "number_or_null")]
    pub learning_rate: f64,
    /// The Euclidean norm of all gradients, before clipping.
    #[serde(deserialize_with = "number_or_null")]
    pub gradient_norm: f64,
    /// Training speed in tokens per second, averaged over a recent interval.
    #[serde(deserialize_with = "number_or_null")]
    pub tokens_per_s: f64,
    /// Seconds of training, including those before the run was resumed.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
}

/// The record of a language model's evaluation on held-out text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Number of completed steps.
    pub step: u64,
    /// Number of tokens trained on.
    pub tokens: u64,
    /// The mean cross-entropy of the held-out targets, in nats per token.
    #[serde(deserialize_with = "number_or_null")]
    pub validation_loss: f64,
    /// The cross-entropy in bits per byte of text ([`bits_per_byte`](crate::data::bits_per_byte)).
    #[serde(deserialize_with = "number_or_null")]
    pub bits_per_byte: f64,
    /// Seconds of training, including those before the run was resumed.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
}

/// The acceptance rates of one position of drafts, given that all positions before it were
/// accepted. NaN if no draft reached the position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionAcceptance {
    /// The probability that a sampled token is accepted at temperature 1: `Σ min(draft, target)`.
    #[serde(deserialize_with = "number_or_null")]
    pub overlap: f64,
    /// The share of drafts with the same most probable token as the target.
    #[serde(deserialize_with = "number_or_null")]
    pub agreement: f64,
}

/// The record of a drafter's evaluation on held-out text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptanceRecord {
    /// Number of completed steps.
    pub step: u64,
    /// Number of tokens trained on.
    pub tokens: u64,
    /// The objective on the held-out text.
    #[serde(deserialize_with = "number_or_null")]
    pub validation_loss: f64,
    /// The acceptance rates of each position of its drafts.
    pub acceptance: Vec<PositionAcceptance>,
    /// Seconds of training, including those before the run was resumed.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Record {
    /// A training step.
    Training(TrainingRecord),
    /// An evaluation of a language model.
    Evaluation(EvaluationRecord),
    /// An evaluation of a drafter.
    Acceptance(AcceptanceRecord),
}

impl Record {
    /// Returns the number of steps that were completed when the record was written.
    #[must_use]
    pub fn step(&self) -> u64 {
        match self {
            Self::Training(record) => record.step,
            Self::Evaluation(record) => record.step,
            Self::Acceptance(record) => record.step,
        }
    }
}

/// Reads a number, or NaN from `null`. JSON has no infinity and no NaN, so both are written as
/// `null`.
fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// An error of reading or writing a log.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file cannot be read.
    #[error("cannot read the log {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the log {path}: {cause}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A line before the last one is not a record.
    #[error("line {line} of the log {path} is not a record: {reason}. Correct or remove the line")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The parser's reason.
        reason: String,
    },
}

/// A writer of logs.
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Creates a log, and overwrites an existing file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        Self::replace(path, b"")
    }

    /// Opens a log to continue after `step`. Removes the records of later steps, and an incomplete
    /// last line. Creates the file if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or written, or is not a log.
    pub fn resume(path: &Path, step: u64) -> Result<Self, MetricsError> {
        let kept: Vec<u8> = match lines(path) {
            Ok(lines) => lines
                .into_iter()
                .filter(|(_, record)| record.step() <= step)
                .flat_map(|(line, _)| [line.as_bytes(), b"\n"].concat())
                .collect(),
            Err(MetricsError::Read { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        Self::replace(path, &kept)
    }

    fn replace(path: &Path, bytes: &[u8]) -> Result<Self, MetricsError> {
        let open = || {
            forerun_output::write(path, bytes)?;
            forerun_output::append(path)
        };
        let file = open().map_err(|cause| MetricsError::Write { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a record. It is in the file when this method returns, but not yet synced to the
    /// disk.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, record: &Record) -> Result<(), MetricsError> {
        let mut line = || {
            let mut line = serde_json::to_vec(record)?;
            line.push(b'\n');
            self.file.write_all(&line)
        };
        line().map_err(|cause| MetricsError::Write { path: self.path.clone(), cause })
    }
}

/// Reads all records of a log, in order. An incomplete last line, as a crash may leave it, is
/// skipped.
///
/// # Errors
/// If the file cannot be read, or a line before the last one is not a record.
pub fn read_metrics(path: &Path) -> Result<Vec<Record>, MetricsError> {
    Ok(lines(path)?.into_iter().map(|(_, record)| record).collect())
}

/// Reads the complete lines of a log, each as text and as a record.
fn lines(path: &Path) -> Result<Vec<(String, Record)>, MetricsError> {
    let bytes =
        std::fs::read(path).map_err(|cause| MetricsError::Read { path: path.to_owned(), cause })?;
    let text = String::from_utf8_lossy(&bytes);
    let total = text.lines().count();
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(record) => lines.push((line.to_owned(), record)),
            Err(_) if number + 1 == total => {}
            Err(error) => {
                let (path, line) = (path.to_owned(), number + 1);
                return Err(MetricsError::Line { path, line, reason: error.to_string() });
            }
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(step: u64) -> Record {
        Record::Training(TrainingRecord {
            step,
            tokens: step * 1024,
            loss: 8.3 / (step + 1) as f64,
            learning_rate: 1e-3,
            gradient_norm: 0.5,
            tokens_per_s: 1000.0,
            elapsed_s: step as f64,
        })
    }

    fn evaluation(step: u64) -> Record {
        Record::Evaluation(EvaluationRecord {
            step,
            tokens: step * 1024,
            validation_loss: 4.0,
            bits_per_byte: 1.6,
            elapsed_s: step as f64,
        })
    }

    #[test]
    fn a_resumed_log_equals_that_of_an_uninterrupted_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let records = |steps: std::ops::Range<u64>| {
            steps.flat_map(|step| [training(step), evaluation(step)]).collect::<Vec<_>>()
        };
        let mut log = MetricsLog::create(&path).unwrap();
        records(1..21).iter().for_each(|record| log.write(record).unwrap());
        let whole = std::fs::read(&path).unwrap();
        // The run is killed after some byte, and resumed from a logged step.
        for (cut, step) in [(whole.len(), 20), (whole.len(), 7), (whole.len() - 30, 12), (0, 0)] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut log = MetricsLog::resume(&path, step).unwrap();
            records(step + 1..21).iter().for_each(|record| log.write(record).unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), whole, "{cut}, {step}");
        }
        assert_eq!(read_metrics(&path).unwrap(), records(1..21));
        let leftovers = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(leftovers, 1);
        // If there is no log yet, it is created.
        let mut log = MetricsLog::resume(&folder.path().join("new.jsonl"), 9).unwrap();
        log.write(&training(10)).unwrap();
        assert_eq!(read_metrics(&folder.path().join("new.jsonl")).unwrap(), [training(10)]);
    }

    #[test]
    fn only_the_last_line_may_be_incomplete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let line = |record: &Record| serde_json::to_string(record).unwrap();
        let text = format!("{}\n{}", line(&training(1)), &line(&training(2))[..20]);
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [training(1)]);
        std::fs::write(&path, format!("{text}\n{}\n", line(&training(3)))).unwrap();
        for error in [read_metrics(&path).unwrap_err(), MetricsLog::resume(&path, 1).err().unwrap()]
        {
            assert!(error.to_string().contains("line 2"), "{error}");
        }
        let missing = read_metrics(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none"), "{missing}");
    }

    #[test]
    fn each_kind_of_record_is_read_back_as_that_kind() {
        let rates = PositionAcceptance { overlap: 0.5, agreement: f64::NAN };
        let record = Record::Acceptance(AcceptanceRecord {
            step: 3,
            tokens: 4,
            validation_loss: 5.0,
            acceptance: vec![rates],
            elapsed_s: 6.0,
        });
        for record in [training(1), evaluation(2)] {
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
        }
        let line = serde_json::to_string(&record).unwrap();
        let read = serde_json::from_str(&line).unwrap();
        let Record::Acceptance(read) = read else { panic!("{line}") };
        assert_eq!((read.step, read.acceptance[0].overlap), (3, 0.5));
        assert!(read.acceptance[0].agreement.is_nan());
    }

    #[test]
    fn a_nan_loss_is_read_back_as_nan() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let Record::Training(record) = training(1) else { unreachable!() };
        let mut log = MetricsLog::create(&path).unwrap();
        log.write(&Record::Training(TrainingRecord { loss: f64::NAN, ..record })).unwrap();
        let records = read_metrics(&path).unwrap();
        assert!(matches!(records[..], [Record::Training(read)] if read.loss.is_nan()));
    }
}
