//! The command line: commands, options and their help.

#[cfg(feature = "laboratory")]
mod analyze;
mod bench_run;
mod bench_serve;
mod embed;
mod engine;
mod export;
#[cfg(feature = "laboratory")]
mod make_pair;
mod model;
mod models;
mod plan;
mod run;
mod samplers;
#[cfg(feature = "server")]
mod serve;
#[cfg(feature = "laboratory")]
mod simulate;
mod suites;
#[cfg(feature = "train")]
mod train;
mod types;
pub(crate) mod values;

#[cfg(not(all(feature = "laboratory", feature = "server", feature = "train")))]
use crate::missing::Missing;
use clap::{Args, Parser, Subcommand};
use forerun::{ModelSource, TokenId, VerificationChoice, WeightType, WeightTypes};
use headings::{CHAT, DRAFTING, OUTPUT, PROMPTS, SAMPLING, STOPPING, STRUCTURE};
use samplers::SamplerArguments;
use std::path::PathBuf;
use types::{CacheTypeArguments, WeightTypeArguments};
use values::token_bias;

#[cfg(feature = "laboratory")]
pub(crate) use analyze::{AcceptanceArguments, Analyze, LayersArguments};
pub(crate) use bench_run::RunBenchArguments;
pub(crate) use bench_serve::ServeBenchArguments;
pub(crate) use embed::EmbedArguments;
pub use engine::EngineArguments;
pub(crate) use export::ExportArguments;
#[cfg(feature = "laboratory")]
pub(crate) use make_pair::MakePairArguments;
pub(crate) use model::{BY_POSITION, MODEL, ModelArguments};
pub(crate) use models::{
    ListModelsArguments, Models, PullModelsArguments, RemoveModelsArguments, ShowModelArguments,
};
pub(crate) use plan::PlanArguments;
pub(crate) use run::RunArguments;
#[cfg(feature = "server")]
pub(crate) use serve::{LogFormat, ServeArguments};
#[cfg(feature = "laboratory")]
pub(crate) use simulate::{
    CalibrateArguments, CancelChoice, HeatmapArguments, PaperArguments, Simulate,
    SimulatedRunArguments, SweepArguments,
};
#[cfg(feature = "plots")]
pub(crate) use simulate::{Merge, PlotArguments};
pub(crate) use suites::SuiteArguments;
#[cfg(feature = "train")]
pub(crate) use train::{
    BlockArguments, DflashArguments, DistillArguments, DrafterArguments, DsparkArguments,
    EagleArguments, FeatureArguments, HeadArguments, Integration, LmArguments, OptimizerName,
    ParallelArguments, StepArguments, TextArguments, Train,
};

/// Headings under which the help groups options.
pub(crate) mod headings {
    pub(crate) const MODEL: &str = "Model";
    #[cfg(feature = "laboratory")]
    pub(crate) const TARGET: &str = "Target";
    #[cfg(feature = "laboratory")]
    pub(crate) const DRAFTER: &str = "Drafter";
    pub(crate) const DRAFTING: &str = "Drafting";
    pub(crate) const EASYSPEC: &str = "EasySpec";
    pub(crate) const STOPPING: &str = "Stopping";
    pub(crate) const STRUCTURE: &str = "Structured output";
    pub(crate) const CHAT: &str = "Chat";
    pub(crate) const SAMPLING: &str = "Sampling";
    pub(crate) const DEVICES: &str = "Devices";
    pub(crate) const CONFIGURATIONS: &str = "Configurations";
    pub(crate) const PROMPTS: &str = "Prompts";
    pub(crate) const MEASUREMENT: &str = "Measurement";
    pub(crate) const OUTPUT: &str = "Output";
    #[cfg(feature = "server")]
    pub(crate) const SERVER: &str = "Server";
    #[cfg(feature = "server")]
    pub(crate) const LIMITS: &str = "Limits";
    #[cfg(feature = "train")]
    pub(crate) const TEXT: &str = "Text";
    #[cfg(feature = "train")]
    pub(crate) const TRAINING: &str = "Training";
    #[cfg(feature = "train")]
    pub(crate) const EVALUATION: &str = "Evaluation";
}

