//! The settings that a plan compares: method, drafter and placement.

use super::PlanningError;
use forerun::{DraftTokens, DrafterKind, Method, ModelSource, Options, Placement, Plan, Tree};

/// A method with a drafter on a placement. The draft length is open.
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

    /// Returns the placement, if it is not the automatic one.
    #[must_use]
    pub fn placement(&self) -> Option<String> {
        self.options.placement.as_ref().map(ToString::to_string)
    }

    /// Returns whether the engine of another setting can answer for this one.
    pub(super) fn shares_engine_with(&self, other: &Self) -> bool {
        let key = |setting: &Self| {
            let plan = &setting.plan;
            (plan.placement().to_string(), plan.is_pinned(), plan.drafter().to_string())
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
        match self.placement() {
            Some(placement) => write!(f, ", {placement}"),
            None => Ok(()),
        }
    }
}

/// Returns plain decoding, and every method with every drafter on every placement that these options allow. A method,
/// drafter or placement that is set is the only one.
///
/// # Errors
/// If the options do not fit together, or if the drafter cannot be simulated.
pub fn settings(base: &Options) -> Result<Vec<Setting>, PlanningError> {
    let base = Options { draft_tokens: DraftTokens::Auto, tree: Tree::None, ..base.clone() };
    let plain = Options {
        method: Some(Method::Autoregressive),
        drafter: None,
        draft_model: None,
        ..base.clone()
    };
    let mut all = vec![Setting::new(plain)?];
    let methods = match base.method {
        Some(method) => vec![method],
        None => vec![Method::Speculative, Method::Pearl, Method::Dsi, Method::Ssd],
    };
    for (drafter, draft_model) in drafters(&base)? {
        for &method in methods.iter().filter(|method| method.drafts()) {
            let options = Options {
                method: Some(method),
                drafter: Some(drafter),
                draft_model: draft_model.clone(),
                ..base.clone()
            };
            let separate = separate(&options);
            // A method that needs more cores than there are is left out, unless it was asked for.
            match Setting::new(options.clone()) {
                Ok(setting) => all.push(setting),
                Err(error) if base.method.is_some() || base.placement.is_some() => {
                    return Err(error);
                }
                Err(_) => continue,
            }
            if let Some(placement) = separate {
                all.push(Setting::new(Options {
                    placement: Some(placement),
                    threads: None,
                    ..options
                })?);
            }
        }
    }
    Ok(all)
}

/// Returns the placement on separate cores of a method that shares them by default.
fn separate(options: &Options) -> Option<Placement> {
    if options.placement.is_some() || options.method != Some(Method::Speculative) {
        return None;
    }
    let parallel = Plan::new(Options { method: Some(Method::Pearl), ..options.clone() }).ok()?;
    let is_separate = parallel.drafter().has_model() && !parallel.placement().is_shared();
    is_separate.then(|| parallel.placement().clone())
}

/// Returns the drafters with their checkpoints: the given one, and prompt lookup, which is always free.
fn drafters(base: &Options) -> Result<Vec<(DrafterKind, Option<ModelSource>)>, PlanningError> {
    let lookup = (DrafterKind::PromptLookup, None);
    if base.drafter.is_none() && base.draft_model.is_none() {
        return Ok(vec![lookup]);
    }
    let speculative = Options { method: Some(Method::Speculative), ..base.clone() };
    let kind = Plan::new(speculative)?.drafter();
    if ![DrafterKind::Model, DrafterKind::PromptLookup].contains(&kind) {
        return Err(PlanningError::Drafter(kind.to_string()));
    }
    let given = (kind, base.draft_model.clone());
    Ok(match base.drafter {
        Some(_) => vec![given],
        None => vec![given, lookup],
    })
}
