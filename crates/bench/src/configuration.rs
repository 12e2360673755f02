//! Configurations: validated plans with names, each with the plain decoding that it is compared with.

use crate::choice::{Choice, cores_in, draft_tokens_text};
use crate::label::Labels;
use crate::layer_point::LayerPoint;
use crate::provenance::quoted;
use crate::{BenchError, Sweep};
use forerun::{
    CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Method, Options, PearlOptions,
    Plan, SpeculatorKind, Tree,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The checkpoints that all configurations have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// The target.
    pub target: PathBuf,
    /// The drafter of sweeps that name none.
    pub drafter: Option<PathBuf>,
    /// Whether they are the pair that `forerun generate` takes where it is told no model.
    pub embedded: bool,
}

/// Something to compare.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// What it is, in a few words; no two have the same.
    pub name: String,
    /// What runs where.
    pub plan: Plan,
    /// The options of `forerun generate` that mean the same.
    pub flags: String,
    /// Cores that it uses in total.
    pub cores: usize,
    /// The temperature of its answers.
    pub temperature: f32,
    /// The place in the list of the autoregressive decoding that it is compared with: weights of
    /// another type are another model, so each type has its own, and so has each temperature.
    pub baseline: usize,
    /// Where it stands among those that compute layers in parallel, if it does.
    pub point: Option<LayerPoint>,
}

/// Every combination of every sweep, once, behind the autoregressive decoding of its weight type and
/// temperature. Where no drafter model runs, the target gets all cores of a placement.
///
/// # Errors
/// Names the first configuration that cannot run, or that would use another number of cores than
/// autoregressive decoding, unless `unequal_cores` allows it; and a draft model of a sweep that nothing
/// drafts with.
pub fn configurations(
    models: &Models,
    sweeps: &[Sweep],
    unequal_cores: bool,
) -> Result<Vec<Configuration>, BenchError> {
    let mut choices = Vec::new();
    for sweep in sweeps {
        choices.extend(combinations(models, sweep));
    }
    let drafts =
        |path: &&PathBuf| choices.iter().any(|own| own.draft_model.as_ref() == Some(*path));
    if let Some(path) = sweeps.iter().flat_map(|own| &own.draft_models).find(|path| !drafts(path)) {
        return Err(BenchError::UnusedDraftModel { path: path.clone() });
    }
    let labels = Labels::of(&choices);
    let mut configurations: Vec<Configuration> = Vec::new();
    let mut baselines = Vec::new();
    let mut known = BTreeSet::new();
    for choice in &choices {
        let of = (choice.weight_type, choice.temperature);
        let place = baselines.iter().find(|(known, _)| *known == of).map(|&(_, place)| place);
        let baseline = match place {
            Some(place) => place,
            None => {
                let place = configurations.len();
                let plain = choice.plain();
                let plain = build(models, &plain, &labels, place)?;
                known.insert(identity(&plain));
                configurations.push(plain);
                baselines.push((of, place));
                place
            }
        };
        let configuration = match choice.method {
            // On other cores it is another configuration.
            Method::Autoregressive => build(models, &choice.plain(), &labels, baseline)?,
            _ => build(models, choice, &labels, baseline)?,
        };
        // What two combinations write differently may be the same plan.
        if !known.insert(identity(&configuration)) {
            continue;
        }
        let plain = &configurations[baseline];
        if configuration.cores != plain.cores && !unequal_cores {
            return Err(BenchError::UnequalCores {
                name: configuration.name,
                cores: configuration.cores,
                baseline: plain.name.clone(),
                baseline_cores: plain.cores,
            });
        }
        configurations.push(numbered(configuration, &configurations));
    }
    Ok(configurations)
}

/// Answers are known by the names of configurations, so that no two may have the same.
fn numbered(mut configuration: Configuration, others: &[Configuration]) -> Configuration {
    let name = configuration.name.clone();
    let mut number = 1;
    while others.iter().any(|other| other.name == configuration.name) {
        number += 1;
        configuration.name = format!("{name} ({number})");
    }
    configuration
}

