//! Whole answers on CUDA's emulator: a test of [`gpus`](crate::gpus) in a process of its own,
//! because a variable chooses the emulator. `just cuda` runs all of them there.

#![cfg(feature = "cuda")]
use std::process::Command;

#[test]
fn replicas_on_the_emulator_give_the_text_of_plain_decoding() {
    for arithmetic in ["exact", "tensor"] {
        check(arithmetic);
    }
}

fn check(arithmetic: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cuda-emulator");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["gpus::dsi_uses_replicas_on_gpus", "--exact", "--nocapture"])
        .env("FORERUN_CUDA_EMULATOR", folder)
        .env("FORERUN_GPU_ARITHMETIC", arithmetic)
        .output()
        .unwrap();
    let [text, errors] =
        [child.stdout, child.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(child.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
    match text.contains("gpu:0 emulated CUDA device") {
        true => assert!(!errors.contains("skipped"), "{errors}"),
        false => println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64"),
    }
}
