//! Configurations: validated plans, each with a name and a baseline.

use crate::choice::{Choice, cores_in, draft_tokens_text};
use crate::label::Labels;
use crate::layer_point::LayerPoint;
use crate::provenance::quoted;
use crate::{BenchError, Sweep};
use forerun::checkpoint::SpeculatorKind;
use forerun::draft::EasySpec;
use forerun::method::Need;
use forerun::{
    CalibrationPolicy, DraftTokens, DrafterKind, DrafterOptions, LayerStrategy, Lookup, Method,
    MethodOptions, ModelSource, Options, PearlOptions, Plan, Tree,
};
use std::collections::BTreeSet;

/// The checkpoints that all configurations share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// The target.
    pub target: ModelSource,
    /// The draft model of sweeps that name none.
    pub drafter: Option<ModelSource>,
    /// Whether this is the embedded pair that `forerun generate` uses if no model is given.
    pub embedded: bool,
}

/// A configuration to compare.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// A short, unique description.
    pub name: String,
    /// The plan of the engine.
    pub plan: Plan,
    /// The equivalent flags of `forerun generate`.
    pub flags: String,
    /// The total number of cores that the configuration uses.
    pub cores: usize,
    /// The placement, if it is not the automatic one.
    pub placement: Option<String>,
    /// The sampling temperature.
    pub temperature: f32,
    /// The index of the baseline in the list of configurations. The baseline is autoregressive
    /// decoding with the same weight type, temperature and pass times, because another weight type is
    /// another model.
    pub baseline: usize,
    /// The point in EasySpec's figure 4, for layer-parallel drafters.
    pub point: Option<LayerPoint>,
}

/// Returns every combination of every sweep once, after the autoregressive decoding of its weight
/// type, temperature and pass times.
///
/// If a configuration has no draft model, the target gets all cores of the placement.
///
/// # Errors
/// If a configuration cannot run, if it uses another number of cores than its baseline and
/// `unequal_cores` is not set, or if no drafter uses a draft model of a sweep.
pub fn configurations(
    models: &Models,
    sweeps: &[Sweep],
    unequal_cores: bool,
) -> Result<Vec<Configuration>, BenchError> {
    let count = sweeps.iter().map(most_combinations).fold(0, usize::saturating_add);
    if count > MOST_COMBINATIONS {
        return Err(BenchError::TooManyCombinations { count, most: MOST_COMBINATIONS });
    }
    let mut choices = Vec::new();
    for sweep in sweeps {
        choices.extend(combinations(models, sweep));
    }
    let is_used = |model: &&ModelSource| {
        choices.iter().any(|choice| choice.draft_model.as_ref() == Some(*model))
    };
    let mut draft_models = sweeps.iter().flat_map(|sweep| &sweep.draft_models);
    if let Some(model) = draft_models.find(|model| !is_used(model)) {
        return Err(BenchError::UnusedDraftModel { model: model.clone() });
    }
    let labels = Labels::of(&choices);
    let mut configurations: Vec<Configuration> = Vec::new();
    let mut baselines = Vec::new();
    let mut known = BTreeSet::new();
    for choice in &choices {
        let model = (choice.weight_type, choice.temperature, choice.pace());
        let found = baselines.iter().find(|(known, _)| *known == model).map(|&(_, index)| index);
        let baseline = match found {
            Some(index) => index,
            None => {
                let index = configurations.len();
                let plain = build(models, &choice.autoregressive(), &labels, index)?;
                known.insert(identity(&plain));
                configurations.push(plain);
                baselines.push((model, index));
                index
            }
        };
        let configuration = match choice.method.drafts() {
            // Autoregressive decoding on other cores is another configuration.
            false => build(models, &choice.autoregressive(), &labels, baseline)?,
            true => build(models, choice, &labels, baseline)?,
        };
        // Different combinations may give the same plan.
        if !known.insert(identity(&configuration)) {
            continue;
        }
        let plain = &configurations[baseline];
        // The speed of paced devices does not depend on their cores.
        let is_unequal = configuration.cores != plain.cores && choice.pace().is_none();
        if is_unequal && !unequal_cores {
            return Err(BenchError::UnequalCores {
                name: configuration.name,
                cores: configuration.cores,
                baseline: plain.name.clone(),
                baseline_cores: plain.cores,
            });
        }
        configurations.push(with_unique_name(configuration, &configurations));
    }
    Ok(configurations)
}

/// The most combinations of the values of all sweeps.
const MOST_COMBINATIONS: usize = 100_000;

