//! A front end and two workers as real processes: requests that move from worker to worker keep
//! their text, and conversations return to the worker that holds their prefix. `FORERUN_CASES` is
//! the number of requests.
#![cfg(feature = "front")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod site;

use rustix::process::Signal;
use serde_json::{Value, json};
use site::{Answer, Discovery, METHODS, MODEL, Site, Worker};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Requests at the same time.
const CLIENTS: usize = 8;
/// Each test uses the whole machine.
static MACHINE: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn cases(default: usize) -> usize {
    std::env::var("FORERUN_CASES").map_or(default, |cases| cases.parse().unwrap())
}

/// A random number of a sequence.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Request number `number`: greedy or seeded, with and without filters, penalties, a method, stop
/// strings and log-probabilities.
fn request(number: usize) -> (&'static str, Value) {
    const PROMPTS: [&str; 5] = [
        "Once upon a time, there was a little girl",
        "The old man looked at the sea",
        "One day, a dog named Max",
        "In a small house by the forest",
        "\"Where are you going?\" asked the rabbit",
    ];
    let prompt = PROMPTS[number % PROMPTS.len()];
    let mut body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 400, "temperature": 0.0});
    body["ignore_eos"] = json!(number.is_multiple_of(2));
    let mut set = |fields: Value| {
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
    };
    match number / 2 % 8 {
        0 => {}
        1 => set(json!({"temperature": 0.8, "seed": number})),
        2 => set(json!({"temperature": 1.0, "top_p": 0.9, "seed": number})),
        3 => set(json!({"repetition_penalty": 1.2})),
        4 => {
            set(
                json!({"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1, "seed": number}),
            );
        }
        5 => set(json!({"nvext": {"annotations": ["forerun:method=autoregressive"]}})),
        6 => set(json!({"temperature": 0.9, "min_p": 0.05, "seed": number, "stop": ["\n\n\n"]})),
        _ => {
            set(json!({"messages": [{"role": "user", "content": prompt}], "seed": number}));
            body.as_object_mut().unwrap().remove("prompt");
            return ("/v1/chat/completions", body);
        }
    }
    ("/v1/completions", body)
}

/// Answers requests with several clients at a time.
fn answer_all(site: &Site, count: usize) -> Vec<Result<Answer, String>> {
    let next = AtomicUsize::new(0);
    let answers: Vec<Mutex<Option<Result<Answer, String>>>> =
        (0..count).map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(place) = answers.get(number) else { break };
                    let (path, body) = request(number);
                    *place.lock().unwrap() = Some(site.stream(path, &body));
                }
            });
        }
    });
    answers.into_iter().map(|answer| answer.into_inner().unwrap().unwrap()).collect()
}

/// Kills, stops and restarts workers, one at a time, until `done`. Returns how often each happened.
fn disturb(
    site: &Site,
    workers: &mut [Worker],
    done: &AtomicBool,
    seed: u64,
) -> HashMap<&'static str, usize> {
    let (mut state, mut counts, mut started) = (seed, HashMap::new(), workers.len());
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(300 + random(&mut state, 900)));
        let index = random(&mut state, workers.len() as u64) as usize;
        let process = &mut workers[index].process;
        let what = match random(&mut state, 4) {
            0 | 1 => {
                process.signal(Signal::KILL);
                "killed"
            }
            2 => {
                process.signal(Signal::TERM);
                assert!(
                    process.wait(),
                    "a worker that has to end fails: {}",
                    process.log.display()
                );
                "ended"
            }
            _ => {
                // Shorter than the timeout of the front end, or longer: then its requests move.
                process.signal(Signal::STOP);
                let is_short = random(&mut state, 2) == 0;
                thread::sleep(Duration::from_millis(if is_short { 700 } else { 7000 }));
                if is_short {
                    process.signal(Signal::CONT);
                    *counts.entry("stopped and continued").or_default() += 1;
                    continue;
                }
                process.signal(Signal::KILL);
                "stopped and killed"
            }
        };
        *counts.entry(what).or_default() += 1;
        let options = METHODS[random(&mut state, METHODS.len() as u64) as usize];
        started += 1;
        workers[index] = site.worker(&format!("worker{started}"), options);
        // The front end finds it.
        thread::sleep(Duration::from_millis(500));
    }
    counts
}