const AFTER_HELP: &str = "Examples:
  forerun generate --prompt \"Once upon a time\"
  forerun run HuggingFaceTB/SmolLM2-135M-Instruct \"Why is the sky blue?\"

Every option can also be set by an environment variable, such as FORERUN_MAX_TOKENS for \
                          --max-tokens, or in the file of --config.";

/// Run large language models faster with parallel speculative decoding.
///
/// A small drafter proposes tokens, and the target model verifies several of them in one forward
/// pass. The output is the target's: the same tokens at temperature 0 or with a seed,
/// otherwise the same distribution.
#[derive(Debug, Parser)]
#[command(name = "forerun", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// TOML file with options, such as `temperature = 0.7`.
    ///
    /// Options in a table, such as `[serve]`, are for that command alone. The command line and
    /// environment variables take precedence.
    #[arg(id = "config", long, global = true, value_name = "FILE", env = "FORERUN_CONFIG")]
    _config: Option<PathBuf>,

    /// Report more on standard error: options from other places, models, devices, statistics.
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,

    /// Report only errors on standard error.
    ///
    /// Without it and `--verbose`, `RUST_LOG` decides: `debug` is verbose, `error` is quiet.
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt.
    ///
    /// The text goes to standard output as it is generated, followed by one line of statistics on
    /// standard error.
    ///
    /// Example: `forerun generate TARGET --draft-model DRAFTER --prompt "Once upon a time"`
    #[command(allow_negative_numbers = true)]
    Generate(Box<GenerateArguments>),
    /// Chat with a model.
    ///
    /// Answers go to standard output, everything else to standard error. During a chat, `/help`
    /// lists the commands. Messages can also be piped in, one per line.
    #[command(allow_negative_numbers = true)]
    Chat(Box<ChatArguments>),
    /// Run a model: answer a prompt, or chat.
    ///
    /// As `forerun chat`, but piped text is one message. `--verbose` prints statistics after each
    /// answer.
    ///
    /// Example: `forerun run HuggingFaceTB/SmolLM2-135M-Instruct "Why is the sky blue?"`
    #[command(allow_negative_numbers = true)]
    Run(Box<RunArguments>),
    /// Print the embeddings of texts, with a model for embeddings.
    ///
    /// Each line is a JSON array: a vector of length 1. The product of two of them is the similarity
    /// of their texts.
    ///
    /// Example: `forerun embed sentence-transformers/all-MiniLM-L6-v2 "A cat sleeps."`
    Embed(EmbedArguments),
    /// List, show, download and remove models.
    ///
    /// Hub models are in the cache that Hugging Face's tools share (`HF_HOME`, by default
    /// `~/.cache/huggingface`).
    #[command(subcommand)]
    Models(Models),
    /// Serve models over HTTP, with OpenAI's, Anthropic's and ollama's APIs.
    ///
    /// Answers to several clients share forward passes. A client's text does not depend on the
    /// others.
    ///
    /// Example: `forerun serve TARGET --draft-model DRAFTER --port 8080`
    #[cfg(feature = "server")]
    #[command(allow_negative_numbers = true)]
    Serve(Box<ServeArguments>),
    /// Serve models over HTTP, with OpenAI's, Anthropic's and ollama's APIs (needs the feature `server`).
    #[cfg(not(feature = "server"))]
    #[command(hide = true, disable_help_flag = true)]
    Serve(Missing),
    /// Show how all methods write the same text.
    ///
    /// Plain decoding, speculative decoding, PEARL and DSI run in turn, three times each, with drafts
    /// of four tokens. Then the terminal shows the median runs side by side, much slower, their
    /// speeds, and what the devices did. Without `--model`, a small built-in demonstration pair is
    /// used.
    #[command(allow_negative_numbers = true)]
    Demo(DemoArguments),
    /// Check that every method gives the text of plain decoding, on your models and prompts.
    ///
    /// Compares greedy and seeded answers token by token and log-probabilities bit by bit, and
    /// tests sampled tokens against the distributions of the target and of built-in models. Without
    /// `--method`, checks every method that can run here, and with `--full` each with all drafters
    /// and shapes. The exit status is 1 if a text differs, a drafter fails, or a configuration
    /// drafts or accepts too few tokens.
    ///
    /// Example: `forerun certify --model TARGET --draft-model DRAFTER --report certificate.json`
    #[command(allow_negative_numbers = true)]
    Certify(Box<CertifyArguments>),
    /// Find the fastest method, drafter, draft length, tree and placement for your models and
    /// devices.
    ///
    /// Measures short answers for up to a minute, predicts every other configuration by simulation,
    /// prints the ranking with reasons and whether drafting pays, and writes the best options to a
    /// file that every command takes: `--config forerun-plan.toml`.
    ///
    /// Example: `forerun plan --model TARGET --draft-model DRAFTER`
    Plan(Box<PlanArguments>),
    /// Show the available cores and the default placements.
    ///
    /// With `--model`, measure memory bandwidth and the time of the model's forward pass by its
    /// number of rows.
    Devices(DevicesArguments),
    /// Check this machine, and say what would make forerun faster.
    ///
    /// Looks at the processor, cores, quotas, memory and its bandwidth, the model cache, and the
    /// hub. Changes nothing, and succeeds without a network.
    Doctor(DoctorArguments),
    /// Measure speed and quality on this machine.
    #[command(subcommand)]
    Bench(Bench),
    /// Make a synthetic target and drafter with a given acceptance rate.
    ///
    /// The models have random weights and any size, so that speed can be measured when no trained
    /// pair is at hand. The text they generate is noise.
    #[cfg(feature = "laboratory")]
    MakePair(Box<MakePairArguments>),
    /// Make a synthetic target and drafter with a given acceptance rate (needs the feature
    /// `laboratory`).
    #[cfg(not(feature = "laboratory"))]
    #[command(hide = true, disable_help_flag = true)]
    MakePair(Missing),
    /// Convert a model to GGUF.
    ///
    /// Writes models of the families Llama, Mistral, Qwen2 and Qwen3, and refuses others.
    Export(ExportArguments),
    /// Analyse a model.
    #[cfg(feature = "laboratory")]
    #[command(subcommand)]
    Analyze(Analyze),
    /// Analyse a model (needs the feature `laboratory`).
    #[cfg(not(feature = "laboratory"))]
    #[command(hide = true, disable_help_flag = true)]
    Analyze(Missing),
    /// Simulate decoding in virtual time, without models.
    ///
    /// The production decoders run on simulated devices, with the pass times and acceptance rates
    /// that you choose.
    #[cfg(feature = "laboratory")]
    #[command(subcommand, allow_negative_numbers = true)]
    Simulate(Simulate),
    /// Simulate decoding in virtual time, without models (needs the feature `laboratory`).
    #[cfg(not(feature = "laboratory"))]
    #[command(hide = true, disable_help_flag = true)]
    Simulate(Missing),
    /// Train a language model, or a drafter for a target.
    #[cfg(feature = "train")]
    #[command(subcommand)]
    Train(Train),
    /// Train a language model, or a drafter for a target (needs the feature `train`).
    #[cfg(not(feature = "train"))]
    #[command(hide = true, disable_help_flag = true)]
    Train(Missing),
    /// Generate text with a model, to train a drafter on.
    #[cfg(feature = "train")]
    #[command(allow_negative_numbers = true)]
    Distill(Box<DistillArguments>),
    /// Generate text with a model, to train a drafter on (needs the feature `train`).
    #[cfg(not(feature = "train"))]
    #[command(hide = true, disable_help_flag = true)]
    Distill(Missing),
    /// Print a completion script for a shell.
    ///
    /// Example: `forerun completions bash > ~/.forerun-completion.bash`, then `source` it in
    /// `~/.bashrc`
    Completions(CompletionsArguments),
    /// Print the manual page, or write the pages of all commands to a folder.
    ///
    /// Example: `forerun man --output ~/.local/share/man/man1`
    Man(ManArguments),
}

