//! The options of models, drafts and devices.

use super::ModelArguments;
use super::headings::{DEVICES, DRAFTING, EASYSPEC, MODEL};
use super::types::{CacheTypeArguments, WeightTypeArguments};
use super::values::{self, layer_groups};
use clap::Args;
use forerun::checkpoint::NamedAdapter;
use forerun::{
    AdditionalDrafter, CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Lookup, Method,
    ModelSource, PearlOptions, Placement, Tree,
};
use forerun_bench::pacing;
use std::path::PathBuf;

/// Options of the models, of how they draft, and of their devices.
#[derive(Args, Clone, Debug)]
pub struct EngineArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// LoRA adapter of the model: a folder of PEFT, or a GGUF file.
    ///
    /// `serve` takes several, and offers each as a model of its own: by its NAME, or the name of its
    /// folder or file. Text is that of the adapted model; drafters stay as they are.
    #[arg(long, value_name = "[NAME=]PATH", help_heading = MODEL)]
    pub(crate) lora: Vec<NamedAdapter>,

    /// Draft model: a smaller model, or a drafter trained for the target.
    ///
    /// The checkpoint says which kind of drafter it is. A model with another vocabulary than the
    /// target's can draft chains, but not trees.
    #[arg(long, aliases = ["model-draft", "speculative-model"], value_name = "MODEL", help_heading = MODEL, value_parser = values::draft_model)]
    pub(crate) draft_model: Option<ModelSource>,

    #[command(flatten)]
    pub(crate) weights: WeightTypeArguments,

    #[command(flatten)]
    pub(crate) cache: CacheTypeArguments,

    /// Memory for the key/value cache of each model, such as `512M` or `8G` [default: 4G]
    ///
    /// A full cache drops the least recently used tokens and computes them again when they are
    /// needed. With `--method auto` and no `--placement`, a drafter may use the memory twice.
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, help_heading = MODEL)]
    pub(crate) cache_bytes: Option<usize>,

    /// Keep the keys and values of prompts and answers in a folder, for later runs.
    ///
    /// A long prompt that has been read before, also by another process, is not computed again.
    /// Only for models on the cores of this machine. `plan` and `certify` ignore it.
    #[arg(long, value_name = "DIR", help_heading = MODEL)]
    pub(crate) cache_dir: Option<PathBuf>,

    /// About the most bytes in `--cache-dir`; the least recently used files go [default: 10G]
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = values::bytes,
        requires = "cache_dir",
        help_heading = MODEL
    )]
    pub(crate) cache_dir_size: Option<usize>,

    /// Maximum number of tokens of a prompt and its answer together; 0 is the model's own maximum,
    /// the default.
    #[arg(
        long,
        aliases = ["ctx-size", "max-model-len"],
        short_alias = 'c',
        value_name = "N",
        help_heading = MODEL
    )]
    pub(crate) context_length: Option<usize>,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long, help_heading = MODEL)]
    pub(crate) offline: bool,

    /// When to draft and when to verify.
    ///
    /// The default is `speculative` with a drafter, otherwise `autoregressive`. It is `auto` if
    /// `--placement` gives drafter and target separate devices and `--draft-tokens` is `auto`.
    #[arg(long, value_name = "METHOD", value_parser = values::method(), help_heading = DRAFTING)]
    pub(crate) method: Option<Method>,

    /// What proposes tokens.
    ///
    /// The default is the kind that `--draft-model` contains, or `none` without a draft model.
    #[arg(long, value_name = "DRAFTER", value_parser = values::drafter(), help_heading = DRAFTING)]
    pub(crate) drafter: Option<DrafterKind>,

    /// Guess tokens from earlier text in the rounds where that is expected to beat the drafter.
    ///
    /// A guess has up to 16 tokens; `--draft-tokens` does not limit it. Needs `--method
    /// speculative` or `ssd`, and any drafter but `lookahead` and `ouroboros`.
    #[arg(
        long,
        value_name = "LOOKUP",
        default_value = "none",
        value_parser = values::lookup(),
        help_heading = DRAFTING
    )]
    pub(crate) lookup: Lookup,

    /// Number of tokens to draft before the target verifies them.
    ///
    /// `auto` chooses it from measured times and acceptance, and pauses drafting while that would
    /// slow generation down. A number from 1 to 64 is fixed. `assisted` drafts two more tokens
    /// after a fully accepted draft, otherwise one fewer, as Hugging Face's assisted generation
    /// does.
    ///
    /// A number is the paper's γ with `--method pearl`, and the lookahead with `--method dsi`.
    #[arg(
        long,
        aliases = ["draft", "draft-max", "draft-n", "spec-draft-n-max", "num-speculative-tokens"],
        value_name = "N|auto|assisted",
        default_value = "auto",
        help_heading = DRAFTING
    )]
    pub(crate) draft_tokens: DraftTokens,

    /// Draft a tree of candidates instead of a chain.
    ///
    /// `auto` grows each tree while that gives more tokens a second, to the depth of
    /// `--draft-tokens` at most. `ranked:16` drafts the 16 nodes that are accepted most often with
    /// a typical drafter. `top:4x5` drafts the 4 most probable nodes at each of 5 depths; without
    /// `x5`, the depth is `--draft-tokens`, or 5. `top:4x5:16` expands those nodes and keeps the 16
    /// most probable of all their children. `sampled:3,2,1` draws 3 children at the first depth,
    /// then 2 of each, then 1.
    ///
    /// Trees need `--method speculative`.
    #[arg(long, value_name = "TREE", default_value = "none", help_heading = DRAFTING)]
    pub(crate) tree: Tree,

    /// Additional drafter: a model, or `prompt-lookup`. May be given several times.
    ///
    /// `--method speculative`, `pearl` and `auto` use the drafter that is expected to be the
    /// fastest on the text at hand. With `dsi`, all of them draft at the same time.
    #[arg(long, value_name = "MODEL|prompt-lookup", help_heading = DRAFTING)]
    pub(crate) also_draft: Vec<AdditionalDrafter>,

    /// Variant of `--method pearl`.
    ///
    /// With `eager`, a round ends with the target's forward pass; with `paper`, drafter and target
    /// wait for each other. Add `,no-pre-verify` or `,no-post-verify` to leave out that part.
    #[arg(long, value_name = "OPTIONS", default_value = "eager", help_heading = DRAFTING)]
    pub(crate) pearl: PearlOptions,

    #[command(flatten)]
    pub(crate) easyspec: EasySpecArguments,

    /// Number of threads, one for each core [default: see `forerun devices`]
    #[arg(long, short = 't', value_name = "N", help_heading = DEVICES)]
    pub(crate) threads: Option<usize>,

    /// Devices that run the drafter and the target [default: see `forerun devices`]
    ///
    /// `drafter=cpu:0,target=cpu:1-3` gives each its own cores,
    /// `drafter=cpu:0-3,target=cpu:0-3,shared` the same ones, in alternation. The threads stay on
    /// their cores. With `--method dsi`, several `target=` groups
    /// are replicas, and several `drafter=` groups are drafters.
    ///
    /// `target=cpu:0/cpu:1` puts half of the target's layers on each core. `target=gpu:0` is a GPU
    /// (feature `gpu`); `target=gpu:0/cpu:0-7` puts as many of the first layers there as fit, and
    /// `target=gpu:0:20/cpu:0-7` puts 20 there.
    ///
    /// `drafter=rank:0,target=rank:1` runs `generate` and `serve` on the processes of `mpirun`
    /// (feature `mpi`). The ranks of `target=rank:1+rank:2` compute one target together; those of
    /// `target=rank:1/rank:2` have some of its layers each.
    ///
    /// `drafter=cpu:0,target=cpu:1,paced=NAME` lets each pass take the time of another device, for
    /// experiments; a wrong NAME lists the published ones. `paced=FILE.toml#METHOD` is of a
    /// hardware profile.
    #[arg(
        long,
        value_name = "PLACEMENT",
        value_parser = pacing::placement,
        help_heading = DEVICES
    )]
    pub(crate) placement: Option<Placement>,

    /// Number of the target's first layers on a GPU (`-ngl` of llama.cpp).
    ///
    /// The cores have the other layers, the embedding and the head. Without a GPU in `--placement`,
    /// the first one is used; with one, the default is as many layers as fit in its memory.
    #[arg(
        long,
        visible_alias = "n-gpu-layers",
        alias = "ngl",
        value_name = "N",
        help_heading = DEVICES
    )]
    pub(crate) gpu_layers: Option<usize>,

    /// Keep the experts of all layers on the cores, where a GPU has layers of the target.
    #[arg(long, conflicts_with = "n_cpu_moe", help_heading = DEVICES)]
    pub(crate) cpu_moe: bool,

    /// Keep the experts of the first N layers on the cores.
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub(crate) n_cpu_moe: Option<usize>,

    /// Seconds without a heartbeat after which a rank of `--placement` counts as lost and the job
    /// ends.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
        help_heading = DEVICES
    )]
    pub(crate) rank_timeout: u64,

    /// Keep each thread on its core in the default placement, even if other programs need it.
    #[arg(long, help_heading = DEVICES)]
    pub(crate) pin: bool,
}

