//! `forerun make-pair` and `forerun export`: synthetic pairs with the requested acceptance and a
//! label, and GGUF files for other engines.

use crate::common::{Models, Run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Creates a small pair with the options `more`.
fn make_pair(out: &Path, more: &[&str]) -> Run {
    let small = [
        ["--layers", "4"],
        ["--hidden", "64"],
        ["--intermediate", "96"],
        ["--heads", "4"],
        ["--kv-heads", "2"],
        ["--context", "160"],
        ["--prompts", "24"],
        ["-n", "48"],
    ];
    let small = small.iter().filter(|option| !more.contains(&option[0])).flatten();
    let run = Run::of("make-pair").with(&small.copied().collect::<Vec<_>>());
    run.with_path("--out", out).with(more)
}

fn json(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn a_pair_has_the_requested_acceptance_and_a_label() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pair");
    let more = ["--vocab-size", "700", "--acceptance", "0.7", "--tolerance", "0.06"];
    let more = [&more[..], &["--gguf", "q8_0"]].concat();
    let pair = make_pair(&out, &more).succeed();
    assert!(pair.errors.contains("other prompts"), "{}", pair.errors);
    let label = &json(&out.join("target/config.json"))["forerun_made_pair"];
    let acceptance = label["acceptance"].as_f64().unwrap();
    assert!((acceptance - 0.7).abs() <= 0.06, "{label}");
    assert!(label["positions"].as_u64().unwrap() > 300, "{label}");
    assert!(pair.output().contains(&format!("acceptance {acceptance:.3}")), "{}", pair.output());
    let card = fs::read_to_string(out.join("drafter/README.md")).unwrap();
    assert!(card.contains("Random weights") && card.contains("forerun make-pair"), "{card}");

    // The pair can be used like any other, and has its own tokenizer.
    let [target, drafter] = ["target", "drafter"].map(|part| out.join(part));
    let generate = |method: &str| {
        let run =
            Run::forerun().with(&["generate", "--json", "-p", "Once upon a time", "-n", "40"]);
        let run = run.with_path("--model", &target).with_path("--draft-model", &drafter);
        run.with(&["--method", method, "--draft-tokens", "3"]).on_one_core().succeed().json()
    };
    let (plain, drafted) = (generate("autoregressive"), generate("speculative"));
    assert_eq!(plain["text"], drafted["text"]);
    assert_eq!(plain["tokens"], drafted["tokens"]);

    // Its GGUF files have the same tokens.
    assert_eq!(json(&out.join("target/tokenizer.json"))["model"]["vocab"]["</s>"], 257);
    let file = out.join("target-q8_0.gguf");
    let run = Run::of("generate --json -p Once -n 8").with_path("--model", &file);
    assert_eq!(run.on_one_core().succeed().json()["usage"]["prompt_tokens"], 5);

    // Reports say that the pair is synthetic.
    let report = folder.path().join("report");
    let run = Run::of("bench run --limit 1 --repeats 1 -n 8");
    let run = run.with_path("--model", &target).with_path("--draft-model", &drafter);
    run.with_path("--out", &report).on_one_core().succeed();
    for page in ["report.md", "report.html"] {
        let page = fs::read_to_string(report.join(page)).unwrap();
        let words = format!("calibrated to an acceptance of {acceptance:.2} at temperature 0");
        assert!(
            page.contains("A synthetic pair, not a trained one") && page.contains(&words),
            "{page}"
        );
    }

    // An existing pair is kept unless `--force` is given.
    make_pair(&out, &more).finish().assert_refused("another pair", &["already exists", "--force"]);
    make_pair(&out, &more).words("--force").succeed();
    let again = &json(&out.join("target/config.json"))["forerun_made_pair"];
    assert_eq!(again, label, "the same seed makes the same pair");
}

/// A deep drafter. Without `--fuzzy-overlap`, almost none of its approximate rows would be
/// accepted.
#[test]
fn a_deep_drafter_has_the_requested_overlap() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pair");
    let more = ["--vocab-size", "600", "--layers", "12", "--draft-layers", "10", "-n", "24"];
    let deep = ["--acceptance", "0.7", "--tolerance", "0.1", "--prompts", "8"];
    let pair = make_pair(&out, &[&more[..], &deep[..]].concat());
    let pair = pair.words("--fuzzy-overlap 0.85").succeed();
    assert!(pair.errors.contains("scale of the drafter's layers"), "{}", pair.errors);
    assert!(pair.output().contains("four layers at a time: overlap 0."), "{}", pair.output());
    let label = &json(&out.join("drafter/config.json"))["forerun_made_pair"];
    assert!((label["fuzzy_overlap"].as_f64().unwrap() - 0.85).abs() <= 0.1, "{label}");
    assert!((label["acceptance"].as_f64().unwrap() - 0.7).abs() <= 0.1, "{label}");
    let scale = label["residual"].as_f64().unwrap();
    assert!(scale > 0.0 && scale < 1.0, "{label}");
    let card = fs::read_to_string(out.join("target/README.md")).unwrap();
    assert!(card.contains("4 layers at a time (EasySpec)"), "{card}");

    // The analysis of another text confirms it.
    let prompts = folder.path().join("prompts.txt");
    fs::write(
        &prompts,
        "The quick brown fox jumps over the lazy dog, and then it sleeps for long.\n",
    )
    .unwrap();
    let analysis = Run::of("analyze layers --lp 4 --rounds 0");
    let analysis = analysis.with_path("--model", &out.join("drafter"));
    let output = analysis.with_path("--prompts", &prompts).succeed().output();
    let row = output.lines().find_map(|line| line.strip_prefix("lp 4 ")).unwrap();
    let overlap: f64 = row.split_whitespace().nth(5).unwrap().parse().unwrap();
    assert!((overlap - 0.85).abs() < 0.15, "{output}");

    // The text drafted with it is the target's.
    let generate = |options: &[&str]| {
        let run = Run::forerun().with(&["generate", "--json", "-p", "Once upon", "-n", "32"]);
        let run = run.with_path("--model", &out.join("target")).with(options);
        run.with_path("--draft-model", &out.join("drafter")).on_one_core().succeed().json()
    };
    let plain = generate(&["--method", "autoregressive"]);
    let layer_parallel = generate(&["--drafter", "easyspec", "--draft-tokens", "5"]);
    assert_eq!(plain["tokens"], layer_parallel["tokens"]);
}

