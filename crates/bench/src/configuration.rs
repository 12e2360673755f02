//! Configurations: validated plans with names, each with the plain decoding that it is compared with.

use crate::layer_point::LayerPoint;
use crate::provenance::quoted;
use crate::{BenchError, Sweep};
use forerun::{
    Calibration, DraftTokens, DrafterKind, LayerStrategy, Method, Options, PearlOptions, Placement,
    Plan, PlanError, SpeculatorKind, Tree, WeightType, available_cores,
};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The checkpoints that all configurations have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// The target.
    pub target: PathBuf,
    /// The drafter.
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
    /// The place in the list of the autoregressive decoding that it is compared with: weights of
    /// another type are another model, so each type has its own.
    pub baseline: usize,
    /// Where it stands among those that compute layers in parallel, if it does.
    pub point: Option<LayerPoint>,
}

/// Values of one combination.
#[derive(Clone)]
struct Choice {
    method: Method,
    drafter: DrafterKind,
    draft_tokens: DraftTokens,
    tree: Tree,
    pearl: PearlOptions,
    placement: Option<String>,
    weight_type: Option<WeightType>,
    /// EasySpec's.
    layers: Option<LayerStrategy>,
    calibration: Option<Calibration>,
}

impl Choice {
    /// Autoregressive decoding in its place.
    fn plain(&self) -> Self {
        Self {
            method: Method::Autoregressive,
            drafter: DrafterKind::None,
            draft_tokens: DraftTokens::Auto,
            tree: Tree::None,
            pearl: PearlOptions::default(),
            layers: None,
            calibration: None,
            ..self.clone()
        }
    }
}

/// Every combination of every sweep, once, behind the autoregressive decoding of its weight type.
/// Where no drafter model runs, the target gets all cores of a placement.
///
/// # Errors
/// Names the first configuration that cannot run, or that would use another number of cores than
/// autoregressive decoding, unless `unequal_cores` allows it.
pub fn configurations(
    models: &Models,
    sweeps: &[Sweep],
    unequal_cores: bool,
) -> Result<Vec<Configuration>, BenchError> {
    let mut choices = Vec::new();
    for sweep in sweeps {
        choices.extend(combinations(models, sweep));
    }
    let mut configurations: Vec<Configuration> = Vec::new();
    let mut baselines: Vec<(Option<WeightType>, usize)> = Vec::new();
    let mut known = BTreeSet::new();
    for choice in &choices {
        let weight_type = choice.weight_type;
        let place = baselines.iter().find(|known| known.0 == weight_type).map(|known| known.1);
        let baseline = match place {
            Some(place) => place,
            None => {
                let place = configurations.len();
                let plain = choice.plain();
                let plain = build(models, &plain, &choices, place)?;
                known.insert(format!("{:?}", plain.plan));
                configurations.push(plain);
                baselines.push((weight_type, place));
                place
            }
        };
        let configuration = match choice.method {
            // On other cores it is another configuration.
            Method::Autoregressive => build(models, &choice.plain(), &choices, baseline)?,
            _ => build(models, choice, &choices, baseline)?,
        };
        // What two combinations write differently may be the same plan.
        if !known.insert(format!("{:?}", configuration.plan)) {
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
        configurations.push(configuration);
    }
    Ok(configurations)
}

/// A list's values, or the default one.
fn or<T: Clone>(values: &[T], default: T) -> Vec<T> {
    if values.is_empty() { vec![default] } else { values.to_vec() }
}

fn combinations(models: &Models, sweep: &Sweep) -> Vec<Choice> {
    let drafter = match &models.drafter {
        // What cannot be read is told when it is opened.
        Some(path) => {
            let found = SpeculatorKind::of(path).ok().flatten();
            found.map_or(DrafterKind::Model, DrafterKind::of)
        }
        None => DrafterKind::PromptLookup,
    };
    let placements: Vec<_> = sweep.placements.iter().cloned().map(Some).collect();
    let mut choices = Vec::new();
    for weight_type in or(&sweep.weight_types, None) {
        for placement in or(&placements, None) {
            for method in or(&sweep.methods, Method::Speculative) {
                let pearl = if method == Method::Pearl { &sweep.pearl[..] } else { &[] };
                for pearl in or(pearl, PearlOptions::default()) {
                    for drafter in or(&sweep.drafters, drafter) {
                        let (tree, draft_tokens) = (Tree::None, DraftTokens::Auto);
                        let placement = placement.clone();
                        let choice = Choice {
                            method,
                            drafter,
                            draft_tokens,
                            tree,
                            pearl,
                            placement,
                            weight_type,
                            layers: None,
                            calibration: None,
                        };
                        let easyspec = of_easyspec(sweep, &choice);
                        choices.extend(easyspec.iter().flat_map(|choice| drafts(sweep, choice)));
                    }
                }
            }
        }
    }
    choices
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
        or(&sweep.calibrations, Calibration::default()).into_iter().map(move |calibration| Choice {
            layers: Some(layers.clone()),
            calibration: Some(calibration),
            ..choice.clone()
        })
    };
    or(&sweep.layers, LayerStrategy::default()).into_iter().flat_map(with).collect()
}

