//! `forerun bench run`: methods compared on prompts.

use crate::arguments::values::{layer_groups, only_weight_type};
use crate::{note, progress};
use clap::Args;
use forerun::{
    CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Method, PearlOptions, Request,
    Tree, VerificationChoice, WeightType, cores_within_quota, synthetic_pair_label,
};
use forerun_bench::summary::{Described, SYNTHETIC_PAIR};
use forerun_bench::{
    BenchError, Configuration, Contestant, Engines, Field, Journal, Models, Preset, Progress,
    Prompt, PromptStyle, Provenance, RunSchedule, Summary, Sweep, SweepFile, configurations,
    contestants, report, suite, versus,
};
use forerun_models::DemonstrationPair;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Options of `forerun bench run`.
#[derive(Args, Debug)]
pub(crate) struct RunBenchArguments {
    /// The target: a Hugging Face directory, a llama2.c file, or a hub id; without it, a small
    /// random pair
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,

    /// The drafters, models or what was made for the target: each is compared, by the drafters that it
    /// is made for
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    draft_model: Vec<PathBuf>,

    /// Take hub models from the cache only
    #[arg(long)]
    offline: bool,

    /// Prompts: default, spec-bench, humaneval, gsm8k, mbpp, mgsm, or files (.jsonl with "prompt" or
    /// "turns", .jsonl.gz, .tsv; else plain text, prompts parted by blank lines)
    #[arg(long, value_name = "SUITES", value_delimiter = ',', default_value = "default")]
    suite: Vec<String>,

    /// The folder of the suites' files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Take N prompts of each category, evenly chosen
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Put prompts as text, as chat, or auto: chat where the checkpoint ships a template; prompts of
    /// several turns always are chats
    #[arg(long, value_name = "STYLE", default_value = "auto")]
    prompts_as: PromptStyle,

    /// Read configurations from a TOML file: tables "sweep" with method, drafter, draft-model,
    /// draft-tokens, tree, pearl, placement, dtype, temperature, lp, layer-groups, calibration, each a
    /// value or a list; model and draft-model before them; tables "peer" for other engines, as
    /// bench/peers makes them
    #[arg(long, value_name = "FILE")]
    sweep: Option<PathBuf>,

    /// Compare what a paper compares: easyspec-ladder (plain decoding on one core, on all; then
    /// speculation, trees, layers in parallel; at temperature 0 and 0.8), easyspec-sweep (layers at a
    /// time × width × calibration), easyspec-variance (from prompt to prompt)
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,

    /// Methods to compare with autoregressive, which always is [default: speculative]
    #[arg(long, value_name = "METHODS", value_delimiter = ',')]
    method: Vec<Method>,

    /// Drafters: model, easyspec, ouroboros, prompt-lookup, lookahead, medusa, hydra, eagle, parallel
    /// [default: what the draft models are made for]
    #[arg(long, value_name = "DRAFTERS", value_delimiter = ',')]
    drafter: Vec<DrafterKind>,

    /// With the drafter easyspec, layers that are computed at the same time [default: 4]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    lp: Vec<usize>,

    /// With the drafter easyspec, which layers, as in generate; may be given several times, beside
    /// --lp
    #[arg(long, value_name = "GROUPS|@FILE", value_parser = layer_groups)]
    layer_groups: Vec<LayerStrategy>,

    /// With the drafter easyspec, when its cache is made exact: every-round, on-mismatch,
    /// prefill-only, never [default: every-round]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    calibration: Vec<CalibrationPolicy>,

    /// Tokens drafted in a row: numbers, auto, assisted [default: auto]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    draft_tokens: Vec<DraftTokens>,

    /// Shapes of drafts, as in generate; may be given several times [default: none]
    #[arg(long, value_name = "TREE")]
    tree: Vec<Tree>,

    /// What of PEARL is used, as in generate; may be given several times [default: eager]
    #[arg(long, value_name = "OPTIONS")]
    pearl: Vec<PearlOptions>,

    /// Which cores do what; may be given several times. Where no model drafts, the target has all
    /// of these cores [default: as in generate]
    #[arg(long, value_name = "PLACEMENT")]
    placement: Vec<String>,

