//! `forerun certify`: certificates of pairs and of servers, and error messages.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Models, Run};
use serde_json::Value;
use std::fs;

#[test]
fn all_configurations_of_a_pair_are_certified() {
    let models = Models::pair();
    let report = models.folder().join("certificate.json");
    let run = Run::forerun().with(&["certify", "--tokens", "60", "-n", "20"]);
    let run = run.with_path("--model", &models.target());
    let run = run.with_path("--draft-model", &models.drafter()).with_path("--report", &report);
    let output = run.succeed().output();
    for words in ["plain decoding", "speculative, drafter model", "top:3x3", "exact: all"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 13, "{report}");
    // PEARL, DSI and SSD need two cores.
    let ran: Vec<_> = checks.iter().filter_map(|check| check["result"].get("compared")).collect();
    assert!(ran.len() >= 6, "{report}");
    for outcome in &ran[1..] {
        assert!(outcome["greedy"]["tokens"].as_u64() >= Some(60), "{outcome}");
        assert!(outcome["seeded"]["logprobs"].as_u64() >= Some(60 * 21), "{outcome}");
        assert_eq!(outcome["sampled"]["plausible"], true, "{outcome}");
    }
}

#[test]
fn wrong_options_and_prompts_are_refused() {
    let models = Models::pair();
    let file = |name: &str, text: &str| {
        let file = models.folder().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let certify = || Run::forerun().with(&["certify"]);
    let cases = [
        (certify().with(&["--temperature", "0"]), &["--temperature is 0", "above 0"][..]),
        (
            certify().with_path("--prompts", &file("none.txt", "\n\n\n")),
            &["none.txt", "no prompts"],
        ),
        (
            certify().with_path("--prompts", &file("bad.jsonl", "{\"prompt\": \"a\"}\n{\"a\": 1}")),
            &["bad.jsonl, line 2", "`prompt` or `text`"],
        ),
        (certify().with(&["--endpoint", "http://127.0.0.1:1"]), &["given once"]),
        (
            certify().with(&[
                "--endpoint",
                "a=http://127.0.0.1:1",
                "--endpoint",
                "b=http://127.0.0.1:1",
            ]),
            &["cannot reach a at http://127.0.0.1:1/v1/completions"],
        ),
    ];
    for (run, words) in cases {
        run.finish().assert_refused(words[0], words);
    }
}

/// One server without drafts, and one with them.
#[cfg(all(feature = "server", target_os = "linux"))]
#[test]
fn servers_are_compared() {
    let models = Models::pair();
    let serve = |options: &[&str]| {
        let run = Run::forerun().with(&["serve", "--port", "0"]).with(options);
        let mut running = run.with_path("--model", &models.target()).start();
        let line = running.wait_for_line();
        (running, line.strip_prefix("listening on ").unwrap().to_owned())
    };
    let (plain, plain_url) = serve(&[]);
    let (speculative, speculative_url) =
        serve(&["--drafter", "prompt-lookup", "--draft-tokens", "4"]);
    let endpoints = [format!("plain={plain_url}"), format!("speculative={speculative_url}")];
    let run = Run::forerun().with(&["certify", "-n", "12"]);
    let run = run.with(&["--endpoint", &endpoints[0], "--endpoint", &endpoints[1]]);
    let output = run.succeed().output();
    assert!(output.contains("12 answers are equal"), "{output}");
    assert!(output.contains("differ by up to 0.00e0 nats"), "{output}");
    for mut running in [plain, speculative] {
        running.signal(rustix::process::Signal::TERM);
        running.finish();
    }
}