/// Options of `forerun completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// Shell that reads the script
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Options of `forerun man`.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Folder for the pages of all commands, which is created if it does not exist.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
}

/// Options of `forerun doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not ask the hub.
    #[arg(long)]
    pub(crate) offline: bool,

    /// Do not measure the memory bandwidth, which takes about a second.
    #[arg(long)]
    pub(crate) no_measure: bool,
}

/// Options of `forerun certify`.
#[derive(Args, Debug)]
pub(crate) struct CertifyArguments {
    /// File with prompts: text with blank lines between prompts, or `.jsonl` with a field `prompt`
    /// or `text` [default: four texts of several kinds; with `--full` or `--endpoint`, twelve]
    #[arg(long, value_name = "FILE", help_heading = PROMPTS)]
    pub(crate) prompts: Option<PathBuf>,

    /// Check all drafters and shapes of drafts with each method, with more and longer answers, which
    /// takes minutes.
    #[arg(long)]
    pub(crate) full: bool,

    /// Number of tokens to compare greedily and with seeds [default: 200; with `--full`, 1000].
    #[arg(long, value_name = "N", value_parser = values::count(1..=100_000_000))]
    pub(crate) tokens: Option<usize>,

    /// Number of tokens of rejection sampling and block verification to test [default: that of
    /// `--tokens`].
    #[arg(long, value_name = "N", value_parser = values::count(1..=100_000_000))]
    pub(crate) sampled_tokens: Option<usize>,

