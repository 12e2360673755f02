//! `forerun bench run`: comparisons, their reports, and resuming after interruptions.

use crate::common::{Models, Run};
use crate::speculators::speculator;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const PROMPTS: &str = r#"{"id": "a", "category": "first", "prompt": "Once upon a time"}
{"id": "b", "category": "first", "prompt": "Once upon"}
{"id": "c", "category": "second", "turns": ["Who are you?", "And <who> & am I?"]}
"#;

/// Compares plain and speculative decoding on three prompts, twice each.
fn bench(models: &Models, out: &Path) -> Run {
    let prompts = models.folder().join("prompts.jsonl");
    fs::write(&prompts, PROMPTS).unwrap();
    let run = Run::of("bench run --repeats 2 --warm-ups 1 -n 12");
    let run = run.with_path("--model", &models.target()).with_path("--suite", &prompts);
    let run = run.with_path("--draft-model", &models.drafter()).with_path("--out", out);
    run.words("--draft-tokens 3").on_one_core()
}

fn answers(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("answers.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &Value| line["line"] == "answer").collect()
}

/// Reads a summary without everything that depends on times, dates, memory and command lines.
fn summary_without_times(out: &Path) -> Value {
    let text = fs::read_to_string(out.join("summary.json")).unwrap();
    let mut summary: Value = serde_json::from_str(&text).unwrap();
    summary["sessions"] = json!(null);
    for configuration in summary["configurations"].as_array_mut().unwrap() {
        configuration["sample"] = json!(null);
        for cell in configuration["cells"].as_object_mut().unwrap().values_mut() {
            for metrics in ["metrics", "over_prompts"] {
                cell[metrics].as_object_mut().unwrap().retain(|name, _| {
                    let timed = ["speed", "second", "_ms", "share", "peak", "per_token", "round"];
                    name == "wasted_draft_share" || !timed.iter().any(|part| name.contains(part))
                });
            }
        }
    }
    summary
}

fn assert_complete(out: &Path) {
    let answers = answers(out);
    assert_eq!(answers.len(), 2 * 3 * 2);
    let mut places: Vec<String> = answers
        .iter()
        .map(|a| format!("{} {} {}", a["configuration"], a["prompt"], a["repeat"]))
        .collect();
    places.sort();
    places.dedup();
    assert_eq!(places.len(), answers.len());
}

#[test]
fn an_interrupted_comparison_resumes_to_the_same_table() {
    let models = Models::pair();
    let [whole, cut] = ["whole", "cut"].map(|name| models.folder().join(name));
    let finished = bench(&models, &whole).succeed();
    let output = finished.output();
    assert!(output.contains("autoregressive") && output.contains("MAT"), "{output}");
    assert!(output.contains("speculative, model, 3"), "{output}");
    assert_complete(&whole);

    // The file has the first half, and an incomplete line.
    fs::create_dir(&cut).unwrap();
    let text = fs::read_to_string(whole.join("answers.jsonl")).unwrap();
    let place = text.match_indices('\n').nth(7).unwrap().0;
    fs::write(cut.join("answers.jsonl"), &text[..place + 40]).unwrap();
    let finished = bench(&models, &cut).succeed();
    assert!(finished.errors.contains("resuming after 6 answers"), "{}", finished.errors);
    assert_complete(&cut);
    assert_eq!(summary_without_times(&cut), summary_without_times(&whole));
    // The existing answers are unchanged, including their times.
    assert_eq!(answers(&cut)[..6], answers(&whole)[..6]);

    // If all answers exist, only the report is written again.
    fs::remove_file(cut.join("report.html")).unwrap();
    bench(&models, &cut).succeed();
    assert_complete(&cut);
    assert!(cut.join("report.html").is_file());

    // Another comparison cannot use the same directory.
    let other = bench(&models, &cut).words("--seed 5").finish();
    other.assert_refused("another seed", &["another comparison", "--out"]);
}

/// A checkpoint that was written again may be another one, even with the same name and size.
#[test]
fn a_comparison_resumes_only_with_unchanged_checkpoints() {
    let models = Models::pair();
    let out = models.folder().join("out");
    bench(&models, &out).succeed();
    bench(&models, &out).succeed();
    let weights = fs::File::options().write(true).open(models.drafter().join("model.safetensors"));
    weights.unwrap().set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
    let other = bench(&models, &out).finish();
    other.assert_refused("a changed checkpoint", &["another comparison", "--out"]);
}

#[test]
fn a_different_answer_is_reported_with_its_prompt_and_position() {
    let models = Models::pair();
    let out = models.folder().join("out");
    bench(&models, &out).succeed();
    let file = out.join("answers.jsonl");
    let changed: Vec<String> = fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            if line["configuration"] == "speculative, model, 3" && line["prompt"] == "b" {
                line["turns"][0]["tokens"][5] = json!(1);
            }
            line.to_string() + "\n"
        })
        .collect();
    fs::write(&file, changed.concat()).unwrap();
    let refused = bench(&models, &out).finish();
    let words = [
        "\"b\"",
        "position 5",
        "token 1 instead of",
        "seeds 0 and 0",
        "forerun generate",
        "--temperature 0 --max-tokens 12 --seed 0",
    ];
    refused.assert_refused("another answer", &words);
}

