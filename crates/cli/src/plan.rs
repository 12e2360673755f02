//! `forerun plan`: which method, drafter, draft length, tree and placement is the fastest.

use crate::arguments::{EngineArguments, PlanArguments};
use crate::generate::{
    NO_MODEL_SO_PADDED, OUTPUT_FAILED, cannot_write, options, padded_pair, use_demonstration,
};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::progress::{self, Task, about};
use crate::{certify, doctor, note, text_file};
use anyhow::{Context, anyhow, bail};
use forerun::{Canceller, DraftTokens, Placement, Tree};
use forerun_bench::planning::{
    CheckOptions, Checked, Laboratory, MeasurementOptions, MeasuringProgress, PlanningError,
    Setting, SideBySide, check_drafts, median_error, median_noise, plan_file, plan_options,
    settings,
};
use forerun_bench::{Provenance, suite};
use forerun_output::OutputFile;
use forerun_sim::planning::{
    HardwareProfile, MethodTiming, PlannedDraft, Prediction, Source, rank,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The draft lengths of measured answers.
const MEASURED: [usize; 4] = [1, 4, 8, 16];
/// The draft lengths of predicted ones.
const PREDICTED: [usize; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];
/// The nodes of the trees of measured answers, and of predicted ones.
const MEASURED_TREES: [usize; 2] = [8, 32];
const PREDICTED_TREES: [usize; 5] = [4, 8, 16, 24, 32];
/// The number of prompts of the default suite.
const PROMPTS: usize = 4;

/// The ranking as JSON.
#[derive(Serialize)]
struct Report<'a> {
    /// Where the costs come from: `measured` or `estimated`.
    costs: String,
    hardware: &'a str,
    ranking: &'a [Prediction],
    /// How the best of the ranking compares with plain decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<SideBySide>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check<'a>>,
}

/// Predictions compared with measurements.
#[derive(Serialize)]
struct Check<'a> {
    median_error: f64,
    /// How much the configurations differ if they are measured again.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_noise: Option<f64>,
    /// The measured speed of the ranking's first, divided by that of the fastest configuration.
    first_of_best: f64,
    configurations: &'a [Checked],
}

/// What is known besides the ranking.
#[derive(Default)]
struct Evidence {
    /// Which combinations were measured, if not all.
    extent: String,
    /// How the best of the ranking compares with plain decoding.
    measured: Option<SideBySide>,
    /// All predictions, with measurements of the same drafts.
    checked: Option<Vec<Checked>>,
}

pub(crate) fn run(mut arguments: PlanArguments) -> anyhow::Result<ExitCode> {
    arguments.engine.refuse_adapters()?;
    let started = Instant::now();
    let drafts = predicted(&arguments.engine);
    if let Some(file) = arguments.hardware.take() {
        check_drafts(&options(&arguments.engine)?)?;
        let profile = read_profile(&file)?;
        let profile =
            limited(profile, &arguments.engine).with_context(|| file.display().to_string())?;
        let ranking = rank(&profile, &drafts)?;
        finish(&arguments, &profile, &ranking, &Evidence::default())?;
        return Ok(ExitCode::SUCCESS);
    }
    if use_demonstration(&mut arguments.engine, padded_pair())? {
        note(NO_MODEL_SO_PADDED);
    }
    let save = arguments.save_profile.as_deref();
    let save = save.map(|path| OutputFile::create(path).with_context(|| cannot_write(path)));
    let save = save.transpose()?;
    let canceller = Canceller::new();
    cancel_on_interrupt(&canceller)?;
    let mut laboratory = laboratory(&arguments, canceller.clone(), started)?;
    let is_limited = arguments.seconds > 0 && !arguments.check;
    if is_limited {
        let seconds = arguments.seconds;
        note(format_args!(
            "this takes up to {seconds} seconds, or as long as plain decoding and one method need; \
             {INTERRUPT}"
        ));
    }
    note_load();
    let all = laboratory.settings();
    let mut task = None;
    let profile = laboratory.measure(|progress| show(&mut task, all, is_limited, progress));
    drop(task);
    let profile = match profile {
        Err(error @ PlanningError::Stopped) => {
            note(error);
            return Ok(ExitCode::from(interrupted()));
        }
        profile => profile?,
    };
    let left_out = laboratory.left_out();
    let measured = all - left_out.len();
    if !left_out.is_empty() && is_limited && !canceller.is_cancelled() {
        let seconds = started.elapsed().as_secs_f64().max(arguments.seconds as f64);
        let seconds = seconds * all as f64 / measured.max(1) as f64;
        note(format_args!(
            "measured {measured} of {all} combinations of method, drafter and placement: \
             --seconds {} is expected to be enough for all",
            (seconds / 10.0).ceil() * 10.0
        ));
    }
    if let (Some(mut file), Some(path)) = (save, &arguments.save_profile) {
        let text = profile.to_toml(&origin());
        file.write_all(text.as_bytes())
            .and_then(|()| file.finish())
            .with_context(|| cannot_write(path))?;
        note(format_args!("wrote {}", path.display()));
    }
    let extent = extent(&profile, left_out, all);
    let ranking = rank(&profile, &drafts)?;
    let measured = side_by_side(&mut laboratory, &ranking)?;
    let was_interrupted = canceller.is_cancelled();
    let checked = (arguments.check && !was_interrupted).then(|| laboratory.checked(&ranking));
    finish(&arguments, &profile, &ranking, &Evidence { extent, measured, checked })?;
    Ok(match was_interrupted {
        true => ExitCode::from(interrupted()),
        false => ExitCode::SUCCESS,
    })
}