/// What a configuration is, whatever it is called.
fn identity(own: &Configuration) -> String {
    format!("{:?} {}", own.plan, own.temperature)
}

/// A list's values, or the default one.
fn or<T: Clone>(values: &[T], default: T) -> Vec<T> {
    if values.is_empty() { vec![default] } else { values.to_vec() }
}

fn combinations(models: &Models, sweep: &Sweep) -> Vec<Choice> {
    let placements: Vec<_> = sweep.placements.iter().cloned().map(Some).collect();
    let drafters = drafters(models, sweep);
    let mut choices = Vec::new();
    for temperature in or(&sweep.temperatures, 0.0) {
        for weight_type in or(&sweep.weight_types, None) {
            for placement in or(&placements, None) {
                for method in or(&sweep.methods, Method::Speculative) {
                    let choice = Choice {
                        method,
                        drafter: DrafterKind::None,
                        draft_model: None,
                        draft_tokens: DraftTokens::Auto,
                        tree: Tree::None,
                        pearl: PearlOptions::default(),
                        placement: placement.clone(),
                        weight_type,
                        layers: None,
                        calibration: None,
                        temperature,
                    };
                    choices.extend(of_method(sweep, &drafters, &choice));
                }
            }
        }
    }
    choices
}

/// A choice of a method with all that may draft, and how.
fn of_method(
    sweep: &Sweep,
    drafters: &[(DrafterKind, Option<PathBuf>)],
    choice: &Choice,
) -> Vec<Choice> {
    let pearl = if choice.method == Method::Pearl { &sweep.pearl[..] } else { &[] };
    let mut choices = Vec::new();
    for pearl in or(pearl, PearlOptions::default()) {
        for (drafter, draft_model) in drafters {
            let (drafter, draft_model) = (*drafter, draft_model.clone());
            let choice = Choice { drafter, draft_model, pearl, ..choice.clone() };
            let easyspec = of_easyspec(sweep, &choice);
            choices.extend(easyspec.iter().flat_map(|choice| drafts(sweep, choice)));
        }
    }
    choices
}

/// Who drafts with what: each drafter that needs a checkpoint with all those that it can draft with.
fn drafters(models: &Models, sweep: &Sweep) -> Vec<(DrafterKind, Option<PathBuf>)> {
    let common = || models.drafter.iter().cloned().collect();
    let paths: Vec<PathBuf> =
        if sweep.draft_models.is_empty() { common() } else { sweep.draft_models.clone() };
    if sweep.drafters.is_empty() && paths.is_empty() {
        return vec![(DrafterKind::PromptLookup, None)];
    }
    if sweep.drafters.is_empty() {
        // What cannot be read is told when it is opened.
        let kind = |path: &Path| SpeculatorKind::of(path).ok().flatten().map(DrafterKind::of);
        let with = |path: PathBuf| (kind(&path).unwrap_or(DrafterKind::Model), Some(path));
        return paths.into_iter().map(with).collect();
    }
    let mut all = Vec::new();
    for &drafter in &sweep.drafters {
        let fitting = paths.iter().filter(|path| drafter.has_model() && fits(drafter, path));
        let mut with: Vec<_> = fitting.map(|path| (drafter, Some(path.clone()))).collect();
        if with.is_empty() && drafter.has_model() && !paths.is_empty() {
            // Opening it says what it is instead.
            with.extend(paths.iter().map(|path| (drafter, Some(path.clone()))));
        } else if with.is_empty() {
            with.push((drafter, None));
        }
        all.append(&mut with);
    }
    all
}

/// Whether a checkpoint is made for a drafter, as far as that can be told before it is opened.
fn fits(drafter: DrafterKind, path: &Path) -> bool {
    match SpeculatorKind::of(path) {
        // It continues texts, too.
        Ok(Some(own @ SpeculatorKind::Pard { .. })) => {
            !drafter.belongs_to_target() || DrafterKind::of(own) == drafter
        }
        Ok(Some(own)) => DrafterKind::of(own) == drafter,
        Ok(None) if path.exists() => !drafter.belongs_to_target(),
        _ => true,
    }
}

