//! The command line as it is typed.

mod analyze;
mod simulate;
#[cfg(feature = "train")]
mod train;
pub(crate) mod values;

use clap::{Args, Parser, Subcommand};
use forerun::{
    AdditionalDrafter, CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Method,
    PearlOptions, TokenId, Tree, VerificationChoice, WeightType,
};
use std::path::PathBuf;
use values::{ChosenType, layer_groups, only_weight_type, token_bias, weight_type};

pub(crate) use analyze::{Analyze, LayersArguments};
pub(crate) use simulate::{
    CalibrateArguments, CancelChoice, HeatmapArguments, PaperArguments, Simulate,
    SimulatedRunArguments, SweepArguments,
};
#[cfg(feature = "plots")]
pub(crate) use simulate::{Merge, PlotArguments};
#[cfg(feature = "train")]
pub(crate) use train::{
    DistillArguments, DrafterArguments, EagleArguments, FeatureArguments, Integration, LmArguments,
    MedusaArguments, ParallelArguments, StepArguments, TextArguments, Train,
};

/// Parallel speculative decoding: a small drafter proposes, the large target checks, and the text
/// is exactly the target's.
#[derive(Debug, Parser)]
#[command(name = "forerun", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt
    #[command(allow_negative_numbers = true)]
    Generate(Box<GenerateArguments>),
    /// Talk to a model, in several turns; /help lists what can be done in between
    #[command(allow_negative_numbers = true)]
    Chat(Box<ChatArguments>),
    /// Show the cores that can be devices, and what runs where by default; with --model, what a
    /// forward pass costs there
    Devices(DevicesArguments),
    /// Measure this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Make a pair of random models of any size whose drafter is right as often as you say, to measure
    /// speed where no trained pair is at hand; the text is noise
    MakePair(Box<crate::make_pair::MakePairArguments>),
    /// Write a model in another format: GGUF
    Export(crate::export::ExportArguments),
    /// Look into a model
    #[command(subcommand)]
    Analyze(Analyze),
    /// Run the decoders in virtual time, with devices and acceptance as you say: no model is needed
    #[command(subcommand, allow_negative_numbers = true)]
    Simulate(Simulate),
    /// Train a model
    #[cfg(feature = "train")]
    #[command(subcommand)]
    Train(Train),
    /// Write a model's own text, to train a drafter on
    #[cfg(feature = "train")]
    #[command(allow_negative_numbers = true)]
    Distill(Box<DistillArguments>),
}

/// Options of `forerun devices`.
#[derive(Args, Debug)]
pub(crate) struct DevicesArguments {
    /// Measure memory bandwidth and the cost of a forward pass of this model, by its rows
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// Take hub models from the cache only
    #[arg(long)]
    pub(crate) offline: bool,

    /// Keep weights as f32, bf16, f16 or int8; auto is the checkpoint's own type
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = weight_type)]
    pub(crate) dtype: ChosenType,

    /// Cores of the team [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Tokens before the measured rows
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) past: usize,

    /// Measurements of each kind
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub(crate) rounds: usize,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Memory bandwidth, and the cost of one linear layer by type and rows
    Kernels(KernelBenchArguments),
    /// What weight types cost in quality: a model's loss on a text in each of them, and how far its
    /// distributions are from those of f32; with --draft-model, how near a drafter's are
    Quality(QualityBenchArguments),
    /// Compare methods, drafters and placements on prompts: speed against autoregressive decoding,
    /// acceptance, where the time goes; every answer is compared, too
    Run(Box<crate::bench_run::RunBenchArguments>),
}

/// Options of `forerun bench kernels`.
#[derive(Args, Debug)]
pub(crate) struct KernelBenchArguments {
    /// Outputs of the layer
    #[arg(long, value_name = "N", default_value_t = 5632)]
    pub(crate) outputs: usize,

    /// Inputs of the layer
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub(crate) inputs: usize,

    /// Cores of the team
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Pairs of measurements of each kind
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub(crate) rounds: usize,
}

