//! Metrics in the text format of Prometheus.

use forerun::Answer;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A number that goes up and down.
#[derive(Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    pub(crate) fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The upper ends of a histogram's buckets, in seconds.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// Times by size.
#[derive(Default)]
pub(crate) struct Histogram {
    counts: [Counter; BUCKETS.len()],
    count: Counter,
    sum_ns: Counter,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (end, count) in BUCKETS.iter().zip(&self.counts) {
            count.add(u64::from(seconds <= *end));
        }
        self.count.add(1);
        self.sum_ns.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// What a server has done since its start.
#[derive(Default)]
pub struct Metrics {
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) answers: Counter,
    /// Answers whose client went away, or that the server ended.
    pub(crate) cancelled: Counter,
    pub(crate) paused: Counter,
    /// Answers that failed.
    pub(crate) failed: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    target_forwards: Counter,
    first_token: Histogram,
    between_commits: Histogram,
    answer: Histogram,
}

impl Metrics {
    /// Counts a finished answer.
    pub(crate) fn finished(&self, answer: &Answer) {
        self.answers.add(1);
        self.prompt_tokens.add(answer.prompt_tokens as u64);
        self.cached_tokens.add(answer.cached_prompt_tokens() as u64);
        self.generated_tokens.add(answer.tokens.len() as u64);
        let statistics = &answer.statistics;
        self.draft_tokens.add(statistics.draft_tokens);
        self.accepted_tokens.add(statistics.accepted.iter().sum());
        self.target_forwards.add(statistics.target_forwards);
        self.first_token.observe(Duration::from_nanos(answer.first_token_ns));
        self.answer.observe(Duration::from_nanos(answer.total_ns));
        for pair in answer.commits.windows(2) {
            self.between_commits.observe(Duration::from_nanos(pair[1].at_ns - pair[0].at_ns));
        }
    }

    /// Writes the metrics of one model: one after another in `/metrics`.
    #[must_use]
    pub fn render(&self, model: &str, cache_usage: Option<f64>) -> String {
        render_all(&[Series { model, metrics: self, cache_usage }])
    }
}

/// The metrics of one model.
pub(crate) struct Series<'a> {
    /// The name in the labels.
    pub(crate) model: &'a str,
    pub(crate) metrics: &'a Metrics,
    /// The share of the cache that is in use.
    pub(crate) cache_usage: Option<f64>,
}

impl Series<'_> {
    fn label(&self) -> String {
        self.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    }
}

/// Writes the metrics of all models.
pub(crate) fn render_all(models: &[Series<'_>]) -> String {
    let mut text = String::new();
    let mut number =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&Series<'_>) -> Option<f64>| {
            let mut lines = String::new();
            for series in models {
                if let Some(value) = value(series) {
                    let label = series.label();
                    writeln!(lines, "{name}{{model_name=\"{label}\"}} {value}").ok();
                }
            }
            if !lines.is_empty() {
                writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
                text.push_str(&lines);
            }
        };
    // The names that the inference extension of the Kubernetes gateway reads.
    number("vllm:num_requests_running", "gauge", "Answers in progress.", &|series| {
        Some(series.metrics.running.get() as f64)
    });
    number("vllm:num_requests_waiting", "gauge", "Answers in the queue.", &|series| {
        Some(series.metrics.waiting.get() as f64)
    });
    let help = "Share of the cache that answers in progress use.";
    number("vllm:kv_cache_usage_perc", "gauge", help, &|series| series.cache_usage);
    type Count = fn(&Metrics) -> &Counter;
    let counters: [(&str, &str, Count); 11] = [
        ("vllm:prefix_cache_queries", "Tokens of prompts.", |all| &all.prompt_tokens),
        ("vllm:prefix_cache_hits", "Tokens of prompts that were in the cache.", |all| {
            &all.cached_tokens
        }),
        ("forerun_answers", "Finished answers.", |all| &all.answers),
        (
            "forerun_answers_cancelled",
            "Answers whose client went away, or that timed out.",
            |all| &all.cancelled,
        ),
        ("forerun_pauses", "Times that an answer paused because the caches were full.", |all| {
            &all.paused
        }),
        ("forerun_answers_failed", "Answers that failed.", |all| &all.failed),
        ("forerun_prompt_tokens", "Tokens of prompts.", |all| &all.prompt_tokens),
        ("forerun_generated_tokens", "Tokens of answers.", |all| &all.generated_tokens),
        ("forerun_draft_tokens", "Drafted tokens.", |all| &all.draft_tokens),
        ("forerun_accepted_tokens", "Drafted tokens that the target accepted.", |all| {
            &all.accepted_tokens
        }),
        ("forerun_target_forwards", "Forward passes of the target.", |all| &all.target_forwards),
    ];
    for (name, help, count) in counters {
        number(&format!("{name}_total"), "counter", help, &|series| {
            Some(count(series.metrics).get() as f64)
        });
    }
    type Times = fn(&Metrics) -> &Histogram;
    let histograms: [(&str, &str, Times); 3] = [
        ("time_to_first_token", "From the start of an answer to its first token.", |all| {
            &all.first_token
        }),
        ("inter_token", "Between tokens that are committed one after another.", |all| {
            &all.between_commits
        }),
        ("answer", "Of whole answers.", |all| &all.answer),
    ];
    for (name, help, times) in histograms {
        let name = format!("forerun_{name}_seconds");
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram").ok();
        for series in models {
            let (label, histogram) = (series.label(), times(series.metrics));
            for (end, count) in BUCKETS.iter().zip(&histogram.counts) {
                let count = count.get();
                writeln!(text, "{name}_bucket{{model_name=\"{label}\",le=\"{end}\"}} {count}").ok();
            }
            let (count, sum) = (histogram.count.get(), histogram.sum_ns.get() as f64 / 1e9);
            writeln!(text, "{name}_bucket{{model_name=\"{label}\",le=\"+Inf\"}} {count}").ok();
            writeln!(text, "{name}_sum{{model_name=\"{label}\"}} {sum}").ok();
            writeln!(text, "{name}_count{{model_name=\"{label}\"}} {count}").ok();
        }
    }
    text
}
