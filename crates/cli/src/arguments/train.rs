//! Options of `forerun train` and `forerun distill`.

use super::AnswerArguments;
use super::headings::{DEVICES, EVALUATION, MODEL, OUTPUT, TEXT, TRAINING};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(crate) enum Train {
    /// Train a Llama-style language model, and its tokenizer, from text.
    ///
    /// An interrupted run resumes with the same command.
    ///
    /// Example: `forerun train lm --data books.txt --out models/small`
    Lm(Box<LmArguments>),
    /// Train Medusa heads for a target.
    ///
    /// Each head drafts one further token from the target's last hidden state.
    Medusa(Box<HeadArguments>),
    /// Train Hydra heads for a target.
    ///
    /// Each head drafts one further token from the target's last hidden state and the tokens
    /// drafted before.
    Hydra(Box<HeadArguments>),
    /// Train an EAGLE layer for a target.
    ///
    /// The layer drafts one token after another from the target's hidden states.
    Eagle(Box<EagleArguments>),
    /// Train a layer that drafts all tokens in one forward pass (ParallelSpec).
    ///
    /// It takes the place of Medusa's heads or of EAGLE's layer.
    Parallel(Box<ParallelArguments>),
    /// Train layers that draft a block of tokens in one forward pass (DFlash).
    ///
    /// They read hidden states of several of the target's layers as context.
    Dflash(Box<DflashArguments>),
    /// Train DFlash's layers with heads that correct the block token by token (DSpark).
    ///
    /// A Markov head corrects each token by the one before it, and a confidence head ends drafts
    /// early.
    Dspark(Box<DsparkArguments>),
}

/// Options of the text and of the output.
#[derive(Args, Debug)]
pub(crate) struct TextArguments {
    /// Files with the training text: UTF-8, `.gz`, or `.jsonl` with a field `text`.
    ///
    /// In plain text, a form feed separates documents.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true, help_heading = TEXT)]
    pub(crate) data: Vec<PathBuf>,

    /// Files with held-out text, for evaluation.
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = TEXT)]
    pub(crate) validation: Vec<PathBuf>,

    /// Share of the documents to hold out, or of the text if they are too few [default: 0 with
    /// `--validation`, else 0.01; up to 0.1 of a short text]
    #[arg(long, value_name = "SHARE", help_heading = TEXT)]
    pub(crate) held_out: Option<f64>,

    /// Read the text of special tokens, such as a chat template's markers, as these tokens.
    #[arg(long, help_heading = TEXT)]
    pub(crate) special_tokens: bool,

    /// Directory of the trained model, in Hugging Face's layout.
    ///
    /// The directory of the run has the same name with `.training` appended: checkpoints, log,
    /// plots and tokens. If it contains a run, that run resumes.
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub(crate) out: PathBuf,

    /// Start over: delete the checkpoints, log, tokenizer and encoded text of the run.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) restart: bool,

    /// Directory of the encoded text, which several runs can share [default: `shards` in that of
    /// the run]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub(crate) shards: Option<PathBuf>,

    /// Number of threads [default: all cores]
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub(crate) threads: Option<usize>,
}

/// An optimizer of `forerun train`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    /// AdamW for all parameters
    Adamw,
    /// Muon for the matrices of layers, AdamW for all other parameters; fewer steps for the same
    /// loss
    Muon,
}

