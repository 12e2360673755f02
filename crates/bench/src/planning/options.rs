//! Plan files: the options of a prediction, as commands take them.

use forerun_sim::planning::{HardwareProfile, PlannedDraft, Prediction};
use std::fmt::Write;

/// Returns the text of a configuration file with the options of a prediction. It begins with
/// `comment`.
#[must_use]
pub fn plan_file(profile: &HardwareProfile, prediction: &Prediction, comment: &str) -> String {
    let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
    let mut option = |name: &str, value: &str| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = \"{value}\"");
    };
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
        text += "pin = true\n";
    }
    text
}
