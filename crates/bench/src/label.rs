//! Labels of configurations: short descriptions without the options that all configurations share.

use crate::choice::{Choice, draft_tokens_text};
use forerun::draft::EasySpec;
use forerun::method::Drafting;
use forerun::{
    AdditionalDrafter, DrafterKind, DrafterOptions, Lookup, ModelSource, PearlOptions, Placement,
    Tree,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The options in which the choices differ. Labels contain only these.
pub(crate) struct Labels<'a> {
    all: &'a [Choice],
    /// All placements in each group of choices.
    placements: BTreeMap<PlacementGroup, BTreeSet<Option<String>>>,
    /// All sets of cores.
    cores: BTreeSet<BTreeSet<usize>>,
}

/// A group of choices with comparable placements: whether it drafts, and when a draft model
/// computes.
type PlacementGroup = (bool, Drafting);

fn placement_group(choice: &Choice) -> PlacementGroup {
    (choice.method.drafts(), choice.drafting())
}

/// Returns the placement of a choice as a text, or `None` if it is the default.
fn devices(choice: &Choice) -> Option<String> {
    choice.devices().map(|placement| placement.to_string())
}

impl<'a> Labels<'a> {
    /// Creates the labels of a list of choices.
    pub(crate) fn of(all: &'a [Choice]) -> Self {
        let mut placements = BTreeMap::<PlacementGroup, BTreeSet<Option<String>>>::new();
        for choice in all {
            placements.entry(placement_group(choice)).or_default().insert(devices(choice));
        }
        Self { all, placements, cores: all.iter().map(Choice::cores).collect() }
    }

    /// Returns the label of a choice. Draft models, placements, weight types and temperatures are
    /// included only if there are several, and pass times always.
    pub(crate) fn label(&self, choice: &Choice) -> String {
        let all = self.all;
        let mut name = choice.method.to_string();
        if choice.method.drafts() {
            name += &drafting(choice, all);
        }
        if self.shows_placement(choice)
            && let Some(placement) = choice.devices()
        {
            name += &format!(", {}", on_cores(&placement));
        }
        if let Some(pace) = choice.pace() {
            name += &format!(", paced as {pace}");
        }
        if all.iter().any(|other| other.weight_type != choice.weight_type) {
            name += &format!(", {}", choice.weight_type.map_or("auto".into(), |t| t.to_string()));
        }
        if all.iter().any(|other| other.temperature != choice.temperature) {
            name += &format!(", T {}", choice.temperature);
        }
        name
    }

    /// Returns whether the label includes the placement: if it is not the same in the group of the
    /// choice, or if any two choices have different cores.
    fn shows_placement(&self, choice: &Choice) -> bool {
        let (placement, cores) = (devices(choice), choice.cores());
        let mut others = self.placements.get(&placement_group(choice)).into_iter().flatten();
        others.any(|other| *other != placement) || self.cores.iter().any(|other| *other != cores)
    }
}

/// Returns the drafting options of a label.
fn drafting(choice: &Choice, all: &[Choice]) -> String {
    let mut name = format!(", {}", choice.drafter.kind());
    if let Some(path) = &choice.draft_model {
        name += &draft_model_name(path, choice, all);
    }
    for drafter in &choice.additional_drafters {
        name += &format!(" + {}", additional_drafter_name(drafter));
    }
    if choice.lookup != Lookup::None {
        name += &format!(" + {}", choice.lookup);
    }
    if let DrafterOptions::EasySpec(EasySpec { layers, calibration }) = &choice.drafter {
        name += &format!(" {}", layers.to_string().trim_start_matches("--"));
        let differs = |other: &Choice| match &other.drafter {
            DrafterOptions::EasySpec(other) => other.calibration != *calibration,
            DrafterOptions::Default(_) => false,
        };
        if all.iter().any(differs) {
            name += &format!(" {calibration}");
        }
    }
    name += &format!(", {}", draft_tokens_text(choice.draft_tokens));
    if choice.tree != Tree::None {
        name += &format!(", {}", choice.tree);
    }
    if choice.pearl != PearlOptions::default() {
        name += &format!(", {}", choice.pearl);
    }
    name
}

/// Returns the name of a drafter in addition to the first one: of a model, that of its folder or
/// file.
fn additional_drafter_name(drafter: &AdditionalDrafter) -> String {
    let name = drafter.to_string();
    match (drafter, Path::new(&name).file_name()) {
        (AdditionalDrafter::Model(_), Some(end)) => end.to_string_lossy().into_owned(),
        _ => name,
    }
}

/// Returns the name of a draft model, or nothing if its drafter has only one.
///
/// The name is the shortest end of the path that differs from the other draft models. All drafters
/// with whole language models count as the same drafter.
fn draft_model_name(model: &ModelSource, choice: &Choice, all: &[Choice]) -> String {
    let alike = |kind: DrafterKind| match kind.belongs_to_target() {
        true => kind == choice.drafter.kind(),
        false => !choice.drafter.kind().belongs_to_target(),
    };
    let others = all.iter().filter(|other| alike(other.drafter.kind()));
    let names = others.filter_map(|other| other.draft_model.as_ref()).map(ToString::to_string);
    let others: BTreeSet<PathBuf> = names.map(PathBuf::from).collect();
    let path = PathBuf::from(model.to_string());
    if others.len() < 2 {
        return String::new();
    }
    let end = |path: &Path, parts: usize| -> PathBuf {
        let all = path.components().count();
        path.components().skip(all.saturating_sub(parts)).collect()
    };
    let is_unique = |parts: &usize| {
        let same = others.iter().filter(|other| end(other, *parts) == end(&path, *parts));
        same.count() == 1
    };
    let parts = (1..path.components().count()).find(is_unique);
    format!(" {}", parts.map_or(path.clone(), |parts| end(&path, parts)).display())
}