/// Options of training steps, evaluation and checkpoints. Drafters have other defaults.
#[derive(Args, Debug)]
pub(crate) struct StepArguments {
    /// Number of tokens of a sequence.
    ///
    /// For a model that starts from random weights, this is also its context length.
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = TRAINING)]
    pub(crate) context: usize,

    /// Number of sequences in a batch.
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = TRAINING)]
    pub(crate) sequences: usize,

    /// Number of batches to accumulate gradients over for each step.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = TRAINING)]
    pub(crate) accumulation: usize,

    /// Number of warm-up steps, in which the learning rate rises [default: a tenth of the steps, at
    /// most 100]
    #[arg(long, value_name = "N", help_heading = TRAINING)]
    pub(crate) warmup: Option<u64>,

    /// Final learning rate of the cosine schedule, as a share of the highest.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, help_heading = TRAINING)]
    pub(crate) final_share: f64,

    /// Optimizer.
    #[arg(long, value_name = "OPTIMIZER", default_value = "adamw", help_heading = TRAINING)]
    pub(crate) optimizer: OptimizerName,

    /// Weight decay of matrices.
    #[arg(long, value_name = "DECAY", default_value_t = 0.1, help_heading = TRAINING)]
    pub(crate) weight_decay: f32,

    /// Seed of the initial weights and of the order of the text.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = TRAINING)]
    pub(crate) seed: u64,

    /// Number of steps between evaluations on held-out text; 0 evaluates only at the end.
    #[arg(long, value_name = "N", default_value_t = 250, help_heading = EVALUATION)]
    pub(crate) evaluate_every: u64,

    /// Number of held-out tokens of an evaluation; 0 disables evaluations.
    #[arg(long, value_name = "N", default_value_t = 65_536, help_heading = EVALUATION)]
    pub(crate) evaluation_tokens: u64,

    /// Number of steps between checkpoints; 0 writes one only at the end.
    #[arg(long, value_name = "N", default_value_t = 250, help_heading = EVALUATION)]
    pub(crate) save_every: u64,
}

/// Options of `forerun train lm`.
#[derive(Args, Debug)]
pub(crate) struct LmArguments {
    #[command(flatten)]
    pub(crate) text: TextArguments,

    /// Start from the weights of this model instead of random weights.
    #[arg(long, value_name = "DIR", help_heading = MODEL)]
    pub(crate) from: Option<PathBuf>,

    /// Tokenizer: a `tokenizer.json`, a directory that contains one, or a GGUF file [default: that
    /// of `--from` or `--teacher`, or a trained one]
    #[arg(long, value_name = "PATH", help_heading = MODEL)]
    pub(crate) tokenizer: Option<PathBuf>,

    /// Vocabulary size of a tokenizer that is trained.
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = MODEL)]
    pub(crate) vocab_size: usize,

    /// Width of the hidden states.
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = MODEL)]
    pub(crate) hidden: usize,

    /// Number of layers.
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = MODEL)]
    pub(crate) layers: usize,

    /// Width of the MLPs [default: 8/3 of `--hidden`, rounded up to a multiple of 32]
    #[arg(long, value_name = "N", help_heading = MODEL)]
    pub(crate) intermediate: Option<usize>,

    /// Number of query heads [default: `--hidden` / 32]
    #[arg(long, value_name = "N", help_heading = MODEL)]
    pub(crate) heads: Option<usize>,

    /// Number of key and value heads [default: half of `--heads`]
    #[arg(long, value_name = "N", help_heading = MODEL)]
    pub(crate) kv_heads: Option<usize>,

    /// Teacher model: also learn its distributions (distillation).
    #[arg(long, value_name = "DIR", help_heading = TRAINING)]
    pub(crate) teacher: Option<PathBuf>,

    /// Share of the divergence from the teacher in the loss; the rest is the text's own loss.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, help_heading = TRAINING)]
    pub(crate) distillation_share: f32,

    /// Number of passes over the text [default: 10, in at most 5000 steps]
    #[arg(long, value_name = "N", help_heading = TRAINING)]
    pub(crate) epochs: Option<u64>,

    /// Total number of steps [default: as many as `--epochs` takes]
    #[arg(long, value_name = "N", conflicts_with = "epochs", help_heading = TRAINING)]
    pub(crate) steps: Option<u64>,

    /// Highest learning rate.
    #[arg(long, value_name = "RATE", default_value_t = 1e-3, help_heading = TRAINING)]
    pub(crate) learning_rate: f64,

    #[command(flatten)]
    pub(crate) step: StepArguments,
}

/// Options of `forerun train medusa` and `forerun train hydra`.
#[derive(Args, Debug)]
pub(crate) struct HeadArguments {
    /// Number of heads: tokens drafted after the target's own.
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = value_parser!(u64).range(1..=8))]
    pub(crate) heads: u64,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,
}

/// Options of `forerun train eagle`.
#[derive(Args, Debug)]
pub(crate) struct EagleArguments {
    /// Number of positions that the layer learns to draft from its own features (training-time test
    /// of EAGLE-3); 0 is EAGLE's method.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = value_parser!(u64).range(0..=8))]
    pub(crate) drafted_positions: u64,