    /// Types of weights, each compared with its own autoregressive decoding [default: the
    /// checkpoint's own]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_parser = only_weight_type)]
    dtype: Vec<WeightType>,

    /// Compare configurations that use different numbers of cores, too
    #[arg(long)]
    unequal_cores: bool,

    /// Answers of each configuration to each prompt
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,

    /// Prompts that each configuration answers first, without being measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    warm_ups: usize,

    /// Tokens of an answer at the most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    max_tokens: usize,

    /// Temperatures, each compared with its own autoregressive decoding; 0 always takes the most
    /// probable token [default: 0, or the preset's]
    #[arg(long, value_name = "T", value_delimiter = ',')]
    temperature: Vec<f32>,

    /// Sample among the K most probable tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,

    /// Sample among the most probable tokens that together reach this mass
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,

    /// The seed of sampled text, the same in every repeat
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// How drafts are verified above temperature 0: coupled (every answer is compared), rejection
    /// (answers are other texts, and are not), auto (coupled)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    verify: VerificationChoice,

    /// Go on behind the model's end of text, so that all answers have the same length
    #[arg(long)]
    ignore_eos: bool,

    /// The folder for answers.jsonl, summary.json, report.md and report.html; a run that was
    /// interrupted goes on there
    #[arg(long, value_name = "DIR", default_value = "forerun-bench")]
    out: PathBuf,
}

/// Runs a comparison and writes its report.
pub(crate) fn run(arguments: &RunBenchArguments) -> anyhow::Result<ExitCode> {
    // Whatever can be refused is refused before a model is loaded.
    if arguments.repeats == 0 {
        return Err(BenchError::NoRepeats.into());
    }
    let request = request(arguments);
    let prompts = prompts(arguments)?;
    let file = arguments.sweep.as_deref().map(SweepFile::read).transpose()?.unwrap_or_default();
    let (models, _pair) = models(arguments, &file)?;
    let sweeps = sweeps(arguments, &file);
    let unequal =
        arguments.unequal_cores || arguments.preset.is_some_and(Preset::has_unequal_cores);
    for &temperature in sweeps.iter().flat_map(|sweep| &sweep.temperatures) {
        Request { temperature, ..request.clone() }.validate()?;
    }
    request.validate()?;
    let configurations = configurations(&models, &sweeps, unequal)?;
    check_peers(&configurations, &file, &prompts)?;
    let contestants = contestants(&configurations, &file.peers)?;
    let mut setting = setting(arguments, &models, &configurations);
    let identity = identity(arguments, &models, &configurations, &contestants, &prompts);
    let session = Provenance::now(std::env::args());
    let mut journal = Journal::open(&arguments.out, &identity, session)?;

    let loader = progress::loader(arguments.offline, true);
    let engines = Engines::open(&configurations, request.clone(), arguments.prompts_as, loader)?;
    let (prompts, left_out) = engines.fitting(prompts)?;
    for prompt in &left_out {
        note(format_args!("left out, since it does not fit the context with an answer: {prompt}"));
    }
    if prompts.is_empty() {
        let reason = "none fits the model's context with an answer; lower --max-tokens";
        return Err(BenchError::NoPrompts(reason).into());
    }
    let schedule = RunSchedule {
        repeats: arguments.repeats,
        warm_ups: arguments.warm_ups,
        compare_sampled: compares_sampled(arguments),
        request_flags: request_flags(arguments, &configurations),
        chats: engines.chats(),
    };
    if !journal.answers.is_empty() {
        note(format_args!("going on behind {} answers", journal.answers.len()));
    }
    let mut field = Field::new(engines, &file.peers, &contestants, unequal)?;
    let contestants = field.contestants().to_vec();
    let peers: Vec<_> = file.peers.iter().map(|spec| &spec.name).zip(field.hellos()).collect();
    if !peers.is_empty() {
        journal.set_peers(json!(peers))?;
    }
    for (spec, hello) in file.peers.iter().zip(field.hellos()) {
        let told = format!("{}; {}, {} threads", hello.version, hello.weights, hello.threads);
        setting.insert(format!("peer {}", spec.name), told);
    }
    let mut line = ProgressLine::new();
    let shown = |progress: Progress<'_>| line.show(&progress);
    forerun_bench::run(&contestants, &prompts, &schedule, &mut field, &mut journal, shown)?;
    let gap = |baseline, id: &str, position, tokens| {
        let prompt = prompts.iter().find(|prompt| prompt.id == id)?;
        field.engines().gap(baseline, prompt, position, tokens)
    };
    let same_text = versus::same_text(&contestants, &journal.answers, gap);
    let described = Described {
        contestants: &contestants,
        prompts: &prompts,
        left_out: &left_out,
        repeats: arguments.repeats,
        compared: schedule.compare_sampled || temperatures(&configurations) == [0.0],
        setting: &setting,
        same_text: &same_text,
    };
    let summary = Summary::of(&described, &journal.answers, &journal.sessions);
    report::write(&arguments.out, &summary)?;
    writeln!(std::io::stdout(), "{}", report::short(&summary))?;
    note(format_args!("written: {}", arguments.out.join("report.html").display()));
    Ok(ExitCode::SUCCESS)
}

