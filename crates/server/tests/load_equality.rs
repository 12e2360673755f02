//! Answers under load are those of the same requests alone, bit for bit, and no drafter fails.
//!
//! `FORERUN_CASES` is the number of answers (default 300), `FORERUN_CASE_SEED` chooses the
//! requests.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::{ChatTemplate, Engine, Grammar, Options, RandomPair, Request, SamplingOptions};
use forerun_server::{Models, Server, ServerOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const CLIENTS: usize = 64;
/// The requests that answers repeat.
const REQUESTS: usize = 240;

fn open(target: &Path, drafter: Option<&Path>) -> Engine {
    let (model, draft_model) = (target.into(), drafter.map(Into::into));
    let options = Options { model, draft_model, ..Options::default() };
    Engine::open(options).unwrap()
}

/// A request in the engine's form and in the API's.
struct Case {
    prompt: String,
    request: Request,
    body: Value,
}

impl Case {
    fn draw(random: &mut StdRng) -> Self {
        let mut below = |bound: u64| random.random_range(0..bound);
        let words = ["Once", " upon", " a", " time", " the", " fox", "\n", " ß", " 12", "!"];
        // Half of the prompts begin alike, so that they share pages.
        let start =
            if below(2) == 0 { "The quick brown fox jumps. ".repeat(6) } else { String::new() };
        let count = 1 + below(40);
        let prompt =
            (0..count).map(|_| words[below(10) as usize]).fold(start, |text, word| text + word);
        let temperature = [0.0, 0.0, 0.5, 1.0, 1.4][below(5) as usize];
        let top_p = [1.0, 1.0, 0.9, 0.5][below(4) as usize];
        let top_k = [0, 0, 5, 40][below(4) as usize];
        let (seed, max_tokens) = (below(1 << 40), 1 + below(48) as usize);
        let schema = json!({
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        });
        // A grammar that determines runs of tokens.
        let (kind, runs) = (json!({"const": "temperature"}), "(abc){2,9}");
        let constant = json!({
            "type": "object", "properties": {"kind": kind, "unit": {"enum": ["celsius", "kelvin"]}},
            "required": ["kind", "unit"], "additionalProperties": false,
        });
        let (grammar, structure) = match below(8) {
            0 => (Some(Grammar::json_schema(&schema)), json!({"json_schema": schema})),
            1 => (
                Some(Grammar::regex("[a-c]+[0-9]{2,9}")),
                json!({"guided_regex": "[a-c]+[0-9]{2,9}"}),
            ),
            2 => (Some(Grammar::json_schema(&constant)), json!({"json_schema": constant})),
            3 => (Some(Grammar::regex(runs)), json!({"guided_regex": runs})),
            _ => (None, json!({})),
        };
        let methods = [json!("off"), json!({"method": "speculative"}), Value::Null];
        let mut body = json!({
            "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
            "top_k": top_k, "seed": seed, "logprobs": below(3), "ignore_eos": grammar.is_none(),
            "speculation": methods[below(3) as usize],
        });
        body.as_object_mut().unwrap().extend(structure.as_object().unwrap().clone());
        let request = Request {
            max_tokens,
            sampling: SamplingOptions { temperature, top_p, top_k, ..SamplingOptions::default() },
            seed: Some(seed),
            ignore_eos: grammar.is_none(),
            grammar,
            ..Request::default()
        };
        Self { prompt, request, body }
    }
}

fn post(agent: &ureq::Agent, address: SocketAddr, body: &Value) -> ureq::BodyReader<'static> {
    let url = format!("http://{address}/v1/completions");
    let sent = agent.post(url).header("content-type", "application/json").send(body.to_string());
    let response = sent.unwrap();
    assert_eq!(response.status(), 200, "{body}");
    response.into_body().into_reader()
}

fn answer(agent: &ureq::Agent, address: SocketAddr, body: &Value) -> Value {
    let answer: Value = serde_json::from_reader(post(agent, address, body)).unwrap();
    assert_no_failures(&answer["forerun"], body);
    answer["choices"][0].clone()
}