/// The repository's small drafter, a trained model.
fn trained_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/drafter")
}

/// Grows a pair from a model, with the options `more`.
fn grow_pair(out: &Path, model: &Path, more: &[&str]) -> Run {
    let run = Run::of("make-pair --prompts 12 -n 40").with(more);
    run.with_path("--out", out).with_path("--from", model)
}

#[test]
fn a_grown_pair_drafts_with_the_real_model() {
    let folder = tempfile::tempdir().unwrap();
    let (out, model) = (folder.path().join("pair"), trained_model());
    let more = ["--layers", "5", "--acceptance", "0.7", "--tolerance", "0.06"];
    let pair = grow_pair(&out, &model, &more).succeed();
    assert!(pair.errors.contains("other prompts"), "{}", pair.errors);
    let [target, drafter] = ["target", "drafter"].map(|part| out.join(part));
    let label = &json(&target.join("config.json"))["forerun_made_pair"];
    let acceptance = label["acceptance"].as_f64().unwrap();
    assert!((acceptance - 0.7).abs() <= 0.06, "{label}");
    assert_eq!(
        (label["draft_layers"].as_u64(), label["random_layers"].as_u64()),
        (Some(2), Some(3))
    );
    assert!(pair.output().contains(&format!("acceptance {acceptance:.3}")), "{}", pair.output());
    let card = fs::read_to_string(target.join("README.md")).unwrap();
    assert!(
        card.contains("A real model with random layers") && card.contains("3 random"),
        "{card}"
    );

    // The drafter is the model.
    let alone = |model: &Path| {
        let run =
            Run::forerun().with(&["generate", "--json", "-p", "Once upon a time", "-n", "60"]);
        run.with_path("--model", model).on_one_core().succeed().json()
    };
    assert_eq!(alone(&drafter)["text"], alone(&model)["text"]);

    // The text drafted with it is the target's.
    let generate = |options: &[&str]| {
        let run =
            Run::forerun().with(&["generate", "--json", "-p", "Once upon a time", "-n", "60"]);
        let run = run.with_path("--model", &target).with_path("--draft-model", &drafter);
        run.with(options).on_one_core().succeed().json()
    };
    let plain = generate(&["--method", "autoregressive"]);
    let drafted = generate(&["--method", "speculative", "--draft-tokens", "4"]);
    let tree = generate(&["--tree", "top:2x3"]);
    assert_eq!([&plain["tokens"]; 2], [&drafted["tokens"], &tree["tokens"]]);
    assert_ne!(plain["text"], alone(&model)["text"]);

    // Reports say what the pair is.
    let report = folder.path().join("report");
    let run = Run::of("bench run --limit 1 --repeats 1 -n 8");
    let run = run.with_path("--model", &target).with_path("--draft-model", &drafter);
    run.with_path("--out", &report).on_one_core().succeed();
    let page = fs::read_to_string(report.join("report.md")).unwrap();
    assert!(
        page.contains("A grown pair") && page.contains("followed by 3 random layers"),
        "{page}"
    );
}

