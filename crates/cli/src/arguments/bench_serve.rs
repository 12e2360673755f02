//! Options of `forerun bench serve`.

use super::values;
use clap::Args;
use std::path::PathBuf;

/// Options of `forerun bench serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeBenchArguments {
    /// Server to measure, such as `http://127.0.0.1:8080`.
    ///
    /// May be given several times, then with names. Servers are measured in turn.
    #[arg(long, value_name = "[NAME=]URL", required = true)]
    pub(crate) server: Vec<String>,

    /// Key that the servers require.
    #[arg(long, value_name = "KEY", env = "FORERUN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// Numbers of clients, separated by commas. Each client sends one request after another.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,16", value_parser = values::count(1..=1024))]
    pub(crate) clients: Vec<usize>,

    /// Number of requests of each client.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = values::count(1..))]
    pub(crate) requests: usize,

    /// Number of tokens of each answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = values::count(1..))]
    pub(crate) max_tokens: usize,

    /// Sampling temperature; 0 always takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f64,

    /// Number of measurements of each server and number of clients; the median speed counts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::count(1..))]
    pub(crate) repeats: usize,

    /// Prompts: suites or files, separated by commas.
    ///
    /// Suites are `default`, `spec-bench`, `humaneval`, `gsm8k`, `mbpp` and `mgsm`; all but
    /// `default` need `--data`. Files are `.jsonl` or `.jsonl.gz` (with a field `prompt` or
    /// `turns`), `.tsv`, or plain text with blank lines between prompts.
    #[arg(long, value_name = "SUITES", value_delimiter = ',', default_value = "default")]
    pub(crate) suite: Vec<String>,

    /// Directory with the files of the suites.
    #[arg(long, value_name = "DIR", env = "FORERUN_DATA")]
    pub(crate) data: Option<PathBuf>,

    /// Print all measurements as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