/// Peers answer one turn, greedily.
fn check_peers(
    configurations: &[Configuration],
    file: &SweepFile,
    prompts: &[Prompt],
) -> anyhow::Result<()> {
    let Some(peer) = file.peers.first() else { return Ok(()) };
    let name = &peer.name;
    if temperatures(configurations) != [0.0] {
        anyhow::bail!("the peer {name:?} answers greedily: leave --temperature at 0");
    }
    if let Some(prompt) = prompts.iter().find(|prompt| prompt.turns.len() > 1) {
        let id = &prompt.id;
        anyhow::bail!(
            "the prompt {id:?} has several turns, but the peer {name:?} answers one: choose \
                       suites of single prompts"
        );
    }
    Ok(())
}

/// Whether answers above temperature 0, too, must be autoregressive decoding's: a seed is always given,
/// so verification is coupled unless rejection was asked for.
fn compares_sampled(arguments: &RunBenchArguments) -> bool {
    arguments.verify != VerificationChoice::Always(forerun::Verification::Rejection)
}

/// The temperatures that are compared, each once.
fn temperatures(configurations: &[Configuration]) -> Vec<f32> {
    let mut temperatures: Vec<f32> = configurations.iter().map(|own| own.temperature).collect();
    temperatures.sort_by(f32::total_cmp);
    temperatures.dedup();
    temperatures
}

