//! Ctrl-C: the answer ends, the process a moment later.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Finished, Models, Reader, Run};
use std::fs;
use std::thread;
use std::time::Duration;

/// Exit code of what an interrupt ended.
const INTERRUPTED: Option<i32> = Some(130);

const METHODS: [&[&str]; 3] =
    [&["--method", "autoregressive"], &["--draft-tokens", "3"], &["--tree", "top:2x2"]];

fn generate(models: &Models, tokens: usize, options: &[&str]) -> Run {
    let run = Run::generate_with_drafter(models).with(options).with(&["--ignore-eos"]);
    run.with(&["--max-tokens", &tokens.to_string()])
}

/// The number of tokens that the statistics tell of.
fn tokens(finished: &Finished) -> usize {
    if finished.statistics().ends_with(": no tokens") {
        return 0;
    }
    let (before, _) = finished.statistics().split_once(" tokens, ").unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_interrupt_ends_a_long_answer_with_what_is_there() {
    let models = Models::with_context(1 << 20);
    for method in METHODS {
        let mut running = generate(&models, 1_000_000, method).with(&["-p", "Hello"]).start();
        running.wait_for_output();
        running.interrupt();
        let finished = running.finish();
        assert_eq!(finished.code, INTERRUPTED, "{method:?}: {}", finished.errors);
        assert!(finished.statistics().contains("tokens/s"), "{method:?}: {}", finished.errors);
        // It is the text that as many tokens have when nobody interrupts.
        let whole = generate(&models, tokens(&finished), method).with(&["-p", "Hello"]).succeed();
        assert_eq!(finished.output(), whole.output(), "{method:?}");
    }
}

#[test]
fn an_interrupted_answer_is_whole_json() {
    let models = Models::with_context(1 << 20);
    let run = generate(&models, 1_000_000, &["--json"]).with(&["-p", "Hello"]);
    let mut running = run.start();
    running.wait_for_interrupt_handler();
    running.interrupt();
    let finished = running.finish();
    assert_eq!((finished.code, &*finished.errors), (INTERRUPTED, ""));
    let answer = finished.json();
    assert_eq!(answer["finish_reason"], "interrupted");
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], tokens.len());
}

#[test]
fn an_interrupt_reaches_into_the_computation_of_a_long_prompt() {
    let models = Models::with_context(1 << 20);
    // Its attention alone takes minutes.
    let prompt = models.folder().join("prompt.txt");
    fs::write(&prompt, "word ".repeat(30_000)).unwrap();
    for method in METHODS {
        for after in [0, 300] {
            let mut running = generate(&models, 10, method).with_path("-f", &prompt).start();
            running.wait_for_interrupt_handler();
            // Whenever it comes, it is the same; but it should not always come at the beginning.
            thread::sleep(Duration::from_millis(after));
            running.interrupt();
            let finished = running.finish();
            assert_eq!(finished.code, INTERRUPTED, "{method:?}: {}", finished.errors);
            assert_eq!(tokens(&finished), 0, "{method:?}: {}", finished.errors);
            assert_eq!(finished.output(), "\n", "{method:?}");
        }
    }
}

#[test]
fn interrupting_twice_ends_even_a_run_that_is_stuck() {
    let models = Models::with_long_words(5000);
    // Nobody reads, so it waits for room in the pipe and cannot end its answer.
    let run = generate(&models, 1_000_000, &[]).with(&["-p", "Hello"]).reader(Reader::Asleep);
    let mut running = run.start();
    running.wait_for_full_pipe();
    running.interrupt_until_it_ends();
    let finished = running.finish();
    assert_eq!((finished.code, &*finished.errors), (INTERRUPTED, ""));
}