/// Returns the number of combinations of a sweep's values, as if every value concerned every method
/// and drafter.
fn most_combinations(sweep: &Sweep) -> usize {
    let lengths = [
        sweep.methods.len(),
        sweep.drafters.len(),
        sweep.draft_models.len(),
        sweep.lookups.len(),
        sweep.draft_tokens.len(),
        sweep.trees.len(),
        sweep.pearl.len(),
        sweep.placements.len(),
        sweep.weight_types.len(),
        sweep.layers.len(),
        sweep.calibrations.len(),
        sweep.temperatures.len(),
    ];
    lengths.into_iter().map(|length| length.max(1)).fold(1, usize::saturating_mul)
}

/// Adds a number to the name of a configuration if another one has the same name. Names must be
/// unique, because they identify answers.
fn with_unique_name(mut configuration: Configuration, others: &[Configuration]) -> Configuration {
    let name = configuration.name.clone();
    let mut number = 1;
    while others.iter().any(|other| other.name == configuration.name) {
        number += 1;
        configuration.name = format!("{name} ({number})");
    }
    configuration
}

/// Returns everything but the name that distinguishes a configuration from others.
fn identity(configuration: &Configuration) -> String {
    format!("{:?} {}", configuration.plan, configuration.temperature)
}

/// Returns the values, or the default if there are none.
fn or_default<T: Clone>(values: &[T], default: T) -> Vec<T> {
    if values.is_empty() { vec![default] } else { values.to_vec() }
}

/// Returns all combinations of a sweep's values.
fn combinations(models: &Models, sweep: &Sweep) -> Vec<Choice> {
    let placements: Vec<_> = sweep.placements.iter().cloned().map(Some).collect();
    let drafters = drafters(models, sweep);
    let mut choices = Vec::new();
    for temperature in or_default(&sweep.temperatures, 0.0) {
        for weight_type in or_default(&sweep.weight_types, None) {
            for placement in or_default(&placements, None) {
                for method in or_default(&sweep.methods, Method::Speculative) {
                    let choice = Choice {
                        method,
                        drafter: DrafterKind::None.into(),
                        draft_model: None,
                        additional_drafters: match method.offers(Need::SeveralDrafters) {
                            true => sweep.additional_drafters.clone(),
                            false => Vec::new(),
                        },
                        lookup: Lookup::None,
                        draft_tokens: DraftTokens::Auto,
                        tree: Tree::None,
                        pearl: PearlOptions::default(),
                        placement: placement.clone(),
                        weight_type,
                        temperature,
                    };
                    choices.extend(with_drafters(sweep, &drafters, &choice));
                }
            }
        }
    }
    choices
}

/// Combines a choice with all drafters and drafting options of a sweep.
fn with_drafters(
    sweep: &Sweep,
    drafters: &[(DrafterKind, Option<ModelSource>)],
    choice: &Choice,
) -> Vec<Choice> {
    let mut choices = Vec::new();
    let pearl = if choice.method == Method::Pearl { &sweep.pearl[..] } else { &[] };
    for pearl in or_default(pearl, PearlOptions::default()) {
        for (drafter, draft_model) in drafters {
            let mut choice = choice.clone();
            if drafter.needs(Need::Feedback) {
                // It learns from all of its own drafts.
                choice.additional_drafters = Vec::new();
            }
            for lookup in lookups(sweep, choice.method, *drafter) {
                let (drafter, draft_model) = ((*drafter).into(), draft_model.clone());
                let choice = Choice { drafter, draft_model, lookup, pearl, ..choice.clone() };
                let choices_of_layers = with_easyspec_options(sweep, &choice);
                choices
                    .extend(choices_of_layers.iter().flat_map(|choice| with_drafts(sweep, choice)));
            }
        }
    }
    choices
}

/// Returns the lookups of a sweep that a method and a drafter can have.
fn lookups(sweep: &Sweep, method: Method, drafter: DrafterKind) -> Vec<Lookup> {
    let can_have_any = method.offers(Need::WholeDrafts) && !drafter.needs(Need::Feedback);
    let lookups = if can_have_any { &sweep.lookups[..] } else { &[] };
    or_default(lookups, Lookup::None)
}

