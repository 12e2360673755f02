//! The pages of a run: a Markdown table, and one HTML file that needs nothing else.

mod chart;
mod html;
mod layers;
mod markdown;

pub use html::html;
pub use markdown::markdown;

use crate::BenchError;
use crate::metrics::{Measured, Metric};
use crate::summary::{ConfigurationSummary, OVERALL, SYNTHETIC_PAIR, Summary};
use crate::versus::{Quartiles, SameText, Versus};
use std::path::Path;

/// Writes `summary.json`, `report.md` and `report.html` into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, summary: &Summary) -> Result<(), BenchError> {
    let write = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|cause| BenchError::Write { file, cause })
    };
    let json = serde_json::to_string_pretty(summary).map_err(|error| BenchError::Write {
        file: folder.join("summary.json"),
        cause: error.into(),
    })?;
    write("summary.json", json + "\n")?;
    write("report.md", markdown(summary))?;
    write("report.html", html(summary))
}

/// A few lines for a terminal: the speed of every configuration.
#[must_use]
pub fn short(summary: &Summary) -> String {
    let width = summary.configurations.iter().map(|own| own.name.chars().count()).max();
    let line = |own: &ConfigurationSummary| {
        let value = |metric| shown(metric, own.cells[OVERALL].get(metric));
        format!(
            "{:<width$}  {:>14} ×  {:>14} tokens/s  MAT {}",
            own.name,
            value(Metric::SpeedRatio),
            value(Metric::TokensPerSecond),
            value(Metric::MeanAcceptedTokens),
            width = width.unwrap_or(0),
        )
    };
    summary.configurations.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// `1.23 ± 0.04`, shares in per cent, and a dash where there was nothing to measure.
fn shown(metric: Metric, measured: Option<Measured>) -> String {
    let Some(Measured { mean, deviation }) = measured else { return "–".into() };
    let scale = if metric.is_share() { 100.0 } else { 1.0 };
    let deviation = deviation.map(|deviation| number(deviation * scale));
    let deviation = deviation.map_or(String::new(), |deviation| format!(" ± {deviation}"));
    number(mean * scale) + &deviation
}

/// Headings of the table of ours against peers.
const VERSUS: [&str; 6] = [
    "forerun",
    "tokens/s",
    "peer",
    "its tokens/s",
    "forerun over it ×",
    "pairs in which forerun is faster",
];

/// A row of that table: medians and quartiles.
fn versus_row(versus: &Versus) -> [String; 6] {
    let quartiles = |Quartiles { low, median, high }: Quartiles| {
        format!("{} [{} {}]", number(median), number(low), number(high))
    };
    [
        versus.own.clone(),
        quartiles(versus.own_tokens_per_second),
        versus.peer.clone(),
        quartiles(versus.peer_tokens_per_second),
        quartiles(versus.ratio),
        format!("{} of {}", versus.won, versus.pairs),
    ]
}

/// What must be known before that table.
const VERSUS_NOTE: &str = "Medians and quartiles over answers; ratios are of answers to the same prompt in \
     the same repeat, one after the other. A peer times itself, from a prompt's tokens on; forerun's time \
     has the prompt's text and the answer's, too.";

/// Headings of the table of the peers' texts.
const SAME_TEXT: [&str; 4] =
    ["peer", "answers equal to forerun's", "first differences at tokens", "gaps there in nats"];

/// A row of that table.
fn same_text_row(same: &SameText) -> [String; 4] {
    let dash = |text: String| if text.is_empty() { "–".to_owned() } else { text };
    let list = |values: Vec<String>| dash(values.join(" "));
    let gap = |gap: Option<f64>| gap.map_or("?".into(), |gap| format!("{gap:.2e}"));
    [
        same.peer.clone(),
        format!("{} of {}", same.equal, same.prompts),
        list(same.differences.iter().map(|own| own.position.to_string()).collect()),
        list(same.differences.iter().map(|own| gap(own.gap)).collect()),
    ]
}

/// What must be known before that table.
const SAME_TEXT_NOTE: &str = "Peers add numbers in other orders, so near ties fall otherwise there; behind \
     the first such token the texts are others. A gap is how much more probable forerun finds its own \
     token there than the peer's.";

/// What must be known before the table over prompts.
const OVER_PROMPTS_NOTE: &str = "Means and standard deviations over prompts, each prompt's repeats taken \
     together. EasySpec's table 4 tells the variance of tokens/s: the square of its deviation.";

/// Headings of that table.
fn over_prompts_headings() -> Vec<String> {
    let first = ["category", "prompts", "configuration"].map(str::to_owned).into_iter();
    first.chain(Metric::OVER_PROMPTS.map(|metric| metric.heading().to_owned())).collect()
}

/// Its rows: every category, and all of them.
fn over_prompts_rows(summary: &Summary) -> Vec<Vec<String>> {
    let all = summary.categories.iter().map(|category| category.prompts).sum();
    let categories = summary.categories.iter().map(|own| (own.name.as_str(), own.prompts));
    let mut rows = Vec::new();
    for (name, prompts) in categories.chain([(OVERALL, all)]) {
        for own in &summary.configurations {
            let cell = &own.cells[name].over_prompts;
            let values =
                Metric::OVER_PROMPTS.map(|metric| shown(metric, cell.get(&metric).copied()));
            let first = [name.to_owned(), prompts.to_string(), own.name.clone()];
            rows.push(first.into_iter().chain(values).collect());
        }
    }
    rows
}

/// Three digits or so, without an exponent.
fn number(value: f64) -> String {
    match value.abs() {
        // Rounding leaves such where there is nothing.
        size if size < 5e-5 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// What every reader must know before the numbers.
fn notes(summary: &Summary) -> Vec<String> {
    let repeats = match summary.repeats {
        1 => "one repeat, so without standard deviations".into(),
        repeats => format!("means ± standard deviations over {repeats} repeats"),
    };
    let mut notes = vec![format!(
        "Measured, in one process, configurations in turn prompt by prompt; {repeats}. Speed is tokens \
         per second over those of autoregressive decoding for the same prompt in the same repeat \
         (geometric mean over prompts)."
    )];
    notes.push(match summary.compared {
        true => {
            "Every answer was compared with that of autoregressive decoding: all are the same, \
                 token by token."
                .into()
        }
        false => "Answers above temperature 0 were sampled with rejection: they have the target's \
                 distribution, but are other texts, and were not compared."
            .into(),
    });
    if let Some(made) = summary.setting.get(SYNTHETIC_PAIR) {
        notes.push(format!(
            "A made pair, no trained one ({made}): speeds and acceptance are real, the text is noise."
        ));
    }
    let cores: Vec<usize> = summary.configurations.iter().map(|own| own.cores).collect();
    notes.push(match (cores.iter().min(), cores.iter().max()) {
        (Some(least), Some(most)) if least != most => {
            format!("Unequal: configurations use {least} to {most} cores.")
        }
        (Some(1), _) => "Every configuration uses one core.".into(),
        (Some(cores), _) => format!("Every configuration uses {cores} cores in total."),
        _ => "There is no configuration.".into(),
    });
    if summary.configurations.iter().any(|own| own.name.contains(", on ")) {
        notes.push(
            "Cores stand behind \"on\": those of drafter/target, or all where both work there in turn."
                .into(),
        );
    }
    if !summary.left_out.is_empty() {
        notes.push(format!(
            "{} prompts were left out for all, since prompt and answer do not fit the context: {}.",
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

/// The rows of the table about where numbers come from.
fn provenance(summary: &Summary) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> =
        summary.setting.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let many = summary.sessions.len() > 1;
    for (index, session) in summary.sessions.iter().enumerate() {
        // Later sessions differ in their date, as a rule.
        if summary.sessions[..index].iter().any(|known| known.command == session.command) {
            row("resumed", session.started.clone());
            continue;
        }
        let command = if many { format!("command {}", index + 1) } else { "command".into() };
        row(&command, session.command.clone());
        row("started", session.started.clone());
        row("version", format!("forerun {}", session.version));
        row("commit", session.commit.clone().unwrap_or_else(|| "not told to the build".into()));
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
    fn numbers_have_about_three_digits() {
        let shown = [1e-16, 0.00123, 0.1234, 1.234, 12.34, 123.4, -12.34].map(number);
        assert_eq!(shown, ["0", "0.0012", "0.12", "1.23", "12.3", "123", "-12.3"]);
        let measured = Measured { mean: 0.5, deviation: Some(0.01) };
        assert_eq!(super::shown(Metric::DraftShare, Some(measured)), "50.0 ± 1.00");
        assert_eq!(super::shown(Metric::SpeedRatio, Some(measured)), "0.50 ± 0.01");
        assert_eq!(super::shown(Metric::SpeedRatio, None), "–");
    }
}
