//! Options of `forerun bench run`.

use super::headings::{
    CONFIGURATIONS, DEVICES, DRAFTING, EASYSPEC, MEASUREMENT, MODEL, OUTPUT, PROMPTS, SAMPLING,
    STOPPING,
};
use super::values::{self, layer_groups};
use super::{ModelArguments, SuiteArguments};
use clap::Args;
use forerun::{
    AdditionalDrafter, CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Lookup, Method,
    ModelSource, PearlOptions, Placement, Tree, VerificationChoice, WeightTypes,
};
use forerun_bench::{Preset, PromptStyle, pacing};
use std::path::PathBuf;

/// Options of `forerun bench run`.
#[derive(Args, Debug)]
pub(crate) struct RunBenchArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Draft models to compare: smaller models, or drafters trained for the target.
    ///
    /// Each one is compared with the drafters that it is made for.
    #[arg(long, value_name = "MODELS", value_delimiter = ',', help_heading = MODEL)]
    pub(crate) draft_model: Vec<ModelSource>,

    /// Types of the weights in memory to compare [default: each checkpoint's own].
    ///
    /// Each is compared with autoregressive decoding of the same type.
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        value_parser = values::weight_types(),
        help_heading = MODEL
    )]
    pub(crate) dtype: Vec<WeightTypes>,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long, help_heading = MODEL)]
    pub(crate) offline: bool,

    /// Methods to compare with autoregressive decoding, which is always included [default:
    /// speculative]
    #[arg(
        long,
        value_name = "METHODS",
        value_delimiter = ',',
        value_parser = values::method(),
        help_heading = DRAFTING
    )]
    pub(crate) method: Vec<Method>,

    /// Drafters to compare [default: those that the draft models are made for]
    #[arg(
        long,
        value_name = "DRAFTERS",
        value_delimiter = ',',
        value_parser = values::drafter(),
        help_heading = DRAFTING
    )]
    pub(crate) drafter: Vec<DrafterKind>,

    /// Additional drafter of each configuration whose method takes several. May be given several
    /// times.
    #[arg(long, value_name = "MODEL|prompt-lookup", help_heading = DRAFTING)]
    pub(crate) also_draft: Vec<AdditionalDrafter>,

    /// Lookups of earlier text to compare, in addition to each drafter [default: none].
    ///
    /// Example: `--lookup none,suffix`.
    #[arg(
        long,
        value_name = "LOOKUPS",
        value_delimiter = ',',
        value_parser = values::lookup(),
        help_heading = DRAFTING
    )]
    pub(crate) lookup: Vec<Lookup>,

    /// Numbers of draft tokens to compare: numbers, `auto`, `assisted` [default: auto]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', help_heading = DRAFTING)]
    pub(crate) draft_tokens: Vec<DraftTokens>,

    /// Tree of candidates to draft. May be given several times, to compare shapes [default: none]
    #[arg(long, value_name = "TREE", help_heading = DRAFTING)]
    pub(crate) tree: Vec<Tree>,

    /// Variant of PEARL. May be given several times, to compare variants [default: eager]
    #[arg(long, value_name = "OPTIONS", help_heading = DRAFTING)]
    pub(crate) pearl: Vec<PearlOptions>,

    /// How drafts are verified above temperature 0.
    ///
    /// The benchmark has a seed, so `auto` is `coupled`. Texts of `block` and `rejection` are not
    /// compared with others.
    #[arg(
        long,
        value_name = "VERIFICATION",
        default_value = "auto",
        value_parser = values::verification(),
        help_heading = DRAFTING
    )]
    pub(crate) verify: VerificationChoice,

    /// Numbers of layers at a time to compare, for the drafter `easyspec` [default: 4]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', help_heading = EASYSPEC)]
    pub(crate) lp: Vec<usize>,

    /// Layer groups for the drafter `easyspec`, in addition to `--lp`. May be given several times.
    #[arg(long, value_name = "GROUPS|@FILE", value_parser = layer_groups, help_heading = EASYSPEC)]
    pub(crate) layer_groups: Vec<LayerStrategy>,

    /// When the cache of the drafter `easyspec` is made exact [default: every-round]
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        value_parser = values::calibration_policy(),
        help_heading = EASYSPEC
    )]
    pub(crate) calibration: Vec<CalibrationPolicy>,

    /// Read configurations from a TOML file.
    ///
    /// A `[[sweep]]` table has values or lists of `method`, `drafter`, `draft-model`, `lookup`,
    /// `draft-tokens`, `tree`, `pearl`, `placement`, `dtype`, `temperature`, `lp`, `layer-groups`
    /// and `calibration`; every combination is compared. `also-draft` lists drafters that each of
    /// them has in addition. The file may begin with `model` and `draft-model`. A `[[peer]]` table
    /// adds another engine (`bench/peers`).
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATIONS)]
    pub(crate) sweep: Option<PathBuf>,

    /// Compare what a paper compares.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = values::preset(),
        help_heading = CONFIGURATIONS
    )]
    pub(crate) preset: Option<Preset>,

    #[command(flatten)]
    pub(crate) suites: SuiteArguments,

    /// Use N prompts of each category, evenly chosen [default: 2 of the suite `default`, all of
    /// others]
    #[arg(long, value_name = "N", conflicts_with = "full", help_heading = PROMPTS)]
    pub(crate) limit: Option<usize>,

    /// Use all prompts, also those of the suite `default`.
    #[arg(long, help_heading = PROMPTS)]
    pub(crate) full: bool,

    /// How prompts are put to the model.
    ///
    /// Prompts of several turns are always chats.
    #[arg(
        long,
        value_name = "STYLE",
        default_value = "auto",
        value_parser = values::prompt_style(),
        help_heading = PROMPTS
    )]
    pub(crate) prompts_as: PromptStyle,

    /// Maximum number of tokens of an answer.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128, help_heading = STOPPING)]
    pub(crate) max_tokens: usize,

    /// Continue after the model's end-of-text token.
    #[arg(long, help_heading = STOPPING)]
    pub(crate) ignore_eos: bool,

    /// Sampling temperatures to compare, each with autoregressive decoding at the same temperature
    /// [default: 0, or the preset's]
    #[arg(long, value_name = "T", value_delimiter = ',', help_heading = SAMPLING)]
    pub(crate) temperature: Vec<f32>,

    /// Seed of sampled text, the same in every repetition.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = SAMPLING)]
    pub(crate) seed: u64,

    /// Sample among the K most probable tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0, help_heading = SAMPLING)]
    pub(crate) top_k: usize,

    /// Sample among the most probable tokens that together have probability P; 1 keeps all.
    #[arg(long, value_name = "P", default_value_t = 1.0, help_heading = SAMPLING)]
    pub(crate) top_p: f32,

    /// Devices that run the drafter and the target. May be given several times, to compare
    /// placements.
    ///
    /// If no model drafts, the target has all of them. With `paced=NAME` it has one, and the report
    /// says that devices were paced.
    #[arg(
        long,
        value_name = "PLACEMENT",
        value_parser = pacing::placement,
        help_heading = DEVICES
    )]
    pub(crate) placement: Vec<Placement>,

    /// Allow configurations that use different numbers of cores.
    #[arg(long, help_heading = DEVICES)]
    pub(crate) unequal_cores: bool,

    /// Number of times that each configuration answers each prompt.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = MEASUREMENT)]
    pub(crate) repeats: usize,

    /// Number of prompts that each configuration answers first, without being measured.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = MEASUREMENT)]
    pub(crate) warm_ups: usize,

    /// Compare the speeds with the predictions of a profile of `forerun plan --save-profile` for
    /// the same models on this machine.
    #[arg(long, value_name = "FILE", help_heading = MEASUREMENT)]
    pub(crate) profile: Option<PathBuf>,

    /// Directory for `answers.jsonl`, `summary.json`, `report.md` and `report.html`.
    ///
    /// An interrupted run in this directory resumes with the same command.
    #[arg(long, value_name = "DIR", default_value = "forerun-bench", help_heading = OUTPUT)]
    pub(crate) out: PathBuf,
}
