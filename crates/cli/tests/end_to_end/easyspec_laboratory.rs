//! EasySpec in the laboratory: `forerun analyze layers` compares strategies, and `bench run`
//! repeats the paper's comparisons.

use crate::common::{Models, Run};
use crate::easyspec::run;
use std::fs;
use std::path::PathBuf;

fn analyze(models: &Models) -> Run {
    let prompts = models.folder().join("prompts.txt");
    fs::write(&prompts, "one two three four\n\nfive six seven eight nine ten\n").unwrap();
    let run = Run::of("analyze layers");
    run.with_path("--model", &models.drafter()).with_path("--prompts", &prompts)
}

#[test]
fn generate_accepts_the_groups_that_an_analysis_proposes() {
    let models = Models::deep();
    let found = models.folder().join("found.txt");
    let first = analyze(&models).with_path("--target", &models.target());
    let first = first.words("--lp 1,2,4 --whole-layers --rounds 3");
    let first = first.words("--layer-groups 0,1-6,7 --least-overlap 0.5");
    let output = first.with_path("--search", &found).succeed().output();
    let (similarities, costs) = output.split_once("\na pass of 1 rows, in ms").unwrap();
    let row = |table: &str, name: &str| -> Vec<f64> {
        let line = table.lines().find_map(|line| line.strip_prefix(name));
        let numbers = line.unwrap_or_else(|| panic!("no {name} in {table}")).split_whitespace();
        numbers.map(|number| number.parse().unwrap_or(f64::NAN)).collect()
    };
    // h, attn, q, k, v, overlap, top-1, accepted.
    let [exact, two, four, grouped] =
        ["lp 1 ", "lp 2 ", "lp 4 ", "0,1-6,7 "].map(|name| row(similarities, name));
    assert_eq!(exact[..7], [1.0; 7], "{output}");
    assert_eq!(exact.len(), 8);
    for (more, fewer) in [(&two, &exact), (&four, &two), (&grouped, &four)] {
        assert!(more[0] < fewer[0] && more[0] > 0.0, "{output}");
    }
    assert!(row(similarities, "lp 4, MLPs too ")[0] < four[0], "{output}");
    // On all threads with barriers, one sub-team per layer and fused; then on one thread.
    for name in ["lp 1 ", "lp 2 ", "lp 4 ", "0,1-6,7 "] {
        let row = row(costs, name);
        assert!(row.len() == 2 || row.len() == 6, "{output}");
        // Beside other busy threads, a team may shrink to one thread, which has no barriers.
        let times = if row.len() == 6 { &[0, 2, 4, 5][..] } else { &[0, 1] };
        assert!(times.iter().all(|&at| row[at] > 0.0), "a pass takes time: {output}");
        assert!(row.iter().all(|cost| *cost >= 0.0), "{output}");
    }
    assert!(!costs.contains("MLPs too"), "{output}");
    let unmeasured = analyze(&models).words("--lp 2 --rounds 0").succeed().output();
    assert!(!unmeasured.contains("in ms"), "{unmeasured}");
    // The file describes its origin, and can be used for drafting.
    let text = fs::read_to_string(&found).unwrap();
    assert!(text.starts_with("# 8 layers of") && text.ends_with('\n'), "{text}");
    let groups = text.lines().nth(1).unwrap();
    assert!(groups.contains('-') && output.contains(&format!("--layer-groups {groups}")));
    let expected = run(&models, "--method autoregressive").succeed().output();
    let layer_parallel = format!("--drafter easyspec --layer-groups @{}", found.display());
    assert_eq!(run(&models, &layer_parallel).succeed().output(), expected);
}

#[test]
fn invalid_analyses_are_refused() {
    let models = Models::deep();
    let table: [(&[&str], &[&str]); 6] = [
        (&["--lp", "2,0"], &["--lp", "at least 1"]),
        (&["--least-overlap", "1.5"], &["--least-overlap is 1.5", "from 0 to 1"]),
        (&["--layer-groups", "0,1-8"], &["name layer 8", "8 layers"]),
        (&["--tokens", "1"], &["no prompt has two tokens"]),
        (&["--threads", "0"], &["threads"]),
        (&["--target", "no/such/model"], &["no/such/model"]),
    ];
    for (options, words) in table {
        analyze(&models).with(options).finish().assert_refused(&options.join(" "), words);
    }
}

