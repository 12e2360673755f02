//! Load on servers with OpenAI's API: clients that send one request after another, or requests that
//! arrive at a rate.

use crate::metrics::percentile;
use forerun_core::{Key, KeyedRandomness, Purpose};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time of one request.
const REQUEST_TIME: Duration = Duration::from_secs(600);

/// The largest number of requests in flight that arrive at a rate. Later ones wait, and their time
/// counts.
const MOST_IN_FLIGHT: usize = 1_024;

/// A server to put load on.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its name in reports.
    pub name: String,
    /// Its address, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The key that it requires, if any.
    pub api_key: Option<String>,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Arrivals {
    /// By clients. Each sends its next request when the answer to the one before has ended.
    Clients {
        /// The number of clients.
        clients: usize,
    },
    /// At random times (a Poisson process), however long answers take.
    Rate {
        /// The mean number of requests a second.
        rate: f64,
        /// The number of requests that arrive at the same time.
        burst: usize,
    },
}

impl Arrivals {
    /// Returns when requests arrive after the start; `None` if clients send them.
    fn times(self, requests: usize) -> Option<Vec<Duration>> {
        let Self::Rate { rate, burst } = self else { return None };
        let randomness = KeyedRandomness { seed: 0, sample: 0 };
        let mut at_seconds = 0.0;
        let times = (0..requests).map(|number| {
            if number.is_multiple_of(burst) {
                let key = Key { position: number, purpose: Purpose::Sample, candidate: 0 };
                at_seconds -= (1.0 - randomness.uniform(key)).ln() * burst as f64 / rate;
            }
            Duration::from_secs_f64(at_seconds)
        });
        Some(times.collect())
    }
}

/// The longest times of answers that count in the goodput.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// To the first text, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Per token after it, in milliseconds.
    pub tpot_ms: Option<f64>,
}

/// What servers are asked for.
#[derive(Clone, Debug)]
pub struct Load {
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// The number of all requests.
    pub requests: usize,
    /// The limits of the goodput.
    pub limits: Limits,
    /// The prompts. Requests take them in turn.
    pub prompts: Vec<String>,
    /// The tokens of each answer. The end of the text does not end it.
    pub max_tokens: usize,
    /// The temperature.
    pub temperature: f64,
}

/// What one request measured.
#[derive(Clone, Debug, Default)]
struct Measured {
    tokens: usize,
    /// From the time when the request was due to its first text, and to its end.
    first: Duration,
    total: Duration,
    /// Between the texts of its stream.
    gaps: Vec<Duration>,
}

impl Measured {
    fn first_ms(&self) -> f64 {
        ms(self.first)
    }

    fn per_token_ms(&self) -> f64 {
        ms(self.total.saturating_sub(self.first)) / self.tokens.saturating_sub(1).max(1) as f64
    }

    fn is_within(&self, limits: Limits) -> bool {
        limits.ttft_ms.is_none_or(|most| self.first_ms() <= most)
            && limits.tpot_ms.is_none_or(|most| self.per_token_ms() <= most)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The result of a load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The server's name.
    pub server: String,
    /// When requests were sent.
    #[serde(flatten)]
    pub arrivals: Arrivals,
    /// The number of finished answers.
    pub answers: usize,
    /// The first errors of requests that failed.
    pub failures: Vec<String>,
    /// Generated tokens per second of all clients together.
    pub tokens_per_second: f64,
    /// Answers per second within the limits.
    pub goodput: f64,
    /// From a request to its first text, in milliseconds: the median and the 99th percentile.
    pub first_token_ms: [f64; 2],
    /// Between two texts of a stream, in milliseconds: the median and the 99th percentile.
    pub inter_token_ms: [f64; 2],
    /// From the first text to the last, per token, in milliseconds: the median and the 99th
    /// percentile.
    pub time_per_token_ms: [f64; 2],
    /// The slowest answer's time relative to the fastest answer's.
    pub slowest_to_fastest: f64,
}

/// Puts a load on a server, and measures it, from the first request to the last answer.
#[must_use]
pub fn run(endpoint: &Endpoint, load: &Load) -> LoadReport {
    let (next, all) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Vec::new())));
    let times = load.arrivals.times(load.requests);
    let threads = match load.arrivals {
        Arrivals::Clients { clients } => clients,
        Arrivals::Rate { .. } => load.requests.min(MOST_IN_FLIGHT),
    };
    let start = Barrier::new(threads + 1);
    let mut started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let agent = agent();
                start.wait();
                let started = Instant::now();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= load.requests {
                        return;
                    }
                    let due = times.as_ref().map_or_else(Instant::now, |at| started + at[number]);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    let result = request(&agent, endpoint, load, (number, due));
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(measured) => all.0.push(measured),
                        Err(error) => all.1.push(error),
                    }
                }
            });
        }
        start.wait();
        started = Instant::now();
    });
    let wall = started.elapsed();
    let (answers, failures) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    report(endpoint, load, &answers, failures, wall)
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder();
    config.timeout_global(Some(REQUEST_TIME)).http_status_as_error(false).build().into()
}

