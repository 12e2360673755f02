//! Errors of comparisons.

use crate::equality::Difference;
use forerun::{ChatError, ForerunError, ModelSource, PlanError};
use forerun_sim::SimError;
use std::path::PathBuf;

/// An error of a comparison.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file cannot be read.
    #[error("cannot read {file}: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The combinations of a sweep's values are too many.
    #[error(
        "the sweeps have up to {count} combinations of their values, and at most {most} are possible: give shorter lists"
    )]
    TooManyCombinations {
        /// The number of combinations, or more than there are.
        count: usize,
        /// The largest number.
        most: usize,
    },
    /// A file cannot be written.
    #[error(
        "cannot write {file}: {cause}; the answers so far are kept, so run the same command again to \
         continue"
    )]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The folder with the files of a suite is not given.
    #[error("the suite {0:?} is read from files: set `data` to their folder")]
    NoData(String),
    /// The files of a suite do not exist.
    #[error(
        "the suite {suite:?} needs {expected} in {folder}: download it to that folder, or set `data` to \
         another one"
    )]
    NoSuite {
        /// The name of the suite.
        suite: String,
        /// The file that contains it.
        expected: &'static str,
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// The name is neither a suite nor a file.
    #[error(
        "{0:?} is neither a file nor a suite; the suites are default, spec-bench, humaneval, gsm8k, \
         mbpp, mgsm"
    )]
    UnknownSuite(String),
    /// A line of a suite is not a valid prompt.
    #[error("{file}, line {line}: {reason}")]
    Line {
        /// The file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Two prompts have the same id.
    #[error(
        "two prompts have the id {0:?}: give each prompt its own id, or use only one of the suites"
    )]
    SamePrompt(String),
    /// No prompt is left to answer.
    #[error("there is no prompt to answer: {0}")]
    NoPrompts(&'static str),
    /// A sweep file is invalid.
    #[error("cannot read the sweeps in {file}: {reason}")]
    Sweep {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration is invalid.
    #[error("the configuration {name:?} cannot run: {cause}")]
    Plan {
        /// The name of the configuration.
        name: String,
        /// The error of its plan.
        cause: Box<PlanError>,
    },
    /// No configuration uses a draft model.
    #[error(
        "no drafter uses the draft model {model}: name a drafter that it was trained for, or remove it"
    )]
    UnusedDraftModel {
        /// The draft model.
        model: ModelSource,
    },
    /// A configuration uses another number of cores than its baseline.
    #[error(
        "{name:?} would use {cores} cores, but its baseline {baseline:?} uses {baseline_cores}: give both \
         the same number of cores with `placement`, or set `unequal_cores` to compare them anyway"
    )]
    UnequalCores {
        /// The name of the configuration.
        name: String,
        /// The number of its cores.
        cores: usize,
        /// The name of its baseline.
        baseline: String,
        /// The number of the baseline's cores.
        baseline_cores: usize,
    },
    /// The number of repeats is 0.
    #[error("`repeats` is 0: set it to at least 1; 3 or more also give standard deviations")]
    NoRepeats,
    /// The output folder belongs to another comparison.
    #[error(
        "{file} has the answers of another comparison (its hash is {found}, but {expected} was \
         expected): set `out` to another folder, or delete this one"
    )]
    OtherRun {
        /// The file.
        file: PathBuf,
        /// The hash in the file.
        found: String,
        /// The hash of this comparison.
        expected: String,
    },
    /// The output folder has answers of peers that have changed since.
    #[error(
        "{file} has answers of other peers, which reported {found}, but now report {expected}: set \
         `out` to another folder, or delete this one"
    )]
    OtherPeers {
        /// The file.
        file: PathBuf,
        /// What the peers reported when they answered.
        found: String,
        /// What they report now.
        expected: String,
    },
    /// A line of the answers file is invalid, and it is not the last one.
    #[error(
        "cannot read {file}, line {line} ({reason}): delete that line, or set `out` to another folder"
    )]
    Journal {
        /// The file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// An answer differs from that of autoregressive decoding.
    #[error(transparent)]
    Different(#[from] Box<Difference>),
    /// A configuration cannot be loaded.
    #[error("cannot load the configuration {name:?}: {cause}")]
    Load {
        /// The name of the configuration.
        name: String,
        /// The error of the engine.
        cause: Box<ForerunError>,
    },
    /// A configuration cannot answer a prompt.
    #[error("{configuration:?} cannot answer the prompt {prompt:?}: {cause}")]
    Answer {
        /// The name of the configuration.
        configuration: String,
        /// The id of the prompt.
        prompt: String,
        /// The error of the engine.
        cause: Box<ChatError>,
    },
    /// A hardware profile is of another target.
    #[error(
        "the profile is of the model {}, and {model} is compared: write one with `forerun plan --save-profile`",
        if of.is_empty() { "of the demonstration pair" } else { of.as_str() }
    )]
    OtherProfile {
        /// The model of the profile.
        of: String,
        /// The model that is compared.
        model: String,
    },
    /// A prediction failed.
    #[error(transparent)]
    Prediction(#[from] SimError),
    /// A peer is invalid, cannot start, or does not answer correctly.
    #[error("the peer {name:?} cannot be used: {reason}")]
    Peer {
        /// The name of the peer.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The chat template cannot be used.
    #[error(transparent)]
    Chat(#[from] Box<ChatError>),
}
