//! The settings that a plan compares: method, drafter and placement.

use super::PlanningError;
use crate::choice::all_to_the_target;
use forerun::{
    DraftTokens, DrafterKind, Lookup, Method, MethodOptions, ModelSource, Options, Placement, Plan,
    Tree,
};
use forerun_sim::planning::PlannedDraft;

/// A method with a drafter that drafts chains or trees, on a placement. Their size is open.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The options of its engine, with an automatic draft length.
    pub options: Options,
    /// The plan of these options.
    pub plan: Plan,
}

impl Setting {
    fn new(options: Options) -> Result<Self, PlanningError> {
        let plan = Plan::new(options.clone())?;
        Ok(Self { options, plan })
    }

    /// Returns the name of the drafter, unless this is plain decoding.
    #[must_use]
    pub fn drafter(&self) -> Option<String> {
        self.plan.method().drafts().then(|| self.plan.drafter().to_string())
    }

    /// Returns the placement, if it is not the automatic one. It has the number of layers on a GPU.
    #[must_use]
    pub fn placement(&self) -> Option<String> {
        let Options { placement, gpu_layers, .. } = &self.options;
        let is_given = placement.is_some() || gpu_layers.is_some();
        is_given.then(|| self.plan.placement().to_string())
    }

    /// Returns whether drafts are trees.
    #[must_use]
    pub fn is_tree(&self) -> bool {
        *self.options.tree() != Tree::None
    }

    /// Returns whether the drafter depends on nothing but the tokens before each of its own, so
    /// that a token is as often right at the start of a draft as later.
    pub(super) fn reads_text_alone(&self) -> bool {
        self.plan.drafter() == DrafterKind::Model
    }

    /// Returns those of `drafts` that its answers can have. A choice of methods has no fixed sizes,
    /// unless there are no others.
    pub(super) fn drafts_of(&self, drafts: &[PlannedDraft]) -> Vec<PlannedDraft> {
        if !self.plan.method().drafts() {
            return vec![PlannedDraft::Chain(0)];
        }
        let is_tree = self.is_tree();
        let mut fitting: Vec<_> =
            drafts.iter().copied().filter(|draft| draft.is_tree() == is_tree).collect();
        if self.plan.method() == Method::Auto && fitting.iter().any(|draft| draft.is_auto()) {
            fitting.retain(|draft| draft.is_auto());
        }
        fitting
    }

    /// Returns whether the engine of another setting can answer for this one.
    pub(super) fn shares_engine_with(&self, other: &Self) -> bool {
        let key = |setting: &Self| {
            let plan = &setting.plan;
            let tree = setting.is_tree();
            (plan.placement().to_string(), plan.is_pinned(), plan.drafter().to_string(), tree)
        };
        key(self) == key(other)
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.plan.method())?;
        if let Some(drafter) = self.drafter() {
            write!(f, ", {drafter}")?;
        }
        if self.is_tree() {
            write!(f, ", trees")?;
        }
        match self.placement() {
            Some(placement) => write!(f, ", {placement}"),
            None => Ok(()),
        }
    }
}