    /// Number of answers of built-in models with known distributions to count for each
    /// configuration and rule of verification; 0 for none [default: 800; with `--full`, 40000].
    #[arg(long, value_name = "N", value_parser = values::count(0..=1_000_000_000))]
    pub(crate) known_answers: Option<usize>,

    /// Maximum number of tokens of an answer [default: 50; with `--full` or `--endpoint`, 100].
    #[arg(short = 'n', long, value_name = "N", value_parser = values::count(1..=100_000))]
    pub(crate) max_tokens: Option<usize>,

    /// Temperature of seeded answers and of rejection sampling.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub(crate) temperature: f32,

    /// Seed of the first answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Compare the greedy answers of servers instead, of any engine with OpenAI's API.
    ///
    /// May be given several times. The others are compared with the first, such as one without
    /// speculation.
    #[arg(long, value_name = "[NAME=]URL", conflicts_with_all = [MODEL, BY_POSITION, "draft_model", "method"])]
    pub(crate) endpoint: Vec<String>,

    /// Key for the servers of `--endpoint`.
    #[arg(long, value_name = "KEY", env = "FORERUN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// File to write the certificate to, in JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}

/// Options of `forerun demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Drafter: a small model with the target's vocabulary.
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<ModelSource>,

    /// Text to continue.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "Once upon a time",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: String,

    /// Maximum number of tokens of an answer.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200, value_parser = values::count(2..=100_000))]
    pub(crate) max_tokens: usize,

    /// Sampling temperature; 0 always takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Seed of the random draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Seconds that the slowest method takes on the screen.
    #[arg(long, value_name = "S", default_value_t = 8, value_parser = values::count(1..=600))]
    pub(crate) seconds: usize,

    /// Pass times of other devices, as in a placement (`--paced llama-2-7b-70b-a100`).
    ///
    /// The models compute the text here, each on a device of its own, and DSI has four targets. A
    /// wrong name lists the published ones.
    #[arg(long, value_name = "NAME")]
    pub(crate) paced: Option<String>,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long)]
    pub(crate) offline: bool,
}

