//! What configurations are called: a few words, and of what they have in common nothing.

use crate::choice::{Choice, ModelConcurrency, draft_tokens_text};
use forerun::{DrafterKind, Method, PearlOptions, Placement, Tree, available_cores};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What labels tell choices apart by.
pub(crate) struct Labels<'a> {
    all: &'a [Choice],
    /// Of choices that are compared with each other, all placements.
    placements: BTreeMap<Compared, BTreeSet<Option<String>>>,
    /// All sets of cores.
    cores: BTreeSet<BTreeSet<usize>>,
}

/// Whose placements are compared: plain decoding's or others', and what the devices are for.
type Compared = (bool, ModelConcurrency);

fn compared(choice: &Choice) -> Compared {
    (choice.method == Method::Autoregressive, choice.concurrency())
}

/// A choice's devices; one that cannot be placed has none, and fails when it is planned.
fn devices(choice: &Choice) -> Option<String> {
    choice.devices().ok().flatten()
}

impl<'a> Labels<'a> {
    /// Those of all choices.
    pub(crate) fn of(all: &'a [Choice]) -> Self {
        let mut placements = BTreeMap::<Compared, BTreeSet<Option<String>>>::new();
        for choice in all {
            placements.entry(compared(choice)).or_default().insert(devices(choice));
        }
        Self { all, placements, cores: all.iter().map(Choice::cores).collect() }
    }

    /// What tells a choice from all others in a report: draft models, placements, weight types and
    /// temperatures only where there are several.
    pub(crate) fn label(&self, choice: &Choice) -> String {
        let all = self.all;
        let mut name = choice.method.to_string();
        if choice.method != Method::Autoregressive {
            name += &drafting(choice, all);
        }
        if self.tells_placement(choice)
            && let Some(placement) = devices(choice)
        {
            name += &format!(", {}", on_cores(&placement));
        }
        if all.iter().any(|other| other.weight_type != choice.weight_type) {
            name += &format!(", {}", choice.weight_type.map_or("auto".into(), |t| t.to_string()));
        }
        if all.iter().any(|other| other.temperature != choice.temperature) {
            name += &format!(", T {}", choice.temperature);
        }
        name
    }

    /// Whether a label tells the placement: others of its kind have another one, or anybody other cores.
    fn tells_placement(&self, choice: &Choice) -> bool {
        let (placement, cores) = (devices(choice), choice.cores());
        let mut others = self.placements.get(&compared(choice)).into_iter().flatten();
        others.any(|other| *other != placement) || self.cores.iter().any(|other| *other != cores)
    }
}

/// Who drafts, and how.
fn drafting(choice: &Choice, all: &[Choice]) -> String {
    let mut name = format!(", {}", choice.drafter);
    if let Some(path) = &choice.draft_model {
        name += &draft_model_name(path, choice, all);
    }
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
    name
}

/// A draft model behind its drafter, where that drafts with several: as much of its path's end as tells
/// it from the others. Drafters with whole models are alike.
fn draft_model_name(path: &Path, choice: &Choice, all: &[Choice]) -> String {
    let alike = |kind: DrafterKind| match kind.belongs_to_target() {
        true => kind == choice.drafter,
        false => !choice.drafter.belongs_to_target(),
    };
    let others = all.iter().filter(|other| alike(other.drafter));
    let others: BTreeSet<&Path> = others.filter_map(|other| other.draft_model.as_deref()).collect();
    if others.len() < 2 {
        return String::new();
    }
    let end = |path: &Path, parts: usize| -> PathBuf {
        let all = path.components().count();
        path.components().skip(all.saturating_sub(parts)).collect()
    };
    let own = |parts: &usize| {
        let same = others.iter().filter(|other| end(other, *parts) == end(path, *parts));
        same.count() == 1
    };
    let parts = (1..path.components().count()).find(own);
    format!(" {}", parts.map_or(path.to_owned(), |parts| end(path, parts)).display())
}

/// A placement in a label: `on 0-1` where all work there, `on 0/1-3` with the drafters' cores before the
/// target's, groups parted by semicolons, devices that a model has in turn by `>`.
fn on_cores(text: &str) -> String {
    let Ok(placement) = Placement::parse(text, &available_cores()) else { return text.to_owned() };
    let drafters: Vec<String> =
        (0..).map_while(|at| placement.drafter(at)).map(ToString::to_string).collect();
    let targets: Vec<String> =
        (0..).map_while(|at| placement.target(at)).map(ToString::to_string).collect();
    let [drafters, targets] =
        [drafters, targets].map(|own| own.join(";").replace("cpu:", "").replace('/', ">"));
    match drafters.is_empty() || drafters == targets {
        true => format!("on {targets}"),
        false => format!("on {drafters}/{targets}"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Models, Sweep, configurations};
    use forerun::DraftTokens;

    /// The labels of some sweeps, those of plain decoding included.
    fn names(sweeps: &[Sweep]) -> Vec<String> {
        let models = Models { target: "target".into(), ..Models::default() };
        let all = configurations(&models, sweeps, true).unwrap();
        all.into_iter().map(|own| own.name).collect()
    }

    #[test]
    fn draft_models_and_temperatures_are_told_where_there_are_several() {
        let with = |paths: &[&str]| Sweep {
            draft_models: paths.iter().map(PathBuf::from).collect(),
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
        // One is not told.
        let one = Sweep { temperatures: vec![1.0], ..with(&["a/small"]) };
        assert_eq!(names(&[one])[1], "speculative, model, 2");
        let models = Models { target: "target".into(), ..Models::default() };
        let all = configurations(&models, &sweeps, false).unwrap();
        let baselines: Vec<usize> = all.iter().map(|own| own.baseline).collect();
        assert_eq!(baselines, [0, 0, 0, 0, 4, 4, 4, 4, 0]);
        assert!(all[6].flags.contains("--draft-model b/small") && all[6].temperature == 1.0);
        assert!(all[6].flags.ends_with("--temperature 1"), "{}", all[6].flags);
        // A sweep of lookups uses no model.
        let idle = Sweep { draft_models: vec!["idle".into()], ..lookup };
        let error = configurations(&models, &[idle], false).unwrap_err().to_string();
        assert!(error.contains("idle") && error.contains("drafter"), "{error}");
    }

    #[test]
    fn placements_are_told_shortly_where_they_differ() {
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
            placements: placements.iter().map(|&text| text.clone()).collect(),
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
        assert_eq!(on_cores(&replicas), format!("on {first}/{last};{last}"));
        // Other cores are told of all.
        let one = format!("target=cpu:{first}");
        let plain = Sweep { placements: vec![one], ..Sweep::default() };
        let plain = Sweep { methods: vec![Method::Autoregressive], ..plain };
        let [plain, drafted] = &names(&[plain, sweeps[1].clone()])[..] else { panic!("two") };
        assert_eq!(*plain, format!("autoregressive, on {first}"));
        assert_eq!(*drafted, format!("speculative, prompt-lookup, auto, on {both}"));
    }
}
