//! Ctrl-C ends the answer, and then the process.

use crate::common::{Finished, Models, Reader, Run};
use std::fs;
use std::thread;
use std::time::Duration;

/// Exit code of an interrupted process.
const INTERRUPTED: Option<i32> = Some(130);

const METHODS: [&[&str]; 3] =
    [&["--method", "autoregressive"], &["--draft-tokens", "3"], &["--tree", "top:2x2"]];

fn generate(models: &Models, tokens: usize, options: &[&str]) -> Run {
    let run = Run::generate_with_drafter(models).with(options).words("--ignore-eos");
    run.with(&["--max-tokens", &tokens.to_string()])
}

/// Returns the number of tokens in the statistics.
fn tokens(finished: &Finished) -> usize {
    if finished.statistics().ends_with(": no tokens") {
        return 0;
    }
    let (before, _) = finished.statistics().split_once(" tokens, ").unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_interrupted_answer_ends_with_its_text_so_far() {
    let models = Models::with_context(1 << 20);
    for method in METHODS {
        let mut running = generate(&models, 1_000_000, method).words("-p Hello").start();
        running.wait_for_output();
        running.interrupt();
        let finished = running.finish();
        assert_eq!(finished.code, INTERRUPTED, "{method:?}: {}", finished.errors);
        assert!(finished.statistics().contains("tokens/s"), "{method:?}: {}", finished.errors);
        // The text equals that of an uninterrupted answer with the same number of tokens.
        let whole = generate(&models, tokens(&finished), method).words("-p Hello").succeed();
        assert_eq!(finished.output(), whole.output(), "{method:?}");
    }
}

#[test]
fn an_interrupted_answer_is_complete_json() {
    let models = Models::with_context(1 << 20);
    let run = generate(&models, 1_000_000, &["--json"]).words("-p Hello");
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
fn an_interrupt_stops_the_prefill_of_a_long_prompt() {
    let models = Models::with_context(1 << 20);
    // The attention of this prompt takes minutes.
    let prompt = models.folder().join("prompt.txt");
    fs::write(&prompt, "word ".repeat(30_000)).unwrap();
    for method in METHODS {
        for after in [0, 300] {
            let mut running = generate(&models, 10, method).with_path("-f", &prompt).start();
            running.wait_for_interrupt_handler();
            // The result does not depend on the time of the interrupt.
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
fn two_interrupts_end_even_a_stuck_run() {
    let models = Models::with_long_words(5000);
    // Its output is not read, so it waits for room in the pipe and cannot end its answer.
    let run = generate(&models, 1_000_000, &[]).words("-p Hello").reader(Reader::Asleep);
    let mut running = run.start();
    running.wait_for_full_pipe();
    running.interrupt_until_it_ends();
    let finished = running.finish();
    assert_eq!((finished.code, &*finished.errors), (INTERRUPTED, ""));
}
