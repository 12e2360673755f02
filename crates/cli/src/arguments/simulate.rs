//! Options of `forerun simulate`.

use super::analyze::PairArguments;
use super::headings::{DEVICES, DRAFTER, MEASUREMENT, OUTPUT, PROMPTS, TARGET};
use super::{SuiteArguments, values};
use clap::{Args, Subcommand, ValueEnum};
use forerun::Placement;
use forerun_sim::SimulatedMethod;
use forerun_sim::papers::PaperTable;
use std::num::NonZero;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "it is parsed once")]
pub(crate) enum Simulate {
    /// Simulate one answer and print its timeline.
    ///
    /// Example: `forerun simulate run --method pearl --target-ms 30 --draft-ms 3 --acceptance 0.8`
    Run(Box<SimulatedRunArguments>),
    /// Simulate every configuration of a grid and write a CSV table.
    ///
    /// An interrupted sweep resumes with the same command.
    Sweep(SweepArguments),
    /// Measure a pair of models on this machine, for simulations of that pair.
    ///
    /// Measures the time of forward passes by rows and where the drafter agrees with the target.
    /// Then compares the predicted with the measured speed of speculative decoding.
    Calibrate(CalibrateArguments),
    /// Reproduce a paper's table: simulated next to published values.
    Paper(PaperArguments),
    /// Reproduce DSI's figures 2 and 7 as a CSV table.
    ///
    /// The table has the times of plain, speculative and DSI decoding for every combination of
    /// drafter latency and acceptance rate. An interrupted run resumes with the same command.
    Heatmaps(HeatmapArguments),
    /// Draw the table of a sweep.
    #[cfg(feature = "plots")]
    Plot(PlotArguments),
    /// Draw the table of a sweep (needs the feature `plots`).
    #[cfg(not(feature = "plots"))]
    #[command(hide = true, disable_help_flag = true)]
    Plot(crate::missing::Missing),
}

/// Options of `forerun simulate paper`.
#[derive(Args, Debug)]
pub(crate) struct PaperArguments {
    /// Table to reproduce.
    #[arg(value_name = "TABLE", value_parser = values::laboratory::paper_table())]
    pub(crate) table: PaperTable,

    /// Number of texts to average over.
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) texts: u64,

    /// Measure `dsi-2` on threads that wait instead of computing, as the paper did.
    ///
    /// This takes about 50 seconds per text.
    #[arg(long)]
    pub(crate) real_time: bool,
}

/// Options of `forerun simulate heatmaps`.
#[derive(Args, Debug)]
pub(crate) struct HeatmapArguments {
    /// CSV file to write; an existing table is continued.
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: PathBuf,

    /// Number of drafter latencies, up to the target's, and of acceptance rates, from 0 to 1.
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::laboratory::nonzero_count(1_000))]
    pub(crate) steps: NonZero<usize>,

    /// Largest lookahead; each method uses its best one from 1 to N.
    #[arg(long, value_name = "N", default_value = "200", value_parser = values::laboratory::nonzero_count(10_000))]
    pub(crate) lookaheads: NonZero<usize>,

    /// Number of tokens to generate.
    #[arg(long, value_name = "N", default_value = "50", value_parser = values::laboratory::nonzero_count(1_000_000))]
    pub(crate) max_tokens: NonZero<usize>,

    /// Number of texts to average over.
    #[arg(long, value_name = "N", default_value = "5")]
    pub(crate) repeats: NonZero<u64>,

    /// Number of threads; the results do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = values::laboratory::nonzero_count(1024))]
    pub(crate) threads: Option<NonZero<usize>>,
}

