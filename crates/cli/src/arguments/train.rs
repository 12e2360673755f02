//! Options of `forerun train` and `forerun distill`.

use super::AnswerArguments;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What can be trained.
#[derive(Debug, Subcommand)]
pub(crate) enum Train {
    /// Train a language model of Llama's shape, and its tokenizer, from text
    Lm(Box<LmArguments>),
}

/// Options of `forerun train lm`.
#[derive(Args, Debug)]
pub(crate) struct LmArguments {
    /// Text to learn from: UTF-8, .gz, or .jsonl with a field "text"; a form feed parts documents
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) data: Vec<PathBuf>,

    /// Text that is held out
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) validation: Vec<PathBuf>,

    /// Share of the documents that is held out [default: 0 with --validation, else 0.01]
    #[arg(long, value_name = "SHARE")]
    pub(crate) held_out: Option<f64>,

    /// Where the trained model goes: a Hugging Face directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Where the run's checkpoints, log, plot and tokens go; where there are any, the run goes on
    /// [default: DIR.training beside --out]
    #[arg(long, value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,

    /// Where the tokens of the texts go, for several runs to share [default: shards in the run's folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) shards: Option<PathBuf>,

    /// Use this tokenizer.json, or the one in this directory [default: --from's or --teacher's, else one
    /// is trained]
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<PathBuf>,

    /// Tokens of a tokenizer that is trained
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) vocab_size: usize,

    /// Begin with the weights of this model instead of random ones
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,

    /// Learn this model's distributions, too (distillation)
    #[arg(long, value_name = "DIR")]
    pub(crate) teacher: Option<PathBuf>,

    /// Share of the divergence from the teacher in the loss; the text's own loss has the rest
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub(crate) distillation_share: f32,

    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) hidden: usize,

    /// Number of layers
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) layers: usize,

    /// Width of the MLP [default: 8/3 of --hidden, a multiple of 32]
    #[arg(long, value_name = "N")]
    pub(crate) intermediate: Option<usize>,

    /// Query heads [default: --hidden / 32]
    #[arg(long, value_name = "N")]
    pub(crate) heads: Option<usize>,

    /// Key and value heads [default: half of --heads]
    #[arg(long, value_name = "N")]
    pub(crate) kv_heads: Option<usize>,

    /// Give the head weights of its own instead of the embedding's
    #[arg(long)]
    pub(crate) untied: bool,

    /// Tokens of a sequence, and the longest that the model sees
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) context: usize,

    /// Sequences that are computed at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) sequences: usize,

    /// Batches of these whose gradients make one step
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) accumulation: usize,

    /// Steps in all
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(crate) steps: u64,

    /// The highest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub(crate) learning_rate: f64,

    /// Share of the learning rate that is left at the end of the cosine
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) final_share: f64,

    /// Steps in which the learning rate rises
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) warmup: u64,

    /// Share of the learning rate by which matrices shrink each step
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) weight_decay: f32,

    /// Norm that gradients are scaled down to where it is larger; 0 leaves them
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub(crate) max_gradient_norm: f32,

    /// Chooses the first weights and the order of the text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Steps between tests on held-out text
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub(crate) evaluate_every: u64,

    /// Held-out tokens of a test
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub(crate) evaluation_tokens: u64,

    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub(crate) save_every: u64,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Write the model's weights as f32 instead of bf16
    #[arg(long)]
    pub(crate) f32: bool,
}

/// Options of `forerun distill`.
#[derive(Args, Debug)]
pub(crate) struct DistillArguments {
    /// Files whose lines' beginnings are continued: UTF-8, .gz, or .jsonl with a field "text"
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) prompts: Vec<PathBuf>,

    /// Where the texts go, one JSON object a line; where there are some, the run goes on
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) out: PathBuf,

    /// Texts in all; their prompts are evenly spread over all lines
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) count: usize,

    /// Characters that are taken of a line, up to the end of a word; shorter lines are passed over
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) prompt_chars: usize,

    #[command(flatten)]
    pub(crate) answers: AnswerArguments,
}
