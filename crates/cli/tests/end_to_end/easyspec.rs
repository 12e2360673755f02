//! EasySpec: the text is the target's for every layer strategy.

use crate::common::{Models, Run};
use std::fs;

/// Creates a run of `forerun generate` with the options `options`, separated by spaces.
pub(crate) fn run(models: &Models, options: &str) -> Run {
    let run = Run::generate_with_drafter(models).with(&["--prompt", "one two one"]);
    run.words("--max-tokens 50 --ignore-eos").words(options)
}

#[test]
fn layer_parallel_drafting_gives_the_text_of_plain_decoding() {
    let models = Models::deep();
    let groups = models.folder().join("groups.txt");
    fs::write(&groups, "# by hand\n0,1-6,7\n").unwrap();
    let from_file = format!("--layer-groups @{}", groups.display());
    for sampling in ["--temperature 0", "--temperature 0.9 --seed 7"] {
        let expected = run(&models, &format!("--method autoregressive {sampling}"));
        let expected = expected.succeed().output();
        for options in [
            "",
            "--lp 1",
            "--lp 2 --draft-tokens 4",
            "--lp 3 --tree top:4x4",
            "--lp 5 --tree sampled:2,2",
            "--layer-groups 0-1,2-7 --calibration never",
            &from_file,
        ] {
            let text = run(&models, &format!("--drafter easyspec {options} {sampling}"));
            assert_eq!(text.succeed().output(), expected, "{options} {sampling}");
        }
    }
}

#[test]
fn invalid_strategies_are_refused_with_advice() {
    let models = Models::deep();
    let file = models.folder().join("empty.txt");
    fs::write(&file, "# nothing\n").unwrap();
    let (empty, missing) =
        (format!("--layer-groups @{}", file.display()), "--layer-groups @no.txt");
    let table: [(&str, &[&str]); 10] = [
        ("--lp 0", &["--lp is 0", "1 or more"]),
        ("--lp many", &["'--lp", "many"]),
        ("--lp 2 --layer-groups 0-7", &["cannot be used with"]),
        ("--layer-groups 0,2-7", &["layer 1 is in no layer group"]),
        ("--layer-groups 0-3,3-7", &["layer 3 is in two layer groups", "4 was expected"]),
        ("--layer-groups 0,1-8", &["name layer 8", "8 layers, 0 to 7", "drafter"]),
        ("--layer-groups 0,1-5", &["end before layer 6", "add 6-7"]),
        ("--calibration on-mismatch", &["\"on-mismatch\"", "every-round, never"]),
        (missing, &["cannot read the layer groups in no.txt"]),
        (&empty, &["empty.txt", "neither a layer"]),
    ];
    for (options, words) in table {
        let run = run(&models, &format!("--drafter easyspec {options}"));
        run.finish().assert_refused(options, words);
    }
    for options in ["--lp 2", "--layer-groups 0-7", "--calibration never"] {
        run(&models, options).finish().assert_refused(options, &["--drafter easyspec", "leave"]);
    }
    let without = Run::generate(&models).words("-p x --drafter easyspec");
    without.finish().assert_refused("no drafter", &["\"easyspec\"", "set --draft-model"]);
}