/// Sums the values of lines of metrics.
fn sum(lines: &[String]) -> f64 {
    lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn texts_survive(discovery: Discovery, count: usize) {
    let _machine = machine();
    let Some(site) = Site::start(discovery, "kv") else {
        println!("skipped: etcd is not installed (Debian: etcd-server)");
        return;
    };
    let mut workers = vec![site.worker("worker1", METHODS[0]), site.worker("worker2", METHODS[1])];
    site.until_offered();
    let undisturbed = answer_all(&site, count);
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let (disturbed, counts) = thread::scope(|scope| {
        let disturber = scope.spawn(|| disturb(&site, &mut workers, &done, count as u64));
        let answers = answer_all(&site, count);
        done.store(true, Ordering::Relaxed);
        (answers, disturber.join().unwrap())
    });
    let moved = sum(&site.metrics("model_migration_total"));
    println!(
        "{discovery:?}: {count} requests in {:.0} s, workers {counts:?}, {moved} moves to another worker",
        start.elapsed().as_secs_f64()
    );
    let mut wrong = 0;
    for (number, (expected, answer)) in undisturbed.iter().zip(&disturbed).enumerate() {
        let expected = expected.as_ref().unwrap();
        match answer {
            Ok(answer) if (&answer.text, &answer.finish) == (&expected.text, &expected.finish) => {}
            other => {
                wrong += 1;
                println!("request {number}, {:?}:\n  {expected:?}\n  {other:?}", request(number));
            }
        }
    }
    assert_eq!(wrong, 0, "of {count} answers; the front end reports:\n{}", site.log());
    assert!(counts.is_empty() || moved > 0.0, "no request moved");
}

#[test]
fn texts_survive_killed_stopped_and_restarted_workers() {
    texts_survive(Discovery::File, cases(24));
}

#[test]
fn texts_survive_with_etcd() {
    texts_survive(Discovery::Etcd, cases(24).min(64));
}

/// Turns of conversations, in turn. Returns the share of the tokens of earlier turns that were in
/// the cache, and of the turns that returned to their worker.
fn converse(router: &str, conversations: usize, turns: usize) -> (f64, f64) {
    let site = Site::start(Discovery::File, router).unwrap();
    let _workers = [site.worker("worker1", METHODS[0]), site.worker("worker2", METHODS[0])];
    site.until_offered();
    let names = ["Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace", "Henry"];
    let start = |name: &&str| {
        format!("{name} and a friend went to the park. {}", "They played with a ball. ".repeat(30))
    };
    let mut texts: Vec<String> = names[..conversations].iter().map(start).collect();
    let mut last: Vec<Option<(Value, u64)>> = vec![None; conversations];
    let (mut cached, mut possible, mut returned) = (0, 0, 0);
    for _ in 0..turns {
        for (text, last) in texts.iter_mut().zip(&mut last) {
            let body = json!({"model": MODEL, "prompt": text, "max_tokens": 40, "temperature": 0.0,
                "ignore_eos": true});
            let answer = site.stream("/v1/completions", &body).unwrap();
            let engine = |field: &str| answer.engine[field].as_u64().unwrap();
            if let Some((worker, tokens)) = last.take() {
                // Whole pages of what the worker has seen.
                possible += tokens / 64 * 64;
                cached += engine("cached_prompt_tokens").min(tokens / 64 * 64);
                returned += usize::from(worker == answer.worker);
            }
            *last = Some((answer.worker.clone(), engine("prompt_tokens")));
            text.push_str(&answer.text);
            // Events reach the router.
            thread::sleep(Duration::from_millis(100));
        }
    }
    let later = conversations * (turns - 1);
    (cached as f64 / possible as f64, returned as f64 / later as f64)
}

#[test]
fn conversations_return_to_the_worker_that_holds_their_prefix() {
    let _machine = machine();
    let (hits, returned) = converse("kv", 7, 4);
    let (hits_in_turn, returned_in_turn) = converse("round-robin", 7, 4);
    println!(
        "by prefix: {:.0} % of earlier tokens cached, {:.0} % of turns return; in turn: {:.0} %, {:.0} %",
        100.0 * hits,
        100.0 * returned,
        100.0 * hits_in_turn,
        100.0 * returned_in_turn
    );
    assert_eq!(returned, 1.0);
    assert!(hits > 0.9, "{hits}");
}

#[test]
fn requests_are_cancelled_refused_and_measured() {
    let _machine = machine();
    let site = Site::start(Discovery::File, "kv").unwrap();
    let worker = site.worker("worker1", &["--threads", "1", "--refuse-penalties"]);
    site.until_offered();
    let body = json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 30, "temperature": 0.0,
        "logprobs": 2});
    let (status, answer) = site.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 30, "{answer}");
    for (field, value) in [
        ("presence_penalty", json!(0.5)),
        ("nvext", json!({"annotations": ["forerun:method=dsi2"]})),
        ("nvext", json!({"annotations": ["forerun:speed=high"]})),
        ("min_tokens", json!(5)),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        let (status, answer) = site.post("/v1/completions", &wrong);
        assert_eq!(status, 400, "{field}: {answer}");
        println!("{field}: {answer}");
    }
    // A client that goes away ends its answer.
    let mut long = body.clone();
    long["max_tokens"] = json!(480);
    long["ignore_eos"] = json!(true);
    let part =
        site.stream_while("/v1/completions", &long, |answer| answer.text.len() < 20).unwrap();
    assert!(!part.text.is_empty() && part.finish.is_empty());
    let start = Instant::now();
    let value = |name: &str| sum(&site.worker_metrics(&worker, name));
    while value("forerun_answers_cancelled_total") < 1.0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the answer goes on");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(value("forerun_answers_total"), 1.0);
    assert_eq!(value("vllm:num_requests_running"), 0.0);
    assert!(value("forerun_accepted_tokens_total") > 0.0);
}

/// Not a check: how fast two workers are against one, each with one thread.
#[test]
fn two_workers_share_the_load() {
    let _machine = machine();
    let count = cases(24).min(100);
    let mut speeds = Vec::new();
    for workers in 1..=2 {
        let site = Site::start(Discovery::File, "kv").unwrap();
        let _workers: Vec<Worker> = (0..workers)
            .map(|number| site.worker(&format!("worker{number}"), METHODS[0]))
            .collect();
        site.until_offered();
        answer_all(&site, CLIENTS);
        let start = Instant::now();
        let answers = answer_all(&site, count);
        let tokens: u64 =
            answers.iter().flatten().filter_map(|answer| answer.engine["tokens"].as_u64()).sum();
        speeds.push(tokens as f64 / start.elapsed().as_secs_f64());
    }
    let cores = thread::available_parallelism().unwrap();
    println!(
        "{count} requests, {CLIENTS} at a time, on {cores} cores: one worker {:.0} tokens/s, two workers {:.0} tokens/s ({:.2}x)",
        speeds[0],
        speeds[1],
        speeds[1] / speeds[0]
    );
}
