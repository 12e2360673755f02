//! The options of `forerun serve`.

use super::headings::{LIMITS, SERVER};
use super::{EngineArguments, values};
use clap::{Args, ValueEnum};
use forerun_server::ChatSyntax;
use std::net::IpAddr;
use std::path::PathBuf;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// How the log of a server is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object on a line for each event.
    Json,
}

/// The options of one model, which a file of models has for each of them. A group of arguments that
/// has another one as its part has no name.
const OF_ONE_MODEL: [&str; 28] = [
    "ModelArguments",
    "EasySpecArguments",
    "lora",
    "draft_model",
    "dtype",
    "kv_type",
    "cache_bytes",
    "cache_dir",
    "cache_dir_size",
    "context_length",
    "offline",
    "method",
    "drafter",
    "lookup",
    "draft_tokens",
    "tree",
    "also_draft",
    "pearl",
    "threads",
    "placement",
    "gpu_layers",
    "cpu_moe",
    "n_cpu_moe",
    "rank_timeout",
    "pin",
    "served_model_name",
    "chat_template",
    "tool_parser",
];

/// Options of `forerun serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Address to listen on. `0.0.0.0` accepts connections from other machines.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", help_heading = SERVER)]
    pub(crate) host: IpAddr,

    /// Port to listen on; 0 chooses a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080, help_heading = SERVER)]
    pub(crate) port: u16,

    /// Serve the models of a TOML file, which are loaded when a request names them.
    ///
    /// Each `[[model]]` has a `path` and, if wanted, `name`, `aliases`, `preload`, `keep-alive`,
    /// `chat-template`, `tool-parser`, and options such as `draft-model`, `placement` and
    /// `cache-bytes`. `default` and `memory-budget` are for all of them.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = OF_ONE_MODEL,
        help_heading = SERVER
    )]
    pub(crate) models: Option<PathBuf>,

    /// Name of the model in requests and answers [default: the name of its file or directory, or
    /// its hub id]
    #[arg(long, visible_alias = "alias", value_name = "NAME", help_heading = SERVER)]
    pub(crate) served_model_name: Option<String>,

    /// Chat template: a Jinja file, the name of a template that the checkpoint ships, or `plain`
    /// ("User: …", "Assistant: …") [default: the checkpoint's, or `plain`]
    #[arg(long, value_name = "FILE|NAME", help_heading = SERVER)]
    pub(crate) chat_template: Option<String>,

    /// How the model writes reasoning and tool calls: `hermes` (also Qwen), `llama3_json`,
    /// `mistral`, `deepseek`, `glm`, `qwen3_coder` or `harmony` (gpt-oss) [default: recognised by
    /// the chat template]
    #[arg(long, value_name = "NAME", help_heading = SERVER)]
    pub(crate) tool_parser: Option<ChatSyntax>,

    /// Key that requests must have, as `Authorization: Bearer KEY`. May be given several times.
    ///
    /// Other users of the machine see the command line, but not `FORERUN_API_KEY` (keys separated
    /// by commas).
    #[arg(long, value_name = "KEY", env = "FORERUN_API_KEY", value_delimiter = ',', hide_env_values = true, help_heading = SERVER)]
    pub(crate) api_key: Vec<String>,

    /// Web origin whose pages may use the server, or `*`. May be given several times.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', help_heading = SERVER)]
    pub(crate) cors_origin: Vec<String>,

    /// Number of answers that are generated at the same time.
    #[arg(long, alias = "max-num-seqs", value_name = "N", default_value_t = 8, value_parser = values::count(1..=1024), help_heading = LIMITS)]
    pub(crate) parallel: usize,

    /// Number of requests that may wait for a place. Further ones are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = LIMITS)]
    pub(crate) queue: usize,

    /// Longest body of a request.
    #[arg(long, value_name = "BYTES", default_value = "8M", value_parser = values::bytes, help_heading = LIMITS)]
    pub(crate) max_body_bytes: usize,

    /// Longest time of a request, with waiting.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..), help_heading = LIMITS)]
    pub(crate) request_seconds: u64,

    /// How long answers may take to finish when the server is stopped with Ctrl-C or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = LIMITS)]
    pub(crate) drain_seconds: u64,

    /// What the server reports on standard error: `error`, `warn`, `info`, `debug`, or `off`; also
    /// by crate, such as `warn,forerun_server=debug` [default: info; `debug` with `--verbose`,
    /// `error` with `--quiet`]
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", value_parser = log_level, help_heading = SERVER)]
    pub(crate) log_level: Option<Targets>,

    /// Form of the reports.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = LogFormat::Text, help_heading = SERVER)]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}

/// Parses levels such as `info` or `warn,forerun_server=debug`.
fn log_level(text: &str) -> Result<Targets, String> {
    let unknown =
        text.split(',').find(|part| !part.contains('=') && part.parse::<LevelFilter>().is_err());
    match unknown {
        Some(part) => {
            Err(format!("{part:?} is no level: use error, warn, info, debug, off, or CRATE=LEVEL"))
        }
        None => text.parse().map_err(|error| format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_an_engine_is_one_of_a_model() {
        let command = EngineArguments::augment_args(clap::Command::new("engine"));
        let is_named = |id: &str| OF_ONE_MODEL.contains(&id);
        for argument in command.get_arguments() {
            let id = argument.get_id();
            let groups = command.get_groups().filter(|group| group.get_args().any(|of| of == id));
            let mut groups = groups.map(|group| group.get_id().as_str());
            assert!(is_named(id.as_str()) || groups.any(is_named), "{id}");
        }
    }
}
