//! The log of a run: one JSON object a line.
//!
//! A line is written whole and at once. A run that is resumed goes on in the same file: lines of
//! steps that will be done again are dropped first, so that no step is told twice.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};

use crate::drafter::PositionAcceptance;
use crate::files::write_atomically;

/// What a step of training told. A number that is not finite is `null` in the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingRecord {
    /// Steps that were done, this one included.
    pub step: u64,
    /// Tokens that were learnt from so far.
    pub tokens: u64,
    /// Mean cross-entropy of the step's targets, in nats per token.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// The optimizer's learning rate in this step.
    #[serde(deserialize_with = "number_or_null")]
    pub learning_rate: f64,
    /// Euclidean norm of all gradients, before clipping.
    #[serde(deserialize_with = "number_or_null")]
    pub gradient_norm: f64,
    /// Tokens learnt from per second, lately.
    #[serde(deserialize_with = "number_or_null")]
    pub tokens_per_s: f64,
    /// Seconds of training, those before a resumption included.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
}

/// What a test on held-out text told.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Steps that were done before.
    pub step: u64,
    /// Tokens that were learnt from before.
    pub tokens: u64,
    /// Mean cross-entropy of the held-out targets, in nats per token.
    #[serde(deserialize_with = "number_or_null")]
    pub validation_loss: f64,
    /// The same by the text's length ([`bits_per_byte`](crate::data::bits_per_byte)).
    #[serde(deserialize_with = "number_or_null")]
    pub bits_per_byte: f64,
    /// Seconds of training, those before a resumption included.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
}

/// What a test of a drafter on held-out text told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptanceRecord {
    /// Steps that were done before.
    pub step: u64,
    /// Tokens that were learnt from before.
    pub tokens: u64,
    /// What is minimised, on the held-out text.
    #[serde(deserialize_with = "number_or_null")]
    pub validation_loss: f64,
    /// What each position of its drafts is worth.
    pub acceptance: Vec<PositionAcceptance>,
    /// Seconds of training, those before a resumption included.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Record {
    /// A step of training.
    Training(TrainingRecord),
    /// A test on held-out text.
    Evaluation(EvaluationRecord),
    /// A test of a drafter.
    Acceptance(AcceptanceRecord),
}

impl Record {
    /// Steps that were done when it was written.
    #[must_use]
    pub fn step(&self) -> u64 {
        match self {
            Self::Training(record) => record.step,
            Self::Evaluation(record) => record.step,
            Self::Acceptance(record) => record.step,
        }
    }
}

/// JSON has no infinity and no NaN, so these were written as `null`.
pub(crate) fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A log that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file cannot be read.
    #[error("cannot read the log {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the log {path}: {cause}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A line, not the last, that is none of a log.
    #[error("line {line} of the log {path} is broken: {reason}; mend or remove the line")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
}

/// A log that is being written.
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Begins a log; what the file held is gone.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        Self::replace(path, b"")
    }

    /// Goes on with a log behind `step`: lines of later steps, and a last line that was cut, are
    /// dropped. A file that is not there is begun.
    ///
    /// # Errors
    /// If the file cannot be read or written, or is no log.
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
            write_atomically(path, bytes)?;
            OpenOptions::new().append(true).open(path)
        };
        let file = open().map_err(|cause| MetricsError::Write { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a line. It is in the file when this returns; only a crash of the machine loses it.
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

/// All lines of a log, in order. A last line that was cut by a crash is passed over.
///
/// # Errors
/// If the file cannot be read, or a line before the last is broken.
pub fn read_metrics(path: &Path) -> Result<Vec<Record>, MetricsError> {
    Ok(lines(path)?.into_iter().map(|(_, record)| record).collect())
}

/// The lines that are whole, each as it stands and as what it means.
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
#[expect(clippy::unwrap_used, reason = "tests")]
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
    fn a_resumed_log_is_that_of_a_run_that_was_never_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let records = |steps: std::ops::Range<u64>| {
            steps.flat_map(|step| [training(step), evaluation(step)]).collect::<Vec<_>>()
        };
        let mut log = MetricsLog::create(&path).unwrap();
        records(1..21).iter().for_each(|record| log.write(record).unwrap());
        let whole = std::fs::read(&path).unwrap();
        // Killed after any byte, and resumed at any step that was logged.
        for (cut, step) in [(whole.len(), 20), (whole.len(), 7), (whole.len() - 30, 12), (0, 0)] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut log = MetricsLog::resume(&path, step).unwrap();
            records(step + 1..21).iter().for_each(|record| log.write(record).unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), whole, "{cut}, {step}");
        }
        assert_eq!(read_metrics(&path).unwrap(), records(1..21));
        let leftovers = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(leftovers, 1);
        // A run that had no log yet begins one.
        let mut log = MetricsLog::resume(&folder.path().join("new.jsonl"), 9).unwrap();
        log.write(&training(10)).unwrap();
        assert_eq!(read_metrics(&folder.path().join("new.jsonl")).unwrap(), [training(10)]);
    }

    #[test]
    fn only_the_last_line_may_be_broken() {
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
    fn each_kind_of_record_is_read_as_what_it_is() {
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
    fn numbers_that_are_not_finite_survive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let Record::Training(record) = training(1) else { unreachable!() };
        let mut log = MetricsLog::create(&path).unwrap();
        log.write(&Record::Training(TrainingRecord { loss: f64::NAN, ..record })).unwrap();
        let records = read_metrics(&path).unwrap();
        assert!(matches!(records[..], [Record::Training(read)] if read.loss.is_nan()));
    }
}
