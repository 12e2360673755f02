//! `forerun analyze acceptance`.

use crate::common::{Models, Run};
use std::fs;
use std::path::Path;

fn analyze(models: &Models, drafter: &Path) -> Run {
    let prompts = models.folder().join("prompts.txt");
    fs::write(&prompts, "one two three four\n\nfive six seven eight nine ten\n").unwrap();
    let run = Run::of("analyze acceptance --threads 1");
    let run = run.with_path("--model", &models.target()).with_path("--draft-model", drafter);
    run.with_path("--suite", &prompts)
}

/// Returns the number after each of these words.
fn numbers(output: &str, after: [&str; 3]) -> [f64; 3] {
    after.map(|words| {
        let rest = output.split_once(words).unwrap_or_else(|| panic!("no {words:?}: {output}")).1;
        rest.split([' ', ':', ')']).next().unwrap().parse().unwrap()
    })
}

#[test]
fn acceptance_follows_from_the_tokens_on_which_two_models_agree() {
    let models = Models::pair();
    let words = ["the first ", "and on ", "acceptance "];
    let of = |drafter: &Path| {
        let output = analyze(&models, drafter).words("-n 12").succeed().output();
        assert!(output.starts_with("2 prompts: "), "{output}");
        numbers(&output, words)
    };
    let [agreed, whole, acceptance] = of(&models.target());
    assert!(agreed > 0.0 && agreed <= 12.0 && whole == 2.0, "{agreed} {whole}");
    assert!((acceptance - (1.0 - 1.0 / (1.0 + agreed))).abs() < 2e-3, "{acceptance}");
    let [other, _, lower] = of(&models.drafter());
    assert!(other <= agreed && lower <= acceptance, "{other} {lower}");
}

#[test]
fn answers_that_do_not_fit_the_context_are_refused() {
    let models = Models::pair();
    let run = analyze(&models, &models.drafter()).words("-n 1000000");
    run.finish().assert_refused("-n", &["no prompt fits", "--max-tokens"]);
}