/// Measures the best of the ranking and plain decoding in turn, if that is possible.
fn side_by_side(
    laboratory: &mut Laboratory<'_>,
    ranking: &[Prediction],
) -> anyhow::Result<Option<SideBySide>> {
    let Some(best) = ranking.first().filter(|best| best.drafter.is_some()) else {
        return Ok(None);
    };
    let begin = || note(format_args!("measuring {} and plain decoding in turn", name(best)));
    match laboratory.side_by_side(best, begin) {
        Err(error @ PlanningError::ChangedText(_)) => Err(error.into()),
        Err(error) => {
            note(format_args!("the two could not be measured side by side: {error}"));
            Ok(None)
        }
        Ok(measured) => Ok(measured),
    }
}

/// Warns if other programs use the cores.
fn note_load() {
    if let Some((found, advice)) = doctor::load_advice() {
        note(format_args!("{found}: {advice}"));
    }
}

const INTERRUPT: &str = "Ctrl-C ends it with the best so far";

/// Says how many combinations were measured, and which methods were not, if some were left out.
fn extent(profile: &HardwareProfile, left_out: &[Setting], all: usize) -> String {
    let method = |setting: &Setting| setting.plan.method().to_string();
    let is_measured = |name: &String| profile.timings.iter().any(|timing| timing.method == *name);
    let methods: BTreeSet<_> =
        left_out.iter().map(method).filter(|name| !is_measured(name)).collect();
    let methods: Vec<_> = methods.into_iter().collect();
    let measured = all - left_out.len();
    match (left_out.is_empty(), methods.is_empty()) {
        (true, _) => String::new(),
        (_, true) => format!(" of {measured} of {all} combinations"),
        _ => format!(" of {measured} of {all} combinations, without {}", methods.join(", ")),
    }
}

/// Shows how far measurements are. If nothing else limits their time, the first line says how long
/// they are expected to take. Off a terminal, each of the `settings` has a line.
fn show(
    task: &mut Option<Task>,
    settings: usize,
    is_limited: bool,
    progress: MeasuringProgress<'_>,
) {
    // They are measured again in later rounds.
    if progress.done < settings && !std::io::stderr().is_terminal() {
        note(format_args!("measuring {}", progress.setting));
    }
    let MeasuringProgress { setting, done, all, left: Some(left) } = progress else { return };
    let task = task.get_or_insert_with(|| {
        if !is_limited {
            note(format_args!("this is expected to take {}; {INTERRUPT}", about(left)));
        }
        Task::estimated("measuring", "settings", all as u64)
    });
    task.update_estimated(done as u64, &setting.to_string(), left);
}

/// Reads a hardware profile.
pub(crate) fn read_profile(file: &Path) -> anyhow::Result<HardwareProfile> {
    let text = text_file::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    HardwareProfile::parse(&text).map_err(|reason| anyhow!("{}: {reason}", file.display()))
}

