//! `forerun simulate`: needs no model.

use crate::common::Run;

fn simulate(options: &[&str]) -> Run {
    Run::forerun().with(&["simulate", "run"]).with(options)
}

#[test]
fn a_simulated_answer_shows_time_and_timeline() {
    let perfect = ["--acceptance=1", "--draft-tokens=4", "--max-tokens=50", "--cancel=immediate"];
    let output = simulate(&perfect).succeed().output();
    // Ten rounds of four drafts of 3 ms and one pass of 30 ms; plainly fifty passes.
    assert!(output.contains("simulated: 50 tokens in 420.0 ms"), "{output}");
    assert!(output.contains("3.57× plain decoding (1500.0 ms)"), "{output}");
    assert!(output.contains("10 target forwards, 40 tokens drafted, 40 accepted"), "{output}");
    let lanes: Vec<&str> = output.lines().take(2).collect();
    assert!(
        lanes[0].starts_with("drafter |DDD") && lanes[1].starts_with("target  |..."),
        "{output}"
    );
    // The same seed, the same run; none of it depends on drafts being drafted.
    let sampled = || simulate(&["--seed=7", "--acceptance=0.6"]).succeed().output();
    assert_eq!(sampled(), sampled());
    let none = simulate(&["--draft-tokens=0", "--max-tokens=10"]).succeed().output();
    assert!(none.contains("1.00× plain decoding (300.0 ms)"), "{none}");
}

#[test]
fn impossible_simulations_are_refused_by_name() {
    for (option, word) in [
        ("--acceptance=1.5", "acceptance"),
        ("--target-ms=-1", "--target-ms"),
        ("--draft-ms=nan", "--draft-ms"),
        ("--max-tokens=0", "number of tokens"),
        ("--layers=0", "layers"),
    ] {
        simulate(&[option]).finish().assert_refused(option, &[word]);
    }
}
