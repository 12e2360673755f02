//! The options of models, drafts and devices.

use super::headings;
use super::values::{self, ChosenCacheType, ChosenTypes, layer_groups};
use clap::Args;
use forerun::{
    AdditionalDrafter, CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Lookup, Method,
    ModelSource, PearlOptions, Placement, Tree,
};

/// Options of the models, of how they draft, and of their devices.
#[derive(Args, Clone, Debug)]
pub struct EngineArguments {
    /// Target model: a Hugging Face directory, a GGUF or llama2.c file, or a hub id.
    ///
    /// A hub id is `owner/name` or `owner/name@revision`, and `owner/name:Q4_K_M` for a GGUF file. Its
    /// files are downloaded to the Hugging Face cache on first use. `demo` is the built-in demonstration pair, which `generate`
    /// and `chat` also use without `--model`.
    #[arg(long, value_name = "MODEL", value_parser = values::model, help_heading = headings::MODEL)]
    pub(crate) model: Option<ModelSource>,

    /// Draft model: a smaller model, or a drafter trained for the target.
    ///
    /// Drafters trained for a target (Medusa, Hydra, EAGLE, P-EAGLE, DFlash, DFlash 2, DSpark, ParallelSpec) and
    /// PARD models are recognised from the checkpoint. If the draft model's vocabulary differs from the target's,
    /// drafts are translated through their text; this works for chains, not for trees.
    #[arg(long, value_name = "MODEL", help_heading = headings::MODEL)]
    pub(crate) draft_model: Option<ModelSource>,

