//! Closed pipes and full output devices.

use crate::common::{Models, Reader, Run};
use std::process::{Command, Stdio};

/// Options of an answer that would take longer than any test.
const ENDLESS: [&str; 5] = ["--prompt", "Hello", "--max-tokens", "1000000", "--ignore-eos"];

#[test]
fn a_run_ends_quietly_when_its_reader_closes_the_pipe() {
    let models = Models::with_context(1 << 20);
    for reader in [Reader::Closing(10), Reader::Closing(1), Reader::Closing(0)] {
        for options in [&["--draft-tokens", "3"][..], &["--method", "autoregressive"]] {
            let run = Run::generate_with_drafter(&models).with(&ENDLESS).with(options);
            let finished = run.reader(reader).finish();
            assert_eq!(finished.code, Some(0), "{reader:?}: {}", finished.errors);
            assert_eq!(finished.errors, "", "{reader:?}");
            assert_eq!(Reader::Closing(finished.chunks.concat().len()), reader);
        }
    }
}

#[test]
fn a_pipe_closed_before_the_json_is_not_a_failure() {
    let models = Models::pair();
    let run = Run::generate(&models).on_one_core().words("-p Hello -n 3 --json");
    let finished = run.reader(Reader::Closing(0)).finish();
    assert_eq!((finished.code, &*finished.errors), (Some(0), ""));
}

#[test]
fn a_closed_standard_error_does_not_stop_the_text() {
    let models = Models::pair();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_forerun"))
        .args(["generate", "-p", "Hello", "-n", "10", "--model"])
        .arg(models.target())
        .stderr(writer)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let expected = Run::generate(&models).words("-p Hello -n 10").succeed();
    assert_eq!(output.stdout, expected.chunks.concat());
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_an_error() {
    let models = Models::pair();
    for options in [&["--json"][..], &[]] {
        let output = Command::new(env!("CARGO_BIN_EXE_forerun"))
            .args(["generate", "-p", "Hello", "-n", "10", "--model"])
            .arg(models.target())
            .args(options)
            .stdout(std::fs::File::options().write(true).open("/dev/full").unwrap())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("error: cannot write to standard output: No space"), "{errors}");
    }
}
