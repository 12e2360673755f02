//! Other engines (peers) in a comparison: processes that answer the same prompts.

use crate::common::{Models, Run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A peer that answers every prompt with the same tokens, one per millisecond.
const PEER: &str = r#"echo '{"version": "shell 1", "threads": THREADS, "weights": "none"}'
while read -r line; do
    case $line in *'"drafter":"none"'*) rounds= ;; *) rounds='[3, 2]' ;; esac
    echo '{"tokens": [TOKENS], "total_ns": 4000000, "commits": [[1000000, 1], [4000000, 3]], "rounds": ['"$rounds"']}'
done
"#;

/// Compares that peer on two prompts; `more` is added to its table in the sweep file.
fn bench(models: &Models, out: &Path, threads: usize, tokens: &str, more: &str) -> Run {
    let file = |name: &str, text: &str| -> PathBuf {
        let file = models.folder().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let peer = PEER.replace("THREADS", &threads.to_string()).replace("TOKENS", tokens);
    let peer = file("peer.sh", &peer);
    let prompts = file("prompts.jsonl", "{\"prompt\": \"Once\"}\n{\"prompt\": \"Twice upon\"}\n");
    let placement = Run::one_core_placement();
    let sweep = format!(
        "[[sweep]]\ndraft-tokens = 3\nplacement = '{placement}'\n[[peer]]\nname = 'shell'\ncommand = \
         ['sh', '{}']\ndrafter = ['none', 'model']\ndraft-tokens = 3\n{more}",
        peer.display()
    );
    let sweep = file("sweep.toml", &sweep);
    let run = Run::of("bench run --repeats 2 --warm-ups 1 -n 4");
    let run = run.with_path("--model", &models.target()).with_path("--suite", &prompts);
    let run = run.with_path("--draft-model", &models.drafter()).with_path("--out", out);
    run.words("--ignore-eos").with_path("--sweep", &sweep)
}

/// Returns the tokens of plain decoding for both prompts.
fn own_tokens(out: &Path) -> Vec<String> {
    let text = fs::read_to_string(out.join("answers.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let plain = lines.filter(|line| line["configuration"] == "autoregressive");
    let tokens = plain.map(|line| line["turns"][0]["tokens"].to_string()).collect::<Vec<_>>();
    tokens[..2].iter().map(|tokens| tokens.trim_matches(['[', ']']).to_owned()).collect()
}

#[test]
fn a_peer_is_compared_and_its_text_may_differ() {
    let models = Models::pair();
    let [first, second] = ["first", "second"].map(|name| models.folder().join(name));
    bench(&models, &first, 1, "1, 2, 3, 4", "").succeed();
    let own = own_tokens(&first);
    // Now the peer's answer equals that of plain decoding for the first prompt, and differs for the
    // second.
    bench(&models, &second, 1, &own[0], "").succeed();
    let summary = fs::read_to_string(second.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let names: Vec<&str> = summary["configurations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    let expected = [
        "autoregressive",
        "speculative, model, 3",
        "shell: autoregressive",
        "shell: speculative, model, 3",
    ];
    assert_eq!(names, expected);
    let versus = summary["versus"].as_array().unwrap();
    assert_eq!(versus.len(), 2, "each peer is compared with the configuration of its kind");
    assert_eq!(versus[1]["own"], "speculative, model, 3");
    assert_eq!(versus[1]["pairs"], 4);
    let peer_speed = versus[0]["peer_tokens_per_second"]["median"].as_f64().unwrap();
    assert!((peer_speed - 1000.0).abs() < 1e-6, "{peer_speed}");
    let same = &summary["same_text"][0];
    let equal = if own[0] == own[1] { 2 } else { 1 };
    assert_eq!((&same["prompts"], &same["equal"]), (&2.into(), &equal.into()));
    let accepted = &summary["configurations"][3]["cells"]["overall"]["metrics"]["acceptance_rate"];
    assert!((accepted["mean"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9, "{accepted}");
    for page in ["report.md", "report.html"] {
        let page = fs::read_to_string(second.join(page)).unwrap();
        assert!(
            page.contains("Against other engines") && page.contains("shell 1; none, 1 threads")
        );
    }
}

#[test]
fn a_comparison_resumes_only_with_the_same_peers() {
    let models = Models::pair();
    let out = models.folder().join("out");
    bench(&models, &out, 1, "1, 2, 3, 4", "").succeed();
    bench(&models, &out, 1, "1, 2, 3, 4", "").succeed();
    // The script changes, but the command stays the same.
    let other = bench(&models, &out, 1, "1, 2, 3, 4", "");
    let script = models.folder().join("peer.sh");
    let newer = fs::read_to_string(&script).unwrap().replace("shell 1", "shell 2");
    fs::write(&script, newer).unwrap();
    other.finish().assert_refused("another version", &["shell 1", "shell 2", "other peers"]);
}

#[test]
fn incomparable_peers_are_refused() {
    let models = Models::pair();
    let out = models.folder().join("out");
    let bench = |threads, more: &str| bench(&models, &out, threads, "1", more);
    bench(3, "").finish().assert_refused("more threads", &["3 cores", "--unequal-cores"]);
    let refused = bench(1, "dtype = 'int8'").finish();
    refused.assert_refused("another type", &["\"shell\"", "int8"]);
    let refused = bench(1, "").words("--temperature 1").finish();
    refused.assert_refused("sampling", &["greedily", "--temperature"]);
    let turns = models.folder().join("turns.jsonl");
    fs::write(&turns, "{\"id\": \"two\", \"turns\": [\"Who?\", \"Why?\"]}\n").unwrap();
    let refused = bench(1, "").with_path("--suite", &turns).finish();
    refused.assert_refused("several turns", &["\"two\"", "several turns"]);
}