/// The checkpoints that are drafted with, each once.
fn draft_models(configurations: &[Configuration]) -> Vec<&Path> {
    let mut paths = Vec::new();
    for path in configurations.iter().filter_map(|own| own.plan.draft_model()) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// What all answers are asked with but for their temperature.
fn request(arguments: &RunBenchArguments) -> Request {
    Request {
        max_tokens: arguments.max_tokens,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        seed: Some(arguments.seed),
        verification: arguments.verify,
        ignore_eos: arguments.ignore_eos,
        ..Request::default()
    }
}

/// The options of `forerun generate` for the same request, beside the temperature.
fn request_flags(arguments: &RunBenchArguments, configurations: &[Configuration]) -> String {
    let RunBenchArguments { max_tokens, top_k, top_p, seed, .. } = arguments;
    let mut flags = format!("--max-tokens {max_tokens} --seed {seed}");
    if temperatures(configurations) != [0.0] {
        // Only coupled answers are compared.
        flags += &format!(" --top-k {top_k} --top-p {top_p} --verify coupled");
    }
    flags + if arguments.ignore_eos { " --ignore-eos" } else { "" }
}

fn prompts(arguments: &RunBenchArguments) -> Result<Vec<Prompt>, BenchError> {
    let prompts = suite::read(&arguments.suite, arguments.data.as_deref())?;
    let prompts = match arguments.limit {
        Some(count) => suite::limit(prompts, count),
        None => prompts,
    };
    match prompts.is_empty() {
        true => Err(BenchError::NoPrompts("the suites are empty, or --limit is 0")),
        false => Ok(prompts),
    }
}

/// The checkpoints, flags before the file; without any, the demonstration pair.
fn models(
    arguments: &RunBenchArguments,
    file: &SweepFile,
) -> anyhow::Result<(Models, Option<DemonstrationPair>)> {
    let target = arguments.model.clone().or_else(|| file.model.clone());
    let of_sweep = file.sweeps.iter().flat_map(|sweep| &sweep.draft_models);
    let mut all = common_draft_models(arguments, file).iter().chain(of_sweep);
    let drafter = common_draft_models(arguments, file).first().cloned();
    if let (None, Some(_)) = (&target, all.next()) {
        anyhow::bail!("a draft model was given without --model: name the target");
    }
    match (target, drafter) {
        (Some(target), drafter) => Ok((Models { target, drafter, embedded: false }, None)),
        (None, _) => {
            note(
                "no --model given: using the demonstration pair, small models that were trained on old novels",
            );
            let pair = DemonstrationPair::unpack()?;
            let drafter = Some(pair.drafter());
            Ok((Models { target: pair.target(), drafter, embedded: true }, Some(pair)))
        }
    }
}

/// The draft models of sweeps that name none: the flag's, else the file's.
fn common_draft_models<'a>(arguments: &'a RunBenchArguments, file: &'a SweepFile) -> &'a [PathBuf] {
    if arguments.draft_model.is_empty() { &file.draft_models } else { &arguments.draft_model }
}

/// The file's sweeps, and that of the flags where there are flags or nothing else. Draft models and
/// temperatures of the flags are those of all sweeps that name none.
fn sweeps(arguments: &RunBenchArguments, file: &SweepFile) -> Vec<Sweep> {
    let flags = Sweep {
        methods: arguments.method.clone(),
        drafters: arguments.drafter.clone(),
        draft_tokens: arguments.draft_tokens.clone(),
        trees: arguments.tree.clone(),
        pearl: arguments.pearl.clone(),
        placements: arguments.placement.clone(),
        weight_types: arguments.dtype.iter().copied().map(Some).collect(),
        layers: {
            let parallel = arguments.lp.iter().copied().map(LayerStrategy::Parallel);
            parallel.chain(arguments.layer_groups.iter().cloned()).collect()
        },
        calibrations: arguments.calibration.clone(),
        ..Sweep::default()
    };
    let mut sweeps = file.sweeps.clone();
    sweeps.extend(arguments.preset.into_iter().flat_map(|own| own.sweeps(&cores_within_quota())));
    if sweeps.is_empty() || flags != Sweep::default() {
        sweeps.push(flags);
    }
    let common = common_draft_models(arguments, file);
    for sweep in &mut sweeps {
        if sweep.temperatures.is_empty() {
            sweep.temperatures = match (&arguments.temperature[..], arguments.preset) {
                ([], Some(preset)) => preset.temperatures().to_vec(),
                (given, _) => given.to_vec(),
            };
        }
        // A single one is what a sweep has by itself.
        if sweep.draft_models.is_empty() && common.len() > 1 {
            sweep.draft_models = common.to_vec();
        }
    }
    sweeps
}

/// What a model is called where numbers are told.
fn called(models: &Models, path: &Path) -> String {
    if models.embedded {
        return "the demonstration pair".into();
    }
    let made = synthetic_pair_label(path).map_or(String::new(), |made| format!(" ({made})"));
    format!("{}{made}", path.display())
}

/// What was compared, in words.
fn setting(
    arguments: &RunBenchArguments,
    models: &Models,
    configurations: &[Configuration],
) -> BTreeMap<String, String> {
    let paths = draft_models(configurations);
    let drafters: Vec<String> = paths.iter().map(|path| called(models, path)).collect();
    let filters = format!("top-k {}, top-p {}", arguments.top_k, arguments.top_p);
    let verification = if compares_sampled(arguments) { "coupled" } else { "rejection" };
    let sampling = |temperature: f32| match temperature {
        0.0 => "greedy".into(),
        temperature => format!("temperature {temperature}, {filters}, {verification}"),
    };
    let sampling: Vec<String> = temperatures(configurations).into_iter().map(sampling).collect();
    let limit = arguments.limit.map_or(String::new(), |n| format!(", {n} of each category"));
    let ends = if arguments.ignore_eos { ", ends of text ignored" } else { "" };
    let style = match arguments.prompts_as {
        PromptStyle::Auto => "chat where the checkpoint has a template, else text",
        PromptStyle::Text => "text",
        PromptStyle::Chat => "chat",
    };
    let mut setting: BTreeMap<String, String> = [
        ("model", called(models, &models.target)),
        ("draft model", if paths.is_empty() { "none".into() } else { drafters.join(", ") }),
        ("suites", arguments.suite.join(", ") + &limit),
        ("prompts as", style.into()),
        ("sampling", sampling.join("; ")),
        ("seed", arguments.seed.to_string()),
        ("tokens an answer", format!("at most {}{ends}", arguments.max_tokens)),
        ("repeats, warm-ups", format!("{}, {}", arguments.repeats, arguments.warm_ups)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let mut paths = std::iter::once(models.target.as_path()).chain(paths);
    if let Some(made) = paths.find_map(synthetic_pair_label) {
        setting.insert(SYNTHETIC_PAIR.into(), made);
    }
    setting
}

/// All that makes answers what they are: runs that differ in any of it do not share a folder.
fn identity(
    arguments: &RunBenchArguments,
    models: &Models,
    configurations: &[Configuration],
    contestants: &[Contestant],
    prompts: &[Prompt],
) -> serde_json::Value {
    let model = |path: &Path| (called(models, path), files(path, !models.embedded));
    let configuration = |own: &Configuration| {
        let plan = &own.plan;
        let parts =
            (plan.method(), plan.drafter(), plan.shape(), plan.length(), plan.weight_type());
        let easyspec = plan.easyspec().map_or(String::new(), |own| format!("{own:?} "));
        // The demonstration pair lies elsewhere each time.
        let drafter = plan.draft_model().map(|path| called(models, path) + " ").unwrap_or_default();
        let (temperature, placement) = (own.temperature, plan.placement());
        format!("{}: {parts:?} {drafter}{easyspec}{placement} at {temperature}", own.name)
    };
    let peer = |own: &Contestant| format!("{}: {:?} {}", own.name, own.peer, own.flags);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "target": model(&models.target),
        "drafters": draft_models(configurations).into_iter().map(model).collect::<Vec<_>>(),
        "request": format!("{:?}", request(arguments)),
        "prompts_as": format!("{:?}", arguments.prompts_as),
        "repeats": arguments.repeats,
        "configurations": configurations.iter().map(configuration).collect::<Vec<_>>(),
        "peers": contestants.iter().filter(|own| own.is_peer()).map(peer).collect::<Vec<_>>(),
        "prompts": prompts,
    })
}

/// The files of a checkpoint, with their sizes and, if they are `dated`, when they were written last: what
/// tells those that were changed under one name. The demonstration pair is unpacked anew each time.
fn files(path: &Path, dated: bool) -> Vec<(String, u64, Option<Duration>)> {
    let told = |path: PathBuf| {
        let metadata = path.metadata().ok().filter(Metadata::is_file)?;
        let written = metadata.modified().ok().filter(|_| dated);
        let since = written.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        Some((path.file_name()?.to_string_lossy().into_owned(), metadata.len(), since))
    };
    let mut files: Vec<_> = match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| told(entry.path())).collect(),
        Err(_) => told(path.to_owned()).into_iter().collect(),
    };
    files.sort_unstable();
    files
}

/// A line on standard error: rewritten on a terminal, else a new one every half minute.
struct ProgressLine {
    terminal: bool,
    shown: Instant,
}

impl ProgressLine {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), shown: Instant::now() }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        let Progress { done, total, left, configuration, prompt } = progress;
        let left = left.map_or(String::new(), |left| format!(", {} left", duration(left)));
        let line = format!("{done} of {total} answers{left} | {configuration} | {prompt}");
        if self.terminal {
            // The line is cleared at the end. A closed standard error is no reason to fail.
            let line = if done < total { line } else { String::new() };
            drop(write!(std::io::stderr(), "\r\x1b[K{line}"));
        } else if self.shown.elapsed() >= Duration::from_secs(30) {
            self.shown = Instant::now();
            note(line);
        }
    }
}

/// `1 h 05 min`, `3 min 20 s`, `12 s`.
fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 3600.. => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        seconds @ 60.. => format!("{} min {:02} s", seconds / 60, seconds % 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shown = [0, 59, 200, 3900].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0 s", "59 s", "3 min 20 s", "1 h 05 min"]);
    }
}