/// Options of `forerun simulate run`.
#[derive(Args, Debug)]
pub(crate) struct SimulatedRunArguments {
    /// When to draft and when to verify.
    #[arg(
        long,
        value_name = "METHOD",
        default_value_t = SimulatedMethod::Speculative,
        value_parser = values::laboratory::simulated_method()
    )]
    pub(crate) method: SimulatedMethod,

    /// Number of tokens to draft before the target verifies them; 0 drafts none.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) draft_tokens: usize,

    /// Probability that a draft token agrees with the target [default: 0.8]
    #[arg(long, value_name = "P")]
    pub(crate) acceptance: Option<f64>,

    /// Number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = values::count(1..=1_000_000))]
    pub(crate) max_tokens: usize,

    /// Seed that decides where drafts agree with the target; with `--calibration`, it selects the
    /// prompt.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Take times and acceptance from a file that `forerun simulate calibrate` wrote.
    ///
    /// Other options override its values.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,

    /// Milliseconds of a forward pass of the target [default: 30]
    #[arg(long, value_name = "MS", help_heading = TARGET)]
    pub(crate) target_ms: Option<f64>,

    /// Milliseconds of the target's first pass, which holds the prompt [default: as later passes]
    #[arg(long, value_name = "MS", help_heading = TARGET)]
    pub(crate) target_first_ms: Option<f64>,

    /// Milliseconds that each further row adds to a pass of the target [default: 0]
    #[arg(long, value_name = "MS", help_heading = TARGET)]
    pub(crate) row_ms: Option<f64>,

    /// Number of target replicas for `dsi`; 0 uses as many as the drafters keep busy.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = TARGET)]
    pub(crate) targets: usize,

    /// Milliseconds of a forward pass of the drafter [default: 3]
    #[arg(long, value_name = "MS", help_heading = DRAFTER)]
    pub(crate) draft_ms: Option<f64>,

    /// Milliseconds of the drafter's first pass [default: as later passes]
    #[arg(long, value_name = "MS", help_heading = DRAFTER)]
    pub(crate) draft_first_ms: Option<f64>,

    /// Milliseconds of each further pass of a draft; 0 is a drafter of one pass, such as DFlash
    /// [default: as the first pass]
    #[arg(long, value_name = "MS", help_heading = DRAFTER)]
    pub(crate) draft_next_ms: Option<f64>,

    /// Number of independent drafters for `dsi`; other methods use the first.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = DRAFTER)]
    pub(crate) drafters: usize,

    /// Number of layers that the drafter computes at a time, as in EasySpec; 0 is an ordinary
    /// drafter.
    ///
    /// The next three options then replace `--draft-ms`.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = DRAFTER)]
    pub(crate) layer_parallel: usize,

    /// Milliseconds of the attention of one layer of the layer-parallel drafter.
    #[arg(long, value_name = "MS", default_value_t = 0.0, help_heading = DRAFTER)]
    pub(crate) draft_attention_ms: f64,

    /// Milliseconds of the MLP of one layer of the layer-parallel drafter.
    #[arg(long, value_name = "MS", default_value_t = 0.0, help_heading = DRAFTER)]
    pub(crate) draft_mlp_ms: f64,

    /// Milliseconds to gather the attention outputs of a group of layers.
    #[arg(long, value_name = "MS", default_value_t = 0.0, help_heading = DRAFTER)]
    pub(crate) draft_communication_ms: f64,

    /// When a job stops if it is cancelled while it runs.
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t = CancelChoice::Layer,
        help_heading = DEVICES
    )]
    pub(crate) cancel: CancelChoice,

    /// Number of layers of a forward pass [default: 32]
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub(crate) layers: Option<usize>,

    /// Milliseconds to send a job to a device, and again to send its result back [default: 0]
    #[arg(long, value_name = "MS", help_heading = DEVICES)]
    pub(crate) link_ms: Option<f64>,

    /// Also run on threads that wait instead of computing, and report how much longer that takes.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) real_time: bool,

    /// Write the timeline to a file, as `forerun generate --trace` does.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) trace: Option<PathBuf>,
}

