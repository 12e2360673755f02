//! `forerun certify`: certificates of pairs and of servers, and error messages.

#[cfg(all(feature = "server", target_os = "linux"))]
use crate::common::Running;
use crate::common::{Models, Run, Weights};
use forerun_formats::checkpoint::random::example_config;
use serde_json::Value;
use std::fs;

/// The models are random, so little of what is looked up is accepted, and not all is certified.
#[test]
fn all_configurations_of_a_pair_are_checked() {
    let models = Models::pair();
    let report = models.folder().join("certificate.json");
    let run = Run::of("certify --full --tokens 200 -n 20").words("--known-answers 400");
    let run = run.with_path("--model", &models.target());
    let run = run.with_path("--draft-model", &models.drafter()).with_path("--report", &report);
    let finished = run.finish();
    assert!(finished.errors.contains("this is expected to take about"), "{}", finished.errors);
    let output = finished.output();
    for words in [
        "plain decoding",
        "Draft lengths are fixed",
        "speculative, drafter model",
        "model + suffix",
        "top:3x3",
        "built-in models",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    for words in ["DIFFERENT", "NOT from", "NOT as often", "NOT EXACT", "FAILED"] {
        assert!(!output.contains(words), "{words}: {output}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 14, "{report}");
    let with_model = checks.iter().filter(|check| {
        check["configuration"].as_str().is_some_and(|name| name.contains("drafter model"))
    });
    for check in with_model {
        // How much the others draft depends on how fast the target is meanwhile.
        let is_speculative = check["configuration"].as_str().unwrap().starts_with("speculative");
        let least = if is_speculative { 60 } else { 1 };
        for answers in ["greedy", "seeded", "sampled"] {
            let drafted = check["result"]["compared"][answers]["drafted"].as_u64();
            assert!(drafted >= Some(least), "drafting never pauses, {answers}: {check}");
        }
    }
    // PEARL, DSI and SSD need two cores.
    let ran: Vec<_> = checks.iter().filter_map(|check| check["result"].get("compared")).collect();
    assert!(ran.len() >= 6, "{report}");
    for outcome in &ran[1..] {
        assert!(outcome["greedy"]["tokens"].as_u64() >= Some(200), "{outcome}");
        assert!(outcome["seeded"]["logprobs"].as_u64() >= Some(200 * 21), "{outcome}");
        assert_eq!(outcome["sampled"]["plausible"], true, "{outcome}");
        let known = &outcome["known"]["counted"];
        assert_eq!(known["plausible"], true, "{outcome}");
        let groups = known["groups"].as_array().unwrap();
        assert_eq!(groups.len(), 2, "with a seed and without one: {outcome}");
        assert!(groups.iter().all(|group| group["drafted"].as_u64() > Some(0)), "{outcome}");
    }
}

/// A quick run has every method once, and says what it covered.
#[test]
fn a_quick_run_says_what_it_covers() {
    let models = Models::pair();
    let certify = |options: &[&str]| {
        let report = models.folder().join("quick.json");
        let run = Run::of("certify --tokens 40 --known-answers 2");
        let run = run.with(options).with_path("--model", &models.target());
        let finished = run.with_path("--report", &report).finish();
        let certificate = fs::read_to_string(report).unwrap();
        (finished.output(), serde_json::from_str::<Value>(&certificate).unwrap())
    };
    let drafter = models.drafter();
    let with_drafter = ["--draft-model", drafter.to_str().unwrap(), "-n", "20"];
    let (output, certificate) = certify(&with_drafter);
    // Plain decoding, six with the drafter, and prompt lookup.
    assert_eq!(certificate["checks"].as_array().unwrap().len(), 8, "{certificate}");
    let prompts = certificate["prompts"].as_u64().unwrap();
    assert!((2..=4).contains(&prompts), "40 tokens in answers of 20: {certificate}");
    let covered = format!("with {prompts} prompts and answers of up to 20 tokens");
    assert!(output.contains(&covered) && output.contains("--full covers more"), "{output}");
    let count = |name: &str| certificate[name].as_u64();
    let scope = ["tokens", "sampled_tokens", "answer_tokens", "known_answers"];
    assert_eq!(scope.map(count), [40, 40, 20, 2].map(Some), "{certificate}");
    // What is asked for is part of it.
    let (output, _) = certify(&[&with_drafter[..], &["--lookup", "suffix"]].concat());
    assert!(output.contains("model + suffix"), "{output}");
    let (_, certificate) = certify(&["-n", "20"]);
    assert_eq!(certificate["checks"].as_array().unwrap().len(), 5, "{certificate}");
}

#[test]
fn the_built_in_pair_is_certified() {
    let run = Run::of("certify --method speculative --tokens 200");
    let output = run.words("--known-answers 400").succeed().output();
    assert!(output.contains("exact: all 2 configurations"), "{output}");
}

/// A few tokens certify nothing, although none differs.
#[test]
fn too_few_drafts_are_not_certified() {
    let models = Models::pair();
    let run = Run::of("certify --method speculative --known-answers 0");
    let run = run.words("--tokens 20 -n 20").with_path("--model", &models.target());
    let finished = run.with_path("--draft-model", &models.drafter()).finish();
    let output = finished.output();
    assert_eq!(finished.code, Some(1), "{output}");
    assert!(output.contains("speculative, drafter model, 4 draft tokens"), "{output}");
    assert!(output.contains("NOT CERTIFIED: greedy answers: drafted only "), "{output}");
    assert!(output.contains("No text differs"), "{output}");
}

#[test]
fn wrong_options_and_prompts_are_refused() {
    let models = Models::pair();
    let file = |name: &str, text: &str| {
        let file = models.folder().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let certify = || Run::of("certify");
    let cases = [
        (certify().words("--temperature 0"), &["--temperature is 0", "above 0"][..]),
        (
            certify().with_path("--prompts", &file("none.txt", "\n\n\n")),
            &["none.txt", "no prompts"],
        ),
        (
            certify().with_path("--prompts", &file("bad.jsonl", "{\"prompt\": \"a\"}\n{\"a\": 1}")),
            &["bad.jsonl, line 2", "`prompt` or `text`"],
        ),
        (certify().words("--endpoint http://127.0.0.1:1"), &["given once"]),
        (
            certify().words("--endpoint a=http://127.0.0.1:1 --endpoint b=http://127.0.0.1:1"),
            &["cannot reach a at http://127.0.0.1:1/v1/completions"],
        ),
    ];
    for (run, words) in cases {
        run.finish().assert_refused(words[0], words);
    }
}

/// A server in the background.
#[cfg(all(feature = "server", target_os = "linux"))]
struct Server {
    process: Running,
    url: String,
}

#[cfg(all(feature = "server", target_os = "linux"))]
impl Server {
    fn start(model: &std::path::Path, options: &[&str]) -> Self {
        let run = Run::of("serve --port 0").with(options);
        let mut process = run.with_path("--model", model).start();
        let line = process.wait_for_line();
        let url = line.strip_prefix("listening on ").unwrap().to_owned();
        Self { process, url }
    }

    fn stop(mut self) {
        self.process.signal(rustix::process::Signal::TERM);
        self.process.finish();
    }
}

/// One server without drafts, and one with them.
#[cfg(all(feature = "server", target_os = "linux"))]
#[test]
fn servers_are_compared() {
    let models = Models::pair();
    let plain = Server::start(&models.target(), &[]);
    let options = ["--drafter", "prompt-lookup", "--draft-tokens", "4"];
    let speculative = Server::start(&models.target(), &options);
    let endpoints = [format!("plain={}", plain.url), format!("speculative={}", speculative.url)];
    let run = Run::of("certify -n 12");
    let run = run.with(&["--endpoint", &endpoints[0], "--endpoint", &endpoints[1]]);
    let output = run.succeed().output();
    assert!(output.contains("12 answers are equal"), "{output}");
    assert!(output.contains("differ by up to 0.00e0 nats"), "{output}");
    plain.stop();
    speculative.stop();
}

/// A server whose model is not quite the reference's: one norm is a few percent larger in every
/// second channel.
#[cfg(all(feature = "server", target_os = "linux"))]
#[test]
fn a_server_that_diverges_is_found() {
    const LENGTH: usize = 24;
    let models = Models::pair();
    let perturbed = models.folder().join("perturbed");
    fs::create_dir(&perturbed).unwrap();
    for entry in fs::read_dir(models.target()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), perturbed.join(entry.file_name())).unwrap();
    }
    Weights::edit(&perturbed.join("model.safetensors"), |weights| {
        let start = weights.start_of("model.norm.weight");
        for channel in (0..example_config().hidden_size).step_by(2) {
            let at = start + channel * size_of::<f32>();
            let bytes = weights.data[at..].first_chunk_mut().unwrap();
            *bytes = (f32::from_le_bytes(*bytes) * 1.04).to_le_bytes();
        }
    });
    let prompts = ["Once upon a time", "The quick brown fox", "12 + 30 =", "Dear Sir or Madam,"];
    let file = models.folder().join("prompts.txt");
    fs::write(&file, prompts.join("\n\n")).unwrap();

    let reference = Server::start(&models.target(), &[]);
    let peer = Server::start(&perturbed, &["--drafter", "prompt-lookup"]);
    let report = models.folder().join("servers.json");
    let endpoints = [format!("reference={}", reference.url), format!("peer={}", peer.url)];
    let run = Run::forerun().with(&["certify", "-n", &LENGTH.to_string()]);
    let run = run.with_path("--prompts", &file).with_path("--report", &report);
    let run = run.with(&["--endpoint", &endpoints[0], "--endpoint", &endpoints[1]]);
    let finished = run.finish();
    assert_eq!(finished.code, Some(1), "{}", finished.errors);
    let output = finished.output();
    assert!(output.contains("first difference: prompt "), "{output}");
    assert!(output.contains(", which reference finds "), "{output}");
    reference.stop();
    peer.stop();

    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let divergence = &report[0]["divergence"];
    println!("{report}");
    let gap = divergence["gap_nats"].as_f64().unwrap();
    assert!(gap > 0.0 && gap < 0.5, "a near tie falls differently: {report}");
    assert!(report[0]["largest_gap_nats"].as_f64().unwrap() > 0.0, "{report}");
    // The place of the first difference is where the two models' own texts part.
    let index = |field: &str| divergence[field].as_u64().unwrap() as usize;
    let (prompt, position) = (prompts[index("prompt")], index("position"));
    let text = |model: &std::path::Path, tokens: usize| {
        let run =
            Run::forerun().with(&["generate", "--prompt", prompt, "--method", "autoregressive"]);
        run.with(&["-n", &tokens.to_string()]).with_path("--model", model).succeed().output()
    };
    assert_eq!(
        text(&models.target(), position.max(1)) == text(&perturbed, position.max(1)),
        position > 0
    );
    assert_ne!(text(&models.target(), position + 1), text(&perturbed, position + 1));
}