/// Options of `forerun devices`.
#[derive(Args, Debug)]
pub(crate) struct DevicesArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    #[command(flatten)]
    pub(crate) weights: WeightTypeArguments,

    #[command(flatten)]
    pub(crate) cache: CacheTypeArguments,

    /// Number of threads, one for each core [default: see `forerun devices`]
    #[arg(long, short = 't', value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// GPU to measure the model on, as `forerun devices` numbers them, instead of the cores.
    ///
    /// Also shows the kernels of a pass, by the GPU's own clock.
    #[arg(long, value_name = "N", requires = "ModelArguments", conflicts_with = "threads")]
    pub(crate) gpu: Option<usize>,

    /// Number of tokens in the cache before the measured rows.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) past: usize,

    /// Numbers of rows of the measured passes, separated by commas.
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64",
        value_parser = values::count(1..=4096)
    )]
    pub(crate) rows: Vec<usize>,

    /// Number of measurements of each kind.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = values::count(1..=1_000_000))]
    pub(crate) rounds: usize,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long)]
    pub(crate) offline: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Compare methods, drafters and placements on prompts.
    ///
    /// Reports the speed relative to autoregressive decoding, the acceptance, and where the time
    /// goes. The answers of all configurations are compared with those of autoregressive decoding.
    ///
    /// Example: `forerun bench run --model TARGET --draft-model DRAFTER --draft-tokens 2,4,auto`
    Run(Box<RunBenchArguments>),
    /// Measure servers with OpenAI's API under load: tokens per second, goodput and latencies, by
    /// number of clients or rate of requests.
    ///
    /// Example: `forerun bench serve --server http://127.0.0.1:8080 --clients 1,4,16`
    Serve(Box<ServeBenchArguments>),
    /// Measure what smaller weight types cost in quality.
    ///
    /// Reports a model's loss on a text in each type, and how far its distributions are from those
    /// in f32. With `--draft-model`, also reports how close a drafter's distributions are.
    Quality(QualityBenchArguments),
    /// Measure memory bandwidth and the time of single linear layers, by type and rows.
    Kernels(KernelBenchArguments),
}

/// Options of `forerun bench kernels`.
#[derive(Args, Debug)]
pub(crate) struct KernelBenchArguments {
    /// Weight types, separated by commas
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "f32,bf16,f16,int8,q6_k,q5_k,q4_k,mxfp4",
        value_parser = values::weight_type()
    )]
    pub(crate) dtype: Vec<WeightType>,

    /// Number of outputs of the layer.
    #[arg(long, value_name = "N", default_value_t = 5632, value_parser = values::count(1..=1_048_576))]
    pub(crate) outputs: usize,

    /// Number of inputs of the layer.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = values::count(1..=1_048_576))]
    pub(crate) inputs: usize,

    /// Number of cores to use.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Number of measurements of each kind.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = values::count(1..=1_000_000))]
    pub(crate) rounds: usize,
}