/// A choice with every shape and length of drafts.
fn drafts(sweep: &Sweep, choice: &Choice) -> Vec<Choice> {
    let mut choices = Vec::new();
    for tree in or(&sweep.trees, Tree::None) {
        for draft_tokens in or(&sweep.draft_tokens, DraftTokens::Auto) {
            choices.push(Choice { tree: tree.clone(), draft_tokens, ..choice.clone() });
        }
    }
    choices
}

/// A choice with all of a sweep's options of EasySpec, or as it is where another drafts.
fn of_easyspec(sweep: &Sweep, choice: &Choice) -> Vec<Choice> {
    if choice.drafter != DrafterKind::EasySpec {
        return vec![choice.clone()];
    }
    let with = |layers: LayerStrategy| {
        or(&sweep.calibrations, CalibrationPolicy::default()).into_iter().map(move |calibration| {
            Choice {
                layers: Some(layers.clone()),
                calibration: Some(calibration),
                ..choice.clone()
            }
        })
    };
    or(&sweep.layers, LayerStrategy::default()).into_iter().flat_map(with).collect()
}

fn build(
    models: &Models,
    choice: &Choice,
    labels: &Labels<'_>,
    baseline: usize,
) -> Result<Configuration, BenchError> {
    let name = labels.label(choice);
    let failed = |cause| BenchError::Plan { name: name.clone(), cause: Box::new(cause) };
    let placement = choice.devices().map_err(failed)?;
    let options = Options {
        model: models.target.clone(),
        draft_model: choice.draft_model.clone(),
        additional_drafters: Vec::new(),
        method: Some(choice.method),
        drafter: Some(choice.drafter),
        draft_tokens: choice.draft_tokens,
        tree: choice.tree.clone(),
        pearl: choice.pearl,
        weight_type: choice.weight_type,
        placement,
        layers: choice.layers.clone(),
        calibration: choice.calibration,
    };
    let plan = Plan::new(options).map_err(failed)?;
    let (flags, cores) = (flags(models, &plan, choice), cores_of(&plan).len());
    let calibration = choice.calibration.unwrap_or_default();
    let layers = choice.layers.as_ref();
    let point = layers.and_then(|layers| LayerPoint::of(layers, &choice.tree, calibration));
    let temperature = choice.temperature;
    Ok(Configuration { name, plan, flags, cores, temperature, baseline, point })
}

/// The cores that a plan uses.
fn cores_of(plan: &Plan) -> BTreeSet<usize> {
    let placement = plan.placement();
    if plan.drafter().has_model() {
        return cores_in(placement);
    }
    let replicas = (0..placement.replicas()).filter_map(|replica| placement.target(replica));
    let groups = replicas.flat_map(|groups| groups.each().iter());
    groups.flat_map(|group| group.cores().iter().copied()).collect()
}