/// Asserts that no drafter failed in the only answer to a request, by the server's statistics.
fn assert_no_failures(statistics: &Value, body: &Value) {
    assert_eq!(statistics["choices"][0]["failures"], json!([]), "{body}");
}

/// Returns the text of a stream, and why it ended. A slow client waits between its reads.
fn streamed(agent: &ureq::Agent, address: SocketAddr, body: &Value, slow: bool) -> (String, Value) {
    let mut body = body.clone();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let (mut text, mut finish, mut statistics) = (String::new(), Value::Null, Value::Null);
    for line in BufReader::new(post(agent, address, &body)).lines() {
        let line = line.unwrap();
        let Some(data) = line.strip_prefix("data: ").filter(|&data| data != "[DONE]") else {
            continue;
        };
        let event: Value = serde_json::from_str(data).unwrap();
        if !event["forerun"].is_null() {
            statistics = event["forerun"].clone();
        }
        let choice = &event["choices"][0];
        text += choice["text"].as_str().unwrap_or_default();
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
        if slow {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_no_failures(&statistics, &body);
    (text, finish)
}

/// Sends a request and goes away before the answer has ended.
fn go_away(address: SocketAddr, body: &Value) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let (body, mut stream) = (body.to_string(), TcpStream::connect(address).unwrap());
    let length = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
}

#[test]
fn answers_under_load_are_those_of_the_same_requests_alone() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (answers, seed) = (number("FORERUN_CASES", 300) as usize, number("FORERUN_CASE_SEED", 1));
    let pair = RandomPair::make().unwrap();
    let plain = open(pair.target(), None);
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    // Requests whose clients have gone away may still be in the queue.
    (options.parallel, options.queue) = (16, 2 * CLIENTS);
    let server = Server::bind(options).unwrap();
    let address = server.address();
    let (stop, stopped) = mpsc::channel::<()>();
    let engine = open(pair.target(), Some(pair.drafter()));
    let template = ChatTemplate::plain().unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    std::thread::scope(|scope| {
        let models = Arc::new(Models::of_one("random", engine, template, None));
        scope.spawn(move || server.run(&models, move || _ = stopped.recv()).unwrap());
        let agent = ureq::Agent::new_with_defaults();
        // Until the server has its model, it answers 503.
        while agent.get(format!("http://{address}/health")).call().is_err() {
            std::thread::yield_now();
        }
        let cases: Vec<(Case, Value)> = (0..REQUESTS.min(answers))
            .map(|_| {
                let case = Case::draw(&mut random);
                let alone = answer(&agent, address, &case.body);
                // The texts are also those of plain decoding without a server.
                let expected = plain.complete(&case.prompt, &case.request).unwrap().text;
                assert_eq!(alone["text"], expected, "{}", case.body);
                (case, alone)
            })
            .collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|clients| {
            for client in 0..CLIENTS {
                let (cases, next, agent) = (&cases, &next, &agent);
                let mut random = StdRng::seed_from_u64(seed + 1 + client as u64);
                clients.spawn(move || {
                    while next.fetch_add(1, Ordering::Relaxed) < answers {
                        let (case, alone) = &cases[random.random_range(0..cases.len())];
                        match random.random_range(0..10) {
                            0 => {
                                go_away(address, &case.body);
                                assert_eq!(
                                    answer(agent, address, &case.body),
                                    *alone,
                                    "{}",
                                    case.body
                                );
                            }
                            kind @ 1..4 => {
                                let (text, finish) =
                                    streamed(agent, address, &case.body, kind == 1);
                                assert_eq!(text, alone["text"].as_str().unwrap(), "{}", case.body);
                                assert_eq!(finish, alone["finish_reason"], "{}", case.body);
                            }
                            _ => assert_eq!(
                                answer(agent, address, &case.body),
                                *alone,
                                "{}",
                                case.body
                            ),
                        }
                    }
                });
            }
        });
        drop(stop);
    });
}