/// Options of `forerun bench quality`.
#[derive(Args, Debug)]
pub(crate) struct QualityBenchArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// File with the text to predict, in UTF-8.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,

    /// Weight types and mixes to compare with f32, which is always measured.
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "f32,bf16,f16,int8",
        value_parser = values::weight_types_or_all()
    )]
    pub(crate) dtype: Vec<Vec<WeightTypes>>,

    #[command(flatten)]
    pub(crate) cache: CacheTypeArguments,

    /// Drafters to compare with the model.
    #[arg(long, value_name = "MODEL", num_args = 1..)]
    pub(crate) draft_model: Vec<ModelSource>,

    /// Also measure how well a drafter can guess N tokens ahead without the tokens between, such as
    /// Medusa or ParallelSpec.
    #[arg(long, value_name = "N", value_parser = values::count(1..=16))]
    pub(crate) ceiling: Option<usize>,

    /// Temperature of the continuations of `--ceiling`.
    #[arg(long, value_name = "T", default_value_t = 1.0, requires = "ceiling")]
    pub(crate) temperature: f64,

    /// Maximum number of tokens to predict, from the start of the text.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) tokens: usize,

    /// Number of tokens that the model sees at a time [default: 512, or the model's context if it
    /// is shorter]
    #[arg(long, value_name = "W")]
    pub(crate) window: Option<usize>,

    /// Number of threads, one for each core [default: see `forerun devices`]
    #[arg(long, short = 't', value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// Options of `forerun generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArguments {
    /// Text to continue.
    ///
    /// Without `--prompt` and `--prompt-file`, the text is read from standard input.
    #[arg(
        long,
        short,
        value_name = "TEXT",
        conflicts_with = "prompt_file",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: Option<String>,

    /// File with the text to continue; `-` reads standard input.
    ///
    /// One line break at the end of the file is dropped.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) answers: AnswerArguments,

    /// Mark accepted and rejected draft tokens in the text.
    ///
    /// `{+accepted+}`, `[-rejected-]` (of a tree, the first candidate); the target's own tokens
    /// have no marks. On a terminal, colours replace the marks unless `NO_COLOR` is set.
    #[arg(long, conflicts_with = "json", help_heading = OUTPUT)]
    pub(crate) show_drafts: bool,

    /// Print one JSON object instead of text, with the tokens, why the answer ended, and all
    /// statistics.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,

    /// With `--json`, report each token's log-probability and those of the N best alternatives, up
    /// to 20.
    ///
    /// They are the target's own, before all sampling options.
    #[arg(long, value_name = "N", requires = "json", help_heading = OUTPUT)]
    pub(crate) logprobs: Option<usize>,

    /// Write a timeline of all devices to a file: text (`.txt`), a picture (`.svg`), or else JSON
    /// that Perfetto (ui.perfetto.dev) opens.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) trace: Option<PathBuf>,
}

/// Options of `forerun chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArguments {
    /// System message: instructions for the whole chat.
    #[arg(
        long,
        visible_alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        help_heading = CHAT
    )]
    pub(crate) system: Option<String>,

    /// Chat template: a Jinja file, the name of a template that the checkpoint ships, or `plain`
    /// ("User: …", "Assistant: …") [default: the checkpoint's, or `plain`]
    #[arg(long, value_name = "FILE|NAME", help_heading = CHAT)]
    pub(crate) chat_template: Option<String>,

    /// Do not save what you type.
    ///
    /// Otherwise, lines typed at a terminal are saved in `~/.local/state/forerun/history`
    /// (or below `$XDG_STATE_HOME`), on Windows in `%LOCALAPPDATA%\forerun\history`.
    #[arg(long, help_heading = CHAT)]
    pub(crate) no_history: bool,

    #[command(flatten)]
    pub(crate) answers: AnswerArguments,
}

/// Options of what an answer's text must look like.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct StructureArguments {
    /// Answer with a JSON value that follows a JSON schema: a file, or JSON that begins with `{`.
    ///
    /// Objects have their properties in the order of the schema. If an answer is cut before it is
    /// complete, with this or another option of its structure, the exit status of `generate` and
    /// `run` is 3.
    #[arg(long, value_name = "FILE|JSON", help_heading = STRUCTURE)]
    pub(crate) json_schema: Option<String>,

    /// Answer with any JSON object.
    #[arg(long, help_heading = STRUCTURE)]
    pub(crate) json_object: bool,

    /// Answer with a text of a grammar: GBNF (llama.cpp) or Lark (llguidance).
    ///
    /// The extension `.gbnf` or `.lark` says which; in other files, rules with `::=` are GBNF.
    #[arg(long, value_name = "FILE", help_heading = STRUCTURE)]
    pub(crate) grammar: Option<PathBuf>,

    /// Answer with a text that a regular expression matches as a whole.
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true, help_heading = STRUCTURE)]
    pub(crate) regex: Option<String>,
}