/// Runs one of the paper's comparisons with a few tokens.
fn preset(models: &Models, name: &str, more: &[&str]) -> (String, PathBuf) {
    let out = models.folder().join(name);
    let prompts = models.folder().join("prompts.jsonl");
    let lines = [("a", "first"), ("b", "first"), ("c", "second")].map(|(id, category)| {
        format!(
            "{{\"id\": \"{id}\", \"category\": \"{category}\", \"prompt\": \"one two {id}\"}}\n"
        )
    });
    fs::write(&prompts, lines.concat()).unwrap();
    let run = Run::forerun().with(&["bench", "run", "--preset", name]);
    let run = run.with_path("--model", &models.target()).with_path("--out", &out);
    let run = run.with_path("--draft-model", &models.drafter()).with_path("--suite", &prompts);
    let few = ["--repeats", "1", "--warm-ups", "0", "-n", "8", "--ignore-eos"];
    (run.with(&few).with(more).succeed().output(), out)
}

/// Runs the comparison of table 2 at both temperatures.
#[test]
fn a_preset_compares_what_the_paper_compares() {
    let models = Models::deep();
    let (output, out) = preset(&models, "easyspec-ladder", &[]);
    for temperature in ["T 0", "T 0.8"] {
        let has = |start: &str| {
            let end = format!(", {temperature} ");
            output.lines().any(|line| line.starts_with(start) && line.contains(&end))
        };
        let easyspec = "speculative, easyspec lp 4, 5, top:4x5";
        assert!(has("autoregressive") && has(easyspec), "{output}");
    }
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    for words in ["tokens/s variance", "all are the same", "greedy", "temperature 0.8, top-k 0"] {
        assert!(report.contains(words), "{words} in {report}");
    }
    // `--temperature` replaces the preset's temperatures.
    let (_, out) = preset(&models, "easyspec-variance", &["--temperature", "0.8"]);
    assert!(out.join("report.md").is_file());
    let unknown = Run::of("bench run --preset table9");
    let names = ["easyspec-ladder", "easyspec-sweep", "easyspec-variance"];
    unknown.finish().assert_refused("table9", &names);
}

/// Figure 4: pictures and tables by number of layers at a time.
#[test]
fn the_sweep_is_drawn_by_layers_at_a_time() {
    let models = Models::deep();
    let (_, out) = preset(&models, "easyspec-sweep", &[]);
    let table = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(table.contains("| tokens/s | lp 1 | lp 2 | lp 3 | lp 4 | lp 5 |"), "{table}");
    assert!(table.contains("| accepted % | lp 1 |"), "{table}");
    for calibration in ["every-round", "never"] {
        for width in [1, 4, 8, 12] {
            let row = format!("| width {width}, {calibration} |");
            assert_eq!(table.matches(&row).count(), 2, "{row} in {table}");
        }
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<h2>Layers in parallel</h2>"), "{page}");
    assert!(page.contains("aria-label=\"tokens/s by layers at a time\""), "{page}");
    assert!(page.contains("width 12, never, lp 5: "), "{page}");
}

/// Table 4: the variance over prompts.
#[test]
fn the_variance_over_prompts_is_reported_by_category() {
    let models = Models::deep();
    let (_, out) = preset(&models, "easyspec-variance", &[]);
    let table = fs::read_to_string(out.join("report.md")).unwrap();
    let (_, spread) = table.split_once("## Over prompts").unwrap();
    assert!(spread.contains("| tokens/s | MAT | accepted % |"), "{spread}");
    for (category, prompts, deviates) in
        [("first", 2, true), ("second", 1, false), ("overall", 3, true)]
    {
        let row = format!("| {category} | {prompts} | speculative, easyspec lp 4, 5, top:4x5 |");
        let row = spread.lines().find_map(|line| line.strip_prefix(&row)).unwrap();
        assert_eq!(row.matches('±').count(), if deviates { 4 } else { 0 }, "{row}");
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<h2>Over prompts</h2>"), "{page}");
    let refused = Run::of("bench run --temperature 0,-1");
    refused.finish().assert_refused("a temperature below 0", &["temperature"]);
}