#[test]
fn a_pair_grows_from_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let (out, file) = (folder.path().join("pair"), folder.path().join("model.gguf"));
    let export = Run::of("export --type q8_0").with_path("--gguf", &file);
    export.with_path("--model", &trained_model()).succeed();
    let more = ["--layers", "3", "--tolerance", "0.3", "--dtype", "f32"];
    grow_pair(&out, &file, &more).succeed();
    let text = |model: &Path| {
        let run = Run::forerun().with(&["generate", "--json", "-p", "One day,", "-n", "30"]);
        let run = run.with_path("--model", model).words("--dtype f32");
        run.on_one_core().succeed().json()["text"].clone()
    };
    assert_eq!(text(&out.join("drafter")), text(&file));
}

#[test]
fn models_that_cannot_grow_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (out, model) = (folder.path().join("pair"), trained_model());
    for (more, words) in [
        (&["--layers", "2"][..], &["num_hidden_layers", "fewer than the target's 2"][..]),
        (&["--acceptance", "1"], &["acceptance is 1", "0.98"]),
        (&["--fuzzy-overlap", "0.9"], &["--fuzzy-overlap", "cannot be used with", "--from"]),
        (&["--hidden", "64"], &["--hidden", "cannot be used with", "--from"]),
        (&["--suite", "spec-bench"], &["spec-bench", "--data"]),
    ] {
        grow_pair(&out, &model, more).finish().assert_refused(&more.join(" "), words);
    }
    let missing = grow_pair(&out, Path::new("/nowhere/model"), &[]).finish();
    missing.assert_refused("a missing model", &["/nowhere/model"]);
}

#[test]
fn a_pair_gets_the_demonstration_tokenizer_and_gguf_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pair");
    let more = ["--tolerance", "0.2", "--dtype", "f32", "--gguf", "q8_0,bf16"];
    make_pair(&out, &more).words("--temperature 1").succeed();
    let config = json(&out.join("target/config.json"));
    assert_eq!(config["vocab_size"], 4096);
    assert_eq!(config["forerun_made_pair"]["temperature"], 1.0);
    let tokenizer = json(&out.join("drafter/tokenizer.json"));
    assert_eq!(tokenizer["added_tokens"][0]["content"], "<|endoftext|>");
    let bytes = |name: &str| fs::read(out.join(name)).unwrap();
    for name in ["target-q8_0.gguf", "target-bf16.gguf", "drafter-q8_0.gguf", "drafter-bf16.gguf"] {
        assert_eq!(&bytes(name)[..8], b"GGUF\x03\0\0\0", "{name}");
    }
    assert!(bytes("target-q8_0.gguf").len() < bytes("target-bf16.gguf").len());

    // `export` writes the same file.
    let file = folder.path().join("own.gguf");
    let export = Run::of("export --type bf16").with_path("--gguf", &file);
    let exported = export.with_path("--model", &out.join("target")).succeed();
    assert!(exported.errors.contains("as GPT-2 does"), "{}", exported.errors);
    assert_eq!(fs::read(&file).unwrap(), bytes("target-bf16.gguf"));
}

#[test]
fn invalid_pairs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pair");
    for (more, words) in [
        (&["--draft-layers", "4"][..], &["--draft-layers is 4", "1 to 3"][..]),
        (&["--acceptance", "1"], &["acceptance is 1", "0.98"]),
        (&["--tolerance", "0"], &["tolerance is 0"]),
        (&["--fuzzy-overlap", "1"], &["--fuzzy-overlap is 1", "0.99"]),
        (&["--fuzzy-overlap", "0.9"], &["--draft-layers is 1", "4 or more"]),
        (&["-n", "200"], &["context is 160"]),
        (&["--heads", "6"], &["--hidden is 64", "multiple of 2 × --heads, 12"]),
        (&["--kv-heads", "3"], &["--heads is 4", "multiple of --kv-heads, 3"]),
        (&["--prompts", "0"], &["--prompts"]),
        (&["--dtype", "q4"], &["f32, bf16, f16"]),
    ] {
        make_pair(&out, more).finish().assert_refused(&more.join(" "), words);
    }
    // `--force` does not remove other files.
    let letter = out.join("target").join("letter.txt");
    fs::create_dir_all(out.join("target")).unwrap();
    fs::write(&letter, "kept").unwrap();
    let finished = make_pair(&out, &["--force"]).finish();
    finished.assert_refused("another file", &["letter.txt is not a file of a model"]);
    assert_eq!(fs::read(&letter).unwrap(), b"kept");
    let models = Models::pair();
    let file = models.folder().join("model.gguf");
    let export = || Run::of("export").with_path("--gguf", &file);
    let refused = export().with_path("--model", &models.target()).words("--type q8_0");
    refused.finish().assert_refused("rows without blocks", &["hidden_size", "multiples of 32"]);
    let refused = export().with_path("--model", &models.target()).words("--type q9_k");
    refused.finish().assert_refused("another type", &["q9_k", "q8_0"]);
    assert!(!file.exists());
}
