//! `forerun bench run`: compares methods, drafters and placements on prompts.

use crate::arguments::RunBenchArguments;
use crate::generate::{NO_MODEL_SO_PADDED, demonstration_pair, padded_pair};
use crate::plan::read_profile;
use crate::progress::{Task, Unit};
use crate::{note, progress};
use forerun::placement::default_cores;
use forerun::{
    LayerStrategy, Lookup, ModelSource, Request, SamplingOptions, Verification, VerificationChoice,
};
use forerun_bench::summary::{RunDescription, SYNTHETIC_PAIR};
use forerun_bench::{
    BenchError, Configuration, Engines, EnginesAndPeers, Journal, Models, Participant, Preset,
    Progress, Prompt, PromptStyle, Provenance, RunSchedule, Summary, Sweep, SweepFile, Unpredicted,
    configurations, participants, peer_comparison, predicted_speeds, report, suite,
};
use forerun_laboratory::synthetic_pair_label;
use forerun_sim::planning::HardwareProfile;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// The number of prompts of each category of the suite `default`, unless options say otherwise.
const DEFAULT_LIMIT: usize = 2;

/// Runs a comparison and writes its report.
pub(crate) fn run(arguments: &RunBenchArguments) -> anyhow::Result<ExitCode> {
    // All errors that do not need a model are found before a model is loaded.
    if arguments.repeats == 0 {
        return Err(BenchError::NoRepeats.into());
    }
    let request = request(arguments);
    let prompts = prompts(arguments)?;
    let file = arguments.sweep.as_deref().map(SweepFile::read).transpose()?.unwrap_or_default();
    let models = models(arguments, &file)?;
    let sweeps = sweeps(arguments, &file);
    let unequal =
        arguments.unequal_cores || arguments.preset.is_some_and(Preset::has_unequal_cores);
    for &temperature in sweeps.iter().flat_map(|sweep| &sweep.temperatures) {
        Request {
            sampling: SamplingOptions { temperature, ..request.sampling.clone() },
            ..request.clone()
        }
        .validate()?;
    }
    request.validate()?;
    let configurations = configurations(&models, &sweeps, unequal)?;
    for configuration in &configurations {
        request.validate_for(configuration.plan.method())?;
    }
    check_peers(&configurations, &file, &prompts)?;
    let participants = participants(&configurations, &file.peers)?;
    let predictions = match &arguments.profile {
        Some(file) => predictions(&read_profile(file)?, &configurations)?,
        None => Vec::new(),
    };
    let mut setting = setting(arguments, &models, &configurations);
    let identity = identity(arguments, &models, &configurations, &participants, &prompts);
    let session = Provenance::now(std::env::args());
    let mut journal = Journal::open(&arguments.out, &identity, session)?;

    let loader = progress::loader(arguments.offline, true);
    let engines = Engines::open(&configurations, request.clone(), arguments.prompts_as, loader)?;
    let (prompts, left_out) = engines.fitting(prompts)?;
    for prompt in &left_out {
        note(format_args!(
            "skipped, because it does not fit the context together with an answer: {prompt}"
        ));
    }
    if prompts.is_empty() {
        let reason = "none fits the model's context together with an answer; lower --max-tokens";
        return Err(BenchError::NoPrompts(reason).into());
    }
    let schedule = RunSchedule {
        repeats: arguments.repeats,
        warm_ups: arguments.warm_ups,
        compare_sampled: compares_sampled(arguments),
        request_flags: request_flags(arguments, &configurations),
        prompts_as_chats: engines.prompts_as_chats(),
    };
    if !journal.answers.is_empty() {
        note(format_args!("resuming after {} answers", journal.answers.len()));
    }
    let mut engines_and_peers = EnginesAndPeers::new(engines, &file.peers, &participants, unequal)?;
    let participants = engines_and_peers.participants().to_vec();
    let peers: Vec<_> =
        file.peers.iter().map(|spec| &spec.name).zip(engines_and_peers.peer_infos()).collect();
    if !peers.is_empty() {
        journal.set_peers(json!(peers))?;
    }
    for (spec, info) in file.peers.iter().zip(engines_and_peers.peer_infos()) {
        let peer = format!("{}; {}, {} threads", info.version, info.weights, info.threads);
        setting.insert(format!("peer {}", spec.name), peer);
    }
    let all = participants.len() * prompts.len() * schedule.repeats;
    let before = journal.answers.len() as u64;
    let mut task = Task::resumed("comparing", Unit::Pieces("answers"), before, all as u64);
    let on_progress = |Progress { done, configuration, prompt }: Progress<'_>| {
        task.message(format!("{configuration} | {prompt}"));
        task.update(done as u64);
    };
    forerun_bench::run(
        &participants,
        &prompts,
        &schedule,
        &mut engines_and_peers,
        &mut journal,
        on_progress,
    )?;
    drop(task);
    let gap = |baseline, id: &str, position, tokens| {
        let prompt = prompts.iter().find(|prompt| prompt.id == id)?;
        engines_and_peers.engines().gap(baseline, prompt, position, tokens)
    };
    let text_agreement = peer_comparison::text_agreement(&participants, &journal.answers, gap);
    let described = RunDescription {
        participants: &participants,
        prompts: &prompts,
        left_out: &left_out,
        repeats: arguments.repeats,
        compared: schedule.compare_sampled || temperatures(&configurations) == [0.0],
        setting: &setting,
        text_agreement: &text_agreement,
        predictions: &predictions,
    };
    let summary = Summary::of(&described, &journal.answers, &journal.sessions);
    report::write(&arguments.out, &summary)?;
    writeln!(std::io::stdout(), "{}", report::terminal_summary(&summary))?;
    note(format_args!("wrote {}", arguments.out.join("report.html").display()));
    match summary.refusal() {
        Some(refusal) => Err(anyhow::anyhow!(refusal)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Returns the predicted speeds. A note says why a configuration has none.
fn predictions(
    profile: &HardwareProfile,
    configurations: &[Configuration],
) -> anyhow::Result<Vec<Option<f64>>> {
    let speeds = predicted_speeds(profile, configurations)?;
    let noted = |(speed, configuration): (Result<f64, Unpredicted>, &Configuration)| {
        let reason = |reason: &Unpredicted| {
            note(format_args!("{} has no prediction: {reason}", configuration.name));
        };
        speed.inspect_err(reason).ok()
    };
    Ok(speeds.into_iter().zip(configurations).map(noted).collect())
}

/// Checks that the prompts and temperatures suit peers, which answer one turn and decode greedily.
fn check_peers(
    configurations: &[Configuration],
    file: &SweepFile,
    prompts: &[Prompt],
) -> anyhow::Result<()> {
    let Some(peer) = file.peers.first() else { return Ok(()) };
    let name = &peer.name;
    if temperatures(configurations) != [0.0] {
        anyhow::bail!("the peer {name:?} decodes greedily: leave --temperature at 0");
    }
    if let Some(prompt) = prompts.iter().find(|prompt| prompt.turns.len() > 1) {
        let id = &prompt.id;
        anyhow::bail!(
            "the prompt {id:?} has several turns, but the peer {name:?} answers only one: choose \
             suites of single prompts"
        );
    }
    Ok(())
}

/// Returns how drafts are verified above temperature 0. A seed is always given.
fn verification(arguments: &RunBenchArguments) -> Verification {
    match arguments.verify {
        VerificationChoice::Auto => Verification::Coupled,
        VerificationChoice::Always(verification) => verification,
    }
}

/// Returns whether sampled answers must equal those of autoregressive decoding, too.
fn compares_sampled(arguments: &RunBenchArguments) -> bool {
    verification(arguments) == Verification::Coupled
}

/// Returns the temperatures of all configurations, sorted and without duplicates.
fn temperatures(configurations: &[Configuration]) -> Vec<f32> {
    let mut temperatures: Vec<f32> =
        configurations.iter().map(|configuration| configuration.temperature).collect();
    temperatures.sort_by(f32::total_cmp);
    temperatures.dedup();
    temperatures
}

/// Returns the draft models of all configurations, without duplicates.
fn draft_models(configurations: &[Configuration]) -> Vec<&ModelSource> {
    let mut models = Vec::new();
    for model in configurations.iter().filter_map(|configuration| configuration.plan.draft_model())
    {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    models
}

/// Returns the request of all answers, without its temperature.
fn request(arguments: &RunBenchArguments) -> Request {
    Request {
        sampling: SamplingOptions {
            top_k: arguments.top_k,
            top_p: arguments.top_p,
            ..SamplingOptions::default()
        },
        max_tokens: arguments.max_tokens,
        seed: Some(arguments.seed),
        verification: arguments.verify,
        ignore_eos: arguments.ignore_eos,
        ..Request::default()
    }
}

/// Returns the options of `forerun generate` for the same request, except the temperature.
fn request_flags(arguments: &RunBenchArguments, configurations: &[Configuration]) -> String {
    let RunBenchArguments { max_tokens, top_k, top_p, seed, .. } = arguments;
    let mut flags = format!("--max-tokens {max_tokens} --seed {seed}");
    if temperatures(configurations) != [0.0] {
        // Only coupled answers are compared, and the seed makes them coupled.
        flags += &format!(" --top-k {top_k} --top-p {top_p}");
    }
    flags + if arguments.ignore_eos { " --ignore-eos" } else { "" }
}

/// Returns the number of prompts of each category, if it is limited.
fn limit(arguments: &RunBenchArguments) -> Option<usize> {
    let is_short = !arguments.full && arguments.suites.suite == ["default"];
    arguments.limit.or_else(|| is_short.then_some(DEFAULT_LIMIT))
}

fn prompts(arguments: &RunBenchArguments) -> Result<Vec<Prompt>, BenchError> {
    let prompts = arguments.suites.read()?;
    let prompts = match limit(arguments) {
        Some(count) => suite::limit(prompts, count),
        None => prompts,
    };
    match prompts.is_empty() {
        true => Err(BenchError::NoPrompts("the suites are empty, or --limit is 0")),
        false => Ok(prompts),
    }
}

/// Returns the checkpoints from the flags, else from the file. Without a target, these are the
/// demonstration pair.
fn models(arguments: &RunBenchArguments, file: &SweepFile) -> anyhow::Result<Models> {
    let target = arguments.model.get().or(file.model.as_ref()).cloned();
    let of_sweep = file.sweeps.iter().flat_map(|sweep| &sweep.draft_models);
    let mut all = common_draft_models(arguments, file).iter().chain(of_sweep);
    let drafter = common_draft_models(arguments, file).first().cloned();
    if let (None, Some(_)) = (&target, all.next()) {
        anyhow::bail!("a draft model was given without a target: add --model");
    }
    match target {
        Some(target) if drafter.is_some() || !matches!(target, ModelSource::Embedded(_)) => {
            Ok(Models { target, drafter, embedded: false })
        }
        _ => {
            if target.is_none() {
                note(NO_MODEL_SO_PADDED);
            }
            let [target, drafter] =
                if target.is_none() { padded_pair() } else { demonstration_pair() };
            let (target, drafter) = (target.into(), Some(drafter.into()));
            Ok(Models { target, drafter, embedded: true })
        }
    }
}

/// Returns the draft models of sweeps that name none: those of the flag, else those of the file.
fn common_draft_models<'a>(
    arguments: &'a RunBenchArguments,
    file: &'a SweepFile,
) -> &'a [ModelSource] {
    if arguments.draft_model.is_empty() { &file.draft_models } else { &arguments.draft_model }
}

/// Returns the sweeps of the file and of the preset, and one of the flags if there are flags or
/// nothing else. The flags' draft models, weight types and temperatures apply to all sweeps that
/// name none.
fn sweeps(arguments: &RunBenchArguments, file: &SweepFile) -> Vec<Sweep> {
    let flags = Sweep {
        methods: arguments.method.clone(),
        drafters: arguments.drafter.clone(),
        additional_drafters: arguments.also_draft.clone(),
        lookups: arguments.lookup.clone(),
        draft_tokens: arguments.draft_tokens.clone(),
        trees: arguments.tree.clone(),
        pearl: arguments.pearl.clone(),
        placements: arguments.placement.clone(),
        layers: {
            let parallel = arguments.lp.iter().copied().map(LayerStrategy::Parallel);
            parallel.chain(arguments.layer_groups.iter().cloned()).collect()
        },
        calibrations: arguments.calibration.clone(),
        ..Sweep::default()
    };
    let mut sweeps = file.sweeps.clone();
    sweeps.extend(arguments.preset.into_iter().flat_map(|preset| preset.sweeps(&default_cores())));
    if sweeps.is_empty() || flags != Sweep::default() {
        sweeps.push(flags);
    }
    let common = common_draft_models(arguments, file);
    let weight_types: Vec<_> = arguments.dtype.iter().copied().map(Some).collect();
    for sweep in &mut sweeps {
        if sweep.weight_types.is_empty() {
            sweep.weight_types.clone_from(&weight_types);
        }
        if sweep.temperatures.is_empty() {
            sweep.temperatures = match (&arguments.temperature[..], arguments.preset) {
                ([], Some(preset)) => preset.temperatures().to_vec(),
                (given, _) => given.to_vec(),
            };
        }
        // A single draft model is the default of a sweep anyway.
        if sweep.draft_models.is_empty() && common.len() > 1 {
            sweep.draft_models = common.to_vec();
        }
    }
    sweeps
}

/// Returns the name of a model in reports.
fn display_name(models: &Models, model: &ModelSource) -> String {
    if models.embedded {
        let is_padded = models.target == padded_pair()[0].into();
        let padded = if is_padded { ", padded to 133M and 5M parameters" } else { "" };
        return format!("the demonstration pair{padded}");
    }
    let label = model.path().and_then(synthetic_pair_label);
    let label = label.map_or(String::new(), |label| format!(" ({label})"));
    format!("{model}{label}")
}

/// Describes the comparison for the report, by label.
fn setting(
    arguments: &RunBenchArguments,
    models: &Models,
    configurations: &[Configuration],
) -> BTreeMap<String, String> {
    let paths = draft_models(configurations);
    let drafters: Vec<String> = paths.iter().map(|path| display_name(models, path)).collect();
    let filters = format!("top-k {}, top-p {}", arguments.top_k, arguments.top_p);
    let verification = match verification(arguments) {
        Verification::Coupled => "coupled",
        Verification::Block => "block",
        Verification::Rejection => "rejection",
    };
    let sampling = |temperature: f32| match temperature {
        0.0 => "greedy".into(),
        temperature => format!("temperature {temperature}, {filters}, {verification}"),
    };
    let sampling: Vec<String> = temperatures(configurations).into_iter().map(sampling).collect();
    let limit = limit(arguments).map_or(String::new(), |n| format!(", {n} of each category"));
    let ends = if arguments.ignore_eos { ", end-of-text tokens ignored" } else { "" };
    let style = match arguments.prompts_as {
        PromptStyle::Auto => "chat if the checkpoint has a template, else text",
        PromptStyle::Text => "text",
        PromptStyle::Chat => "chat",
    };
    let mut setting: BTreeMap<String, String> = [
        ("model", display_name(models, &models.target)),
        ("draft model", if paths.is_empty() { "none".into() } else { drafters.join(", ") }),
        ("suites", arguments.suites.suite.join(", ") + &limit),
        ("prompts as", style.into()),
        ("sampling", sampling.join("; ")),
        ("seed", arguments.seed.to_string()),
        ("tokens per answer", format!("at most {}{ends}", arguments.max_tokens)),
        ("repeats, warm-ups", format!("{}, {}", arguments.repeats, arguments.warm_ups)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let mut paths = std::iter::once(&models.target).chain(paths).filter_map(ModelSource::path);
    if let Some(label) = paths.find_map(synthetic_pair_label) {
        setting.insert(SYNTHETIC_PAIR.into(), label);
    }
    setting
}

/// Returns everything that answers depend on. Runs that differ in any of it cannot share a
/// directory.
fn identity(
    arguments: &RunBenchArguments,
    models: &Models,
    configurations: &[Configuration],
    participants: &[Participant],
    prompts: &[Prompt],
) -> serde_json::Value {
    let model = |model: &ModelSource| (display_name(models, model), files(model));
    let describe = |configuration: &Configuration| {
        let plan = &configuration.plan;
        let parts =
            (plan.method(), plan.drafter(), plan.shape(), plan.length(), plan.weight_type());
        let easyspec = plan.easyspec().map_or(String::new(), |easyspec| format!("{easyspec:?} "));
        let lookup = match plan.lookup() {
            Lookup::None => String::new(),
            lookup => format!("with {lookup} "),
        };
        let drafter =
            plan.draft_model().map(|model| display_name(models, model) + " ").unwrap_or_default();
        let also = plan.additional_drafters().iter().map(|drafter| format!("also {drafter} "));
        let drafter = drafter + &also.collect::<String>();
        let (temperature, placement) = (configuration.temperature, plan.placement());
        let name = &configuration.name;
        let pace = placement.pace().map_or(String::new(), |pace| format!(" {pace:?}"));
        format!("{name}: {parts:?} {drafter}{lookup}{easyspec}{placement}{pace} at {temperature}")
    };
    let peers = participants.iter().filter(|participant| participant.is_peer());
    let peer = |peer: &Participant| format!("{}: {:?} {}", peer.name, peer.peer, peer.flags);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "target": model(&models.target),
        "drafters": draft_models(configurations).into_iter().map(model).collect::<Vec<_>>(),
        "request": format!("{:?}", request(arguments)),
        "prompts_as": format!("{:?}", arguments.prompts_as),
        "repeats": arguments.repeats,
        "configurations": configurations.iter().map(describe).collect::<Vec<_>>(),
        "peers": peers.map(peer).collect::<Vec<_>>(),
        "prompts": prompts,
    })
}

/// Lists the files of a checkpoint with their sizes and, if they are on the disk, their
/// modification times, to detect files that changed under the same name.
fn files(model: &ModelSource) -> Vec<(String, u64, Option<Duration>)> {
    if let ModelSource::Embedded(model) = model {
        let files = model.files.iter();
        return files.map(|(name, text)| ((*name).to_owned(), text.len() as u64, None)).collect();
    }
    let Some(path) = model.path() else { return Vec::new() };
    let describe = |path: PathBuf| {
        let metadata = path.metadata().ok().filter(Metadata::is_file)?;
        let written = metadata.modified().ok();
        let since = written.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        Some((path.file_name()?.to_string_lossy().into_owned(), metadata.len(), since))
    };
    let mut files: Vec<_> = match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| describe(entry.path())).collect(),
        Err(_) => describe(path.to_owned()).into_iter().collect(),
    };
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_suite_is_shortened() {
        use crate::arguments::{Arguments, Bench, Command};
        use clap::Parser;
        let limit = |options: &[&str]| {
            let line = [&["forerun", "bench", "run"], options].concat();
            match Arguments::try_parse_from(line).map(|arguments| arguments.command) {
                Ok(Command::Bench(Bench::Run(arguments))) => Ok(limit(&arguments)),
                _ => Err(()),
            }
        };
        assert_eq!(limit(&[]), Ok(Some(DEFAULT_LIMIT)));
        assert_eq!(limit(&["--full"]), Ok(None));
        assert_eq!(limit(&["--limit", "5"]), Ok(Some(5)));
        assert_eq!(limit(&["--suite", "prompts.txt"]), Ok(None));
        assert_eq!(limit(&["--full", "--limit", "5"]), Err(()));
    }
}