/// Options of `--drafter easyspec`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EasySpecArguments {
    /// Number of layers that `--drafter easyspec` computes at a time, in the paper's default
    /// groups; 1 is ordinary drafting [default: 4]
    #[arg(long, value_name = "N", conflicts_with = "layer_groups", help_heading = EASYSPEC)]
    pub(crate) lp: Option<usize>,

    /// Groups of layers that `--drafter easyspec` computes at a time, such as `0,1-3,4-7,8`, or
    /// `@FILE`, which `forerun analyze layers --search FILE` writes.
    #[arg(long, value_name = "GROUPS|@FILE", value_parser = layer_groups, help_heading = EASYSPEC)]
    pub(crate) layer_groups: Option<LayerStrategy>,

    /// When the cache of `--drafter easyspec` is made exact [default: every-round]
    #[arg(
        long,
        value_name = "POLICY",
        value_parser = values::calibration_policy(),
        help_heading = EASYSPEC
    )]
    pub(crate) calibration: Option<CalibrationPolicy>,
}

impl EasySpecArguments {
    /// Returns the requested layer strategy, if any.
    pub(crate) fn layers(&self) -> Option<LayerStrategy> {
        self.lp.map(LayerStrategy::Parallel).or_else(|| self.layer_groups.clone())
    }
}
