//! What can go wrong with a comparison.

use crate::equality::Difference;
use forerun::{ChatError, ForerunError, PlanError};
use std::path::PathBuf;

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file that cannot be read.
    #[error("cannot read {file}: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {file}: {cause}; what was answered so far is kept, so run again")]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A suite without a place to look for it.
    #[error("the suite {0:?} is read from files: say where they are with --data DIR")]
    NoData(String),
    /// A suite of which no file is there.
    #[error("the suite {suite:?} needs {expected} in {folder}; fetch it, or give another --data")]
    NoSuite {
        /// The suite.
        suite: String,
        /// Files that it may be in.
        expected: &'static str,
        /// Where they were looked for.
        folder: PathBuf,
    },
    /// Neither a suite nor a file.
    #[error(
        "{0:?} is neither a file nor a suite; the suites are default, spec-bench, humaneval, gsm8k, \
         mbpp, mgsm"
    )]
    UnknownSuite(String),
    /// A line of a suite that is no prompt.
    #[error("{file}, line {line}: {reason}")]
    Line {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Two prompts of one name.
    #[error("two prompts are called {0:?}: give each its own id, or choose one of the suites")]
    SamePrompt(String),
    /// Nothing to answer.
    #[error("there is no prompt to answer: {0}")]
    NoPrompts(&'static str),
    /// A sweep that cannot be read.
    #[error("cannot read the sweeps in {file}: {reason}")]
    Sweep {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration that cannot be.
    #[error("the configuration {name:?} cannot run: {cause}")]
    Plan {
        /// The configuration.
        name: String,
        /// Why not.
        cause: Box<PlanError>,
    },
    /// A draft model that was named in vain.
    #[error(
        "nothing drafts with the draft model {path}: name a drafter that it is made for, or leave it out"
    )]
    UnusedDraftModel {
        /// The draft model.
        path: PathBuf,
    },
    /// An unfair comparison.
    #[error(
        "{name:?} would use {cores} cores, but {baseline:?} {baseline_cores}: give all the same \
         number in total by --placement, or compare them all the same with --unequal-cores"
    )]
    UnequalCores {
        /// The configuration.
        name: String,
        /// Its cores.
        cores: usize,
        /// What it is compared with.
        baseline: String,
        /// The cores of that.
        baseline_cores: usize,
    },
    /// A number of repeats that measures nothing.
    #[error("--repeats is 0: measure at least once, better three times")]
    NoRepeats,
    /// A folder of another comparison.
    #[error(
        "{file} has the answers of another comparison ({found} instead of {expected}): choose another \
         --out, or delete that folder"
    )]
    OtherRun {
        /// The file.
        file: PathBuf,
        /// The hash in it.
        found: String,
        /// The hash of this run.
        expected: String,
    },
    /// A folder with answers of peers that were others.
    #[error(
        "{file} has answers of other peers, which said {found} of themselves, and now {expected}: choose \
         another --out, or delete that folder"
    )]
    OtherPeers {
        /// The file.
        file: PathBuf,
        /// What they said.
        found: String,
        /// What they say.
        expected: String,
    },
    /// A line of the answers that cannot be read, and is not the last.
    #[error(
        "{file}, line {line}, cannot be read ({reason}): delete that line, or choose another --out"
    )]
    Journal {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// An answer that is not autoregressive decoding's.
    #[error(transparent)]
    Different(#[from] Box<Difference>),
    /// An engine that does not load.
    #[error("the configuration {name:?} cannot be loaded: {cause}")]
    Load {
        /// The configuration.
        name: String,
        /// Why not.
        cause: Box<ForerunError>,
    },
    /// A prompt without an answer.
    #[error("{configuration:?} cannot answer the prompt {prompt:?}: {cause}")]
    Answer {
        /// The configuration.
        configuration: String,
        /// The prompt.
        prompt: String,
        /// Why not.
        cause: Box<ChatError>,
    },
    /// Another engine that does not do what it is asked for.
    #[error("the peer {name:?} cannot take part: {reason}")]
    Peer {
        /// What it is called.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A chat template that cannot be used.
    #[error(transparent)]
    Chat(#[from] Box<ChatError>),
}