/// Returns the names of the configurations that a run prints, without the verdict after them.
fn names(output: &str) -> Vec<&str> {
    let lines = output.lines().take_while(|line| !line.is_empty());
    lines.map(|line| line.split("  ").next().unwrap()).collect()
}

#[test]
fn the_report_is_complete_and_makes_no_requests() {
    let models = Models::pair();
    let out = models.folder().join("out");
    let trees = ["--tree", "none", "--tree", "top:2x3", "--drafter", "model,prompt-lookup"];
    bench(&models, &out).with(&trees).succeed();
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for part in [
        "<meta name=\"viewport\"",
        "prefers-color-scheme: dark",
        "<h2>Overall</h2>",
        "<h2>Speed by category</h2>",
        "<h2>Acceptance by position</h2>",
        "<h2>Where the time goes</h2>",
        "<h2>Sample timelines</h2>",
        "<h2>By category</h2>",
        "<h2>Where the numbers come from</h2>",
        "all are the same, token by token",
        "<p class=\"verdict\">",
        "plain decoding",
        "are noise",
        "<th scope=\"col\"><abbr title=\"Mean accepted tokens",
        "<polyline",
        "speculative, model, 3, top:2x3",
        "speculative, prompt-lookup, 3",
        "<dt>command</dt>",
        "<dt>seed</dt>",
        "<dt>processor</dt>",
        "<dt>version</dt>",
    ] {
        assert!(page.contains(part), "no {part} in the page");
    }
    for request in
        ["http://", "https://", "src=", "url(", "@import", "<script", "<link rel=\"style"]
    {
        assert!(!page.contains(request), "{request} in the page");
    }
    let hrefs: Vec<_> =
        page.match_indices("href=\"").map(|at| &page[at.0 + 6..at.0 + 11]).collect();
    assert_eq!(hrefs, ["data:"]);
    let table = fs::read_to_string(out.join("report.md")).unwrap();
    let row = |name: &str| table.lines().filter(|line| line.contains(name)).count();
    // Rows of the tables by category and over prompts.
    assert!(row("| first | 2 |") == 10 && row("| second | 1 |") == 10, "{table}");
    assert!(table.contains("| speed × |") && table.contains("± "), "{table}");
}

#[test]
fn sampled_answers_are_compared_if_they_are_coupled() {
    let models = Models::pair();
    let out = |name: &str| models.folder().join(name);
    let warm = ["--temperature", "1", "--limit", "1"];
    bench(&models, &out("coupled")).with(&warm).succeed();
    let page = |name: &str| fs::read_to_string(out(name).join("report.md")).unwrap();
    assert!(page("coupled").contains("all are the same"));
    bench(&models, &out("rejection")).with(&warm).words("--verify rejection").succeed();
    assert!(page("rejection").contains("were not compared"));
}