/// The command line's options for a plan; the checkpoints as they are named.
fn flags(models: &Models, plan: &Plan, choice: &Choice) -> String {
    let mut flags = String::new();
    if !models.embedded {
        flags += &format!("--model {} ", quoted(&plan.model().to_string_lossy()));
        if let Some(drafter) = plan.draft_model() {
            flags += &format!("--draft-model {} ", quoted(&drafter.to_string_lossy()));
        }
    }
    flags += &format!("--method {}", plan.method());
    if plan.method() != Method::Autoregressive {
        let count = draft_tokens_text(choice.draft_tokens);
        flags += &format!(" --drafter {} --draft-tokens {count}", plan.drafter());
        if let Some(easyspec) = plan.easyspec() {
            flags += &format!(" {} --calibration {}", easyspec.layers, easyspec.calibration);
        }
        if choice.tree != Tree::None {
            flags += &format!(" --tree {}", choice.tree);
        }
        if choice.pearl != PearlOptions::default() {
            flags += &format!(" --pearl {}", choice.pearl);
        }
    }
    if let Some(weight_type) = plan.weight_type() {
        flags += &format!(" --dtype {weight_type}");
    }
    flags + &format!(" --placement {} --temperature {}", plan.placement(), choice.temperature)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun::{WeightType, available_cores};

    fn of(sweep: Sweep) -> Result<Vec<Configuration>, BenchError> {
        let models =
            Models { target: "target".into(), drafter: Some("drafter".into()), embedded: false };
        configurations(&models, &[sweep], false)
    }

    fn one_core() -> String {
        let core = available_cores()[0];
        format!("drafter=cpu:{core},target=cpu:{core},shared")
    }

    #[test]
    fn a_sweep_is_a_product_behind_its_baselines() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::PromptLookup],
            draft_tokens: vec![DraftTokens::Fixed(2), DraftTokens::Auto],
            weight_types: vec![None, Some(WeightType::Int8)],
            ..Sweep::default()
        };
        let all = of(sweep).unwrap();
        let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        let expected = [
            "autoregressive, auto",
            "speculative, model, 2, auto",
            "speculative, model, auto, auto",
            "speculative, prompt-lookup, 2, auto",
            "speculative, prompt-lookup, auto, auto",
            "autoregressive, int8",
            "speculative, model, 2, int8",
            "speculative, model, auto, int8",
            "speculative, prompt-lookup, 2, int8",
            "speculative, prompt-lookup, auto, int8",
        ];
        assert_eq!(names, expected);
        let baselines: Vec<usize> = all.iter().map(|c| c.baseline).collect();
        assert_eq!(baselines, [0, 0, 0, 0, 0, 5, 5, 5, 5, 5]);
        assert!(all.iter().all(|c| c.cores == all[0].cores));
        assert!(all[6].flags.contains("--draft-tokens 2") && all[6].flags.contains("--dtype int8"));
        assert!(!all[8].flags.contains("--draft-model"), "{}", all[8].flags);
    }

    #[test]
    fn the_same_plan_comes_once_and_plain_decoding_always() {
        let all = of(Sweep::default()).unwrap();
        assert_eq!(all.len(), 2);
        let plain = Sweep { methods: vec![Method::Autoregressive], ..Sweep::default() };
        assert_eq!(of(plain).unwrap().len(), 1);
        // Such a tree has the same depth whatever the number of draft tokens.
        let sweep = Sweep {
            trees: vec!["top:2x3".parse().unwrap()],
            draft_tokens: vec![DraftTokens::Fixed(2), DraftTokens::Fixed(4)],
            ..Sweep::default()
        };
        assert_eq!(of(sweep).unwrap().len(), 2);
    }

    #[test]
    fn a_placement_is_the_targets_alone_where_no_model_drafts() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::PromptLookup],
            placements: vec![one_core()],
            ..Sweep::default()
        };
        let all = of(sweep).unwrap();
        let cores: Vec<usize> = all.iter().map(|c| c.cores).collect();
        assert_eq!(cores, [1, 1, 1]);
        assert!(all[0].plan.placement().to_string().starts_with("target=cpu:"));
    }

    #[test]
    fn devices_in_turn_count_each_core_once() {
        let cores = available_cores();
        let [first, .., last] = cores[..] else { return };
        let both = format!("cpu:{first}/cpu:{last}");
        let shared = format!("drafter={both},target={both},shared");
        let apart = format!("drafter=cpu:{first},target=cpu:{last}");
        let placements = vec![shared.clone(), apart];
        let sweep = Sweep { methods: vec![Method::Pearl], placements, ..Sweep::default() };
        let all = of(sweep).unwrap();
        assert!(all.len() == 3 && all.iter().all(|c| c.cores == 2));
        assert!(all[0].plan.placement().to_string().starts_with("target=cpu:"));
        assert!(all[1].name.ends_with(&format!("on {first}>{last}")), "{}", all[1].name);
        assert!(all[2].name.ends_with(&format!("on {first}/{last}")), "{}", all[2].name);
        assert!(all[1].flags.contains(&shared), "{}", all[1].flags);
    }

    #[test]
    fn a_target_alone_stays_where_it_was_placed() {
        let cores = available_cores();
        let [first, .., last] = cores[..] else { return };
        let placed = |method, placement: &str| {
            let (drafters, placements) = (vec![DrafterKind::PromptLookup], vec![placement.into()]);
            let sweep = Sweep { methods: vec![method], drafters, placements, ..Sweep::default() };
            let all = of(sweep).unwrap();
            assert!(all.iter().all(|own| own.cores == 2));
            all.iter().map(|own| own.plan.placement().to_string()).collect::<Vec<_>>()
        };
        let pipeline = format!("target=cpu:{first}/cpu:{last}");
        assert_eq!(placed(Method::Speculative, &pipeline), [&pipeline[..], &pipeline]);
        // Several replicas are one target to whoever has no use for them.
        let replicas = format!("target=cpu:{first},target=cpu:{last}");
        let [plain, dsi] = &placed(Method::Dsi, &replicas)[..] else { panic!("two") };
        assert!(!plain.contains(',') && *dsi == replicas, "{plain}; {dsi}");
    }

    #[test]
    fn easyspecs_options_are_no_other_drafters() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::EasySpec],
            layers: vec![LayerStrategy::Parallel(2), "0,1-2,3".parse().unwrap()],
            calibrations: vec![CalibrationPolicy::EveryRound, CalibrationPolicy::Never],
            placements: vec![one_core()],
            ..Sweep::default()
        };
        let all = of(sweep).unwrap();
        let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        let expected = [
            "autoregressive",
            "speculative, model, auto",
            "speculative, easyspec lp 2 every-round, auto",
            "speculative, easyspec lp 2 never, auto",
            "speculative, easyspec layer-groups 0,1-2,3 every-round, auto",
            "speculative, easyspec layer-groups 0,1-2,3 never, auto",
        ];
        assert_eq!(names, expected);
        let flags =
            "--drafter easyspec --draft-tokens auto --layer-groups 0,1-2,3 --calibration never";
        assert!(all[5].flags.contains(flags), "{}", all[5].flags);
        assert!(all[5].flags.contains("--draft-model") && all[5].cores == 1);
        let point = LayerPoint { layers: 2, width: 1, calibration: "never".into() };
        assert_eq!(all[3].point, Some(point));
        assert!([&all[0], &all[1], &all[5]].iter().all(|own| own.point.is_none()));
    }

    #[test]
    fn unequal_cores_and_impossible_plans_are_refused_by_name() {
        if available_cores().len() > 1 {
            let cores = available_cores();
            let two = format!("drafter=cpu:{},target=cpu:{}", cores[0], cores[1]);
            let sweep = Sweep { placements: vec![one_core(), two], ..Sweep::default() };
            let error = of(sweep.clone()).unwrap_err().to_string();
            assert!(error.contains("2 cores") && error.contains("--unequal-cores"), "{error}");
            let models = Models {
                target: "target".into(),
                drafter: Some("drafter".into()),
                embedded: false,
            };
            assert_eq!(configurations(&models, &[sweep], true).unwrap().len(), 3);
        }
        let sweep = Sweep { draft_tokens: vec![DraftTokens::Fixed(65)], ..Sweep::default() };
        let error = of(sweep).unwrap_err().to_string();
        assert!(error.contains("speculative, model, 65") && error.contains("1 to 64"), "{error}");
        let models = Models { target: "target".into(), ..Models::default() };
        let sweep = Sweep { drafters: vec![DrafterKind::Model], ..Sweep::default() };
        let error = configurations(&models, &[sweep], false).unwrap_err().to_string();
        assert!(error.contains("--draft-model"), "{error}");
    }
}
