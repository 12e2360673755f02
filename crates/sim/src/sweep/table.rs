//! The table of a sweep: a CSV file with one row for each configuration, in order.

use super::{RowSource, Sweep, SweepError};
use crate::{Cost, Parameters, SimError, Simulation};
use forerun_output::Lock;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};

/// The columns after the parameters. They are simulated means over the repeats.
pub const RESULTS: [&str; 10] = [
    // Time of an answer in milliseconds.
    "mean-ms",
    // Standard deviation of that time over the repeats.
    "deviation-ms",
    "tokens-per-s",
    // Plain decoding's time divided by this configuration's.
    "speedup",
    // Tokens of the answer divided by all target passes, including cancelled ones.
    "tokens-per-target-forward",
    // Accepted draft tokens divided by tested ones.
    "acceptance-rate",
    // Share of draft tokens that did not become part of the answer.
    "unused-drafts",
    // Share of all devices' busy time that was spent on cancelled jobs.
    "cancelled-time",
    // Mean shares of the time in which a drafter and a target were busy.
    "drafter-busy",
    "target-busy",
];

/// The table file of a sweep, open for more rows.
pub struct Table {
    file: PathBuf,
    out: File,
    _lock: Lock,
    /// The number of rows in the file.
    pub rows: usize,
}

impl Table {
    /// Opens the table of a sweep, or creates it if it does not exist. An incomplete last line is
    /// dropped.
    ///
    /// # Errors
    /// If the file cannot be read or written, has rows of another sweep, or another process is
    /// writing it.
    pub fn open(file: &Path, sweep: &impl RowSource) -> Result<Self, SweepError> {
        let write_failed = |cause| SweepError::Write { file: file.to_owned(), cause };
        forerun_output::check(file).map_err(write_failed)?;
        let lock = Lock::file(file).map_err(write_failed)?;
        let (rows, length) = match File::open(file) {
            Ok(found) => complete_rows(file, found, sweep)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (0, 0),
            Err(cause) => return Err(SweepError::Read { file: file.to_owned(), cause }),
        };
        let out = forerun_output::append(file).map_err(write_failed)?;
        out.set_len(length).map_err(write_failed)?;
        let mut table = Self { file: file.to_owned(), out, _lock: lock, rows };
        if length == 0 {
            table.write(&sweep.header())?;
        }
        Ok(table)
    }

    /// Adds `rows` rows, given as text.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn push(&mut self, rows: usize, text: &str) -> Result<(), SweepError> {
        self.rows += rows;
        self.write(text)
    }

    fn write(&mut self, text: &str) -> Result<(), SweepError> {
        let failed = |cause| SweepError::Write { file: self.file.clone(), cause };
        self.out.write_all(text.as_bytes()).map_err(failed)
    }
}

impl RowSource for Sweep {
    type Cache = PlainTimeCache;

    fn count(&self) -> usize {
        self.len()
    }

    fn header(&self) -> String {
        let names = Parameters::NAMES.into_iter().chain(["calibration", "repeats", "version"]);
        names.chain(RESULTS).collect::<Vec<_>>().join(",") + "\n"
    }

    fn identity(&self, index: usize) -> Option<String> {
        (index < self.len())
            .then(|| self.configuration(index).ok())
            .flatten()
            .map(|parameters| identity(&parameters, self))
    }

    fn row(
        &self,
        index: usize,
        plain_times: &mut PlainTimeCache,
    ) -> Result<(String, u64), SweepError> {
        let parameters = self.configuration(index);
        let row = parameters.as_ref().map_err(Clone::clone).and_then(|parameters| {
            row(parameters, self, plain_times).map_err(|error| error.to_string())
        });
        row.map_err(|reason| {
            let calibrated = self.calibration.is_some();
            let values = parameters.map_or(Vec::new(), |given| given.values(calibrated).to_vec());
            SweepError::Configuration { number: index + 1, values: values.join(", "), reason }
        })
    }
}

/// Counts the complete rows of this sweep in a file. Returns their number and the byte offset of
/// their end.
fn complete_rows(
    path: &Path,
    file: File,
    sweep: &impl RowSource,
) -> Result<(usize, u64), SweepError> {
    let other = |line| SweepError::OtherRows { file: path.to_owned(), line };
    let (mut reader, mut line) = (BufReader::new(file), String::new());
    let (mut rows, mut length) = (0, 0);
    for number in 1.. {
        line.clear();
        let read = reader.read_line(&mut line);
        read.map_err(|cause| SweepError::Read { file: path.to_owned(), cause })?;
        if !line.ends_with('\n') {
            break;
        }
        if number == 1 {
            if line != sweep.header() {
                return Err(other(number));
            }
        } else {
            let Some(identity) = sweep.identity(rows) else { return Err(other(number)) };
            if !line.starts_with(&identity) {
                return Err(other(number));
            }
            rows += 1;
        }
        length += line.len() as u64;
    }
    // An incomplete header may belong to any file.
    if length == 0 && !sweep.header().starts_with(line.as_str()) {
        return Err(other(1));
    }
    Ok((rows, length))
}