/// Returns the profile with plain decoding and those costs that the options allow.
fn limited(
    mut profile: HardwareProfile,
    options: &EngineArguments,
) -> anyhow::Result<HardwareProfile> {
    let EngineArguments { method, drafter, placement, tree, draft_tokens, .. } = options;
    let mut keep = |what: String, is_wanted: &dyn Fn(&MethodTiming) -> bool| {
        if !profile.timings.iter().any(is_wanted) {
            bail!("the profile has no costs of {what}");
        }
        profile.timings.retain(|timing| timing.drafter.is_none() || is_wanted(timing));
        Ok(())
    };
    if let Some(method) = method.map(|method| method.to_string()) {
        keep(format!("--method {method}"), &|timing| timing.method == method)?;
    }
    if let Some(drafter) = drafter.map(|drafter| drafter.to_string()) {
        keep(format!("--drafter {drafter}"), &|timing| timing.drafter.as_ref() == Some(&drafter))?;
    }
    if let Some(placement) = placement.as_ref().map(ToString::to_string) {
        let is_on_it = |timing: &MethodTiming| timing.placement.as_ref() == Some(&placement);
        keep(format!("--placement {placement}"), &is_on_it)?;
    }
    match (tree, draft_tokens) {
        (Tree::None, DraftTokens::Fixed(_)) => keep("chains".into(), &|timing| !timing.tree)?,
        (Tree::None, _) => {}
        (tree, _) => keep(format!("--tree {tree}"), &|timing| timing.tree)?,
    }
    Ok(profile)
}

/// Returns the drafts that are predicted.
fn predicted(options: &EngineArguments) -> Vec<PlannedDraft> {
    match (&options.tree, options.draft_tokens) {
        (Tree::None, DraftTokens::Fixed(length)) => vec![PlannedDraft::Chain(length)],
        (Tree::Auto, _) => vec![PlannedDraft::AutoTree],
        (Tree::Ranked { nodes }, _) => vec![PlannedDraft::Tree(*nodes)],
        _ => all(&PREDICTED, &PREDICTED_TREES),
    }
}

/// Returns the drafts that are measured. What costs depend on is only known of given sizes.
fn measured(options: &EngineArguments) -> Vec<PlannedDraft> {
    match (&options.tree, options.draft_tokens) {
        (Tree::Auto, _) => all(&[], &MEASURED_TREES),
        (Tree::None, DraftTokens::Fixed(_)) | (Tree::Ranked { .. }, _) => predicted(options),
        _ => all(&MEASURED, &MEASURED_TREES),
    }
}

/// Returns drafts of these sizes, and of sizes that are chosen while decoding.
fn all(lengths: &[usize], trees: &[usize]) -> Vec<PlannedDraft> {
    let chains = lengths.iter().map(|&length| PlannedDraft::Chain(length));
    let trees = trees.iter().map(|&nodes| PlannedDraft::Tree(nodes));
    let auto = [PlannedDraft::AutoChain, PlannedDraft::AutoTree];
    chains.chain(trees).chain(auto).collect()
}

fn laboratory(
    arguments: &PlanArguments,
    canceller: Canceller,
    started: Instant,
) -> anyhow::Result<Laboratory<'static>> {
    let prompts = match &arguments.prompts {
        Some(file) => certify::read_prompts(file)?,
        None => {
            let prompts = suite::limit(suite::read(&["default".into()], None)?, 1);
            prompts.into_iter().take(PROMPTS).map(|prompt| prompt.turns.join("\n")).collect()
        }
    };
    let provenance = Provenance::now(std::env::args());
    let pace = arguments.engine.placement.as_ref().and_then(Placement::pace);
    let paced = pace.map_or(String::new(), |pace| format!(", paced as {}", pace.name));
    let measurement = MeasurementOptions {
        prompts,
        answer_tokens: arguments.max_tokens,
        drafts: measured(&arguments.engine),
        time: (arguments.seconds > 0)
            .then(|| Duration::from_secs(arguments.seconds).saturating_sub(started.elapsed())),
        check: arguments.check.then(|| CheckOptions {
            drafts: predicted(&arguments.engine),
            rounds: arguments.check_rounds,
        }),
        hardware: format!(
            "{} cores of {}, {}{paced}",
            provenance.cores, provenance.processor, provenance.instruction_set
        ),
    };
    let settings = settings(&options(&arguments.engine)?)?;
    let loader = progress::loader(arguments.engine.offline, true);
    Ok(Laboratory::new(settings, measurement, loader, canceller))
}

