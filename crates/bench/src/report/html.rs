//! The report as one HTML file, without scripts, fonts or pictures from elsewhere.

use super::layers::{self, LayerSweep};
use super::verdict::verdict;
use super::{
    OVER_PROMPTS_NOTE, PEER_COMPARISON_HEADINGS, PEER_COMPARISON_NOTE, PREDICTION_HEADINGS,
    PREDICTION_NOTE, TEXT_AGREEMENT_HEADINGS, TEXT_AGREEMENT_NOTE, notes, over_prompts_headings,
    over_prompts_rows, peer_comparison_row, prediction_rows, provenance, shown, text_agreement_row,
};
use crate::metrics::{Measured, Metric};
use crate::summary::{ConfigurationSummary, OVERALL, Summary};
use crate::times::TimeBreakdown;
use forerun_draw::{Axes, TIMELINE_STYLE, bars, curves, escaped, inline_timeline, lines, stacks};

const STYLE: &str = include_str!("style.css");

/// Colours of the parts of the time, in the order of [`TimeBreakdown::NAMES`].
const PARTS: [&str; 5] = ["draft", "verify", "both", "waiting", "other"];

/// The metrics of the first table.
const MAIN: [Metric; 6] = [
    Metric::SpeedRatio,
    Metric::TokensPerSecond,
    Metric::FirstTokenMs,
    Metric::PerTokenMs,
    Metric::MeanAcceptedTokens,
    Metric::AcceptanceRate,
];

/// Returns the report as an HTML page.
#[must_use]
pub fn html(summary: &Summary) -> String {
    let title = "Comparison of decoding methods";
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{TIMELINE_STYLE}\n</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    for sentence in verdict(summary) {
        page += &format!("<p class=\"verdict\">{}</p>\n", escaped(&sentence));
    }
    page += "<ul class=\"notes\">\n";
    for note in notes(summary) {
        page += &format!("<li>{}</li>\n", escaped(&note));
    }
    page += "</ul>\n";
    page += &section("Overall", &overall(summary));
    if !prediction_rows(summary).is_empty() {
        page += &section("Predicted and measured", &predictions(summary));
    }
    if !summary.versus.is_empty() {
        page += &section("Against other engines", &peers(summary));
    }
    if let Some(sweep) = LayerSweep::of(summary) {
        page += &section("Layers in parallel", &layer_sweep(&sweep));
    }
    page += &section("Speed by category", &speed(summary));
    page += &section("Acceptance by position", &acceptance(summary));
    page += &section("Where the time goes", &time(summary));
    page += &section("Sample timelines", &timelines(summary));
    page += &section("By category", &by_category(summary));
    page += &section("Over prompts", &over_prompts(summary));
    page += &section("What the metrics mean", &meanings());
    page += &section("Where the numbers come from", &origin(summary));
    page + "</main>\n</body>\n</html>\n"
}

fn section(heading: &str, content: &str) -> String {
    format!("<section>\n<h2>{heading}</h2>\n{content}</section>\n")
}

/// Returns a list of colours with their names.
fn legend(entries: impl Iterator<Item = (String, String)>) -> String {
    let entry = |(class, name): (String, String)| {
        let name = escaped(&name);
        format!(
            "<li><svg viewBox=\"0 0 12 12\"><rect width=\"12\" height=\"12\" class=\"{class}\"/></svg>{name}</li>\n"
        )
    };
    format!("<ul class=\"legend\">\n{}</ul>\n", entries.map(entry).collect::<String>())
}

fn configurations(summary: &Summary) -> String {
    let names = summary.configurations.iter().enumerate();
    legend(names.map(|(index, entry)| (format!("c{}", index % 8), entry.name.clone())))
}

/// Returns a table that scrolls horizontally on a narrow screen. Headings that are metrics explain
/// themselves.
fn table(headings: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let heading = |heading: &String| {
        let metric = Metric::ALL.into_iter().find(|metric| metric.heading() == heading);
        let text = escaped(heading);
        let text = metric.map_or(text.clone(), |metric| {
            format!("<abbr title=\"{}\">{text}</abbr>", escaped(metric.meaning()))
        });
        format!("<th scope=\"col\">{text}</th>")
    };
    let headings: String = headings.iter().map(heading).collect();
    let row = |row: Vec<String>| {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.map(row).collect();
    // The focus lets a keyboard scroll it.
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table>\n<tr>{headings}</tr>\n{rows}</table></div>\n"
    )
}

