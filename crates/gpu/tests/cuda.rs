//! Tests of GPUs on CUDA's emulator: the same kernels in CUDA C, through the same host code. Each runs in a process of its own,
//! because a variable chooses the emulator.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

/// Runs tests of this program on the emulator. Without a C++ compiler, prints that they are skipped.
fn run(tests: &[&str], cases: usize) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cuda-emulator");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(tests)
        .args(["--exact", "--nocapture", "--test-threads", "1"])
        .env("FORERUN_CUDA_EMULATOR", folder)
        .env("FORERUN_GPU", "0")
        .env("FORERUN_CASES", cases.to_string())
        .output()
        .unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{text}{errors}");
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
    match text.contains("emulated CUDA device") {
        true => assert!(!text.contains("skipped"), "{text}"),
        false => println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64"),
    }
}

#[test]
fn bits_are_the_references() {
    run(&["reference_device::all_types_of_caches_have_the_bits_of_the_reference"], 1);
}
