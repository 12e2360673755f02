//! GPUs, on CUDA's emulator, which a variable chooses. Without a C++ compiler these tests report
//! that they are skipped.

use crate::common::{Models, Run};
use forerun::placement::available_cores;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const PROMPT: &str = "one two one two one two";

/// The folder of the emulator's kernels.
const EMULATOR_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cuda-emulator");

/// Returns a run that uses the emulator. Its compiled kernels are kept for later runs.
fn on_emulator(run: Run) -> Run {
    run.variable("FORERUN_CUDA_EMULATOR", EMULATOR_FOLDER).variable("FORERUN_GPU_SOFTWARE", "1")
}

/// Returns whether there is an emulator. If not, says so.
fn has_emulator() -> bool {
    let devices = on_emulator(Run::of("devices")).succeed().output();
    let found = devices.contains("gpu:0 emulated CUDA device (software, CUDA)");
    if !found {
        println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64");
    }
    found
}

#[test]
fn the_text_of_a_target_on_the_emulator_is_that_of_plain_decoding() {
    if !has_emulator() {
        return;
    }
    let models = Models::pair();
    let text = |run: Run, options: &[&str]| {
        let run = run.with(&["--prompt", PROMPT, "--max-tokens", "24", "--ignore-eos"]);
        on_emulator(run.with(options)).succeed().output()
    };
    let both = ["--placement", "drafter=gpu:0,target=gpu:0,shared", "--draft-tokens", "3"];
    let on_core = format!("drafter=cpu:{},target=gpu:0", available_cores()[0]);
    let on_core = ["--placement", &on_core, "--draft-tokens", "3"];
    for sampling in [&["--temperature", "0"][..], &["--temperature", "0.9", "--seed", "7"]] {
        let plain = ["--method", "autoregressive", "--placement", "target=gpu:0"];
        let expected = text(Run::generate(&models), &[&plain, sampling].concat());
        assert!(expected.chars().count() > 20, "{expected:?}");
        for (method, placement) in [("speculative", &both), ("pearl", &on_core)] {
            let options = [&["--method", method], &placement[..], sampling].concat();
            let run = Run::generate(&models).with_path("--draft-model", &models.drafter());
            let found = text(run, &options);
            assert_eq!(found, expected, "{options:?}");
        }
    }
}

#[test]
fn devices_measures_passes_that_return_the_best_tokens() {
    if !has_emulator() {
        return;
    }
    let models = Models::pair();
    let run = Run::of("devices --gpu 0 --rows 1,3 --rounds 2");
    let run = run.words("--past 8").with_path("--model", &models.target());
    let output = on_emulator(run).succeed().output();
    for words in [
        "on gpu:0 emulated CUDA device",
        "   3 rows",
        "the GPU returns the best token of each row, as for greedy decoding",
        "a pass of 3 rows: recording",
        "the times of single kernels cannot be measured",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
}

#[test]
fn an_unknown_interface_is_an_error_that_names_the_known_ones() {
    let words = "FORERUN_GPU_API is \"vulkan\", but must be cuda";
    for arguments in [
        &["devices"][..],
        &["generate", "--prompt", "Once", "--placement", "drafter=cpu:0,target=gpu:0"],
    ] {
        let run = Run::forerun().with(arguments).variable("FORERUN_GPU_API", "vulkan");
        let finished = run.finish();
        assert_ne!(finished.code, Some(0), "{arguments:?}");
        assert!(finished.errors.contains(words), "{arguments:?}: {}", finished.errors);
    }
    let doctor = Run::of("doctor --offline --no-measure");
    let report = doctor.variable("FORERUN_GPU_API", "vulkan").succeed().output();
    assert!(report.contains(words), "{report}");
}

/// The script for the first day with a GPU, on the emulator, with what is built.
#[test]
#[cfg(unix)]
fn the_first_run_on_a_gpu_writes_its_results() {
    use std::os::unix::fs::symlink;
    if !has_emulator() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let forerun = Path::new(env!("CARGO_BIN_EXE_forerun"));
    symlink(forerun, folder.path().join("forerun")).unwrap();
    let first_run = forerun.with_file_name("examples").join("first_run");
    let has_passes = first_run.exists();
    if has_passes {
        symlink(first_run, folder.path().join("first_run")).unwrap();
    }
    let (models, results) = (Models::pair(), folder.path().join("results.json"));
    let child = Command::new("bash")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/gpu_first_run.sh"))
        .args([folder.path(), &results, Path::new("--toy"), &models.target(), &models.drafter()])
        .env("FORERUN_CUDA_EMULATOR", EMULATOR_FOLDER)
        .env("FORERUN_GPU_SOFTWARE", "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&child.stderr);
    let text = std::fs::read_to_string(&results).unwrap();
    assert!(child.status.success(), "{errors}{text}");
    let results: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(results["speculative"]["status"], 0, "{text}");
    if has_passes {
        let output = &results["passes_tensor"]["output"];
        assert!(output["arithmetic"].as_str().unwrap().starts_with("tensor"), "{text}");
        assert_eq!(output["passes"].as_array().unwrap().len(), 6, "{text}");
    }
}
