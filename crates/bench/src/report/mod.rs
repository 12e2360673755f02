//! The reports of a comparison: Markdown tables, and a self-contained HTML page.

mod html;
mod layers;
mod markdown;
mod verdict;

pub use html::html;
pub use markdown::markdown;

use crate::BenchError;
use crate::metrics::{Measured, Metric};
use crate::peer_comparison::{PeerComparison, Quartiles, TextAgreement};
use crate::summary::{ConfigurationSummary, OVERALL, SYNTHETIC_PAIR, Summary};
use forerun_draw::number;
use std::path::Path;

/// Writes `summary.json`, `report.md` and `report.html` into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, summary: &Summary) -> Result<(), BenchError> {
    let write = |name: &str, text: String| {
        let file = folder.join(name);
        forerun_output::write(&file, text).map_err(|cause| BenchError::Write { file, cause })
    };
    let json = serde_json::to_string_pretty(summary).map_err(|error| BenchError::Write {
        file: folder.join("summary.json"),
        cause: error.into(),
    })?;
    write("summary.json", json + "\n")?;
    write("report.md", markdown(summary))?;
    write("report.html", html(summary))
}

/// Returns one line per configuration with its speed, and the result in words, for a terminal.
#[must_use]
pub fn terminal_summary(summary: &Summary) -> String {
    let width = summary.configurations.iter().map(|entry| entry.name.chars().count()).max();
    let line = |entry: &ConfigurationSummary| {
        let value = |metric| shown(metric, entry.cells[OVERALL].get(metric));
        let prediction = entry.prediction.map_or_else(String::new, |prediction| {
            format!("  {:+.1} % from the prediction", prediction.error * 100.0)
        });
        format!(
            "{:<width$}  {:>14} ×  {:>14} tokens/s  MAT {}{prediction}",
            entry.name,
            value(Metric::SpeedRatio),
            value(Metric::TokensPerSecond),
            value(Metric::MeanAcceptedTokens),
            width = width.unwrap_or(0),
        )
    };
    let lines = summary.configurations.iter().map(line);
    let verdict = verdict::verdict(summary);
    let gap = (!verdict.is_empty()).then(String::new);
    lines.chain(gap).chain(verdict).chain(paced_notes(summary)).collect::<Vec<_>>().join("\n")
}

/// Says that devices were paced, by which times, and whether passes kept to them.
fn paced_notes(summary: &Summary) -> Vec<String> {
    let paced = || summary.configurations.iter().filter_map(|entry| entry.paced.as_ref());
    let mut names: Vec<&str> = paced().map(|paced| &*paced.name).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    let passes: u64 = paced().map(|paced| paced.passes).sum();
    let overruns: u64 = paced().map(|paced| paced.overruns).sum();
    let note = format!(
        "Paced, not measured on these devices: real models computed all tokens here, and each pass took \
         the time of {}. {overruns} of {passes} passes overran.",
        names.join(" or ")
    );
    summary.refusal().into_iter().chain([note]).collect()
}

/// Formats a value such as `1.23 ± 0.04`, or a dash if it was not measured. Shares are in per cent.
fn shown(metric: Metric, measured: Option<Measured>) -> String {
    let Some(Measured { mean, deviation }) = measured else { return "–".into() };
    let scale = if metric.is_share() { 100.0 } else { 1.0 };
    let deviation = deviation.map(|deviation| number(deviation * scale));
    let deviation = deviation.map_or(String::new(), |deviation| format!(" ± {deviation}"));
    number(mean * scale) + &deviation
}

/// Headings of the table that compares predictions with measurements.
const PREDICTION_HEADINGS: [&str; 4] =
    ["configuration", "predicted tokens/s", "measured tokens/s", "error %"];

/// The explanation before that table.
const PREDICTION_NOTE: &str = "Speeds after the first token. Predictions are simulated on the costs of the hardware profile, and for \
     its own prompts; the error is that of the measured speed.";

