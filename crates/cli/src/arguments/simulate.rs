//! Options of `forerun simulate`.

use super::values::only_weight_type;
use clap::{Args, Subcommand, ValueEnum};
use forerun::WeightType;
use forerun_sim::SimulatedMethod;
use forerun_sim::papers::PaperTable;
use std::num::NonZero;
use std::path::PathBuf;

/// What can be simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Simulate {
    /// One answer, with its timeline
    Run(Box<SimulatedRunArguments>),
    /// Every configuration of a grid, as a CSV table
    Sweep(SweepArguments),
    /// Measure a pair of models here, for simulations to take: what passes cost by rows, how often the
    /// drafter is right; then compare predicted and measured speed
    Calibrate(CalibrateArguments),
    /// A paper's table: simulated values beside the published ones
    Paper(PaperArguments),
    /// DSI's figures 2 and 7: the times of plain, speculative and DSI decoding for every drafter, as a CSV
    /// table
    Heatmaps(HeatmapArguments),
    /// A picture of a sweep's table
    #[cfg(feature = "plots")]
    Plot(PlotArguments),
}

/// Options of `forerun simulate paper`.
#[derive(Args, Debug)]
pub(crate) struct PaperArguments {
    /// pearl-1 (speed), pearl-2b (best draft lengths of a recorded run), pearl-4 (ablations), pearl-5 (γ),
    /// pearl-6 (γ by task), pearl-14 (γ of speculative decoding), pearl-8, pearl-17, pearl-18 (drafter and
    /// target on the same devices), pearl-16 (sending a cache), dsi-2 (ten pairs), dsi-3.1 (replicas against
    /// a faster target), dsi-e (appendix E), easyspec-1 (tensor parallelism), easyspec-2 (the ladder)
    #[arg(value_name = "TABLE", value_parser = paper_table)]
    pub(crate) table: PaperTable,

    /// Texts that each value is the mean of
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) texts: u64,

    /// The recorded run of pearl-2b: what forerun simulate calibrate wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,

    /// Measure dsi-2 on threads whose passes are waits, as the paper did; about 50 seconds a text
    #[arg(long)]
    pub(crate) real_time: bool,
}

fn paper_table(text: &str) -> Result<PaperTable, String> {
    let found = PaperTable::NAMES.iter().find(|(_, name)| *name == text);
    found.map(|(table, _)| *table).ok_or_else(|| {
        let names = PaperTable::NAMES.map(|(_, name)| name).join(", ");
        format!("{text:?} is not one of {names}")
    })
}

/// Options of `forerun simulate heatmaps`.
#[derive(Args, Debug)]
pub(crate) struct HeatmapArguments {
    /// The table; one that is there is continued
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: PathBuf,

    /// Steps of the drafter's time, up to the target's, and of the acceptance rate from 0 to 1
    #[arg(long, value_name = "N", default_value = "100")]
    pub(crate) steps: NonZero<usize>,

    /// Lookaheads from 1 to N, of which each method takes its best
    #[arg(long, value_name = "N", default_value = "200")]
    pub(crate) lookaheads: NonZero<usize>,

    /// Tokens to generate
    #[arg(long, value_name = "N", default_value = "50")]
    pub(crate) max_tokens: NonZero<usize>,

    /// Texts that every value is the mean of
    #[arg(long, value_name = "N", default_value = "5")]
    pub(crate) repeats: NonZero<u64>,

    /// Threads; rows do not depend on them [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZero<usize>>,
}

/// Options of `forerun simulate run`.
#[derive(Args, Debug)]
pub(crate) struct SimulatedRunArguments {
    /// When to draft and verify: autoregressive, speculative, pearl (rounds end with the target's pass),
    /// pearl-paper (rounds wait for the drafts), dsi (--draft-tokens is the lookahead)
    #[arg(long, value_name = "METHOD", default_value_t = SimulatedMethod::Speculative)]
    pub(crate) method: SimulatedMethod,

    /// Take times and acceptance from what forerun simulate calibrate measured; options win
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,

    /// Milliseconds of a forward pass of the target [default: 30]
    #[arg(long, value_name = "MS")]
    pub(crate) target_ms: Option<f64>,

    /// Milliseconds of the target's first pass, which holds the prompt [default: as the others]
    #[arg(long, value_name = "MS")]
    pub(crate) target_first_ms: Option<f64>,

    /// Milliseconds that each further row adds to a pass of the target [default: 0]
    #[arg(long, value_name = "MS")]
    pub(crate) row_ms: Option<f64>,