/// Sends a request that is due at a time, and reads its stream.
fn request(
    agent: &ureq::Agent,
    endpoint: &Endpoint,
    load: &Load,
    (number, due): (usize, Instant),
) -> Result<Measured, String> {
    let body = json!({
        "prompt": load.prompts[number % load.prompts.len()],
        "max_tokens": load.max_tokens,
        "temperature": load.temperature,
        "seed": number,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let url = format!("{}/v1/completions", endpoint.url.trim_end_matches('/'));
    let mut request = agent.post(url).header("Content-Type", "application/json");
    if let Some(key) = &endpoint.api_key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let mut response = request.send(body.to_string()).map_err(|error| error.to_string())?;
    if response.status() != 200 {
        let status = response.status();
        let text = response.body_mut().read_to_string().unwrap_or_default();
        return Err(format!("status {status}: {text}"));
    }
    let lines = BufReader::new(response.body_mut().as_reader()).lines();
    let (mut measured, mut last) = (Measured::default(), None);
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        let Some(data) = line.strip_prefix("data:") else { continue };
        if data.trim() == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        if let Some(error) = chunk.get("error") {
            return Err(error.to_string());
        }
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            measured.tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
        }
        if chunk["choices"][0]["text"].as_str().is_none_or(str::is_empty) {
            continue;
        }
        let now = Instant::now();
        match last.replace(now) {
            Some(before) => measured.gaps.push(now - before),
            None => measured.first = now.saturating_duration_since(due),
        }
    }
    measured.total = due.elapsed();
    match measured.tokens {
        0 => Err("the stream ended without its usage".into()),
        _ => Ok(measured),
    }
}

fn report(
    endpoint: &Endpoint,
    load: &Load,
    answers: &[Measured],
    mut failures: Vec<String>,
    wall: Duration,
) -> LoadReport {
    let spread = |values: Vec<f64>| {
        [0.5, 0.99].map(|share| percentile(values.clone(), share).unwrap_or(f64::NAN))
    };
    let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
    let totals = || answers.iter().map(|answer| ms(answer.total));
    let good = answers.iter().filter(|answer| answer.is_within(load.limits)).count();
    failures.truncate(3);
    LoadReport {
        server: endpoint.name.clone(),
        arrivals: load.arrivals,
        answers: answers.len(),
        failures,
        tokens_per_second: tokens as f64 / wall.as_secs_f64(),
        goodput: good as f64 / wall.as_secs_f64(),
        first_token_ms: spread(answers.iter().map(Measured::first_ms).collect()),
        inter_token_ms: spread(answers.iter().flat_map(|a| &a.gaps).map(|gap| ms(*gap)).collect()),
        time_per_token_ms: spread(answers.iter().map(Measured::per_token_ms).collect()),
        slowest_to_fastest: totals().fold(0.0, f64::max) / totals().fold(f64::INFINITY, f64::min),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Answers `count` requests with the same response.
    fn serve(response: &'static str, count: usize) -> std::io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().take(count).flatten() {
                let mut reader = BufReader::new(&stream);
                let (mut line, mut length) = (String::new(), 0);
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    let lower = line.to_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap_or(0);
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).ok();
                (&stream).write_all(response.as_bytes()).ok();
            }
        });
        Ok(format!("http://{address}"))
    }

    fn load(url: String, arrivals: Arrivals, ttft_ms: Option<f64>) -> LoadReport {
        let endpoint = Endpoint { name: "one".into(), url, api_key: Some("key".into()) };
        let prompts = vec!["a".into(), "b".into()];
        let limits = Limits { ttft_ms, tpot_ms: None };
        run(
            &endpoint,
            &Load { arrivals, requests: 5, limits, prompts, max_tokens: 3, temperature: 0.0 },
        )
    }

    const CLIENTS: Arrivals = Arrivals::Clients { clients: 2 };
    const STREAM: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\
        data: {\"choices\": [{\"text\": \"x\"}]}\n\ndata: {\"choices\": [{\"text\": \"y\"}]}\n\n\
        data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";

    #[test]
    fn requests_arrive_in_bursts_at_their_rate() -> std::io::Result<()> {
        let times = Arrivals::Rate { rate: 50.0, burst: 2 }.times(20_000).unwrap_or_default();
        assert!(times.chunks(2).all(|pair| pair[0] == pair[1]) && times.is_sorted());
        assert!((times[19_999].as_secs_f64() / 400.0 - 1.0).abs() < 0.03, "{:?}", times[19_999]);
        let report = load(serve(STREAM, 5)?, Arrivals::Rate { rate: 500.0, burst: 2 }, None);
        assert_eq!((report.answers, report.failures.len()), (5, 0), "{:?}", report.failures);
        Ok(())
    }

    #[test]
    fn answers_beyond_a_limit_are_no_goodput() -> std::io::Result<()> {
        let goodput =
            |ttft_ms| Ok::<_, std::io::Error>(load(serve(STREAM, 5)?, CLIENTS, ttft_ms).goodput);
        assert!(goodput(Some(6e5))? > 0.0);
        assert!(goodput(Some(0.0))? == 0.0);
        Ok(())
    }

    #[test]
    fn a_load_counts_tokens_and_failures() -> std::io::Result<()> {
        let report = load(serve(STREAM, 5)?, CLIENTS, None);
        assert_eq!((report.answers, report.failures.len()), (5, 0), "{:?}", report.failures);
        assert!(report.tokens_per_second > 0.0 && report.slowest_to_fastest >= 1.0);
        let refused =
            "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy";
        let report = load(serve(refused, 5)?, CLIENTS, None);
        assert_eq!((report.answers, report.failures.len()), (0, 3));
        assert!(report.failures[0].contains("429") && report.failures[0].contains("busy"));
        Ok(())
    }
}