/// Formats a placement for a label: `on 0-1` if drafter and target use the same cores, else
/// `on 0/1-3` with the drafters' cores before the target's. Semicolons separate drafters or
/// replicas; `>` separates the devices of one model.
fn on_cores(placement: &Placement) -> String {
    let drafters: Vec<String> =
        (0..).map_while(|at| placement.drafter(at)).map(ToString::to_string).collect();
    let targets: Vec<String> =
        (0..).map_while(|at| placement.target(at)).map(ToString::to_string).collect();
    let [drafters, targets] =
        [drafters, targets].map(|groups| groups.join(";").replace("cpu:", "").replace('/', ">"));
    let is_common = drafters == targets && placement.pace().is_none();
    match drafters.is_empty() || is_common {
        true => format!("on {targets}"),
        false => format!("on {drafters}/{targets}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Models, Sweep, configurations};
    use forerun::placement::available_cores;
    use forerun::{DraftTokens, Method};

    /// Returns the labels of all configurations of some sweeps, including plain decoding.
    fn names(sweeps: &[Sweep]) -> Vec<String> {
        let models = Models { target: "target".into(), ..Models::default() };
        let all = configurations(&models, sweeps, true).unwrap();
        all.into_iter().map(|configuration| configuration.name).collect()
    }

    #[test]
    fn labels_include_draft_models_and_temperatures_if_there_are_several() {
        let with = |paths: &[&str]| Sweep {
            draft_models: paths.iter().copied().map(Into::into).collect(),
            draft_tokens: vec![DraftTokens::Fixed(2)],
            temperatures: vec![0.0, 1.0],
            ..Sweep::default()
        };
        let lookup = Sweep { drafters: vec![DrafterKind::PromptLookup], ..Sweep::default() };
        let expected = [
            "autoregressive, T 0",
            "speculative, model a/small, 2, T 0",
            "speculative, model b/small, 2, T 0",
            "speculative, model other, 2, T 0",
            "autoregressive, T 1",
            "speculative, model a/small, 2, T 1",
            "speculative, model b/small, 2, T 1",
            "speculative, model other, 2, T 1",
            "speculative, prompt-lookup, auto, T 0",
        ];
        let sweeps = [with(&["a/small", "b/small", "c/other"]), lookup.clone()];
        assert_eq!(names(&sweeps), expected);
        // A single draft model or temperature is not included.
        let one = Sweep { temperatures: vec![1.0], ..with(&["a/small"]) };
        assert_eq!(names(&[one])[1], "speculative, model, 2");
        let models = Models { target: "target".into(), ..Models::default() };
        let all = configurations(&models, &sweeps, false).unwrap();
        let baselines: Vec<usize> =
            all.iter().map(|configuration| configuration.baseline).collect();
        assert_eq!(baselines, [0, 0, 0, 0, 4, 4, 4, 4, 0]);
        assert!(all[6].flags.contains("--draft-model b/small") && all[6].temperature == 1.0);
        assert!(all[6].flags.ends_with("--temperature 1"), "{}", all[6].flags);
        // Prompt lookup uses no draft model.
        let unused = Sweep { draft_models: vec!["unused".into()], ..lookup };
        let error = configurations(&models, &[unused], false).unwrap_err().to_string();
        assert!(error.contains("draft model unused") && error.contains("drafter"), "{error}");
    }

    #[test]
    fn labels_include_placements_that_differ() {
        let cores = available_cores();
        let (first, last) = (cores[0], cores[cores.len() - 1]);
        if first == last {
            return;
        }
        let shared = format!("drafter=cpu:{first}+cpu:{last},target=cpu:{first}+cpu:{last},shared");
        let apart = format!("drafter=cpu:{first},target=cpu:{last}");
        let both =
            if last == first + 1 { format!("{first}-{last}") } else { format!("{first}+{last}") };
        let of = |method, drafter, placements: &[&String]| Sweep {
            methods: vec![method],
            drafters: vec![drafter],
            draft_models: if drafter == DrafterKind::Model { vec!["d".into()] } else { Vec::new() },
            placements: placements.iter().map(|text| text.parse().unwrap()).collect(),
            ..Sweep::default()
        };
        let sweeps = [
            of(Method::Speculative, DrafterKind::Model, &[&shared, &apart]),
            of(Method::Speculative, DrafterKind::PromptLookup, &[&apart]),
            of(Method::Pearl, DrafterKind::Model, &[&apart]),
        ];
        let expected = [
            "autoregressive".to_owned(),
            format!("speculative, model, auto, on {both}"),
            format!("speculative, model, auto, on {first}/{last}"),
            "speculative, prompt-lookup, auto".into(),
            "pearl, model, auto".into(),
        ];
        assert_eq!(names(&sweeps), expected);
        let replicas = format!("drafter=cpu:{first},target=cpu:{last},target=cpu:{last},shared");
        assert_eq!(on_cores(&replicas.parse().unwrap()), format!("on {first}/{last};{last}"));
        // If any two choices have different cores, all labels include them.
        let one = format!("target=cpu:{first}");
        let plain = Sweep { placements: vec![one.parse().unwrap()], ..Sweep::default() };
        let plain = Sweep { methods: vec![Method::Autoregressive], ..plain };
        let [plain, drafted] = &names(&[plain, sweeps[1].clone()])[..] else { panic!("two") };
        assert_eq!(*plain, format!("autoregressive, on {first}"));
        assert_eq!(*drafted, format!("speculative, prompt-lookup, auto, on {both}"));
    }
}
