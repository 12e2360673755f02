//! Options of `forerun train` and `forerun distill`.

use super::AnswerArguments;
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What can be trained.
#[derive(Debug, Subcommand)]
pub(crate) enum Train {
    /// Train a language model of Llama's shape, and its tokenizer, from text
    Lm(Box<LmArguments>),
    /// Train Medusa's heads for a target: each drafts a further token from the target's last feature
    Medusa(Box<MedusaArguments>),
    /// Train EAGLE's layer for a target: it drafts token after token from the target's features
    Eagle(Box<EagleArguments>),
    /// Train a layer that drafts all tokens in one pass (ParallelSpec), in place of Medusa's heads or
    /// of EAGLE's layer
    Parallel(Box<ParallelArguments>),
}

/// What is learnt from, and where things go.
#[derive(Args, Debug)]
pub(crate) struct TextArguments {
    /// Text to learn from: UTF-8, .gz, or .jsonl with a field "text"; a form feed parts documents
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) data: Vec<PathBuf>,

    /// Text that is held out
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) validation: Vec<PathBuf>,

    /// Share of the documents that is held out [default: 0 with --validation, else 0.01]
    #[arg(long, value_name = "SHARE")]
    pub(crate) held_out: Option<f64>,

    /// Where the trained model goes: a directory as on the Hugging Face hub
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Where the run's checkpoints, log, plots and tokens go; where there are any, the run goes on
    /// [default: DIR.training beside --out]
    #[arg(long, value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,

    /// Where the tokens of the texts go, for several runs to share [default: shards in the run's folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) shards: Option<PathBuf>,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Write the model's weights as f32 instead of bf16
    #[arg(long)]
    pub(crate) f32: bool,
}

/// What a step is made of, and what is looked at between steps. Drafters have other defaults.
#[derive(Args, Debug)]
pub(crate) struct StepArguments {
    /// Tokens of a sequence; of a model that begins with random weights also the longest that it sees
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) context: usize,

    /// Sequences that are computed at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) sequences: usize,

    /// Batches of these whose gradients make one step
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) accumulation: usize,

    /// Share of the learning rate by which matrices shrink each step
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) weight_decay: f32,

    /// Held-out tokens of a test
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub(crate) evaluation_tokens: u64,

    /// Share of the learning rate that is left at the end of the cosine
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) final_share: f64,

    /// Steps in which the learning rate rises
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) warmup: u64,

    /// Norm that gradients are scaled down to where it is larger; 0 leaves them
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub(crate) max_gradient_norm: f32,

    /// Chooses the first weights and the order of the text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Steps between tests on held-out text
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub(crate) evaluate_every: u64,

    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub(crate) save_every: u64,
}

/// Options of `forerun train lm`.
#[derive(Args, Debug)]
pub(crate) struct LmArguments {
    #[command(flatten)]
    pub(crate) text: TextArguments,

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

    /// Steps in all
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(crate) steps: u64,

    /// The highest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub(crate) learning_rate: f64,

    #[command(flatten)]
    pub(crate) step: StepArguments,
}

/// Options of `forerun train medusa`.
#[derive(Args, Debug)]
pub(crate) struct MedusaArguments {
    /// Heads: tokens that are drafted behind the target's own
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = value_parser!(u64).range(1..=8))]
    pub(crate) heads: u64,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,
}

/// Options of `forerun train eagle`.
#[derive(Args, Debug)]
pub(crate) struct EagleArguments {
    /// Tokens behind the first that are drafted in tests on held-out text; training knows no number
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = value_parser!(u64).range(1..=8))]
    pub(crate) test_tokens: u64,

    #[command(flatten)]
    pub(crate) features: FeatureArguments,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,
}

/// Options of `forerun train parallel`.
#[derive(Args, Debug)]
pub(crate) struct ParallelArguments {
    /// What it replaces, and so what it reads: tokens (medusa), or tokens and features (eagle)
    #[arg(long, value_name = "NAME")]
    pub(crate) integration: Integration,

    /// Masks: tokens that are drafted behind the first, in the same pass
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = value_parser!(u64).range(1..=8))]
    pub(crate) masks: u64,

    /// Share of the positions that open a group of masks in a step: fewer make quicker steps
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) group_share: f32,

    #[command(flatten)]
    pub(crate) features: FeatureArguments,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,
}

/// What a parallel drafter replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Integration {
    /// Medusa's heads
    Medusa,
    /// EAGLE's layer
    Eagle,
}

/// Options of drafters that predict features.
#[derive(Args, Debug)]
pub(crate) struct FeatureArguments {
    /// With EAGLE, what the loss of tokens counts beside that of features [default: 0.1]
    #[arg(long, value_name = "WEIGHT")]
    pub(crate) classification_weight: Option<f32>,

    /// With EAGLE, width of the uniform noise that is added to the features that are read
    /// [default: 0.2]
    #[arg(long, value_name = "WIDTH")]
    pub(crate) feature_noise: Option<f32>,
}

/// Options of all drafters that stand on their target. Defaults are those of ParallelSpec's table 3.
#[derive(Args, Debug)]
#[command(
    mut_arg("sequences", |own| own.default_value("4")),
    mut_arg("accumulation", |own| own.default_value("8")),
    mut_arg("weight_decay", |own| own.default_value("0")),
    mut_arg("evaluation_tokens", |own| own.default_value("16384"))
)]
pub(crate) struct DrafterArguments {
    /// The target: a Hugging Face directory or a llama2.c file, with its tokenizer.json
    #[arg(long, value_name = "DIR")]
    pub(crate) target: PathBuf,

    #[command(flatten)]
    pub(crate) text: TextArguments,

    /// Learn from N texts that the target writes, each begun as a line of --data begins, instead of
    /// from --data (self-distillation)
    #[arg(long, value_name = "N")]
    pub(crate) self_distillation: Option<usize>,

    /// Temperature of these texts; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, requires = "self_distillation")]
    pub(crate) self_distillation_temperature: f32,

    /// Share of the divergence from the target's distributions in the loss of tokens; the text's own
    /// tokens have the rest [default: 1 for eagle, else 0]
    #[arg(long, value_name = "SHARE")]
    pub(crate) distillation_share: Option<f32>,

    /// The loss of the K-th head or mask counts this to the power of K [default: 0.8; 1 for EAGLE]
    #[arg(long, value_name = "SHARE")]
    pub(crate) decay: Option<f32>,

    /// Steps in all [default: what --epochs takes]
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    pub(crate) steps: Option<u64>,

    /// Times that the text is read [default: 20; 40 for EAGLE]
    #[arg(long, value_name = "N")]
    pub(crate) epochs: Option<u64>,

    /// The highest learning rate [default: 5e-4; 5e-5 for EAGLE]
    #[arg(long, value_name = "RATE")]
    pub(crate) learning_rate: Option<f64>,

    #[command(flatten)]
    pub(crate) step: StepArguments,
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

impl DistillArguments {
    /// What writes `count` texts of a target into a file, as if it had been typed.
    pub(crate) fn of_target(
        target: &Path,
        prompts: &[PathBuf],
        out: &Path,
        options: &[String],
    ) -> Result<Self, clap::Error> {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            arguments: DistillArguments,
        }
        let mut words = vec![OsString::new(), "--model".into(), target.into()];
        words.extend(["--out".into(), out.into(), "--prompts".into()]);
        words.extend(prompts.iter().map(OsString::from));
        words.extend(options.iter().map(OsString::from));
        Ok(Alone::try_parse_from(words)?.arguments)
    }
}
