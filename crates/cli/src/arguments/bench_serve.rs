//! Options of `forerun bench serve`.

use super::{SuiteArguments, values};
use clap::Args;

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

    /// Requests a second, separated by commas, that arrive at random times (a Poisson process) in
    /// place of those of clients.
    #[arg(long, value_name = "RATES", value_delimiter = ',', conflicts_with = "clients", value_parser = values::rate_or_time)]
    pub(crate) rate: Vec<f64>,

    /// Number of requests of a `--rate` that arrive at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rate", value_parser = values::count(1..=1024))]
    pub(crate) burst: usize,

    /// Number of requests of each client, or of each `--rate`. Default: 4, or 64 of a rate.
    #[arg(long, value_name = "N", value_parser = values::count(1..=1_000_000))]
    pub(crate) requests: Option<usize>,

    /// Longest time to the first token, in milliseconds, of answers that count in the goodput.
    #[arg(long, value_name = "MS", value_parser = values::rate_or_time)]
    pub(crate) ttft: Option<f64>,

    /// Longest mean time between tokens, in milliseconds, of answers that count in the goodput.
    #[arg(long, value_name = "MS", value_parser = values::rate_or_time)]
    pub(crate) tpot: Option<f64>,

    /// Number of tokens of each answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = values::count(1..))]
    pub(crate) max_tokens: usize,

    /// Sampling temperature; 0 always takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f64,

    /// Number of measurements of each server and load; the median speed counts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::count(1..))]
    pub(crate) repeats: usize,

    #[command(flatten)]
    pub(crate) suites: SuiteArguments,

    /// Print all measurements as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