/// Returns the rows of that table, one for each configuration with a prediction.
fn prediction_rows(summary: &Summary) -> Vec<[String; 4]> {
    let row = |entry: &ConfigurationSummary| {
        let found = entry.prediction?;
        Some([
            entry.name.clone(),
            number(found.predicted_tokens_per_second),
            number(found.measured_tokens_per_second),
            format!("{:+.1}", found.error * 100.0),
        ])
    };
    summary.configurations.iter().filter_map(row).collect()
}

/// Headings of the table that compares the speed with peers.
const PEER_COMPARISON_HEADINGS: [&str; 6] = [
    "forerun",
    "tokens/s",
    "peer",
    "tokens/s of the peer",
    "speedup of forerun ×",
    "pairs in which forerun is faster",
];

/// Formats a row of that table, with medians and quartiles.
fn peer_comparison_row(comparison: &PeerComparison) -> [String; 6] {
    let quartiles = |Quartiles { low, median, high }: Quartiles| {
        format!("{} [{} {}]", number(median), number(low), number(high))
    };
    [
        comparison.own.clone(),
        quartiles(comparison.own_tokens_per_second),
        comparison.peer.clone(),
        quartiles(comparison.peer_tokens_per_second),
        quartiles(comparison.ratio),
        format!("{} of {}", comparison.won, comparison.pairs),
    ]
}

/// The explanation before that table.
const PEER_COMPARISON_NOTE: &str = "Medians and quartiles over answers. The speedup compares two answers to the same \
     prompt in the same repeat, which were generated one after the other. A peer times itself and gets the \
     prompt as tokens; forerun's time includes tokenizing the prompt and decoding the answer.";

/// Headings of the table that compares the peers' texts with ours.
const TEXT_AGREEMENT_HEADINGS: [&str; 4] = [
    "peer",
    "answers equal to forerun's",
    "positions of the first differences",
    "logprob gaps there, in nats",
];

/// Formats a row of that table.
fn text_agreement_row(agreement: &TextAgreement) -> [String; 4] {
    let dash = |text: String| if text.is_empty() { "–".to_owned() } else { text };
    let list = |values: Vec<String>| dash(values.join(" "));
    let gap = |gap: Option<f64>| gap.map_or("?".into(), |gap| format!("{gap:.2e}"));
    [
        agreement.peer.clone(),
        format!("{} of {}", agreement.equal, agreement.prompts),
        list(agreement.differences.iter().map(|found| found.position.to_string()).collect()),
        list(agreement.differences.iter().map(|found| gap(found.gap)).collect()),
    ]
}

/// The explanation before that table.
const TEXT_AGREEMENT_NOTE: &str = "Peers add numbers in a different order, so they may decide near ties differently. \
     After the first such token, the texts differ. The gap is the log-probability that forerun gives to \
     its own token there, minus that of the peer's token.";

/// The explanation before the table over prompts.
const OVER_PROMPTS_NOTE: &str = "Means and standard deviations over prompts; all repeats of a prompt count as \
     one value. EasySpec's table 4 reports the variance of tokens/s, which is the square of its standard \
     deviation.";

/// Returns the headings of that table.
fn over_prompts_headings() -> Vec<String> {
    let first = ["category", "prompts", "configuration"].map(str::to_owned).into_iter();
    first.chain(Metric::OVER_PROMPTS.map(|metric| metric.heading().to_owned())).collect()
}

/// Returns the rows of that table: one for each configuration and category, and for all categories
/// together.
fn over_prompts_rows(summary: &Summary) -> Vec<Vec<String>> {
    let all = summary.categories.iter().map(|category| category.prompts).sum();
    let categories =
        summary.categories.iter().map(|category| (category.name.as_str(), category.prompts));
    let mut rows = Vec::new();
    for (name, prompts) in categories.chain([(OVERALL, all)]) {
        for entry in &summary.configurations {
            let cell = &entry.cells[name].over_prompts;
            let values =
                Metric::OVER_PROMPTS.map(|metric| shown(metric, cell.get(&metric).copied()));
            let first = [name.to_owned(), prompts.to_string(), entry.name.clone()];
            rows.push(first.into_iter().chain(values).collect());
        }
    }
    rows
}

