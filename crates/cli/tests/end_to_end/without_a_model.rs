//! Commands that need only the binary.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Finished, Run};
use std::fs;

/// Runs `forerun generate` without a model, and checks that no temporary files are left.
fn generate(options: &[&str]) -> Finished {
    let temporary = tempfile::tempdir().unwrap();
    let run = Run::forerun().with(&["generate", "-p", "Hello"]).with(options);
    let finished = run.temporary_folder(temporary.path()).finish();
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{options:?} left {left:?}");
    finished
}

#[test]
fn without_a_model_the_demonstration_pair_is_used_and_its_files_are_deleted() {
    let mut texts = Vec::new();
    for options in [&[][..], &["--method", "autoregressive"], &["--drafter", "prompt-lookup"]] {
        let finished = generate(&[options, &["--max-tokens", "12", "--ignore-eos"]].concat());
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
        let lines: Vec<&str> = finished.errors.lines().collect();
        assert_eq!(lines.len(), 2, "{}", finished.errors);
        assert!(lines[0].contains("no --model given") && lines[0].contains("demonstration pair"));
        assert!(lines[1].contains("12 tokens"), "{}", lines[1]);
        texts.push(finished.output());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn the_files_of_the_demonstration_pair_are_deleted_after_an_error() {
    let refused = generate(&["--placement", "target=gpu:0"]);
    refused.assert_refused("--placement", &["gpu:0"]);
    generate(&["--top-p", "7"]).assert_refused("--top-p", &["top-p is 7"]);
}

#[test]
fn devices_lists_the_cores_and_the_default_placements() {
    let output = Run::forerun().with(&["devices"]).succeed().output();
    for core in forerun::available_cores() {
        assert!(output.lines().any(|line| line.trim() == format!("cpu:{core}")), "{output}");
    }
    for words in ["instruction sets", "default placement", "drafter=cpu:", "target=cpu:"] {
        assert!(output.contains(words), "{words}: {output}");
    }
}

#[test]
fn help_names_every_method_and_drafter() {
    let output = Run::forerun().with(&["generate", "--help"]).succeed().output();
    for name in [
        "autoregressive",
        "speculative",
        "pearl",
        "dsi",
        "none",
        "model",
        "prompt-lookup",
        "rejection",
    ] {
        assert!(output.contains(name), "{name}: {output}");
    }
    let output = Run::forerun().with(&["--help"]).succeed().output();
    assert!(output.contains("generate") && output.contains("devices"), "{output}");
    let output = Run::forerun().with(&["--version"]).succeed().output();
    assert_eq!(output, format!("forerun {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn without_a_command_the_help_is_shown() {
    let finished = Run::forerun().finish();
    assert_eq!((finished.code, &*finished.output()), (Some(2), ""));
    assert!(finished.errors.contains("Usage: forerun"), "{}", finished.errors);
}