    /// Type of the weights in memory.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "auto",
        value_parser = values::weight_types_or_auto(),
        help_heading = headings::MODEL
    )]
    pub(crate) dtype: ChosenTypes,

    /// Type of the cached keys and values
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "auto",
        value_parser = values::cache_type_or_auto(),
        help_heading = headings::MODEL
    )]
    pub(crate) kv_type: ChosenCacheType,

    /// Memory for the key/value cache of each model, such as `512M` or `8G` [default: 4G]
    ///
    /// If it is full, the least recently used tokens are dropped, and computed again when they are
    /// needed. The text does not depend on it. With `--method auto` and no `--placement`, a drafter may use it twice.
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = values::bytes,
        help_heading = headings::MODEL
    )]
    pub(crate) cache_bytes: Option<usize>,

    /// Use only hub models that are already in the cache.
    ///
    /// Setting the environment variable `HF_HUB_OFFLINE=1` has the same effect.
    #[arg(long, help_heading = headings::MODEL)]
    pub(crate) offline: bool,

    /// When to draft and when to verify.
    ///
    /// The default is `speculative` if there is a drafter, otherwise `autoregressive`. It is `auto` if `--placement` gives
    /// drafter and target devices of their own, and `--draft-tokens` is `auto`. `auto` is `speculative` if no other method
    /// supports the drafter, the tree, the lookup or `--draft-tokens assisted`.
    #[arg(
        long,
        value_name = "METHOD",
        value_parser = values::method(),
        help_heading = headings::DRAFTING
    )]
    pub(crate) method: Option<Method>,

    /// What proposes tokens.
    ///
    /// The default is the kind of drafter that `--draft-model` contains, or `none` without a draft
    /// model.
    #[arg(
        long,
        value_name = "DRAFTER",
        value_parser = values::drafter(),
        help_heading = headings::DRAFTING
    )]
    pub(crate) drafter: Option<DrafterKind>,

    /// Guess tokens from earlier text in the rounds where that is expected to be better than the drafter.
    ///
    /// Each round looks up what followed the end of the text earlier, which takes no time. The target verifies that if it is
    /// expected to have at least as many tokens accepted as a draft of the drafter's or, with `--draft-tokens auto`, at least
    /// as many tokens a second. Otherwise the drafter drafts. The expectation follows what was accepted in this answer. A
    /// looked-up draft has up to 16 tokens; `--draft-tokens` does not limit it.
    ///
    /// With `--method speculative` or `ssd`, and with all drafters but `lookahead` and `ouroboros`.
    #[arg(
        long,
        value_name = "LOOKUP",
        default_value = "none",
        value_parser = values::lookup(),
        help_heading = headings::DRAFTING
    )]
    pub(crate) lookup: Lookup,

    /// Number of tokens to draft before the target verifies them.
    ///
    /// A number from 1 to 64: always this many.
    ///
    /// `auto`: chosen from measured times and acceptance, and shorter where the drafter is unsure. Drafting pauses when it would slow
    /// generation down, and is retried periodically.
    ///
    /// `assisted`: two more tokens after a fully accepted draft, otherwise one fewer, as in Hugging
    /// Face's assisted generation.
    ///
    /// With `--method pearl`, the number is the paper's γ. With `--method dsi`, it is the
    /// lookahead: the number of tokens per verification.
    #[arg(
        long,
        value_name = "N|auto|assisted",
        default_value = "auto",
        help_heading = headings::DRAFTING
    )]
    pub(crate) draft_tokens: DraftTokens,

    /// Draft a tree of candidates instead of a chain.
    ///
    /// `auto` grows a tree for each draft: node by node, the candidate that is accepted most often, while that gives
    /// more tokens a second. It learns how often the drafter's best, second and further tokens are accepted at each
    /// depth, and what rows cost. `--draft-tokens` is the largest depth. `ranked:16` always drafts the 16 nodes that
    /// are accepted most often with a typical drafter.
    ///
    /// `top:4x5` drafts the 4 most probable nodes at each of 5 depths; without `x5`, the depth is
    /// the number of `--draft-tokens`, or 5. `top:4x5:16` expands those nodes and keeps the 16 most
    /// probable of all their children. `sampled:3,2,1` draws 3 children at the first depth, then 2
    /// children of each, then 1.
    ///
    /// Trees need `--method speculative`.
    #[arg(long, value_name = "TREE", default_value = "none", help_heading = headings::DRAFTING)]
    pub(crate) tree: Tree,

    /// Additional drafter: a model, or `prompt-lookup`. May be given several times.
    ///
    /// `speculative`, `pearl` and `auto` use the one that is expected to be the fastest on the text at hand. With `dsi`, all of them
    /// draft at the same time, and if several agree with the target, the first one's tokens are kept.
    #[arg(long, value_name = "MODEL|prompt-lookup", help_heading = headings::DRAFTING)]
    pub(crate) also_draft: Vec<AdditionalDrafter>,

    /// Variant of `--method pearl`: when a round ends, and which parts are added or left out.
    ///
    /// `eager`: a round ends with the target's forward pass. `paper`: drafter and target wait for
    /// each other. Add `,no-pre-verify` or `,no-post-verify` to leave out that part, as in the
    /// paper's ablations.
    ///
    /// Add `,pre-verify-lookup` or `,pre-verify-suffix` to also guess tokens from earlier text (prompt
    /// lookup, suffix decoding) while no draft token is there to verify, such as after a rejection.
    #[arg(long, value_name = "OPTIONS", default_value = "eager", help_heading = headings::DRAFTING)]
    pub(crate) pearl: PearlOptions,

    /// Number of the drafter's next best tokens to verify next to each drafted one, up to 16.
    ///
    /// If one of them is the correction, the target's next token often comes with the same pass. For `--method pearl`
    /// and, with one drafter, `--method dsi`.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = headings::DRAFTING)]
    pub(crate) siblings: usize,

    #[command(flatten)]
    pub(crate) easyspec: EasySpecArguments,

    /// Number of threads, one for each core [default: see `forerun devices`]
    #[arg(long, short = 't', value_name = "N", help_heading = headings::DEVICES)]
    pub(crate) threads: Option<usize>,

    /// Cores that run the drafter and the target.
    ///
    /// `drafter=cpu:0,target=cpu:1-3` gives each its own cores,
    /// `drafter=cpu:0-3,target=cpu:0-3,shared` the same ones, in alternation. `target=cpu:0/cpu:1`
    /// puts half of the target's layers on each core. With `--method dsi`, several `target=` groups
    /// are replicas, and several `drafter=` groups are drafters.
    ///
    /// By default, drafter and target share all cores. With `--method pearl`, `dsi`, `ssd` or `auto`, the
    /// drafter has the first core, and the target or its replicas have the others. With `pearl` and `auto`, the drafter has more
    /// of the first cores if that pays by the bytes that both read. `forerun devices` shows the defaults. The threads of a given placement stay on their cores, even if other programs use them.
    ///
    /// `target=gpu:0` is a GPU, in a build with the feature `gpu`. `target=gpu:0/cpu:0-7` puts the first layers there, as
    /// many as fit, and everything else on the cores; `target=gpu:0:20/cpu:0-7` puts 20 layers there.
    ///
    /// `drafter=rank:0,target=rank:1` runs on the processes that `mpirun -n 2 forerun generate ...` starts,
    /// on one machine or several (`generate` and `serve`, in a build with the feature `mpi`). The ranks of
    /// `target=rank:1+rank:2` compute one target together, and those of `target=rank:1/rank:2` have some of its layers
    /// each; so do those of a drafter.
    #[arg(long, value_name = "PLACEMENT", help_heading = headings::DEVICES)]
    pub(crate) placement: Option<Placement>,

    /// Number of the target's first layers on a GPU (`-ngl` of llama.cpp).
    ///
    /// The cores have the other layers, the embedding and the head. The default for
    /// `--placement target=gpu:0/cpu:0-7` is as many layers as fit in the GPU's memory. Without such a placement, the
    /// first GPU is used, with the target's cores.
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", help_heading = headings::DEVICES)]
    pub(crate) gpu_layers: Option<usize>,

    /// Seconds without a heartbeat after which a rank counts as lost and the job ends.
    ///
    /// Only with ranks in `--placement`. A process that dies ends the job at once.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
        help_heading = headings::DEVICES
    )]
    pub(crate) rank_timeout: u64,

    /// Keep each thread on its core, also in the default placement.
    ///
    /// Otherwise, the threads of a device leave their cores for a while when other programs need them.
    #[arg(long, help_heading = headings::DEVICES)]
    pub(crate) pin: bool,
}