/// Options of `forerun bench quality`.
#[derive(Args, Debug)]
pub(crate) struct QualityBenchArguments {
    /// The model: a Hugging Face directory, a llama2.c file, or a hub id
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: PathBuf,

    /// A file with the text to predict, in UTF-8
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,

    /// Tokens to predict at the most, from the text's beginning
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) tokens: usize,

    /// Tokens that the model sees at a time [default: 512, or its context if that is shorter]
    #[arg(long, value_name = "W")]
    pub(crate) window: Option<usize>,

    /// Weight types to compare with f32, which is always measured
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "f32,bf16,f16,int8",
        value_parser = only_weight_type
    )]
    pub(crate) dtypes: Vec<WeightType>,

    /// Compare these models with it, too: how much of its distribution a drafter has
    #[arg(long, value_name = "MODEL", num_args = 1..)]
    pub(crate) draft_model: Vec<PathBuf>,

    /// Cores of the team [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// Options of `forerun generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArguments {
    /// The text to continue; else --prompt-file, else standard input
    #[arg(
        long,
        short,
        value_name = "TEXT",
        conflicts_with = "prompt_file",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: Option<String>,

    /// A file with the text to continue, "-" for standard input; one line break at the end is
    /// dropped
    #[arg(long, short = 'f', value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) answers: AnswerArguments,

    /// Write the timeline to FILE: Perfetto JSON, text if FILE ends in .txt, a picture if in .svg
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Print the text, once it is whole, with what became of drafts: {+accepted+}, [-rejected-] (of a
    /// tree the first candidate), the target's own tokens as they are; in colours on a terminal
    #[arg(long, conflicts_with = "json")]
    pub(crate) show_drafts: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,

    /// With --json, tell the log-probability of every token and of the N (0 to 20) most probable ones
    /// in its place: the target's own, before all sampling options
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<usize>,
}

/// Options of `forerun chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArguments {
    /// What the model is to keep to
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    /// Render messages with this Jinja file, or with the template that the checkpoint ships under
    /// this name; plain is "User: …", "Assistant: …" [default: the checkpoint's, else plain]
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) chat_template: Option<String>,

    /// Keep no history of what is typed
    #[arg(long)]
    pub(crate) no_history: bool,

    #[command(flatten)]
    pub(crate) answers: AnswerArguments,
}

/// Which models answer, and how.
#[derive(Args, Debug)]
pub(crate) struct AnswerArguments {
    /// The target: a Hugging Face directory, a llama2.c file, or a hub id (owner/name or
    /// owner/name@revision); without it, the demonstration pair
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// The drafter: a model (drafts of one with another vocabulary are translated by their text, chains
    /// only), or what was made for the target (Medusa, Hydra, EAGLE, ParallelSpec, PARD), told by its
    /// tensors
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<PathBuf>,

    /// Take hub models from the cache only
    #[arg(long)]
    pub(crate) offline: bool,

    /// Tokens to generate at the most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 200)]
    pub(crate) max_tokens: usize,

    /// When to draft and verify: autoregressive, speculative (in turn), pearl (at the same time), dsi
    /// (on several target replicas) [default: speculative where there is a drafter]
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<Method>,

    /// Who drafts: none, model, easyspec (the model, several of its layers at a time), ouroboros (the
    /// model, with phrases that save passes and lengthen drafts), prompt-lookup, lookahead (n-grams that
    /// the target guesses in the same pass), medusa (heads on the target's hidden state), hydra (heads
    /// that read what was drafted, too), eagle (a layer on its hidden states), parallel (ParallelSpec,
    /// PARD: all positions in one forward) [default: what --draft-model is made for]
    #[arg(long, value_name = "DRAFTER")]
    pub(crate) drafter: Option<DrafterKind>,

    /// A further drafter for dsi: a checkpoint, or prompt-lookup. It may be given several times; of
    /// those that are right the first is followed
    #[arg(long, value_name = "MODEL|prompt-lookup")]
    pub(crate) also_draft: Vec<AdditionalDrafter>,

    #[command(flatten)]
    pub(crate) easyspec: EasySpecArguments,