/// Returns a table of metrics, with a row for each configuration.
fn metrics_table(summary: &Summary, metrics: &[Metric], category: &str) -> String {
    let first = std::iter::once("configuration".to_owned());
    let headings = metrics.iter().map(|metric| metric.heading().to_owned());
    let headings: Vec<String> = first.chain(headings).collect();
    let row = |entry: &ConfigurationSummary| {
        let cell = &entry.cells[category];
        let values = metrics.iter().map(|&metric| shown(metric, cell.get(metric)));
        std::iter::once(entry.name.clone()).chain(values).collect()
    };
    table(&headings, summary.configurations.iter().map(row))
}

fn overall(summary: &Summary) -> String {
    let main = metrics_table(summary, &MAIN, OVERALL);
    let all = metrics_table(summary, &Metric::ALL, OVERALL);
    format!("{main}<details>\n<summary>All metrics</summary>\n{all}</details>\n")
}

/// Returns a list of all metrics with their meanings, for screens without a mouse.
fn meanings() -> String {
    let entry = |metric: Metric| {
        let (heading, meaning) = (escaped(metric.heading()), escaped(metric.meaning()));
        format!("<dt>{heading}</dt><dd>{meaning}</dd>\n")
    };
    let entries: String = Metric::ALL.into_iter().map(entry).collect();
    format!("<details>\n<summary>All metrics</summary>\n<dl>\n{entries}</dl>\n</details>\n")
}

fn predictions(summary: &Summary) -> String {
    let headings = PREDICTION_HEADINGS.map(str::to_owned);
    let rows = prediction_rows(summary).into_iter().map(|row| row.to_vec());
    format!("<p>{PREDICTION_NOTE}</p>\n{}", table(&headings, rows))
}

fn peers(summary: &Summary) -> String {
    let headings = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let speeds = summary.versus.iter().map(|comparison| peer_comparison_row(comparison).to_vec());
    let texts = summary.same_text.iter().map(|agreement| text_agreement_row(agreement).to_vec());
    let speeds = table(&headings(&PEER_COMPARISON_HEADINGS), speeds);
    let texts = table(&headings(&TEXT_AGREEMENT_HEADINGS), texts);
    format!("<p>{PEER_COMPARISON_NOTE}</p>\n{speeds}<p>{TEXT_AGREEMENT_NOTE}</p>\n{texts}")
}

fn speed(summary: &Summary) -> String {
    let categories = summary.categories.iter().map(|category| category.name.as_str());
    let group = |category: &str| {
        let bar = |(index, entry): (usize, &ConfigurationSummary)| {
            Some((
                entry.name.clone(),
                index,
                entry.cells.get(category)?.get(Metric::SpeedRatio)?.into(),
            ))
        };
        let bars = summary.configurations.iter().enumerate().filter_map(bar).collect();
        (category.to_owned(), bars)
    };
    let groups: Vec<_> = categories.chain([OVERALL]).map(group).collect();
    let note = "<p>Ratio of tokens per second to autoregressive decoding, compared for each prompt. Solid \
                lines are standard deviations over repeats; the dashed line is autoregressive \
                decoding.</p>\n";
    note.to_owned() + &configurations(summary) + &bars("speed by category", &groups, 1.0)
}

fn acceptance(summary: &Summary) -> String {
    let curve = |(index, entry): (usize, &ConfigurationSummary)| {
        let rates = entry.cells[OVERALL].acceptance_per_position.clone();
        let values = rates.into_iter().map(|rate| rate.map(Into::into)).collect::<Vec<_>>();
        (!values.is_empty()).then(|| (entry.name.clone(), index, values))
    };
    let all: Vec<_> = summary.configurations.iter().enumerate().filter_map(curve).collect();
    if all.is_empty() {
        return "<p>No drafts were tested.</p>\n".into();
    }
    let names = all.iter().map(|(name, index, _)| (format!("c{}", index % 8), name.clone()));
    let note = "<p>Share of tested draft tokens that were accepted, by their depth in the draft. \
                Tokens after a rejection are not tested.</p>\n";
    note.to_owned() + &legend(names) + &curves("acceptance by position", &all)
}

