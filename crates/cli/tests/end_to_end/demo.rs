//! `forerun demo`: all methods side by side.

use crate::common::{Models, Run};

fn demo(models: &Models, max_tokens: &str) -> Run {
    let run = Run::forerun().with(&["demo", "--max-tokens", max_tokens, "--seconds", "1"]);
    run.with_models(models)
}

#[test]
fn piped_output_is_the_last_picture_and_the_timelines() {
    let models = Models::pair();
    let output = demo(&models, "30").succeed().output();
    assert!(!output.contains('\x1b'), "{output}");
    let methods: &[&str] = match forerun::placement::default_cores().len() {
        1 => &["plain decoding", "speculative"],
        _ => &["plain decoding", "speculative", "PEARL", "DSI"],
    };
    for method in methods {
        let title = output.lines().find(|line| line.contains(&format!("{method}  ")));
        assert!(title.unwrap().contains(" tok/s"), "{method}: {output}");
        let (_, block) = output.split_once(&format!("\n{method}: ")).unwrap();
        let block = block.split("\n\n").next().unwrap();
        assert!(block.contains(" tok/s (") && block.contains("\nTokens "), "{method}: {output}");
        // On a busy machine, a drafter may be too late for every verification.
        let (gain, none) = (block.contains("× plain decoding"), block.contains("no drafts:"));
        match *method {
            "plain decoding" => assert!(!gain && !none, "{output}"),
            "speculative" => assert!(gain && !none, "{output}"),
            _ => assert!(gain != none, "{method}: {output}"),
        }
    }
    assert!(output.contains("All methods wrote the same tokens, in 3 runs each."), "{output}");
    assert_eq!(
        output.matches("× plain").count() + 2 * output.matches("no drafts:").count(),
        2 * (methods.len() - 1),
        "{output}"
    );
    let lanes =
        output.lines().filter(|line| line.contains("target cpu:") || line.contains("target and"));
    assert!(lanes.count() >= 1, "{output}");
    let sampled = demo(&models, "30").words("--temperature 0.9 --seed 3").succeed();
    assert!(sampled.output().contains("All methods wrote the same tokens, in 3 runs each."));
}

#[test]
fn wrong_options_of_a_demo_are_refused() {
    let models = Models::pair();
    let run = Run::of("demo").with_path("--model", &models.target());
    run.finish().assert_refused("one model", &["--draft-model"]);
    demo(&models, "1").finish().assert_refused("one token", &["1"]);
    let paced = demo(&models, "30").with(&["--paced", "fast"]).finish();
    paced.assert_refused("unknown pass times", &["\"fast\"", "llama-2-7b-70b-a100"]);
    // The built-in drafter guesses the first token.
    let short = Run::of("demo --max-tokens 2").finish();
    short.assert_refused("a single step", &["speculative", "--max-tokens"]);
    demo(&models, "30").words("--temperature -1").finish().assert_refused("cold", &["temperature"]);
}
