//! Load on servers with OpenAI's API: several clients that send one request after another.

use crate::metrics::percentile;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time of one request.
const REQUEST_TIME: Duration = Duration::from_secs(600);

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

/// What clients ask for.
#[derive(Clone, Debug)]
pub struct Load {
    /// The number of clients.
    pub clients: usize,
    /// The number of requests of all clients together.
    pub requests: usize,
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
    /// From the request to its first text, and to its end.
    first: Duration,
    total: Duration,
    /// Between the texts of its stream.
    gaps: Vec<Duration>,
}

/// The result of a load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The server's name.
    pub server: String,
    /// The number of clients.
    pub clients: usize,
    /// The number of finished answers.
    pub answers: usize,
    /// The first errors of requests that failed.
    pub failures: Vec<String>,
    /// Generated tokens per second of all clients together.
    pub tokens_per_second: f64,
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

/// Puts a load on a server, and measures it.
///
/// Each client sends its next request when the answer to the one before has ended. The time is
/// measured from the first request to the last answer.
#[must_use]
pub fn run(endpoint: &Endpoint, load: &Load) -> LoadReport {
    let (next, all) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Vec::new())));
    let start = Barrier::new(load.clients + 1);
    let mut started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..load.clients {
            scope.spawn(|| {
                let agent = agent();
                start.wait();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= load.requests {
                        return;
                    }
                    let result = request(&agent, endpoint, load, number);
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

/// Sends a request, and reads its stream.
fn request(
    agent: &ureq::Agent,
    endpoint: &Endpoint,
    load: &Load,
    number: usize,
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
    let started = Instant::now();
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
            None => measured.first = now - started,
        }
    }
    measured.total = started.elapsed();
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
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let spread = |values: Vec<f64>| {
        [0.5, 0.99].map(|share| percentile(values.clone(), share).unwrap_or(f64::NAN))
    };
    let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
    let per_token = |answer: &Measured| {
        ms(answer.total.saturating_sub(answer.first))
            / answer.tokens.saturating_sub(1).max(1) as f64
    };
    let totals = || answers.iter().map(|answer| ms(answer.total));
    failures.truncate(3);
    LoadReport {
        server: endpoint.name.clone(),
        clients: load.clients,
        answers: answers.len(),
        failures,
        tokens_per_second: tokens as f64 / wall.as_secs_f64(),
        first_token_ms: spread(answers.iter().map(|answer| ms(answer.first)).collect()),
        inter_token_ms: spread(answers.iter().flat_map(|a| &a.gaps).map(|gap| ms(*gap)).collect()),
        time_per_token_ms: spread(answers.iter().map(per_token).collect()),
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

    fn load(url: String) -> LoadReport {
        let endpoint = Endpoint { name: "one".into(), url, api_key: Some("key".into()) };
        let prompts = vec!["a".into(), "b".into()];
        run(&endpoint, &Load { clients: 2, requests: 5, prompts, max_tokens: 3, temperature: 0.0 })
    }

    #[test]
    fn a_load_counts_tokens_and_failures() -> std::io::Result<()> {
        let streamed = serve(
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: {\"choices\": [{\"text\": \"x\"}]}\n\n\
             data: {\"choices\": [{\"text\": \"y\"}]}\n\n\
             data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3}}\n\ndata: [DONE]\n\n",
            5,
        )?;
        let report = load(streamed);
        assert_eq!((report.answers, report.failures.len()), (5, 0), "{:?}", report.failures);
        assert!(report.tokens_per_second > 0.0 && report.slowest_to_fastest >= 1.0);
        let refused =
            "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy";
        let report = load(serve(refused, 5)?);
        assert_eq!((report.answers, report.failures.len()), (0, 3));
        assert!(report.failures[0].contains("429") && report.failures[0].contains("busy"));
        Ok(())
    }
}
