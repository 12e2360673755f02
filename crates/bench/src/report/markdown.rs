//! The report as Markdown.

use super::layers::{self, LayerSweep};
use super::verdict::verdict;
use super::{
    OVER_PROMPTS_NOTE, PEER_COMPARISON_HEADINGS, PEER_COMPARISON_NOTE, PREDICTION_HEADINGS,
    PREDICTION_NOTE, TEXT_AGREEMENT_HEADINGS, TEXT_AGREEMENT_NOTE, notes, number,
    over_prompts_headings, over_prompts_rows, peer_comparison_row, prediction_rows, provenance,
    shown, text_agreement_row,
};
use crate::metrics::Metric;
use crate::summary::{OVERALL, Summary};

/// The metrics in the table by category.
const SHORT: [Metric; 7] = [
    Metric::SpeedRatio,
    Metric::TokensPerSecond,
    Metric::FirstTokenMs,
    Metric::PerTokenMs,
    Metric::MeanAcceptedTokens,
    Metric::AcceptanceRate,
    Metric::DraftMsPerRound,
];

/// Returns the report as Markdown: all metrics overall, the main ones by category and over prompts,
/// acceptance by position, and the provenance of the numbers.
#[must_use]
pub fn markdown(summary: &Summary) -> String {
    let mut page = String::from("# Comparison of decoding methods\n\n");
    for sentence in verdict(summary) {
        page += &format!("**{sentence}**\n\n");
    }
    for note in notes(summary) {
        page += &format!("* {note}\n");
    }
    page += "\n## Overall\n\n";
    let names = summary.configurations.iter().map(|entry| entry.name.clone());
    line(&mut page, std::iter::once(String::new()).chain(names.clone()));
    line(&mut page, std::iter::repeat_n("---".to_owned(), summary.configurations.len() + 1));
    for metric in Metric::ALL {
        let cells = summary
            .configurations
            .iter()
            .map(|entry| shown(metric, entry.cells[OVERALL].get(metric)));
        line(&mut page, std::iter::once(metric.heading().to_owned()).chain(cells));
    }
    let predictions = prediction_rows(summary);
    if !predictions.is_empty() {
        page += &format!("\n## Predicted and measured\n\n{PREDICTION_NOTE}\n\n");
        rows(&mut page, PREDICTION_HEADINGS, predictions.into_iter());
    }
    if !summary.versus.is_empty() {
        page += &format!("\n## Against other engines\n\n{PEER_COMPARISON_NOTE}\n\n");
        rows(&mut page, PEER_COMPARISON_HEADINGS, summary.versus.iter().map(peer_comparison_row));
        page += &format!("\n{TEXT_AGREEMENT_NOTE}\n\n");
        rows(&mut page, TEXT_AGREEMENT_HEADINGS, summary.same_text.iter().map(text_agreement_row));
    }
    if let Some(sweep) = LayerSweep::of(summary) {
        page += &layer_tables(&sweep);
    }
    page += "\n## By category\n\n";
    let headings = ["category", "prompts", "configuration"].map(str::to_owned);
    let metrics = SHORT.map(|metric| metric.heading().to_owned());
    line(&mut page, headings.into_iter().chain(metrics));
    line(&mut page, std::iter::repeat_n("---".to_owned(), 3 + SHORT.len()));
    for category in &summary.categories {
        for entry in &summary.configurations {
            let cell = &entry.cells[&category.name];
            let first = [category.name.clone(), category.prompts.to_string(), entry.name.clone()];
            let values = SHORT.map(|metric| shown(metric, cell.get(metric)));
            line(&mut page, first.into_iter().chain(values));
        }
    }
    page += &format!("\n## Over prompts\n\n{OVER_PROMPTS_NOTE}\n\n");
    let headings = over_prompts_headings();
    line(&mut page, headings.iter().cloned());
    line(&mut page, std::iter::repeat_n("---".to_owned(), headings.len()));
    for row in over_prompts_rows(summary) {
        line(&mut page, row.into_iter());
    }
    page += "\n## Acceptance by position\n\nShare of tested draft tokens that were accepted, in per \
             cent, by their depth in the draft.\n\n";
    for entry in &summary.configurations {
        let rates = &entry.cells[OVERALL].acceptance_per_position;
        if !rates.is_empty() {
            let rate = |rate: &Option<crate::metrics::Measured>| {
                rate.map_or("–".into(), |rate| number(rate.mean * 100.0))
            };
            let rates: Vec<String> = rates.iter().map(rate).collect();
            page += &format!("* {}: {}\n", entry.name, rates.join(" "));
        }
    }
    page += "\n## Where the numbers come from\n\n";
    line(&mut page, ["what".to_owned(), "value".to_owned()].into_iter());
    line(&mut page, ["---".to_owned(), "---".to_owned()].into_iter());
    for (name, value) in provenance(summary) {
        line(&mut page, [name, value].into_iter());
    }
    for entry in &summary.configurations {
        line(&mut page, [entry.name.clone(), entry.flags.clone()].into_iter());
    }
    page
}

/// Returns EasySpec's figure 4 as tables.
fn layer_tables(sweep: &LayerSweep<'_>) -> String {
    let mut page = format!("\n## Layers in parallel\n\n{}\n", layers::NOTE);
    for metric in layers::METRICS {
        page.push('\n');
        let sizes = sweep.sizes.iter().map(|size| format!("lp {size}"));
        line(&mut page, std::iter::once(metric.heading().to_owned()).chain(sizes));
        line(&mut page, std::iter::repeat_n("---".to_owned(), sweep.sizes.len() + 1));
        for (name, values) in sweep.values(metric) {
            let values = values.into_iter().map(|value| shown(metric, value));
            line(&mut page, std::iter::once(name.to_owned()).chain(values));
        }
    }
    page
}

/// Appends a table to a page.
fn rows<const N: usize>(
    page: &mut String,
    headings: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    line(page, headings.map(str::to_owned).into_iter());
    line(page, std::iter::repeat_n("---".to_owned(), N));
    rows.for_each(|row| line(page, row.into_iter()));
}

/// Appends a row of a table to a page.
fn line(page: &mut String, cells: impl Iterator<Item = String>) {
    for cell in cells {
        page.push_str("| ");
        page.push_str(&cell.replace('|', "\\|").replace('\n', " "));
        page.push(' ');
    }
    page.push_str("|\n");
}
