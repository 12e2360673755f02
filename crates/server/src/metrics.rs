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

    /// Writes all metrics. `model` is the name in their labels, and `cache_usage` the share of the
    /// cache that is in use.
    #[must_use]
    pub fn render(&self, model: &str, cache_usage: Option<f64>) -> String {
        let mut text = String::new();
        let label = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let mut number = |name: &str, kind: &str, help: &str, value: f64| {
            let labels = format!("{{model_name=\"{label}\"}}");
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{labels} {value}")
                .ok();
        };
        // The names that the inference extension of the Kubernetes gateway reads.
        let (running, waiting) = (self.running.get() as f64, self.waiting.get() as f64);
        number("vllm:num_requests_running", "gauge", "Answers in progress.", running);
        number("vllm:num_requests_waiting", "gauge", "Answers in the queue.", waiting);
        if let Some(share) = cache_usage {
            let help = "Share of the cache that answers in progress use.";
            number("vllm:kv_cache_usage_perc", "gauge", help, share);
        }
        for (name, help, counter) in [
            ("prefix_cache_queries", "Tokens of prompts.", &self.prompt_tokens),
            ("prefix_cache_hits", "Tokens of prompts that were in the cache.", &self.cached_tokens),
        ] {
            number(&format!("vllm:{name}_total"), "counter", help, counter.get() as f64);
        }
        for (name, help, counter) in [
            ("answers", "Finished answers.", &self.answers),
            (
                "answers_cancelled",
                "Answers whose client went away, or that timed out.",
                &self.cancelled,
            ),
            ("pauses", "Times that an answer paused because the caches were full.", &self.paused),
            ("answers_failed", "Answers that failed.", &self.failed),
            ("prompt_tokens", "Tokens of prompts.", &self.prompt_tokens),
            ("generated_tokens", "Tokens of answers.", &self.generated_tokens),
            ("draft_tokens", "Drafted tokens.", &self.draft_tokens),
            ("accepted_tokens", "Drafted tokens that the target accepted.", &self.accepted_tokens),
            ("target_forwards", "Forward passes of the target.", &self.target_forwards),
        ] {
            number(&format!("forerun_{name}_total"), "counter", help, counter.get() as f64);
        }
        for (name, help, histogram) in [
            (
                "time_to_first_token",
                "From the start of an answer to its first token.",
                &self.first_token,
            ),
            (
                "inter_token",
                "Between tokens that are committed one after another.",
                &self.between_commits,
            ),
            ("answer", "Of whole answers.", &self.answer),
        ] {
            let name = format!("forerun_{name}_seconds");
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram").ok();
            for (end, count) in BUCKETS.iter().zip(&histogram.counts) {
                let count = count.get();
                writeln!(text, "{name}_bucket{{model_name=\"{label}\",le=\"{end}\"}} {count}").ok();
            }
            let (count, sum) = (histogram.count.get(), histogram.sum_ns.get() as f64 / 1e9);
            writeln!(text, "{name}_bucket{{model_name=\"{label}\",le=\"+Inf\"}} {count}").ok();
            writeln!(text, "{name}_sum{{model_name=\"{label}\"}} {sum}").ok();
            writeln!(text, "{name}_count{{model_name=\"{label}\"}} {count}").ok();
        }
        text
    }
}