/// Compares a small draft model and drafters trained for the target, at two temperatures, in one
/// run.
#[test]
fn several_draft_models_and_temperatures_are_compared_in_one_run() {
    use forerun_formats::checkpoint::random_speculator::SpeculatorLayout as L;
    let models = Models::pair();
    let parallel = [L::ParallelMedusa, L::ParallelEagle].map(|layout| speculator(&models, layout));
    let [medusa, hydra] = [L::Medusa, L::Hydra].map(|layout| speculator(&models, layout));
    let sweep = models.folder().join("sweep.toml");
    let (target, small, [on_tokens, on_features]) = (models.target(), models.drafter(), parallel);
    let placement = Run::one_core_placement();
    let table = format!("[[sweep]]\ndraft-tokens = 2\nplacement = '{placement}'\n");
    let text = format!(
        "model = {target:?}\ndraft-model = {small:?}\n\n{table}drafter = ['model', 'ouroboros']\n\n\
         {table}draft-model = [{on_tokens:?}, {on_features:?}, {medusa:?}]\n\n\
         {table}draft-model = {hydra:?}\ndrafter = 'hydra'\ntree = 'top:2x2'\ntemperature = 1\n",
    );
    fs::write(&sweep, text).unwrap();
    let (prompts, out) = (models.folder().join("prompts.jsonl"), models.folder().join("out"));
    fs::write(&prompts, PROMPTS).unwrap();
    let run = || {
        let run = Run::of("bench run --repeats 1 --warm-ups 0");
        let run = run.words("-n 16 --limit 1 --temperature 0,1");
        run.with_path("--suite", &prompts).with_path("--sweep", &sweep)
    };
    let output = run().with_path("--out", &out).succeed().output();
    let names = names(&output);
    let drafted = [
        "model, 2",
        "ouroboros, 2",
        "parallel ParallelMedusa, 2",
        "parallel ParallelEagle, 2",
        "medusa, 2",
    ];
    for temperature in [0, 1] {
        for drafted in drafted {
            let name = format!("speculative, {drafted}, T {temperature}");
            assert!(names.contains(&name.as_str()), "no {name}: {names:?}");
        }
        assert!(names.contains(&format!("autoregressive, T {temperature}").as_str()), "{names:?}");
    }
    assert!(names.contains(&"speculative, hydra, 2, top:2x2, T 1"), "{names:?}");
    assert_eq!(names.len(), 13);
    let answers = answers(&out);
    assert_eq!(answers.len(), 13 * 2);
    // Each temperature has its own texts and its own baseline.
    let text = |name: &str| {
        let of = |answer: &&Value| answer["configuration"] == name && answer["prompt"] == "a";
        answers.iter().find(of).unwrap()["turns"][0]["text"].clone()
    };
    assert_ne!(text("autoregressive, T 0"), text("autoregressive, T 1"));
    assert_eq!(text("speculative, medusa, 2, T 1"), text("autoregressive, T 1"));
    let summary = fs::read_to_string(out.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    for configuration in summary["configurations"].as_array().unwrap() {
        let name = configuration["name"].as_str().unwrap();
        let temperature = &name[name.len() - 3..];
        assert_eq!(configuration["baseline"], format!("autoregressive, {temperature}"), "{name}");
        let drafted =
            configuration["cells"]["overall"]["metrics"]["draft_ms_per_round"].is_object();
        assert_eq!(drafted, !name.starts_with("autoregressive"), "{name}");
    }
    let table = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(table.contains("| draft ms/round |") && table.contains("greedy; temperature 1"));
    assert!(table.contains("ParallelEagle --method speculative --drafter parallel"), "{table}");
    // A draft model that no configuration uses is an error.
    let text = format!("[[sweep]]\ndraft-model = {medusa:?}\ndrafter = 'lookahead'\n");
    fs::write(&sweep, text).unwrap();
    let refused = run().with_path("--model", &models.target()).finish();
    refused.assert_refused("an idle draft model", &["no drafter uses the draft model", "Medusa"]);
}

/// Runs the repository's sweep of ParallelSpec's tables with random drafters.
#[test]
fn the_parallelspec_sweep_of_the_repository_runs() {
    use forerun_formats::checkpoint::random_speculator::SpeculatorLayout as L;
    let models = Models::pair();
    for (layout, name) in [
        (L::SharedHeadMedusa, "medusa"),
        (L::SharedEmbeddingEagle, "eagle"),
        (L::ParallelMedusa, "parallelspec-medusa"),
        (L::ParallelEagle, "parallelspec-eagle"),
    ] {
        fs::rename(speculator(&models, layout), models.folder().join(name)).unwrap();
    }
    let text = include_str!("../../../../docs/bench/parallelspec.toml");
    let text = text.replace("\"models/", &format!("\"{}/", models.folder().display()));
    let (sweep, prompts) = (models.folder().join("s.toml"), models.folder().join("p.jsonl"));
    fs::write(&sweep, text).unwrap();
    fs::write(&prompts, PROMPTS.lines().next().unwrap()).unwrap();
    let run = Run::of("bench run --repeats 1 --warm-ups 0");
    let run = run.words("-n 8 --temperature 0,1").with_path("--suite", &prompts);
    let run = run.with_path("--sweep", &sweep).with_path("--out", &models.folder().join("out"));
    let output = run.succeed().output();
    let names = names(&output);
    for name in [
        "speculative, model, assisted, T 1",
        "speculative, ouroboros, 4, T 0",
        "speculative, prompt-lookup, 10, T 0",
        "speculative, lookahead, 10, T 1",
        "speculative, medusa, 4, top:10x4:63, T 0",
        "speculative, parallel parallelspec-medusa, 4, T 0",
        "speculative, eagle, 5, top:10x5:25, T 1",
        "speculative, parallel parallelspec-eagle, 8, T 0",
    ] {
        assert!(names.contains(&name), "no {name}: {names:?}");
    }
    // A table of 14 methods at two temperatures, and a figure of 4 drafters at 8 lengths. One
    // length of each drafter is also in the table.
    assert_eq!(names.len(), 14 * 2 + 4 * 7);
    assert!(!names.contains(&"speculative, medusa, 8, T 1"), "{names:?}");
}

#[test]
fn invalid_comparisons_are_refused_before_loading() {
    let models = Models::pair();
    let out = models.folder().join("out");
    let file = |name: &str, text: &str| -> PathBuf {
        let file = models.folder().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let sweep = file("sweep.toml", "[[sweep]]\nspeed = 3\n");
    let of =
        || Run::of("bench run").with_path("--model", &models.target()).with_path("--out", &out);
    let words: [(&str, Run, &[&str]); 5] = [
        ("no repeats", of().words("--repeats 0"), &["--repeats is 0"]),
        ("an unknown suite", of().words("--suite mtbench"), &["mtbench", "spec-bench"]),
        ("no data", of().words("--suite gsm8k"), &["--data"]),
        ("an unknown option", of().with_path("--sweep", &sweep), &["sweep.toml", "speed"]),
        ("a short context", of().words("-n 4000").on_one_core(), &["none fits", "--max-tokens"]),
    ];
    for (what, run, words) in words {
        run.finish().assert_refused(what, words);
    }
    assert!(!out.join("summary.json").exists());
}

#[test]
fn a_sweep_file_is_compared_on_the_demonstration_pair() {
    let folder = tempfile::tempdir().unwrap();
    let (sweep, out) = (folder.path().join("sweep.toml"), folder.path().join("out"));
    let placement = Run::one_core_placement();
    let text = format!(
        "[[sweep]]\ndraft-tokens = [1, 2]\nplacement = '{placement}'\n\n[[sweep]]\ndrafter = \
         'prompt-lookup'\nplacement = '{placement}'\ndtype = 'int8'\n"
    );
    fs::write(&sweep, text).unwrap();
    let run = Run::of("bench run --limit 1 --repeats 1 -n 4");
    // Sweeps that name no type have the option's.
    let run = run.words("--warm-ups 0 --dtype bf16").with_path("--sweep", &sweep);
    let run = run.with_path("--out", &out);
    let output = run.succeed().output();
    let names = names(&output);
    let expected = [
        "autoregressive, bf16",
        "speculative, model, 1, bf16",
        "speculative, model, 2, bf16",
        "autoregressive, int8",
        "speculative, prompt-lookup, auto, int8",
    ];
    assert_eq!(names, expected);
    assert_eq!(answers(&out).len(), 5 * 3);
}