/// Returns plain decoding, and every method with every drafter on every placement that these
/// options allow, with chains and with trees. A method, drafter, placement or tree that is set is
/// the only one.
///
/// # Errors
/// If the options do not fit together, or if something that they ask for cannot be simulated.
pub fn settings(base: &Options) -> Result<Vec<Setting>, PlanningError> {
    check_drafts(base)?;
    let trees = Trees::of(base)?;
    let given = base.method.as_ref().map(MethodOptions::method);
    let without_tree = |given: MethodOptions| match given {
        MethodOptions::Speculative { .. } | MethodOptions::Own { .. } => given.method().into(),
        other => other,
    };
    let method = base.method.clone().map(without_tree);
    // Each setting computes its prompts.
    let base = Options {
        method,
        draft_tokens: DraftTokens::Auto,
        cache_dir: None,
        cache_dir_size: None,
        ..base.clone()
    };
    let plain = Options {
        method: Some(Method::Autoregressive.into()),
        placement: base
            .placement
            .as_ref()
            .map(|given| all_to_the_target(given, Method::Autoregressive)),
        ..base.clone()
    };
    let mut all = vec![Setting::new(plain)?];
    let methods = match given {
        Some(method) => vec![method],
        None => {
            vec![Method::Speculative, Method::Pearl, Method::Dsi, Method::Ssd, Method::Auto]
        }
    };
    // Methods that cannot use all replicas of a placement are left out, unless they were asked for.
    let replicas = base.placement.as_ref().map_or(1, Placement::replicas);
    let fits = |method: &Method| {
        method.drafts() && (replicas == 1 || given.is_some() || method.has_replicas())
    };
    let methods: Vec<Method> = methods.into_iter().filter(fits).collect();
    for (drafter, draft_model) in drafters(&base)? {
        for &method in &methods {
            if !runs_ahead(drafter) && method != Method::Speculative {
                match given {
                    Some(_) => return Err(PlanningError::Method { method, drafter }),
                    None => continue,
                }
            }
            let options = Options {
                method: base.method.clone().or(Some(method.into())),
                drafter: Some(drafter.into()),
                draft_model: draft_model.clone(),
                ..base.clone()
            };
            let drafts_trees = method == Method::Speculative && drafts_ranked_trees(drafter);
            if trees != Trees::Only {
                all.extend(of_chains(&options, &base)?);
            }
            if trees != Trees::Without && drafts_trees {
                let method = MethodOptions::Speculative { tree: Tree::Auto, lookup: Lookup::None };
                all.push(Setting::new(Options { method: Some(method), ..options })?);
            }
        }
    }
    // Prompt lookup is added to every plan. It has no trees.
    if trees == Trees::Only && all.len() == 1 {
        let with = match (given, &base.drafter) {
            (Some(method), _) if method != Method::Speculative => {
                format!(" with the method {method}")
            }
            (_, Some(drafter)) => format!(" with the drafter {}", drafter.kind()),
            _ => " with the drafter of this draft model".into(),
        };
        return Err(PlanningError::Tree { tree: Tree::Auto, with });
    }
    Ok(all)
}

/// Checks that the drafts of these options can be simulated.
///
/// # Errors
/// Names what cannot.
pub fn check_drafts(options: &Options) -> Result<(), PlanningError> {
    Trees::of(options)?;
    if let Some(drafter) = options.additional_drafters.first() {
        return Err(PlanningError::SeveralDrafters(drafter.clone()));
    }
    match options.lookup() {
        Lookup::None => Ok(()),
        lookup => Err(PlanningError::Lookup(lookup)),
    }
}

/// Returns a method with a drafter that drafts chains, on each placement.
fn of_chains(options: &Options, base: &Options) -> Result<Vec<Setting>, PlanningError> {
    let first = match Setting::new(options.clone()) {
        Ok(setting) => setting,
        Err(error) if base.method.is_some() || base.placement.is_some() => return Err(error),
        // A method that needs more cores than there are is left out, unless it was asked for.
        Err(_) => return Ok(Vec::new()),
    };
    let mut all = vec![first];
    if let Some(placement) = separate(options) {
        let placement = Some(placement);
        all.push(Setting::new(Options { placement, threads: None, ..options.clone() })?);
    }
    Ok(all)
}

/// Whether trees are planned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trees {
    Without,
    AndChains,
    Only,
}

impl Trees {
    fn of(options: &Options) -> Result<Self, PlanningError> {
        match (options.tree(), options.draft_tokens) {
            (_, DraftTokens::Assisted) => Err(PlanningError::Assisted),
            (Tree::None, DraftTokens::Fixed(_)) => Ok(Self::Without),
            (Tree::None, DraftTokens::Auto) => Ok(Self::AndChains),
            (Tree::Ranked { .. } | Tree::Auto, DraftTokens::Auto) => Ok(Self::Only),
            (Tree::Ranked { .. } | Tree::Auto, DraftTokens::Fixed(_)) => Err(PlanningError::Depth),
            (tree, _) => Err(PlanningError::Tree { tree: tree.clone(), with: String::new() }),
        }
    }
}

/// The names of the drafters that are simulated.
pub(super) const SIMULATED: &str = "model, prompt-lookup, eagle, medusa, hydra, dflash, dflash2, dspark, mtp, assistant and parallel";