/// Describes the origin of measurements.
fn origin() -> String {
    let from = Provenance::now(std::env::args());
    format!(
        "Measured by forerun {} in the rhythm of real answers, lower quartiles.\n{}\n{}",
        from.version, from.command, from.started
    )
}

/// Writes the plan file, and prints the ranking.
fn finish(
    arguments: &PlanArguments,
    profile: &HardwareProfile,
    ranking: &[Prediction],
    evidence: &Evidence,
) -> anyhow::Result<()> {
    let Some(best) = chosen(ranking, evidence) else { bail!("there is no configuration to plan") };
    let verdict = verdict(profile, ranking, best, evidence);
    let comment = format!("{}\n{} costs of {}", verdict.sentence, profile.source, profile.hardware);
    let text = plan_file(profile, best, &comment);
    let failed = || cannot_write(&arguments.out);
    let mut out = OutputFile::create(&arguments.out).with_context(failed)?;
    out.write_all(text.as_bytes()).and_then(|()| out.finish()).with_context(failed)?;
    let check = evidence.checked.as_ref().map(|configurations| Check {
        median_error: median_error(configurations),
        median_noise: median_noise(configurations),
        first_of_best: first_of_best(configurations),
        configurations,
    });
    let mut output = std::io::stdout().lock();
    if arguments.json {
        let (costs, hardware) = (profile.source.to_string(), &*profile.hardware);
        let measured = evidence.measured;
        let report = Report { costs, hardware, ranking, measured, check };
        writeln!(output, "{}", serde_json::to_string_pretty(&report)?).context(OUTPUT_FAILED)?;
    } else {
        let page = page(profile, ranking, check.as_ref(), arguments.top);
        let Verdict { sentence, command } = verdict;
        write!(output, "{page}\n{sentence}\n\n    {command}\n").context(OUTPUT_FAILED)?;
    }
    note(format_args!("wrote {}: use it with --config", Path::display(&arguments.out)));
    Ok(())
}

/// The speedup from which drafting pays for sure.
const LEAST_GAIN: f64 = 1.03;

/// Returns the ranking's first, or plain decoding if that is not clearly slower.
fn chosen<'a>(ranking: &'a [Prediction], evidence: &Evidence) -> Option<&'a Prediction> {
    let best = ranking.first()?;
    let gain = evidence.measured.map_or(best.speedup, |measured| measured.speedup);
    match gain < LEAST_GAIN {
        true => ranking.iter().find(|found| found.drafter.is_none()).or(Some(best)),
        false => Some(best),
    }
}

/// Whether drafting pays.
struct Verdict {
    sentence: String,
    /// The command with the chosen options.
    command: String,
}

fn verdict(
    profile: &HardwareProfile,
    ranking: &[Prediction],
    chosen: &Prediction,
    evidence: &Evidence,
) -> Verdict {
    let plain = ranking.iter().find(|found| found.drafter.is_none());
    let predicted = plain.map_or(0.0, |plain| plain.tokens_per_second);
    let next = ranking.iter().find(|found| found.drafter.is_some());
    let extent = &evidence.extent;
    let sentence = match (evidence.measured, next) {
        (Some(measured), Some(next)) => {
            let answer = if chosen.drafter.is_some() { "Yes" } else { "No" };
            let SideBySide { speedup, least, most, pairs, plain_tokens_per_second: plain } =
                measured;
            let spread = match pairs {
                1 => "in one pair of answers, which says little about the spread".to_owned(),
                _ => format!("{least:.2} to {most:.2} times in {pairs} pairs of answers"),
            };
            format!(
                "{answer}: {} is {speedup:.2} times as fast as plain decoding ({} against {} tokens \
                 a second), measured side by side: {spread}. The prediction was {:.2}, from {} \
                 costs{extent}.",
                name(next),
                speed(plain * speedup),
                speed(plain),
                next.speedup,
                profile.source
            )
        }
        (None, Some(next)) if chosen.drafter.is_some() => format!(
            "Probably: {} is predicted to be {:.2} times as fast as plain decoding ({} against {} \
             tokens a second), from {} costs{extent}. The two were not measured side by side.",
            name(next),
            next.speedup,
            speed(next.tokens_per_second),
            speed(predicted),
            profile.source
        ),
        (None, Some(next)) => format!(
            "No: nothing is predicted to be clearly faster than plain decoding ({} tokens a \
             second), from {} costs{extent}. Next is {}, with {}: {}.",
            speed(predicted),
            profile.source,
            name(next),
            speed(next.tokens_per_second),
            next.reason
        ),
        (_, None) => format!(
            "No: plain decoding is fastest here ({} tokens a second). Nothing was drafted.",
            speed(predicted)
        ),
    };
    let flags = flags(&plan_options(profile, chosen));
    Verdict { sentence, command: format!("forerun generate{flags} --prompt \"Once upon a time\"") }
}