    /// Replicas of the target, which dsi uses; 0 is as many as the drafters keep busy
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) targets: usize,

    /// Milliseconds of a forward pass of the drafter [default: 3]
    #[arg(long, value_name = "MS")]
    pub(crate) draft_ms: Option<f64>,

    /// Milliseconds of the drafter's first pass [default: as the others]
    #[arg(long, value_name = "MS")]
    pub(crate) draft_first_ms: Option<f64>,

    /// Drafters, each right where chance has it; dsi has all of them, other methods the first
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) drafters: usize,

    /// Probability that a draft token is the target's [default: 0.8]
    #[arg(long, value_name = "P")]
    pub(crate) acceptance: Option<f64>,

    /// Tokens drafted in a row; 0 drafts none
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) draft_tokens: usize,

    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_tokens: usize,

    /// Where drafts are right; with a calibration, the prompt
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// What becomes of a job that is cancelled while it runs
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CancelChoice::Layer)]
    pub(crate) cancel: CancelChoice,

    /// Layers of a pass [default: 32]
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<usize>,

    /// Milliseconds on the way to a device, and as much back [default: 0]
    #[arg(long, value_name = "MS")]
    pub(crate) link_ms: Option<f64>,

    /// Have the drafter run its layers in groups of N side by side, as EasySpec does: its passes then
    /// take what the next three options say
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) layer_parallel: usize,

    /// Milliseconds of the attention of one layer of that drafter
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub(crate) draft_attention_ms: f64,

    /// Milliseconds of its MLP
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub(crate) draft_mlp_ms: f64,

    /// Milliseconds of gathering what a group's layers attended to
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub(crate) draft_communication_ms: f64,

    /// Run on threads, too, where waits stand for passes, and tell how much longer that takes
    #[arg(long)]
    pub(crate) real_time: bool,

    /// Write the timeline: for Perfetto, as text if FILE ends in .txt, as a picture if in .svg
    #[arg(long, visible_alias = "timeline", value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Options of `forerun simulate sweep`.
#[derive(Args, Debug)]
pub(crate) struct SweepArguments {
    /// The grid, in TOML: options of forerun simulate run without their dashes, each a value, a
    /// list, or a range { from = A, to = B, step = S } or { from = A, to = B, steps = N }; repeats = N
    /// simulates each configuration with N seeds
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,

    /// The table; one that is there is continued [default: FILE.csv]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Threads; rows do not depend on them [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZero<usize>>,
}

/// Options of `forerun simulate calibrate`.
#[derive(Args, Debug)]
pub(crate) struct CalibrateArguments {
    /// The target: a Hugging Face directory, a llama2.c file, or a hub id
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: PathBuf,

    /// The drafter
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: PathBuf,

    /// Take hub models from the cache only
    #[arg(long)]
    pub(crate) offline: bool,

    /// Keep weights as f32, bf16, f16 or int8 [default: each checkpoint's own type]
    #[arg(long, value_name = "TYPE", value_parser = only_weight_type)]
    pub(crate) dtype: Option<WeightType>,

    /// Which cores do what, as in generate [default: the drafter has the first core, the target the
    /// others, as for methods that run both at the same time]
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<String>,

    /// Prompts, as in bench run
    #[arg(long, value_name = "SUITES", value_delimiter = ',', default_value = "default")]
    pub(crate) suite: Vec<String>,

    /// The folder of the suites' files
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Prompts that are answered
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) prompts: usize,

    /// Tokens to which each prompt is cut; shorter ones are left out
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) prompt_tokens: usize,

    /// Tokens of an answer
    #[arg(long, short = 'n', value_name = "N", default_value_t = 48)]
    pub(crate) max_tokens: usize,

    /// Rounds, in each of which everything is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,

    /// Compare what is predicted with speculative decoding of so many draft tokens, measured in the
    /// same rounds
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,2,4,8")]
    pub(crate) check: Vec<usize>,

    /// The file for simulations
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    pub(crate) out: PathBuf,
}

/// Options of `forerun simulate plot`.
#[cfg(feature = "plots")]
#[derive(Args, Debug)]
pub(crate) struct PlotArguments {
    /// A sweep's table
    #[arg(value_name = "CSV")]
    pub(crate) table: PathBuf,

    /// The column along the horizontal axis
    #[arg(long, value_name = "COLUMN")]
    pub(crate) x: String,

    /// The column along the vertical axis of a heatmap; without it, lines are drawn
    #[arg(long, value_name = "COLUMN")]
    pub(crate) y: Option<String>,

    /// The column that is shown: a heatmap's colour, or the height of lines
    #[arg(long, value_name = "COLUMN", default_value = "speedup")]
    pub(crate) value: String,

    /// The column that has a line for each of its values
    #[arg(long, value_name = "COLUMN", conflicts_with = "y")]
    pub(crate) lines: Option<String>,

    /// Take only rows with this value; may be given several times
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub(crate) only: Vec<String>,

    /// Where several rows share a place, show the best, the worst or their mean
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Merge::Refuse)]
    pub(crate) merge: Merge,

    /// A heatmap's colours end at this value; larger ones have its colour
    #[arg(long, value_name = "VALUE", requires = "y")]
    pub(crate) largest: Option<f64>,

    /// Values below are pink in a heatmap: slowdowns, where speeds are shown
    #[arg(long, value_name = "VALUE", requires = "y")]
    pub(crate) pink_below: Option<f64>,

    /// Above the picture
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) title: String,

    /// The picture: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// What becomes of rows that share a place in a picture.
#[cfg(feature = "plots")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Merge {
    /// Nothing is drawn, and the columns in which they differ are named
    Refuse,
    /// The largest value
    Max,
    /// The smallest value
    Min,
    /// Their mean
    Mean,
}

/// When a cancelled job ends.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CancelChoice {
    /// At once
    Immediate,
    /// With its layer
    Layer,
    /// When it is done
    RunToEnd,
}