/// Returns whether the drafts of a drafter follow from the text and the target's hidden states, so
/// that they can be recorded at every position and replayed.
fn is_simulated(drafter: DrafterKind) -> bool {
    use DrafterKind as Kind;
    let on_features = [
        Kind::Eagle,
        Kind::Medusa,
        Kind::Hydra,
        Kind::DFlash,
        Kind::DFlash2,
        Kind::DSpark,
        Kind::Mtp,
        Kind::Assistant,
        Kind::Parallel,
    ];
    runs_ahead(drafter) || on_features.contains(&drafter)
}

/// Returns whether the record of a drafter also shows what it drafts after tokens that the target
/// has not read.
fn runs_ahead(drafter: DrafterKind) -> bool {
    [DrafterKind::Model, DrafterKind::PromptLookup].contains(&drafter)
}

/// Returns whether a drafter's trees can be replayed by the ranks of the target's tokens. DSpark
/// ends a tree by the confidence in all of its paths, and prompt lookup drafts what it finds.
fn drafts_ranked_trees(drafter: DrafterKind) -> bool {
    ![DrafterKind::DSpark, DrafterKind::PromptLookup].contains(&drafter)
}

/// Returns the placement on separate cores of a method that shares them by default.
fn separate(options: &Options) -> Option<Placement> {
    let is_speculative = options.method == Some(Method::Speculative.into());
    if options.placement.is_some() || !is_speculative {
        return None;
    }
    let method = Some(Method::Pearl.into());
    let parallel = Plan::new(Options { method, ..options.clone() }).ok()?;
    let is_separate = parallel.drafter().has_model() && !parallel.placement().is_shared();
    is_separate.then(|| parallel.placement().clone())
}

/// Returns the drafters with their checkpoints: the given one, and prompt lookup, which is always
/// free.
fn drafters(base: &Options) -> Result<Vec<(DrafterKind, Option<ModelSource>)>, PlanningError> {
    let lookup = (DrafterKind::PromptLookup, None);
    if base.drafter.is_none() && base.draft_model.is_none() {
        return Ok(vec![lookup]);
    }
    // The placement may have replicas, which this method does not use.
    let speculative =
        Options { method: Some(Method::Speculative.into()), placement: None, ..base.clone() };
    let kind = Plan::new(speculative)?.drafter();
    if !is_simulated(kind) {
        return Err(PlanningError::Drafter(kind));
    }
    let given = (kind, base.draft_model.clone());
    Ok(match base.drafter {
        Some(_) => vec![given],
        None => vec![given, lookup],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        let refused = |change: fn(&mut Options), word: &str| {
            let mut options = Options { model: "target".into(), ..Options::default() };
            change(&mut options);
            for message in [
                check_drafts(&options).unwrap_err().to_string(),
                settings(&options).err().unwrap().to_string(),
            ] {
                assert!(message.contains(word), "{message}");
            }
        };
        let lookup = |options: &mut Options| {
            options.method = Some(MethodOptions::Ssd { lookup: Lookup::Suffix });
        };
        refused(lookup, "`lookup = suffix`");
        refused(
            |options| options.additional_drafters = vec!["other".parse().unwrap()],
            "`additional_drafters = other` cannot be planned",
        );
    }

    #[test]
    fn a_placement_with_replicas_is_planned_for_methods_that_use_them() {
        let cores = forerun::placement::default_cores();
        let (first, last) = (cores.first().unwrap(), cores.last().unwrap());
        let text = format!("drafter=cpu:{first},target=cpu:{last},target=cpu:{last},shared");
        let base = Options {
            model: "target".into(),
            draft_model: Some("drafter".into()),
            placement: text.parse().ok(),
            ..Options::default()
        };
        let planned = |method: Option<Method>| {
            settings(&Options { method: method.map(Method::into), ..base.clone() })
        };
        for method in [None, Some(Method::Dsi)] {
            let all = planned(method).unwrap();
            let methods: Vec<Method> = all.iter().map(|setting| setting.plan.method()).collect();
            assert_eq!(methods, [Method::Autoregressive, Method::Dsi, Method::Dsi]);
            // Plain decoding has all cores of the placement.
            let plain = Placement::target_on(
                &crate::choice::cores_in(&text.parse().unwrap()).into_iter().collect::<Vec<_>>(),
            );
            assert_eq!(all[0].plan.placement(), &plain);
        }
        let refused = planned(Some(Method::Pearl)).unwrap_err().to_string();
        assert!(refused.contains("2 target groups"), "{refused}");
    }
}