/// Returns the notes at the top of the report.
fn notes(summary: &Summary) -> Vec<String> {
    let repeats = match summary.repeats {
        1 => "one repeat, so without standard deviations".into(),
        repeats => format!("means ± standard deviations over {repeats} repeats"),
    };
    let mut notes = vec![format!(
        "Measured in one process, in which all configurations answer a prompt before the next one; \
         {repeats}. Speed is the ratio of tokens per second to autoregressive decoding for the same prompt \
         in the same repeat (geometric mean over prompts)."
    )];
    notes.push(match summary.compared {
        true => {
            "Every answer was compared with that of autoregressive decoding: all are the same, \
                 token by token."
                .into()
        }
        false => "Answers above temperature 0 were verified by rejection sampling. They have the target's \
                 distribution, but not the text of autoregressive decoding, so they were not compared."
            .into(),
    });
    if let Some(label) = summary.setting.get(SYNTHETIC_PAIR) {
        notes.push(match label.contains("grown pair") {
            true => format!(
                "A grown pair: a real model drafts for itself with random layers ({label}). Speeds and \
                 acceptance are real, but the target is not a trained model."
            ),
            false => format!(
                "A synthetic pair, not a trained one ({label}): speeds and acceptance are real, but the text is \
                 noise."
            ),
        });
    }
    notes.extend(paced_notes(summary));
    let cores: Vec<usize> = summary.configurations.iter().map(|entry| entry.cores).collect();
    notes.push(match (cores.iter().min(), cores.iter().max()) {
        (Some(least), Some(most)) if least != most => {
            format!("Unequal cores: the configurations use from {least} to {most} cores.")
        }
        (Some(1), _) => "Every configuration uses one core.".into(),
        (Some(cores), _) => format!("Every configuration uses {cores} cores in total."),
        _ => "There is no configuration.".into(),
    });
    if summary.configurations.iter().any(|entry| entry.name.contains(", on ")) {
        notes.push(
            "The cores follow \"on\": those of drafter/target, or the common ones if drafter and target \
             alternate on the same cores."
                .into(),
        );
    }
    if !summary.left_out.is_empty() {
        notes.push(format!(
            "{} prompts were left out for all configurations, because prompt and answer do not fit into \
             the context: {}.",
            summary.left_out.len(),
            summary.left_out.join("; ")
        ));
    }
    if summary.sessions.len() > 1 {
        notes.push(format!(
            "The run was interrupted and resumed: it has {} sessions.",
            summary.sessions.len()
        ));
    }
    notes
}

/// Returns the rows of the table of provenance.
fn provenance(summary: &Summary) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> =
        summary.setting.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let many = summary.sessions.len() > 1;
    for (index, session) in summary.sessions.iter().enumerate() {
        // Later sessions usually differ in their date only.
        if summary.sessions[..index].iter().any(|known| known.command == session.command) {
            row("resumed", session.started.clone());
            continue;
        }
        let command = if many { format!("command {}", index + 1) } else { "command".into() };
        row(&command, session.command.clone());
        row("started", session.started.clone());
        row("version", format!("forerun {}", session.version));
        row("processor", format!("{}, {}", session.processor, session.instruction_set));
        row("cores", session.cores.to_string());
        row("kernel", session.kernel.clone());
        row("memory", format!("{:.1} GB", session.memory_bytes as f64 / 1e9));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_shown_with_their_deviations() {
        let measured = Measured { mean: 0.5, deviation: Some(0.01) };
        assert_eq!(shown(Metric::DraftShare, Some(measured)), "50.0 ± 1.00");
        assert_eq!(shown(Metric::SpeedRatio, Some(measured)), "0.50 ± 0.01");
        assert_eq!(shown(Metric::SpeedRatio, None), "–");
    }
}
