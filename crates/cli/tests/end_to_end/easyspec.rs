//! EasySpec from the command line: the text is the target's, whatever layers are computed together.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Models, Run};
use std::fs;

fn run(models: &Models, options: &str) -> Run {
    let options: Vec<&str> = options.split(' ').filter(|option| !option.is_empty()).collect();
    Run::generate_with_drafter(models)
        .with(&["--prompt", "one two one", "--max-tokens", "50", "--ignore-eos"])
        .with(&options)
}

#[test]
fn layers_in_parallel_give_the_text_of_plain_decoding() {
    let models = Models::deep();
    let groups = models.folder().join("groups.txt");
    fs::write(&groups, "# by hand\n0,1-6,7\n").unwrap();
    let from_file = format!("--layer-groups @{}", groups.display());
    for sampling in ["--temperature 0", "--temperature 0.9 --seed 7"] {
        let expected = run(&models, &format!("--method autoregressive {sampling}"));
        let expected = expected.succeed().output();
        for options in [
            "",
            "--lp 1",
            "--lp 2 --draft-tokens 4",
            "--lp 3 --tree top:4x4 --calibration on-mismatch",
            "--lp 5 --tree sampled:2,2 --calibration prefill-only",
            "--layer-groups 0-1,2-7 --calibration never",
            &from_file,
        ] {
            let text = run(&models, &format!("--drafter easyspec {options} {sampling}"));
            assert_eq!(text.succeed().output(), expected, "{options} {sampling}");
        }
    }
}

#[test]
fn strategies_that_cannot_be_are_refused_with_a_way_out() {
    let models = Models::deep();
    let file = models.folder().join("empty.txt");
    fs::write(&file, "# nothing\n").unwrap();
    let (empty, missing) =
        (format!("--layer-groups @{}", file.display()), "--layer-groups @no.txt");
    let table: [(&str, &[&str]); 10] = [
        ("--lp 0", &["--lp is 0", "1 or more"]),
        ("--lp many", &["'--lp", "many"]),
        ("--lp 2 --layer-groups 0-7", &["cannot be used with"]),
        ("--layer-groups 0,2-7", &["layer 1 is in no layer group"]),
        ("--layer-groups 0-3,3-7", &["layer 3 comes"]),
        ("--layer-groups 0,1-8", &["name layer 8", "8 layers, 0 to 7", "drafter"]),
        ("--layer-groups 0,1-5", &["end before layer 6", "add 6-7"]),
        ("--calibration often", &["\"often\"", "every-round, on-mismatch, prefill-only, never"]),
        (missing, &["cannot read the layer groups in no.txt"]),
        (&empty, &["empty.txt", "neither a layer"]),
    ];
    for (options, words) in table {
        let run = run(&models, &format!("--drafter easyspec {options}"));
        run.finish().assert_refused(options, words);
    }
    for options in ["--lp 2", "--layer-groups 0-7", "--calibration never"] {
        run(&models, options).finish().assert_refused(options, &["--drafter easyspec", "leave"]);
    }
    let without = Run::generate(&models).with(&["-p", "x", "--drafter", "easyspec"]);
    without.finish().assert_refused("no drafter", &["\"easyspec\"", "--draft-model DIR"]);
}

fn analyze(models: &Models) -> Run {
    let prompts = models.folder().join("prompts.txt");
    fs::write(&prompts, "one two three four\n\nfive six seven eight nine ten\n").unwrap();
    let run = Run::forerun().with(&["analyze", "layers"]);
    run.with_path("--model", &models.drafter()).with_path("--prompts", &prompts)
}

#[test]
fn an_analysis_proposes_groups_that_generate_takes() {
    let models = Models::deep();
    let found = models.folder().join("found.txt");
    let first = analyze(&models).with_path("--target", &models.target());
    let first = first.with(&["--lp", "1,2,4", "--whole-layers", "--per-layer", "--rounds", "3"]);
    let first = first.with(&["--layer-groups", "0,1-6,7", "--least-overlap", "0.5"]);
    let output = first.with_path("--search", &found).succeed().output();
    let row = |name: &str| -> Vec<f64> {
        let line = output.lines().find_map(|line| line.strip_prefix(name));
        let numbers = line.unwrap_or_else(|| panic!("no {name} in {output}")).split_whitespace();
        numbers.map(|number| number.parse().unwrap_or(f64::NAN)).collect()
    };
    // h, attn, q, k, v, overlap, top-1, accepted, ms, barriers.
    let [exact, two, four, own] = ["lp 1 ", "lp 2 ", "lp 4 ", "0,1-6,7 "].map(row);
    assert_eq!(exact[..7], [1.0; 7], "{output}");
    assert_eq!(exact.len(), 10);
    for (more, fewer) in [(&two, &exact), (&four, &two), (&own, &four)] {
        assert!(more[0] < fewer[0] && more[0] > 0.0, "{output}");
        assert!(more[8] > 0.0, "a pass takes time: {output}");
    }
    assert!(row("lp 4, MLPs too ")[0] < four[0], "{output}");
    assert!(output.contains("lp 4, by layer\n0 "), "{output}");
    // What was found says where it comes from, and drafts.
    let text = fs::read_to_string(&found).unwrap();
    assert!(text.starts_with("# 8 layers of") && text.ends_with('\n'), "{text}");
    let groups = text.lines().nth(1).unwrap();
    assert!(groups.contains('-') && output.contains(&format!("--layer-groups {groups}")));
    let expected = run(&models, "--method autoregressive").succeed().output();
    let fuzzy = format!("--drafter easyspec --layer-groups @{}", found.display());
    assert_eq!(run(&models, &fuzzy).succeed().output(), expected);
}

#[test]
fn analyses_that_cannot_be_are_refused() {
    let models = Models::deep();
    let table: [(&[&str], &[&str]); 7] = [
        (&["--depth", "0"], &["--depth", "at least 1"]),
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

/// The ladder of the paper's table 2, by name.
#[test]
fn a_preset_compares_what_the_paper_compares() {
    let models = Models::deep();
    let out = models.folder().join("ladder");
    let run = Run::forerun().with(&["bench", "run", "--preset", "easyspec-ladder"]);
    let run = run.with_path("--model", &models.target()).with_path("--out", &out);
    let run = run.with_path("--draft-model", &models.drafter());
    let few = ["--limit", "1", "--repeats", "1", "--warm-ups", "0", "-n", "6", "--ignore-eos"];
    let output = run.with(&few).succeed().output();
    let easyspec = output.lines().last().unwrap();
    assert!(output.starts_with("autoregressive"), "{output}");
    assert!(easyspec.starts_with("speculative, easyspec lp 4, 5, top:4x5"), "{output}");
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains("tokens/s variance"), "{report}");
    let unknown = Run::forerun().with(&["bench", "run", "--preset", "table9"]);
    unknown.finish().assert_refused("table9", &["easyspec-ladder", "easyspec-sweep"]);
}