/// Returns a speed in whole tokens per second; a slow one has a decimal.
fn speed(tokens_per_second: f64) -> String {
    match tokens_per_second < 10.0 {
        true => format!("{tokens_per_second:.1}"),
        false => format!("{tokens_per_second:.0}"),
    }
}

/// Returns options as a shell takes them, each with a space before it.
fn flags<'a>(options: impl IntoIterator<Item = &'a (&'static str, Option<String>)>) -> String {
    let is_plain = |text: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=+@".contains(c);
        !text.is_empty() && text.chars().all(is_plain)
    };
    let flag = |(name, value): &(&str, Option<String>)| match value {
        Some(value) if is_plain(value) => format!(" --{name} {value}"),
        Some(value) => format!(" --{name} '{}'", value.replace('\'', r"'\''")),
        None => format!(" --{name}"),
    };
    options.into_iter().map(flag).collect()
}

/// Returns the measured speed of the first configuration, divided by the fastest one's.
fn first_of_best(checked: &[Checked]) -> f64 {
    let speeds = || checked.iter().map(|checked| checked.measured_tokens_per_second);
    speeds().next().unwrap_or(0.0) / speeds().fold(f64::MIN_POSITIVE, f64::max)
}

/// Returns the ranking as text: the first `top`, and the best of each method and drafter after
/// them.
fn page(
    profile: &HardwareProfile,
    ranking: &[Prediction],
    check: Option<&Check<'_>>,
    top: usize,
) -> String {
    let mut page = format!(
        "Predicted speeds (simulated answers of {} tokens on {} costs of {}): {} configurations\n\n",
        profile.answer_tokens,
        profile.source,
        profile.hardware,
        ranking.len()
    );
    page += match check {
        Some(_) => "tokens/s | measured |  error | × plain | configuration: reason\n",
        None => "tokens/s | × plain | configuration: reason\n",
    };
    let mut seen = BTreeSet::new();
    for (index, prediction) in ranking.iter().enumerate() {
        let kind = (&prediction.method, &prediction.drafter, &prediction.placement);
        let is_best = seen.insert(kind);
        if index >= top && !is_best && check.is_none() {
            continue;
        }
        page += &format!("{:>8.1} | ", prediction.tokens_per_second);
        if let Some(checked) = check.and_then(|check| check.configurations.get(index)) {
            let (speed, error) = (checked.measured_tokens_per_second, checked.error() * 100.0);
            page += &format!("{speed:>8.1} | {error:>+4.1} % | ");
        }
        let (speedup, reason) = (prediction.speedup, &prediction.reason);
        page += &format!("{speedup:>7.2} | {}: {reason}\n", name(prediction));
    }
    if let Some(check) = check {
        page += &format!(
            "\nmedian error {:.1} % over {} configurations; the first has {:.1} % of the speed of the fastest\n",
            check.median_error * 100.0,
            check.configurations.len(),
            check.first_of_best * 100.0
        );
        if let Some(noise) = check.median_noise {
            let percent = noise * 100.0;
            page +=
                &format!("measured again, a configuration differs by {percent:.1} % (median)\n");
        }
    }
    if profile.source == Source::Estimated {
        page += "\nThe costs are estimated: measure on the hardware before you rely on them.\n";
    }
    page
}

fn name(prediction: &Prediction) -> String {
    let mut name = prediction.method.clone();
    if let Some(drafter) = &prediction.drafter {
        name += &format!(", {drafter}, {}", prediction.draft);
    }
    match &prediction.placement {
        Some(placement) => name + ", " + placement,
        None => name,
    }
}
