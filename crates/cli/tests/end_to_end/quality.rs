//! `forerun bench quality`: the table, and error messages.

use crate::common::{Models, Run};
use std::fs;
use std::path::{Path, PathBuf};

fn bench(model: &Path, text: &Path) -> Run {
    Run::of("bench quality").with_path("--model", model).with_path("--text", text)
}

fn text_file(models: &Models, name: &str, text: &[u8]) -> PathBuf {
    let file = models.folder().join(name);
    fs::write(&file, text).unwrap();
    file
}

/// The table's rows, split at spaces.
fn rows(output: &str) -> Vec<Vec<&str>> {
    output.lines().skip(3).map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn every_type_has_a_row_next_to_f32() {
    let models = Models::pair();
    let text =
        text_file(&models, "text.txt", "The quick brown fox – and so on. ".repeat(30).as_bytes());
    let output = bench(&models.target(), &text).succeed().output();
    let first = output.lines().next().unwrap();
    assert!(first.contains("1050 tokens of") && first.contains("windows of 512"), "{output}");
    let rows = rows(&output);
    let types: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(types, ["f32", "bf16", "f16", "int8"], "{output}");
    let bits: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(bits[..3], ["32.00", "16.00", "16.00"], "{output}");
    let exact = ["+0.0000", "%", rows[0][5], "0.000e0", "100.00", "%", "100.00", "%"];
    assert_eq!(rows[0][3..], exact, "{output}");
    for row in &rows {
        let number = |column: usize| row[column].parse::<f64>().unwrap();
        assert!((number(2).exp() / number(5) - 1.0).abs() < 1e-3, "{output}");
        assert!(number(6) >= 0.0 && number(6) < 0.1, "{output}");
        assert!(number(7) > 50.0 && number(7) <= 100.0, "{output}");
    }
    // With a drafter.
    let drafter = bench(&models.target(), &text).with_path("--draft-model", &models.drafter());
    let output = drafter.words("--dtype f32 --tokens 200").succeed().output();
    let last = output.lines().last().unwrap();
    assert!(last.starts_with("drafter") && last.ends_with('%'), "{output}");
    // With half of the text, other windows, and types in another order.
    let options = ["--tokens", "525", "--window", "100", "--dtype", "int8,f16", "--threads", "1"];
    let finished = bench(&models.target(), &text).with(&options).succeed();
    let first = finished.output().lines().next().unwrap().to_owned();
    assert!(first.contains("525 tokens of") && first.contains("windows of 100"), "{first}");
    assert!(first.ends_with("on 1 threads"), "{first}");
    let output = finished.output();
    let types: Vec<&str> = self::rows(&output).iter().map(|row| row[0]).collect();
    assert_eq!(types, ["f32", "int8", "f16"]);
    // All types and mixes.
    let all = bench(&models.target(), &text).words("--dtype all --tokens 20").succeed();
    let output = all.output();
    let types: Vec<&str> = self::rows(&output).iter().map(|row| row[0]).collect();
    assert_eq!((types.len(), types[4], types[24]), (25, "q4_0", "q5_k_m"), "{output}");
    // Progress is not shown without a terminal.
    assert_eq!(finished.errors, "");
}

#[test]
fn invalid_measurements_are_refused() {
    let models = Models::pair();
    let text = text_file(&models, "text.txt", b"Once upon a time");
    let empty = text_file(&models, "empty.txt", b"");
    let latin = text_file(&models, "latin.txt", b"caf\xe9 au lait");
    let missing = models.folder().join("missing.txt");
    let of = |text: &Path| bench(&models.target(), text);
    for (what, run, words) in [
        ("an empty text", of(&empty), &["text is empty"][..]),
        ("a missing text", of(&missing), &["cannot read the text", "missing.txt"]),
        ("a text in Latin-1", of(&latin), &["latin.txt", "UTF-8"]),
        ("no tokens", of(&text).words("--tokens 0"), &["number of tokens is 0"]),
        ("a long window", of(&text).words("--window 513"), &["513", "2 to 512", "target"]),
        ("a window of one", of(&text).words("--window 1"), &["1 tokens", "2 to 512"]),
        ("no type", of(&text).words("--dtype auto"), &["\"auto\"", "f32, bf16, f16, int8"]),
        ("an unknown type", of(&text).words("--dtype f32,q4"), &["\"q4\"", "int8"]),
        ("no threads", of(&text).words("--threads 0"), &["--threads is 0"]),
        ("no model", bench(&missing, &text), &["missing.txt", "no such file"]),
        ("no arguments", Run::of("bench quality"), &["--text"]),
        ("only a text", Run::of("bench quality --text t"), &["--model"]),
    ] {
        run.finish().assert_refused(what, words);
    }
    fs::remove_file(models.target().join("tokenizer.json")).unwrap();
    of(&text).finish().assert_refused("no tokenizer", &["no tokenizer", "tokenizer.json"]);
}

#[test]
fn the_ceiling_of_drafts_in_one_pass_is_measured() {
    let models = Models::pair();
    let text =
        text_file(&models, "text.txt", "The quick brown fox and so on. ".repeat(8).as_bytes());
    let run = bench(&models.target(), &text).words("--ceiling 3 --dtype f32");
    let output = run.succeed().output();
    let places: Vec<&str> = output.lines().filter(|line| line.starts_with("token ")).collect();
    assert_eq!(places.len(), 3, "{output}");
    assert!(places[0].contains("100.00 % ± 0.00"), "{output}");
    let refused = bench(&models.target(), &text).words("--ceiling 3 --temperature 0");
    refused.finish().assert_refused("--temperature", &["--temperature is 0", "above 0"]);
}