fn build(
    models: &Models,
    choice: &Choice,
    all: &[Choice],
    baseline: usize,
) -> Result<Configuration, BenchError> {
    let name = name(choice, all);
    let failed = |cause| BenchError::Plan { name: name.clone(), cause: Box::new(cause) };
    let model = choice.drafter.has_model();
    let placement = match &choice.placement {
        Some(text) if !model => Some(all_to_the_target(text).map_err(failed)?),
        text => text.clone(),
    };
    let options = Options {
        model: models.target.clone(),
        draft_model: models.drafter.clone().filter(|_| model),
        further_drafters: Vec::new(),
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
    Ok(Configuration { name, plan, flags, cores, baseline, point })
}

/// The placement's cores, each once.
fn cores_in(placement: &Placement) -> BTreeSet<usize> {
    placement.devices().iter().flat_map(|(group, _)| group.cores().iter().copied()).collect()
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

/// The same cores, all for the target.
fn all_to_the_target(placement: &str) -> Result<String, PlanError> {
    let placement = Placement::parse(placement, &available_cores())?;
    let cores: Vec<String> =
        cores_in(&placement).iter().map(|core| format!("cpu:{core}")).collect();
    Ok(format!("target={}", cores.join("+")))
}

fn draft_tokens_text(draft_tokens: DraftTokens) -> String {
    match draft_tokens {
        DraftTokens::Auto => "auto".into(),
        DraftTokens::Assisted => "assisted".into(),
        DraftTokens::Fixed(count) => count.to_string(),
    }
}

/// What tells a choice from all others: weight types and placements only where there are several.
fn name(choice: &Choice, all: &[Choice]) -> String {
    let mut name = choice.method.to_string();
    if choice.method != Method::Autoregressive {
        name += &format!(", {}", choice.drafter);
        if let Some(layers) = &choice.layers {
            name += &format!(" {}", layers.to_string().trim_start_matches("--"));
        }
        let several = all
            .iter()
            .any(|other| other.calibration.is_some() && other.calibration != choice.calibration);
        if let Some(calibration) = choice.calibration.filter(|_| several) {
            name += &format!(" {calibration}");
        }
        name += &format!(", {}", draft_tokens_text(choice.draft_tokens));
        if choice.tree != Tree::None {
            name += &format!(", {}", choice.tree);
        }
        if choice.pearl != PearlOptions::default() {
            name += &format!(", {}", choice.pearl);
        }
    }
    let comparable = |other: &&Choice| {
        choice.method != Method::Autoregressive || other.method == Method::Autoregressive
    };
    if let Some(placement) = &choice.placement
        && all.iter().filter(comparable).any(|other| other.placement.as_ref() != Some(placement))
    {
        name += &format!(", {placement}");
    }
    if all.iter().any(|other| other.weight_type != choice.weight_type) {
        name += &format!(", {}", choice.weight_type.map_or("auto".into(), |t| t.to_string()));
    }
    name
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
    flags + &format!(" --placement {}", plan.placement())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

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
        assert!(all[1].name.ends_with(&shared) && all[1].flags.ends_with(&shared));
    }

    #[test]
    fn easyspecs_options_are_no_other_drafters() {
        let sweep = Sweep {
            drafters: vec![DrafterKind::Model, DrafterKind::EasySpec],
            layers: vec![LayerStrategy::Parallel(2), "0,1-2,3".parse().unwrap()],
            calibrations: vec![Calibration::EveryRound, Calibration::Never],
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