    /// Tokens drafted in a row (with dsi those of one verification); auto takes what measured times
    /// and acceptance advise, none where drafting does not pay; assisted two more where all were
    /// accepted, else one less
    #[arg(long, value_name = "N|auto|assisted", default_value = "auto")]
    pub(crate) draft_tokens: DraftTokens,

    /// Draft a tree: top:W or top:WxD (the W most probable nodes at each of D depths), top:WxD:N
    /// (expanding those, the N most probable of all their children), or sampled:B1,B2,…
    /// (independently drawn children by depth)
    #[arg(long, value_name = "TREE", default_value = "none")]
    pub(crate) tree: Tree,

    /// What of PEARL is used: eager (a round ends with the target's pass) or paper (drafter and target
    /// wait for one another), and after a comma no-pre-verify or no-post-verify
    #[arg(long, value_name = "OPTIONS", default_value = "eager")]
    pub(crate) pearl: PearlOptions,

    /// Keep weights as f32, bf16, f16 or int8 (quantised at load); auto is the checkpoint's own type
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = weight_type)]
    pub(crate) dtype: ChosenType,

    /// Which cores do what, as in drafter=cpu:0,target=cpu:1-3 (add ",shared" to give both the same
    /// cores; target=cpu:0/cpu:1 has half of the layers on each) [default: both have all cores in turn; with pearl and dsi the drafter has the first
    /// core, the target the others]
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<String>,

    /// Sample as the checkpoint's generation_config.json suggests; without this the text is greedy
    /// unless other options say otherwise
    #[arg(
        long,
        conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"]
    )]
    pub(crate) suggested_sampling: bool,

    /// 0 always takes the most probable token, so that top-k, top-p and min-p filter nothing
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Sample among the K most probable tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,

    /// Sample among the most probable tokens that together reach this mass
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(crate) top_p: f32,

    /// Sample among tokens at least P times as probable as the most probable one; 0 is all
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) min_p: f32,

    /// Divide the positive logits of tokens in prompt or answer by P and multiply the negative ones,
    /// at any temperature; 1 is none
    #[arg(long, visible_alias = "repeat-penalty", value_name = "P", default_value_t = 1.0)]
    pub(crate) repetition_penalty: f32,

    /// Subtract P (-2 to 2) from a token's logit for each time that the answer holds it, at any
    /// temperature
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) frequency_penalty: f32,

    /// Subtract P (-2 to 2) from a token's logit if the answer holds it, at any temperature
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) presence_penalty: f32,

    /// Add BIAS (-100 to 100) to the logit of the token of this id, at any temperature; may be given
    /// several times
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = token_bias)]
    pub(crate) logit_bias: Vec<(TokenId, f32)>,

    /// Make sampled text reproducible
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// How drafts are verified above temperature 0: rejection (more accepted), coupled (with a seed,
    /// the very tokens of autoregressive decoding), auto (coupled where a seed is given)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) verify: VerificationChoice,

    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,

    /// Go on behind the model's end of text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

/// Options of `--drafter easyspec`.
#[derive(Args, Debug)]
pub(crate) struct EasySpecArguments {
    /// With --drafter easyspec, layers that are computed at the same time, in the paper's default
    /// groups; 1 is the ordinary drafter [default: 4]
    #[arg(long, value_name = "N", conflicts_with = "layer_groups")]
    pub(crate) lp: Option<usize>,

    /// With --drafter easyspec, which layers: groups as in 0,1-3,4-7,8, or @FILE with such groups, as
    /// `forerun analyze layers` writes them
    #[arg(long, value_name = "GROUPS|@FILE", value_parser = layer_groups)]
    pub(crate) layer_groups: Option<LayerStrategy>,

    /// With --drafter easyspec, when the drafter's cache is made exact: every-round, on-mismatch,
    /// prefill-only, never [default: every-round]
    #[arg(long, value_name = "POLICY")]
    pub(crate) calibration: Option<CalibrationPolicy>,
}

impl EasySpecArguments {
    /// Which layers, as they were asked for.
    pub(crate) fn layers(&self) -> Option<LayerStrategy> {
        self.lp.map(LayerStrategy::Parallel).or_else(|| self.layer_groups.clone())
    }
}