/// Returns the drafters of a sweep, each with all draft models that it can use.
fn drafters(models: &Models, sweep: &Sweep) -> Vec<(DrafterKind, Option<ModelSource>)> {
    let common = || models.drafter.iter().cloned().collect();
    let paths: Vec<ModelSource> =
        if sweep.draft_models.is_empty() { common() } else { sweep.draft_models.clone() };
    if sweep.drafters.is_empty() && paths.is_empty() {
        return vec![(DrafterKind::PromptLookup, None)];
    }
    if sweep.drafters.is_empty() {
        // An unreadable checkpoint is reported when it is opened.
        let kind = |model: &ModelSource| {
            let found = model.path().and_then(|path| SpeculatorKind::of(path).ok()?);
            found.map(DrafterKind::of)
        };
        let with = |model: ModelSource| (kind(&model).unwrap_or(DrafterKind::Model), Some(model));
        return paths.into_iter().map(with).collect();
    }
    let mut all = Vec::new();
    for &drafter in &sweep.drafters {
        let fitting = paths.iter().filter(|path| drafter.has_model() && fits(drafter, path));
        let mut with: Vec<_> = fitting.map(|path| (drafter, Some(path.clone()))).collect();
        if with.is_empty() && drafter.has_model() && !paths.is_empty() {
            // Opening the checkpoint reports what it is instead.
            with.extend(paths.iter().map(|path| (drafter, Some(path.clone()))));
        } else if with.is_empty() {
            with.push((drafter, None));
        }
        all.append(&mut with);
    }
    all
}

/// Returns whether a drafter can use a checkpoint, as far as this is known before it is opened.
fn fits(drafter: DrafterKind, model: &ModelSource) -> bool {
    let Some(path) = model.path() else { return true };
    match SpeculatorKind::of(path) {
        Ok(found) if path.exists() => drafter.can_use(found),
        _ => true,
    }
}

/// Combines a choice with all tree shapes and draft lengths of a sweep.
fn with_drafts(sweep: &Sweep, choice: &Choice) -> Vec<Choice> {
    let mut choices = Vec::new();
    for tree in or_default(&sweep.trees, Tree::None) {
        for draft_tokens in or_default(&sweep.draft_tokens, DraftTokens::Auto) {
            choices.push(Choice { tree: tree.clone(), draft_tokens, ..choice.clone() });
        }
    }
    choices
}

/// Combines a choice with all EasySpec options of a sweep if its drafter is EasySpec's.
fn with_easyspec_options(sweep: &Sweep, choice: &Choice) -> Vec<Choice> {
    if choice.drafter.kind() != DrafterKind::EasySpec {
        return vec![choice.clone()];
    }
    let with = |layers: LayerStrategy| {
        let calibrations = or_default(&sweep.calibrations, CalibrationPolicy::default());
        calibrations.into_iter().map(move |calibration| Choice {
            drafter: DrafterOptions::EasySpec(EasySpec { layers: layers.clone(), calibration }),
            ..choice.clone()
        })
    };
    or_default(&sweep.layers, LayerStrategy::default()).into_iter().flat_map(with).collect()
}

fn build(
    models: &Models,
    choice: &Choice,
    labels: &Labels<'_>,
    baseline: usize,
) -> Result<Configuration, BenchError> {
    let name = labels.label(choice);
    let failed = |cause| BenchError::Plan { name: name.clone(), cause: Box::new(cause) };
    let Choice { method, tree, lookup, pearl, .. } = choice;
    let method = MethodOptions::of(Some(*method), tree.clone(), *lookup, *pearl);
    let options = Options {
        model: models.target.clone(),
        draft_model: choice.draft_model.clone(),
        additional_drafters: choice.additional_drafters.clone(),
        method: method.map_err(failed)?,
        drafter: Some(choice.drafter.clone()),
        draft_tokens: choice.draft_tokens,
        weight_type: choice.weight_type,
        placement: choice.devices(),
        ..Options::default()
    };
    let placement = options.placement.as_ref().map(ToString::to_string);
    let plan = Plan::new(options).map_err(failed)?;
    let (flags, cores) = (flags(models, &plan, choice), cores_of(&plan).len());
    let point = LayerPoint::of(&choice.drafter, tree);
    let temperature = choice.temperature;
    Ok(Configuration { name, plan, flags, cores, placement, temperature, baseline, point })
}

/// Returns the cores that a plan uses.
fn cores_of(plan: &Plan) -> BTreeSet<usize> {
    let placement = plan.placement();
    if plan.drafter().has_model() {
        return cores_in(placement);
    }
    let replicas = (0..placement.replicas()).filter_map(|replica| placement.target(replica));
    let groups = replicas.flat_map(|groups| groups.as_slice().iter());
    groups.flat_map(|group| group.cores().iter().copied()).collect()
}