/// Options of `forerun simulate sweep`.
#[derive(Args, Debug)]
pub(crate) struct SweepArguments {
    /// Grid in TOML: options of `forerun simulate run`, without their dashes.
    ///
    /// Each is a value, a list such as `[1, 5, 10]`, or a range: `{ from = 0, to = 1, step = 0.1 }`
    /// or `{ from = 0.3, to = 30, steps = 100 }`. `repeats = N` simulates each configuration with N
    /// seeds.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,

    /// CSV file to write; an existing table is continued [default: the grid's name with `.csv`]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Number of threads; the results do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = values::laboratory::nonzero_count(1024))]
    pub(crate) threads: Option<NonZero<usize>>,
}

/// Options of `forerun simulate calibrate`.
#[derive(Args, Debug)]
pub(crate) struct CalibrateArguments {
    /// Calibration file to write, for `forerun simulate run --calibration FILE`.
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) pair: PairArguments,

    /// Devices that run the drafter and the target, as for `forerun generate`.
    ///
    /// By default, the drafter has the first cores and the target the others.
    #[arg(long, value_name = "PLACEMENT", help_heading = DEVICES)]
    pub(crate) placement: Option<Placement>,

    #[command(flatten)]
    pub(crate) suites: SuiteArguments,

    /// Number of prompts to answer.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = PROMPTS)]
    pub(crate) prompts: usize,

    /// Length to which prompts are cut, in tokens; shorter prompts are skipped.
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = PROMPTS)]
    pub(crate) prompt_tokens: usize,

    /// Number of tokens of each answer.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 48, help_heading = MEASUREMENT)]
    pub(crate) max_tokens: usize,

    /// Number of rounds; each measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = MEASUREMENT)]
    pub(crate) rounds: usize,

    /// Numbers of draft tokens at which predicted and measured speed are compared.
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "1,2,4,8",
        help_heading = MEASUREMENT
    )]
    pub(crate) check: Vec<usize>,
}

/// Options of `forerun simulate plot`.
#[cfg(feature = "plots")]
#[derive(Args, Debug)]
pub(crate) struct PlotArguments {
    /// CSV table of a sweep.
    #[arg(value_name = "CSV")]
    pub(crate) table: PathBuf,

    /// Column along the horizontal axis.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) x: String,

    /// Column along the vertical axis of a heatmap; without it, lines are drawn.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) y: Option<String>,

    /// Column to show, as a heatmap's colour or as the height of lines.
    #[arg(long, value_name = "COLUMN", default_value = "speedup")]
    pub(crate) value: String,

    /// Column that gets one line per value.
    #[arg(long, value_name = "COLUMN", conflicts_with = "y")]
    pub(crate) lines: Option<String>,

    /// Use only rows in which the column has this value.
    ///
    /// May be given several times. Example: `--only draft-tokens=5`
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub(crate) only: Vec<String>,

    /// What to show where several rows share a place.
    #[arg(long, value_name = "CHOICE", value_enum, default_value_t = Merge::Refuse)]
    pub(crate) merge: Merge,

    /// Value at which a heatmap's colours end; larger values get the last colour.
    #[arg(long, value_name = "VALUE", requires = "y")]
    pub(crate) largest: Option<f64>,

    /// Paint smaller values pink in a heatmap, such as slowdowns where speeds are shown.
    #[arg(long, value_name = "VALUE", requires = "y")]
    pub(crate) pink_below: Option<f64>,

    /// Title of the picture.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) title: String,

    /// Picture to write: `FILE.svg` or `FILE.png`.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// What a picture shows where several rows share a place.
#[cfg(feature = "plots")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Merge {
    /// Fail, and name the columns in which the rows differ
    Refuse,
    /// The largest value
    Max,
    /// The smallest value
    Min,
    /// The mean
    Mean,
}

/// When a cancelled job stops.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CancelChoice {
    /// At once
    Immediate,
    /// After the layer that is running
    Layer,
    /// When it is complete
    RunToEnd,
}