/// Options of the models and of how they answer.
#[derive(Args, Debug)]
pub(crate) struct AnswerArguments {
    #[command(flatten)]
    pub(crate) engine: EngineArguments,

    /// How drafts are verified above temperature 0.
    #[arg(
        long,
        value_name = "VERIFICATION",
        default_value = "auto",
        value_parser = values::verification(),
        help_heading = DRAFTING
    )]
    pub(crate) verify: VerificationChoice,

    /// Maximum number of tokens of an answer; -1 is as many as the context has room for [default:
    /// 200; with `forerun run` and `chat`, 2048]
    #[arg(
        long,
        short = 'n',
        aliases = ["n-predict", "predict"],
        value_name = "N",
        value_parser = values::tokens,
        help_heading = STOPPING
    )]
    pub(crate) max_tokens: Option<usize>,

    /// Stop before this text.
    ///
    /// May be given several times; the first match ends the answer.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = STOPPING)]
    pub(crate) stop: Vec<String>,

    /// Continue after the model's end-of-text token.
    #[arg(long, help_heading = STOPPING)]
    pub(crate) ignore_eos: bool,

    #[command(flatten)]
    pub(crate) structure: StructureArguments,

    /// Sampling temperature; 0 always takes the most probable token [default: 0; with `forerun run`
    /// and `chat`, as the checkpoint suggests, or else 0.8 with `--top-k 40 --top-p 0.95 --min-p
    /// 0.05`]
    #[arg(long, alias = "temp", value_name = "T", help_heading = SAMPLING)]
    pub(crate) temperature: Option<f32>,

    /// Seed that makes sampled text reproducible.
    ///
    /// Without a seed, each answer draws a new one.
    #[arg(long, value_name = "N", help_heading = SAMPLING)]
    pub(crate) seed: Option<u64>,

    /// Sample among the K most probable tokens; 0 keeps all [default: 0]
    #[arg(long, value_name = "K", help_heading = SAMPLING)]
    pub(crate) top_k: Option<usize>,

    /// Sample among the most probable tokens that together have probability P; 1 keeps all
    /// [default: 1]
    #[arg(long, value_name = "P", help_heading = SAMPLING)]
    pub(crate) top_p: Option<f32>,

    /// Sample among tokens at least P times as probable as the most probable one; 0 keeps all
    /// [default: 0]
    #[arg(long, value_name = "P", help_heading = SAMPLING)]
    pub(crate) min_p: Option<f32>,

    #[command(flatten)]
    pub(crate) samplers: SamplerArguments,

    /// Penalty for tokens that occur in the prompt or the answer; 1 disables it [default: 1]
    #[arg(long, visible_alias = "repeat-penalty", value_name = "P", help_heading = SAMPLING)]
    pub(crate) repetition_penalty: Option<f32>,

    /// Penalty for each time that a token occurs in the answer, from -2 to 2: subtracted from its
    /// logit.
    #[arg(long, value_name = "P", default_value_t = 0.0, help_heading = SAMPLING)]
    pub(crate) frequency_penalty: f32,

    /// Penalty for tokens that occur in the answer, from -2 to 2: subtracted from their logits.
    #[arg(long, value_name = "P", default_value_t = 0.0, help_heading = SAMPLING)]
    pub(crate) presence_penalty: f32,

    /// Add a bias from -100 to 100 to a token's logit. May be given several times.
    ///
    /// `TOKEN` is a token id. Example: `--logit-bias 15043=-2.5`
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = token_bias, help_heading = SAMPLING)]
    pub(crate) logit_bias: Vec<(TokenId, f32)>,

    /// Sample as the checkpoint's `generation_config.json` suggests.
    #[arg(
        long,
        conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"],
        help_heading = SAMPLING
    )]
    pub(crate) suggested_sampling: bool,

    /// Whether the command chats: what no option says of the sampling is as the checkpoint
    /// suggests, or else moderate.
    #[arg(skip)]
    pub(crate) is_chat: bool,
}