/// Returns the flags of `forerun generate` for a plan.
fn flags(models: &Models, plan: &Plan, choice: &Choice) -> String {
    let mut flags = String::new();
    if !models.embedded {
        flags += &format!("--model {} ", quoted(&plan.model().to_string()));
        if let Some(drafter) = plan.draft_model() {
            flags += &format!("--draft-model {} ", quoted(&drafter.to_string()));
        }
    }
    flags += &format!("--method {}", plan.method());
    if plan.method().drafts() {
        let count = draft_tokens_text(choice.draft_tokens);
        flags += &format!(" --drafter {} --draft-tokens {count}", plan.drafter());
        for drafter in plan.additional_drafters() {
            flags += &format!(" --also-draft {}", quoted(&drafter.to_string()));
        }
        if plan.lookup() != Lookup::None {
            flags += &format!(" --lookup {}", plan.lookup());
        }
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
    // A default placement is not pinned, as a given one would be.
    if plan.is_pinned() || plan.placement().pace().is_some() {
        flags += &format!(" --placement {}", plan.placement());
    }
    flags + &format!(" --temperature {}", choice.temperature)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::WeightType;
    use forerun::placement::available_cores;

    fn configurations_of(sweep: Sweep) -> Result<Vec<Configuration>, BenchError> {
        configurations(&models(), &[sweep], false)
    }

    fn models() -> Models {
        Models { target: "target".into(), drafter: Some("drafter".into()), embedded: false }
    }

    /// Checks the beginnings of all names. Placements may follow.
    fn assert_begin(all: &[Configuration], expected: &[&str]) {
        let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        let begins = names.iter().zip(expected).all(|(name, start)| name.starts_with(start));
        assert!(begins && names.len() == expected.len(), "{names:?}");
    }

    fn one_core() -> String {
        let core = available_cores()[0];
        format!("drafter=cpu:{core},target=cpu:{core},shared")
    }

    #[test]
    fn a_sweep_has_all_combinations_after_their_baselines() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::PromptLookup],
            draft_tokens: vec![DraftTokens::Fixed(2), DraftTokens::Auto],
            weight_types: vec![None, Some(WeightType::INT8.into())],
            ..Sweep::default()
        };
        let all = configurations_of(sweep).unwrap();
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
    fn duplicate_plans_are_dropped_and_plain_decoding_is_added() {
        let all = configurations_of(Sweep::default()).unwrap();
        assert_eq!(all.len(), 2);
        let plain = Sweep { methods: vec![Method::Autoregressive], ..Sweep::default() };
        assert_eq!(configurations_of(plain).unwrap().len(), 1);
        // The depth of this tree does not depend on the draft length.
        let sweep = Sweep {
            trees: vec!["top:2x3".parse().unwrap()],
            draft_tokens: vec![DraftTokens::Fixed(2), DraftTokens::Fixed(4)],
            ..Sweep::default()
        };
        assert_eq!(configurations_of(sweep).unwrap().len(), 2);
    }

    #[test]
    fn the_target_gets_all_cores_if_no_model_drafts() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::PromptLookup],
            placements: vec![one_core().parse().unwrap()],
            ..Sweep::default()
        };
        let all = configurations_of(sweep).unwrap();
        let cores: Vec<usize> = all.iter().map(|c| c.cores).collect();
        assert_eq!(cores, [1, 1, 1]);
        assert!(all[0].plan.placement().to_string().starts_with("target=cpu:"));
    }

    #[test]
    fn shared_devices_count_each_core_once() {
        let cores = available_cores();
        let [first, .., last] = cores[..] else { return };
        let both = format!("cpu:{first}/cpu:{last}");
        let shared = format!("drafter={both},target={both},shared");
        let apart = format!("drafter=cpu:{first},target=cpu:{last}");
        let placements = vec![shared.parse().unwrap(), apart.parse().unwrap()];
        let sweep = Sweep { methods: vec![Method::Pearl], placements, ..Sweep::default() };
        let all = configurations_of(sweep).unwrap();
        assert!(all.len() == 3 && all.iter().all(|c| c.cores == 2));
        assert!(all[0].plan.placement().to_string().starts_with("target=cpu:"));
        assert!(all[1].name.ends_with(&format!("on {first}>{last}")), "{}", all[1].name);
        assert!(all[2].name.ends_with(&format!("on {first}/{last}")), "{}", all[2].name);
        assert!(all[1].flags.contains(&shared), "{}", all[1].flags);
    }

    #[test]
    fn the_placement_of_a_target_without_drafter_is_kept() {
        use crate::choice::all_to_the_target;
        let cores = available_cores();
        let [first, .., last] = cores[..] else { return };
        let placed = |method, placement: &str| {
            let (drafters, placements) =
                (vec![DrafterKind::PromptLookup], vec![placement.parse().unwrap()]);
            let sweep = Sweep { methods: vec![method], drafters, placements, ..Sweep::default() };
            let all = configurations_of(sweep).unwrap();
            assert!(all.iter().all(|c| c.cores == 2));
            all.iter().map(|c| c.plan.placement().to_string()).collect::<Vec<_>>()
        };
        let on_gpu = format!("drafter=cpu:{first},target=gpu:0");
        let alone = all_to_the_target(&on_gpu.parse().unwrap(), Method::Autoregressive);
        assert_eq!(alone.to_string(), "target=gpu:0");
        let pipeline = format!("target=cpu:{first}/cpu:{last}");
        assert_eq!(placed(Method::Speculative, &pipeline), [&pipeline[..], &pipeline]);
        // For methods without replicas, the cores of all replicas form one target.
        let replicas = format!("target=cpu:{first},target=cpu:{last}");
        let [plain, dsi] = &placed(Method::Dsi, &replicas)[..] else { panic!("two") };
        assert!(!plain.contains(',') && *dsi == replicas, "{plain}; {dsi}");
    }

    #[test]
    fn lookups_are_compared_where_a_method_and_a_drafter_can_have_them() {
        let sweep = |method, drafters: &[DrafterKind]| Sweep {
            methods: vec![method],
            drafters: drafters.to_vec(),
            lookups: vec![Lookup::None, Lookup::Suffix],
            ..Sweep::default()
        };
        let both = [DrafterKind::Model, DrafterKind::Lookahead];
        let speculative = sweep(Method::Speculative, &both);
        let pearl = sweep(Method::Pearl, &[DrafterKind::Model]);
        let all = configurations(&models(), &[speculative, pearl], true).unwrap();
        let expected = [
            "autoregressive",
            "speculative, model, auto",
            "speculative, model + suffix, auto",
            "speculative, lookahead, auto",
            "pearl, model, auto",
        ];
        assert_begin(&all, &expected);
        assert!(all[2].flags.contains("--draft-tokens auto --lookup suffix"), "{}", all[2].flags);
    }

    #[test]
    fn drafters_are_added_where_a_method_and_a_drafter_can_have_them() {
        let sweep = |method, drafters: &[DrafterKind]| Sweep {
            methods: vec![method],
            drafters: drafters.to_vec(),
            additional_drafters: vec!["folder/other".parse().unwrap()],
            ..Sweep::default()
        };
        let model = [DrafterKind::Model];
        let speculative = sweep(Method::Speculative, &[DrafterKind::Model, DrafterKind::Lookahead]);
        let sweeps = [speculative, sweep(Method::Pearl, &model), sweep(Method::Ssd, &model)];
        let all = configurations(&models(), &sweeps, true).unwrap();
        let expected = [
            "autoregressive",
            "speculative, model + other, auto",
            "speculative, lookahead, auto",
            "pearl, model + other, auto",
            "ssd, model, auto",
        ];
        assert_begin(&all, &expected);
    }

    #[test]
    fn easyspec_options_apply_to_its_drafter_only() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::EasySpec],
            layers: vec![LayerStrategy::Parallel(2), "0,1-2,3".parse().unwrap()],
            calibrations: vec![CalibrationPolicy::EveryRound, CalibrationPolicy::Never],
            placements: vec![one_core().parse().unwrap()],
            ..Sweep::default()
        };
        let all = configurations_of(sweep).unwrap();
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
        assert!([&all[0], &all[1], &all[5]].iter().all(|c| c.point.is_none()));
    }

    #[test]
    fn unequal_cores_and_invalid_plans_are_rejected_by_name() {
        if available_cores().len() > 1 {
            let cores = available_cores();
            let two = format!("drafter=cpu:{},target=cpu:{}", cores[0], cores[1]);
            let sweep = Sweep {
                placements: vec![one_core().parse().unwrap(), two.parse().unwrap()],
                ..Sweep::default()
            };
            let error = configurations_of(sweep.clone()).unwrap_err().to_string();
            assert!(error.contains("2 cores") && error.contains("`unequal_cores`"), "{error}");
            assert_eq!(configurations(&models(), &[sweep], true).unwrap().len(), 3);
        }
        let sweep = Sweep { draft_tokens: vec![DraftTokens::Fixed(65)], ..Sweep::default() };
        let error = configurations_of(sweep).unwrap_err().to_string();
        assert!(error.contains("speculative, model, 65") && error.contains("1 to 64"), "{error}");
        let models = Models { target: "target".into(), ..Models::default() };
        let sweep = Sweep { drafters: vec![DrafterKind::Model], ..Sweep::default() };
        let error = configurations(&models, &[sweep], false).unwrap_err().to_string();
        assert!(error.contains("set `draft_model`"), "{error}");
    }
}
