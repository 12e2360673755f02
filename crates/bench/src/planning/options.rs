//! Plan files: the options of a prediction, as commands take them.

use forerun_sim::planning::{HardwareProfile, PlannedDraft, Prediction};
use std::fmt::Write;

/// Returns the text of a configuration file with the options of a prediction. It begins with
/// `comment`.
#[must_use]
pub fn plan_file(profile: &HardwareProfile, prediction: &Prediction, comment: &str) -> String {
    let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
    for (name, value) in plan_options(profile, prediction) {
        // Writing to a string does not fail.
        let _ = match value {
            Some(value) => {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                writeln!(text, "{name} = \"{value}\"")
            }
            None => writeln!(text, "{name} = true"),
        };
    }
    text
}

/// Returns the options of a prediction, as the command names them without dashes, and their values;
/// a switch has none.
#[must_use]
pub fn plan_options(
    profile: &HardwareProfile,
    prediction: &Prediction,
) -> Vec<(&'static str, Option<String>)> {
    let mut options = Vec::new();
    let mut option = |name, value: &str| options.push((name, Some(value.to_owned())));
    if !profile.model.is_empty() {
        option("model", &profile.model);
    }
    for (name, value) in [("dtype", &profile.dtype), ("kv-type", &profile.kv_type)] {
        if let Some(value) = value {
            option(name, value);
        }
    }
    option("method", &prediction.method);
    if let Some(name) = &prediction.drafter {
        let record = profile.drafters.iter().find(|drafter| drafter.name == *name);
        if let Some(model) = record.and_then(|record| record.model.as_ref()) {
            option("draft-model", model);
        }
        option("drafter", name);
        let (name, value) = prediction.draft.option();
        option(name, &value);
        if let PlannedDraft::Tree(_) = prediction.draft {
            // Without a number of tokens, some drafts would be left out.
            option("draft-tokens", &prediction.draft.shape().depth().to_string());
        }
    }
    if let Some(placement) = &prediction.placement {
        option("placement", placement);
    } else if let Some(threads) = profile.threads {
        option("threads", &threads.to_string());
    }
    if profile.pin {
        options.push(("pin", None));
    }
    options
}
