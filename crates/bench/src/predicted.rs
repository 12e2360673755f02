//! Predictions of a hardware profile next to the speeds that are measured.

use crate::{BenchError, Configuration};
use forerun::method::DraftLength;
use forerun::{Lookup, ModelSource, PearlOptions, Plan};
use forerun_core::DraftShape;
use forerun_sim::planning::{HardwareProfile, PlannedDraft, Prediction, rank};
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

/// Why a profile predicts nothing for a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpredicted {
    /// It has another value of an option.
    #[error("the profile was measured with {option} {profile}, and this runs with {configuration}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The value of the profile.
        profile: String,
        /// The value of the configuration.
        configuration: String,
    },
    /// It samples.
    #[error("profiles are of temperature 0")]
    Temperature,
    /// The profile has no costs of it.
    #[error("the profile has no costs of it, or it cannot be simulated")]
    NotMeasured,
}

/// Returns the simulated speeds of configurations after the first token, in tokens per second, or
/// why there is none.
///
/// # Errors
/// If the profile is of another target, or a simulation fails.
pub fn predicted_speeds(
    profile: &HardwareProfile,
    configurations: &[Configuration],
) -> Result<Vec<Result<f64, Unpredicted>>, BenchError> {
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
    let speed = |(configuration, draft)| predicted_speed(profile, &ranking, configuration, draft);
    Ok(configurations.iter().zip(drafts).map(speed).collect())
}

/// Returns the name of a model in options; empty for a part of the program, which has none.
fn name(model: Option<&ModelSource>) -> String {
    match model {
        None | Some(ModelSource::Embedded(_)) => String::new(),
        Some(model) => model.to_string(),
    }
}

fn predicted_speed(
    profile: &HardwareProfile,
    ranking: &[Prediction],
    configuration: &Configuration,
    draft: Option<PlannedDraft>,
) -> Result<f64, Unpredicted> {
    let Configuration { plan, placement, temperature, .. } = configuration;
    if *temperature > 0.0 {
        return Err(Unpredicted::Temperature);
    }
    let auto = || String::from("auto");
    let types = [
        ("--dtype", &profile.dtype, plan.weight_type().map(|found| found.to_string())),
        ("--kv-type", &profile.kv_type, plan.cache_type().map(|found| found.to_string())),
    ];
    for (option, recorded, found) in types {
        same(option, recorded.clone().unwrap_or_else(auto), found.unwrap_or_else(auto))?;
    }
    let drafter = plan.method().drafts().then(|| plan.drafter().to_string());
    let record = profile.drafters.iter().find(|record| Some(&record.name) == drafter.as_ref());
    if let Some(record) = record {
        let recorded = record.model.clone().unwrap_or_default();
        let found = name(plan.draft_model().filter(|_| plan.drafter().has_model()));
        same("--draft-model", recorded, found)?;
    }
    let is_of_it = |prediction: &&Prediction| {
        prediction.method == plan.method().to_string()
            && prediction.drafter == drafter
            && prediction.placement == *placement
            && Some(prediction.draft) == draft
    };
    let found = ranking.iter().find(is_of_it).ok_or(Unpredicted::NotMeasured)?;
    // The automatic placement depends on the machine and on `--threads`.
    let timing = profile.timings.get(found.timing);
    if let Some(cores) = timing.and_then(|timing| timing.cores.clone()) {
        same("the cores", cores, plan.placement().to_string())?;
        let pin = profile.pin || placement.is_some();
        same("--pin", pin.to_string(), plan.is_pinned().to_string())?;
    }
    Ok(found.tokens_per_second)
}

/// Checks that an option has the value of the profile.
fn same(option: &'static str, profile: String, configuration: String) -> Result<(), Unpredicted> {
    match profile == configuration {
        true => Ok(()),
        false => Err(Unpredicted::Option { option, profile, configuration }),
    }
}

/// Returns the drafts of a plan, if they can be simulated.
fn draft_of(plan: &Plan) -> Option<PlannedDraft> {
    if !plan.method().drafts() {
        return Some(PlannedDraft::Chain(0));
    }
    let is_plain_pearl = plan.pearl() == PearlOptions::default();
    if plan.lookup() != Lookup::None || !is_plain_pearl {
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