    /// Share of the positions that start a draft of `--drafted-positions`; a smaller share makes
    /// steps faster.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) group_share: f32,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,

    #[command(flatten)]
    pub(crate) features: FeatureArguments,
}

/// Options of `forerun train parallel`.
#[derive(Args, Debug)]
pub(crate) struct ParallelArguments {
    /// What the layer replaces, and therefore reads.
    #[arg(long, value_name = "INTEGRATION")]
    pub(crate) integration: Integration,

    /// Number of masks: tokens drafted after the first one, in the same forward pass.
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = value_parser!(u64).range(1..=8))]
    pub(crate) masks: u64,

    /// Share of the positions that start a group of masks; a smaller share makes steps faster.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) group_share: f32,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,

    #[command(flatten)]
    pub(crate) features: FeatureArguments,
}

/// Options of `forerun train dflash`.
#[derive(Args, Debug)]
pub(crate) struct DflashArguments {
    /// Number of masks in a block: tokens drafted in one forward pass.
    #[arg(long, value_name = "K", default_value_t = 7, value_parser = value_parser!(u64).range(1..=31))]
    pub(crate) masks: u64,

    #[command(flatten)]
    pub(crate) block: BlockArguments,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,
}

/// Options of `forerun train dspark`.
#[derive(Args, Debug)]
pub(crate) struct DsparkArguments {
    /// Number of rows of a block, the last token and masks: tokens drafted in one forward pass.
    #[arg(long, value_name = "K", default_value_t = 7, value_parser = value_parser!(u64).range(2..=32))]
    pub(crate) block_size: u64,

    /// Width of the Markov head: numbers that describe the token before a position. DSpark's
    /// authors have 256.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = value_parser!(u64).range(1..=4096),
        help_heading = MODEL
    )]
    pub(crate) markov_rank: u64,

    #[command(flatten)]
    pub(crate) block: BlockArguments,

    #[command(flatten)]
    pub(crate) drafter: DrafterArguments,
}

/// Options that block drafters have in common: their blocks, their layers, and what they read of
/// the target.
#[derive(Args, Debug)]
pub(crate) struct BlockArguments {
    /// Share of the positions that start a block; a smaller share makes steps faster.
    #[arg(long, value_name = "SHARE", default_value_t = 0.17)]
    pub(crate) group_share: f32,

    /// Number of the drafter's layers.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = value_parser!(u64).range(1..=64),
        help_heading = MODEL
    )]
    pub(crate) layers: u64,

    /// The target's layers whose hidden states are read [default: five, evenly spread from 2 to the
    /// number of layers minus 2]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', help_heading = MODEL)]
    pub(crate) target_layers: Vec<usize>,
}

/// What a layer of `forerun train parallel` replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Integration {
    /// Medusa's heads; reads tokens
    Medusa,
    /// EAGLE's layer; reads tokens and the target's hidden states
    Eagle,
}

/// Options of drafters that predict the target's hidden states (features).
#[derive(Args, Debug)]
pub(crate) struct FeatureArguments {
    /// For EAGLE, weight of the token loss relative to the feature loss [default: 0.1]
    #[arg(long, value_name = "WEIGHT", help_heading = TRAINING)]
    pub(crate) classification_weight: Option<f32>,
}

/// Options of all drafters trained for a target. The defaults are those of ParallelSpec (arXiv
/// 2410.05589, table 3), for DFlash those of its paper (arXiv 2602.06036), and for DSpark those of
/// its authors.
#[derive(Args, Debug)]
#[command(
    mut_arg("sequences", |arg| arg.default_value("4")),
    mut_arg("accumulation", |arg| arg.default_value("8")),
    mut_arg("weight_decay", |arg| arg.default_value("0")),
    mut_arg("evaluation_tokens", |arg| arg.default_value("16384"))
)]
pub(crate) struct DrafterArguments {
    /// Target model: a GGUF file, or a Hugging Face directory or llama2.c file with its
    /// `tokenizer.json`.
    #[arg(long, value_name = "DIR", help_heading = MODEL)]
    pub(crate) target: PathBuf,

    #[command(flatten)]
    pub(crate) text: TextArguments,

    /// Start with the weights of this drafter, which `forerun train` wrote, instead of random ones.
    ///
    /// It must be of the same kind and for the same target.
    #[arg(long, value_name = "DIR", help_heading = MODEL)]
    pub(crate) init: Option<PathBuf>,

