//! Predictions of a hardware profile next to the speeds that are measured.

use crate::{BenchError, Configuration};
use forerun::{DraftLength, Lookup, ModelSource, PearlOptions, Plan};
use forerun_core::DraftShape;
use forerun_sim::planning::{HardwareProfile, PlannedDraft, rank};
use serde::{Deserialize, Serialize};

/// A simulated speed, and the measured one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedSpeed {
    /// The simulated speed after the first token, in tokens per second.
    pub predicted_tokens_per_second: f64,
    /// The measured one.
    pub measured_tokens_per_second: f64,
    /// How much faster it is than predicted, as a share; below 0 if it is slower.
    pub error: f64,
}

impl PredictedSpeed {
    /// Compares a prediction with a mean time per token after the first one, in milliseconds.
    #[must_use]
    pub fn new(predicted_tokens_per_second: f64, measured_ms_per_token: f64) -> Self {
        let measured_tokens_per_second = 1e3 / measured_ms_per_token;
        let error = measured_tokens_per_second / predicted_tokens_per_second - 1.0;
        Self { predicted_tokens_per_second, measured_tokens_per_second, error }
    }
}

/// Returns the simulated speeds of configurations after the first token, in tokens per second. `None`: the profile has no
/// costs of the configuration, or it cannot be simulated. Configurations above temperature 0, with a lookup, or with other
/// options of PEARL have none.
///
/// # Errors
/// If the profile is of another target, or a simulation fails.
pub fn predicted_speeds(
    profile: &HardwareProfile,
    configurations: &[Configuration],
) -> Result<Vec<Option<f64>>, BenchError> {
    let name = |model: Option<&ModelSource>| match model {
        None | Some(ModelSource::Embedded(_)) => String::new(),
        Some(model) => model.to_string(),
    };
    if let Some(other) =
        configurations.iter().find(|other| name(Some(other.plan.model())) != profile.model)
    {
        let (of, model) = (profile.model.clone(), other.plan.model().to_string());
        return Err(BenchError::OtherProfile { of, model });
    }
    let drafts: Vec<Option<PlannedDraft>> =
        configurations.iter().map(|configuration| draft_of(&configuration.plan)).collect();
    let mut distinct: Vec<PlannedDraft> = drafts.iter().copied().flatten().collect();
    distinct.sort();
    distinct.dedup();
    let ranking = rank(profile, &distinct)?;
    let speed = |(configuration, draft): (&Configuration, Option<PlannedDraft>)| {
        let Configuration { plan, placement, temperature, .. } = configuration;
        let drafts = plan.method().drafts();
        let drafter = drafts.then(|| plan.drafter().to_string());
        let record = profile.drafters.iter().find(|record| Some(&record.name) == drafter.as_ref());
        let recorded = record.and_then(|record| record.model.clone()).unwrap_or_default();
        let model = name(plan.draft_model().filter(|_| plan.drafter().has_model()));
        if *temperature > 0.0 || (drafts && recorded != model) {
            return None;
        }
        let found = ranking.iter().find(|prediction| {
            prediction.method == plan.method().to_string()
                && prediction.drafter == drafter
                && prediction.placement == *placement
                && Some(prediction.draft) == draft
        });
        found.map(|prediction| prediction.tokens_per_second)
    };
    Ok(configurations.iter().zip(drafts).map(speed).collect())
}

/// Returns the drafts of a plan, if they can be simulated.
fn draft_of(plan: &Plan) -> Option<PlannedDraft> {
    if !plan.method().drafts() {
        return Some(PlannedDraft::Chain(0));
    }
    if plan.lookup() != Lookup::None || plan.pearl() != PearlOptions::default() {
        return None;
    }
    let is_auto = match plan.length() {
        DraftLength::Auto => true,
        DraftLength::Fixed => false,
        DraftLength::Assisted => return None,
    };
    match plan.shape() {
        _ if plan.trees().is_some() => Some(PlannedDraft::AutoTree),
        DraftShape::Chain { .. } if is_auto => Some(PlannedDraft::AutoChain),
        DraftShape::Chain { length } => Some(PlannedDraft::Chain(*length)),
        shape @ DraftShape::Ranked { .. } if !is_auto => {
            let draft = PlannedDraft::Tree(shape.max_nodes());
            Some(draft).filter(|draft| draft.shape() == *shape)
        }
        _ => None,
    }
}
