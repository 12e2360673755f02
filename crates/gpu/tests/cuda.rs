//! Tests of GPUs on CUDA's emulator: the same kernels in CUDA C, through the same host code. They
//! run in a process of its own, because a variable chooses the emulator. `just cuda` runs all tests
//! there.

use std::process::Command;

/// Runs tests of this program on the emulator. Without a C++ compiler, prints that they are
/// skipped.
fn run(tests: &[&str]) {
    run_with(("FORERUN_CUDA_GRAPHS", "1"), tests);
}

/// The same with another variable.
fn run_with((variable, value): (&str, &str), tests: &[&str]) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cuda-emulator");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(tests)
        .args(["--exact", "--nocapture", "--test-threads", "1"])
        .env("FORERUN_CUDA_EMULATOR", folder)
        .env("FORERUN_GPU", "0")
        .env("FORERUN_CASES", "1")
        .env(variable, value)
        .output()
        .unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{text}{errors}");
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
    match text.contains("emulated CUDA device (software, CUDA): defined bits") {
        true => assert!(!text.contains("skipped"), "{text}"),
        false => println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64"),
    }
}

#[test]
fn families_and_types_have_the_bits_of_the_reference() {
    run(&[
        "reference_device::families_have_the_bits_of_the_reference",
        "reference_device::all_types_of_caches_have_the_bits_of_the_reference",
        "mixtures::experts_with_equal_scores_have_the_bits_of_the_reference",
    ]);
}

#[test]
fn blocks_drafters_and_passes_in_company_have_the_same_bits() {
    run(&[
        "reference_device::blocks_of_gguf_files_have_the_bits_of_the_reference",
        "speculators::mtp_heads_have_the_bits_of_the_reference",
        "row_invariance::every_row_has_the_bits_of_a_fresh_forward",
        "batches::only_what_is_read_of_rows_comes_home",
        "batches::models_on_two_threads_have_the_same_bits",
    ]);
}

#[test]
fn passes_that_come_again_have_the_same_bits() {
    run(&[
        "graphs::decoding_has_the_same_bits_as_its_contexts_grow",
        "graphs::decoding_has_the_same_bits_when_attention_has_more_parts",
        "graphs::models_that_come_and_go_have_their_own_bits",
        "graphs::a_decoded_token_is_two_launches",
    ]);
}

#[test]
fn graphs_may_be_turned_off() {
    run_with(
        ("FORERUN_CUDA_GRAPHS", "0"),
        &[
            "graphs::models_that_come_and_go_have_their_own_bits",
            "graphs::a_decoded_token_is_two_launches",
        ],
    );
}

#[test]
fn tensor_cores_give_a_row_the_same_bits_in_every_pass() {
    run_with(
        ("FORERUN_GPU_ARITHMETIC", "tensor"),
        &[
            "tensor::all_families_have_the_bits_of_fresh_passes",
            "tensor::any_script_of_passes_has_the_bits_of_fresh_passes",
        ],
    );
}