    /// Draft only the N most frequent tokens of the text [default: all].
    ///
    /// The drafter then reads only these rows of the target's head, so it drafts faster.
    #[arg(long, value_name = "N", help_heading = MODEL)]
    pub(crate) draft_vocab: Option<usize>,

    /// Learn from N texts that the target writes instead of from `--data` (self-distillation).
    ///
    /// Each continues the beginning of a line of `--data`.
    #[arg(long, value_name = "N", help_heading = TEXT)]
    pub(crate) self_distillation: Option<usize>,

    /// Temperature of the texts that the target writes; 0 is greedy.
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        requires = "self_distillation",
        help_heading = TEXT
    )]
    pub(crate) self_distillation_temperature: f32,

    /// Directory for the target's features, which several runs can share.
    ///
    /// The target then reads each sequence once, for all epochs and all runs with the same `--data`
    /// and `--context`. A token takes 4 bytes times the target's hidden size.
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub(crate) feature_cache: Option<PathBuf>,

    /// Number of passes over the text [default: 20; 40 for EAGLE, 6 for DFlash, 10 for DSpark]
    #[arg(long, value_name = "N", help_heading = TRAINING)]
    pub(crate) epochs: Option<u64>,

    /// Total number of steps [default: as many as `--epochs` takes]
    #[arg(long, value_name = "N", conflicts_with = "epochs", help_heading = TRAINING)]
    pub(crate) steps: Option<u64>,

    /// Highest learning rate [default: 5e-4; 5e-5 for EAGLE, 6e-4 for DFlash and DSpark]
    #[arg(long, value_name = "RATE", help_heading = TRAINING)]
    pub(crate) learning_rate: Option<f64>,

    /// Share of the divergence from the target's distributions in the token loss [default: 1 for
    /// `eagle`, 0.9 for `dspark`, else 0].
    ///
    /// The rest is the loss of the text's own tokens.
    #[arg(long, value_name = "SHARE", help_heading = TRAINING)]
    pub(crate) distillation_share: Option<f32>,

    /// Weight of each further position's loss, as a share of the one before [default: 0.8; 1 for
    /// EAGLE; for DFlash and DSpark, 0.78 with drafts of 7 tokens and 0.87 of 15]
    #[arg(long, value_name = "DECAY", help_heading = TRAINING)]
    pub(crate) decay: Option<f32>,

    #[command(flatten)]
    pub(crate) step: StepArguments,
}

/// Options of `forerun distill`.
#[derive(Args, Debug)]
pub(crate) struct DistillArguments {
    /// Files with lines to continue: UTF-8, `.gz`, or `.jsonl` with a field `text`.
    ///
    /// The model continues the beginning of each chosen line.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) prompts: Vec<PathBuf>,

    /// File to write, with one JSON object per line; an existing file is continued.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) out: PathBuf,

    /// Total number of texts; their prompts are evenly spread over all lines.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) count: usize,

    /// Number of characters to take of a line, up to the end of a word; shorter lines are skipped.
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) prompt_chars: usize,

    /// Give each line to the model as a chat message, whole; the text is the model's answer.
    #[arg(long, conflicts_with = "prompt_chars")]
    pub(crate) chat: bool,

    /// Number of texts that are written at the same time; it does not change them.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u64).range(1..=256))]
    pub(crate) parallel: u64,

    #[command(flatten)]
    pub(crate) answers: AnswerArguments,
}

impl DistillArguments {
    /// Creates the arguments that let `target` continue lines of `prompts` into the file `out`,
    /// from command-line `options`.
    pub(crate) fn of_target(
        target: &Path,
        prompts: &[PathBuf],
        out: &Path,
        options: &[String],
    ) -> Result<Self, clap::Error> {
        #[derive(Parser)]
        struct DistillCommand {
            #[command(flatten)]
            arguments: DistillArguments,
        }
        let mut words = vec![OsString::new(), "--model".into(), target.into()];
        words.extend(["--out".into(), out.into(), "--prompts".into()]);
        words.extend(prompts.iter().map(OsString::from));
        words.extend(options.iter().map(OsString::from));
        Ok(DistillCommand::try_parse_from(words)?.arguments)
    }
}