/// Options of `--drafter easyspec`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EasySpecArguments {
    /// Number of layers to compute at a time, in the paper's default groups [default: 4].
    ///
    /// 1 is ordinary drafting. Only with `--drafter easyspec`.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "layer_groups",
        help_heading = headings::EASYSPEC
    )]
    pub(crate) lp: Option<usize>,

    /// Groups of layers to compute at a time, such as `0,1-3,4-7,8`, or `@FILE` with such groups.
    ///
    /// `forerun analyze layers --search FILE` writes such a file. Only with `--drafter easyspec`.
    #[arg(
        long,
        value_name = "GROUPS|@FILE",
        value_parser = layer_groups,
        help_heading = headings::EASYSPEC
    )]
    pub(crate) layer_groups: Option<LayerStrategy>,

    /// When the drafter's cache is made exact [default: every-round].
    ///
    /// Only with `--drafter easyspec`.
    #[arg(
        long,
        value_name = "POLICY",
        value_parser = values::calibration_policy(),
        help_heading = headings::EASYSPEC
    )]
    pub(crate) calibration: Option<CalibrationPolicy>,
}

impl EasySpecArguments {
    /// Returns the requested layer strategy, if any.
    pub(crate) fn layers(&self) -> Option<LayerStrategy> {
        self.lp.map(LayerStrategy::Parallel).or_else(|| self.layer_groups.clone())
    }
}