/// Returns the beginning of a row: everything that the row depends on.
fn identity(parameters: &Parameters, sweep: &Sweep) -> String {
    let mut text = parameters.values(sweep.calibration.is_some()).join(",");
    let calibration = sweep.calibration.as_ref().map_or("", |(name, _)| name);
    // A comma in the name would split the field.
    let calibration = calibration.replace([',', '"', '\n'], "_");
    // Writing to a string cannot fail.
    let _ = write!(text, ",{calibration},{},{},", sweep.repeats, env!("CARGO_PKG_VERSION"));
    text
}

/// The latest time of plain decoding, cached for rows with the same target and length.
#[derive(Default)]
pub struct PlainTimeCache(Option<(Cost, usize, u64)>);

impl PlainTimeCache {
    /// Returns the time of plain decoding in nanoseconds, and the number of rounds simulated for
    /// it.
    ///
    /// The time depends on the first target and the number of tokens only, not on drafts or on the
    /// seed.
    fn ns(&mut self, simulation: &Simulation) -> Result<(u64, u64), SimError> {
        let (target, tokens) = (simulation.targets.first(), simulation.max_tokens);
        if let (Some(target), Some((cost, cached_tokens, ns))) = (target, &self.0)
            && (cost, *cached_tokens) == (target, tokens)
        {
            return Ok((*ns, 0));
        }
        let ns = simulation.plain_ns()?;
        self.0 = target.map(|target| (target.clone(), tokens, ns));
        Ok((ns, tokens as u64))
    }
}

/// Computes the row of a configuration. Returns it with the number of simulated rounds.
fn row(
    parameters: &Parameters,
    sweep: &Sweep,
    plain_times: &mut PlainTimeCache,
) -> Result<(String, u64), SimError> {
    let (mut total, mut squares) = (0.0, 0.0);
    let (mut wasted, mut busy) = (0, 0);
    let (mut forwards, mut drafters_busy, mut targets_busy) = (0, 0, 0);
    let mut all = forerun_decode::Statistics::default();
    let first: Simulation = parameters.simulation(sweep.measured())?;
    let (plain_ns, mut rounds) = plain_times.ns(&first)?;
    for repeat in 0..sweep.repeats {
        let seed = parameters.seed.wrapping_add(repeat);
        let answer = match repeat {
            0 => first.measure()?,
            _ => {
                let parameters = Parameters { seed, ..parameters.clone() };
                parameters.simulation(sweep.measured())?.measure()?
            }
        };
        let ns = answer.total_ns as f64;
        (total, squares) = (total + ns, squares + ns * ns);
        rounds += answer.statistics.target_forwards;
        wasted += answer.drafters.wasted_ns + answer.targets.wasted_ns;
        busy += answer.drafters.busy_ns + answer.targets.busy_ns;
        forwards += answer.targets.jobs;
        drafters_busy += answer.drafters.busy_ns;
        targets_busy += answer.targets.busy_ns;
        all.add(&answer.statistics);
    }
    let count = sweep.repeats as f64;
    let mean = total / count;
    let variance = (squares / count - mean * mean).max(0.0) * count / (count - 1.0).max(1.0);
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let accepted: u64 = all.accepted.iter().sum();
    let results = [
        mean / 1e6,
        variance.sqrt() / 1e6,
        share(all.committed as f64 * 1e9, total),
        share(plain_ns as f64 * count, total),
        share(all.committed as f64, forwards as f64),
        all.acceptance_rate(),
        share(all.draft_tokens.saturating_sub(accepted) as f64, all.draft_tokens as f64),
        share(wasted as f64, busy as f64),
        share(drafters_busy as f64, total * first.drafters.len() as f64),
        share(targets_busy as f64, total * first.targets.len() as f64),
    ];
    let mut text = identity(parameters, sweep);
    for (index, value) in results.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}", significant(*value));
    }
    text.push('\n');
    Ok((text, rounds))
}

/// Rounds to seven significant digits.
pub(super) fn significant(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