fn time(summary: &Summary) -> String {
    let row = |entry: &ConfigurationSummary| {
        let share = |metric: Metric| {
            entry.cells[OVERALL].get(metric).map_or(0.0, |Measured { mean, .. }| mean)
        };
        let parts = TimeBreakdown::NAMES.iter().zip(Metric::SHARES);
        (entry.name.clone(), parts.map(|(name, m)| ((*name).to_owned(), share(m))).collect())
    };
    let rows: Vec<_> = summary.configurations.iter().map(row).collect();
    let names = TimeBreakdown::NAMES.iter().zip(PARTS);
    let note = "<p>Shares of the total time. Draft: only the drafter computes. Verify: only the target \
                computes. Together: drafter and target compute at the same time. Waiting: no job runs \
                (messages, the decoder, text). Other: jobs run, but do not compute (sampling, \
                caches).</p>\n";
    note.to_owned()
        + &legend(names.map(|(name, class)| (class.to_owned(), (*name).to_owned())))
        + &stacks("shares of the time", &rows, &PARTS)
}

fn timelines(summary: &Summary) -> String {
    let mut content = String::from(
        "<p>The beginning of the answer to the first prompt, with one lane for each device. Faded jobs \
         ended with a rejection or were wasted.</p>\n",
    );
    for entry in &summary.configurations {
        if let Some(trace) = entry.sample.as_ref().filter(|trace| !trace.spans.is_empty()) {
            content += &format!("<h3>{}</h3>\n", escaped(&entry.name));
            let label = format!("timeline of {}", entry.name);
            let timeline = inline_timeline(&trace.with_devices_as_lanes(), &label);
            // It scrolls on a narrow screen, where its text would be too small.
            content += &format!("<div class=\"wide\" tabindex=\"0\">\n{timeline}</div>\n");
        }
    }
    content
}

fn by_category(summary: &Summary) -> String {
    let mut content = String::new();
    for category in &summary.categories {
        let (name, count) = (escaped(&category.name), category.prompts);
        content += &format!("<h3>{name} ({count} prompts)</h3>\n");
        content += &metrics_table(summary, &Metric::ALL, &category.name);
    }
    content
}

fn over_prompts(summary: &Summary) -> String {
    let rows = over_prompts_rows(summary).into_iter();
    format!("<p>{OVER_PROMPTS_NOTE}</p>\n{}", table(&over_prompts_headings(), rows))
}

/// Returns EasySpec's figure 4, as charts and tables.
fn layer_sweep(sweep: &LayerSweep<'_>) -> String {
    let names = sweep.names().enumerate();
    let names = names.map(|(index, name)| (format!("c{}", index % 8), name.to_owned()));
    let mut content = format!("<p>{}</p>\n", layers::NOTE) + &legend(names);
    for metric in layers::METRICS {
        let label = format!("{} by layers at a time", metric.heading());
        let axes = Axes { label: &label, x: "lp", share: metric.is_share() };
        content += &format!("<h3>{}</h3>\n", escaped(&label));
        content += &lines(&axes, &sweep.lines(metric));
        let sizes = sweep.sizes.iter().map(|size| format!("lp {size}"));
        let headings: Vec<String> = std::iter::once(String::new()).chain(sizes).collect();
        let row = |(name, values): (&str, Vec<Option<Measured>>)| {
            let values = values.into_iter().map(|value| shown(metric, value));
            std::iter::once(name.to_owned()).chain(values).collect()
        };
        content += &table(&headings, sweep.values(metric).map(row));
    }
    content
}

fn origin(summary: &Summary) -> String {
    let flags =
        summary.configurations.iter().map(|entry| (entry.name.clone(), entry.flags.clone()));
    let row = |(name, value): (String, String)| {
        format!("<dt>{}</dt><dd><code>{}</code></dd>\n", escaped(&name), escaped(&value))
    };
    let rows: String = provenance(summary).into_iter().chain(flags).map(row).collect();
    format!("<dl>\n{rows}</dl>\n")
}
