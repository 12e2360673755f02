//! Options that choose prompts.

use super::headings::PROMPTS;
use clap::Args;
use forerun_bench::BenchError;
use forerun_bench::suite::{self, Prompt};
use std::path::PathBuf;

/// The prompts of suites and files.
#[derive(Args, Debug)]
pub(crate) struct SuiteArguments {
    /// Prompts: suites or files, separated by commas.
    ///
    /// Suites are `default`, `spec-bench`, `humaneval`, `gsm8k`, `mbpp` and `mgsm`; all but
    /// `default` need `--data`. Files are `.jsonl` or `.jsonl.gz` (with a field `prompt` or
    /// `turns`), `.tsv`, or plain text with blank lines between prompts.
    #[arg(
        long,
        value_name = "SUITES",
        value_delimiter = ',',
        default_value = "default",
        help_heading = PROMPTS
    )]
    pub(crate) suite: Vec<String>,

    /// Directory with the files of the suites.
    #[arg(long, value_name = "DIR", help_heading = PROMPTS)]
    pub(crate) data: Option<PathBuf>,
}

impl SuiteArguments {
    pub(crate) fn read(&self) -> Result<Vec<Prompt>, BenchError> {
        suite::read(&self.suite, self.data.as_deref())
    }
}
