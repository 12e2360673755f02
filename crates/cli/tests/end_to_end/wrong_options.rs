//! Invalid options: error messages.

use crate::common::{Models, Run};
use std::fs;

/// Options, separated by spaces, and words of the error message.
type Refusal = (&'static str, &'static [&'static str]);

/// Runs each line with a model and a prompt, and checks its error message. `{drafter}` stands for
/// the path of a drafter, and `{core}` for an available core.
fn assert_refused(models: &Models, table: &[Refusal]) {
    let drafter = models.drafter().display().to_string();
    let core = forerun::placement::available_cores()[0].to_string();
    for (line, words) in table {
        let options = line.replace("{drafter}", &drafter).replace("{core}", &core);
        let run = Run::generate(models).words("--prompt Hello").words(&options);
        run.finish().assert_refused(line, words);
    }
}

#[test]
fn unknown_values_are_refused_with_the_possible_values() {
    let trees = &["none", "auto", "ranked:N", "top:W", "top:WxD", "sampled:B1,B2"][..];
    assert_refused(
        &Models::pair(),
        &[
            ("--method magic", &["\"magic\"", "autoregressive", "speculative"]),
            ("--drafter eagle9", &["\"eagle9\"", "none", "model", "prompt-lookup"]),
            (
                "--placement target=cpu:{core},paced=fast",
                &["\"fast\"", "FILE.toml#METHOD", "llama-2-7b-70b-a100", "vicuna-13b-68m-cnn-dm"],
            ),
            ("--placement target=cpu:{core},paced=none.toml", &["none.toml", "cannot read it"]),
            ("--method peral", &["did you mean pearl?", "speculative"]),
            ("--method eagle", &["use --drafter eagle"]),
            ("--drafter pearl", &["use --method pearl"]),
            ("--top_k 4", &["no option --top_k: use --top-k"]),
            ("--draft-max 99", &["--draft-max is 99", "1 to 64"]),
            ("--tree bush", trees),
            ("--tree top:4y5", trees),
            ("--tree top:", trees),
            ("--tree sampled:3,,1", trees),
            ("--draft-tokens many", &["\"many\"", "auto", "64"]),
            ("--draft-tokens -1", &["'--draft-tokens", "auto", "64"]),
            ("--draft-tokens 2.5", &["auto", "64"]),
            ("--verify maybe", &["\"maybe\"", "auto", "block", "rejection", "coupled"]),
            ("--temperature warm", &["'--temperature", "warm"]),
            ("--seed luck", &["'--seed", "luck"]),
            ("--seed -1", &["'--seed", "-1"]),
            ("--top-k -1", &["'--top-k", "-1"]),
            ("--max-tokens -2", &["'--max-tokens", "-2"]),
            ("--min-p low", &["'--min-p", "low"]),
            ("--logit-bias 5", &["'--logit-bias", "15043=-2.5"]),
            ("--logit-bias the=2", &["'--logit-bias", "15043=-2.5"]),
            ("--logit-bias 5=much", &["'--logit-bias", "15043=-2.5"]),
            ("--json --logprobs -1", &["'--logprobs", "-1"]),
            ("--no-such-option", &["--no-such-option"]),
            ("-ngl 99", &["no option -ngl", "--gpu-layers"]),
            ("-cnv", &["no option -cnv", "forerun chat MODEL"]),
        ],
    );
}

#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    assert_refused(
        &Models::pair(),
        &[
            ("--draft-tokens 0", &["--draft-tokens is 0", "1 to 64"]),
            ("--draft-tokens 65", &["--draft-tokens is 65", "1 to 64"]),
            ("--tree top:0", &["--tree is top:0", "1 to 512 nodes"]),
            ("--tree top:3x0", &["--tree is top:3x0", "1 to 512 nodes"]),
            ("--tree top:9x99", &["--tree is top:9x99", "64 depths"]),
            ("--tree sampled:0", &["--tree is sampled:0", "1 to 512 nodes"]),
            ("--tree sampled:9,9,9,9", &["--tree is sampled:9,9,9,9", "512 nodes"]),
            ("--tree top:9999999999x9999999999", &["64 depths"]),
            ("--temperature -0.5", &["temperature is -0.5", "positive"]),
            ("--temperature NaN", &["temperature is NaN", "positive"]),
            ("--temperature inf", &["temperature is inf", "positive"]),
            ("--top-p 0", &["top-p is 0", "at most 1"]),
            ("--top-p 1.5", &["top-p is 1.5", "at most 1"]),
            ("--top-p -0.1", &["top-p is -0.1", "at most 1"]),
            ("--top-p NaN", &["top-p is NaN", "at most 1"]),
            ("--max-tokens 0", &["max-tokens is 0", "at least one"]),
            ("--context-length 1", &["--context-length is 1", "at least 2"]),
            ("--context-length 513", &["--context-length is 513", "context of 512"]),
            ("--min-p -0.1", &["min-p is -0.1", "from 0", "to 1"]),
            ("--min-p 1.1", &["min-p is 1.1", "from 0", "to 1"]),
            ("--min-p NaN", &["min-p is NaN"]),
            ("--repetition-penalty 0", &["repetition-penalty is 0", "positive"]),
            ("--repeat-penalty -1", &["repeat-penalty is -1", "1 disables it"]),
            ("--frequency-penalty 2.5", &["frequency-penalty is 2.5", "-2 to 2"]),
            ("--presence-penalty -3", &["presence-penalty is -3", "-2 to 2"]),
            ("--logit-bias 5=101", &["bias of token 5 is 101", "-100", "100"]),
            ("--logit-bias 5=NaN", &["bias of token 5 is NaN"]),
            ("--logit-bias 259=1", &["token 259", "259 tokens", "0 to 258"]),
            ("--json --logprobs 21", &["logprobs is 21", "to 20"]),
        ],
    );
}

#[test]
fn incompatible_options_are_refused_with_advice() {
    let models = Models::pair();
    assert_refused(
        &models,
        &[
            ("--drafter model", &["set --draft-model"]),
            ("--method speculative", &["needs a drafter", "--draft-model", "prompt-lookup"]),
            ("--method speculative --drafter none", &["needs a drafter"]),
            ("--draft-model {drafter} --drafter prompt-lookup", &["does not use a model"]),
            ("--draft-model {drafter} --drafter none", &["does not use a model"]),
            ("--tree top:2x2", &["--tree has no effect without --draft-model or --drafter"]),
            ("--drafter prompt-lookup --pearl paper", &["--pearl", "without --method pearl"]),
            ("--drafter prompt-lookup --lp 2", &["--lp has no effect without --drafter easyspec"]),
            ("--verify coupled", &["--verify has no effect without --temperature above 0"]),
            ("--prompt-file p.txt", &["--prompt", "cannot be used with"]),
            ("demo", &["[MODEL]", "--model", "cannot be used with"]),
            ("--logprobs 3", &["required", "--json"]),
            ("--logit-bias 5=1 --logit-bias 5=2", &["token 5 twice", "one bias"]),
            ("--draft-model no/such/drafter", &["no/such/drafter", "no such file"]),
        ],
    );
    let run = Run::of("generate -p x").with_path("--draft-model", &models.drafter());
    run.finish().assert_refused("--draft-model alone", &["without --model", "add --model"]);
}

#[test]
fn invalid_placements_are_refused() {
    const PAIR: &str = "--draft-model {drafter} --placement";
    let table: [Refusal; 11] = [
        ("target=cpu:4095", &["core 4095", "this process may only use cpu:"]),
        ("target=cpu:99999", &["core 99999", "at most 4095"]),
        ("target=cpu:{core}+cpu:{core}", &["names core", "twice"]),
        ("drafter=cpu:{core},target=cpu:{core}", &["is in two groups", ",shared"]),
        ("target=cpu:{core}", &["has no drafter group", "drafter=cpu:0"]),
        ("drafter=cpu:{core}", &["has no target group", "target=cpu:0"]),
        ("target=cpu:{core},target=cpu:{core},shared", &["2 target groups"]),
        ("target=tpu:0", &["cannot read", "tpu:0", "drafter=cpu:0,target=cpu:1-3"]),
        ("cpu:0", &["cannot read", "cpu:0"]),
        ("verifier=cpu:0", &["cannot read", "verifier"]),
        ("target=cpu:x", &["cannot read", "cpu:x"]),
    ];
    let lines =
        table.map(|(placement, words)| (format!("{PAIR} {placement}").leak() as &str, words));
    assert_refused(&Models::pair(), &lines);
}

#[test]
fn invalid_prompts_are_refused() {
    let models = Models::pair();
    let file = |name: &str, bytes: &[u8]| {
        let file = models.folder().join(name);
        fs::write(&file, bytes).unwrap();
        file
    };
    let generate = || Run::generate(&models);
    let from = |path| generate().with_path("--prompt-file", path);
    let long = "x".repeat(600);
    let missing = models.folder().join("missing.txt");
    let latin = [b"caf\xe9 ".repeat(3), b"au lait".to_vec()].concat();
    let empty = &["the prompt is empty", "give some text"][..];
    for (what, run, words) in [
        ("an empty prompt", generate().with(&["--prompt", ""]), empty),
        ("an empty file", from(&file("empty.txt", b"")), empty),
        ("a file of one line break", from(&file("line.txt", b"\n")), empty),
        ("nothing piped in", generate(), empty),
        ("a missing file", from(&missing), &["cannot read the prompt file", "missing.txt"]),
        ("a folder", from(models.folder()), &["cannot read the prompt file"]),
        ("a file of Latin-1", from(&file("latin.txt", &latin)), &["latin.txt", "UTF-8"]),
        ("Latin-1 piped in", generate().input(latin.clone()), &["standard input", "UTF-8"]),
        // One token per byte, and a BOS.
        (
            "a long prompt",
            generate().with(&["-p", &long]),
            &["601 tokens", "context of 512", "511"],
        ),
    ] {
        run.finish().assert_refused(what, words);
    }
}

#[test]
fn measurements_without_a_size_or_an_end_are_refused() {
    for (option, words) in [
        ("--outputs=0", &["--outputs", "1..="][..]),
        ("--inputs=0", &["--inputs", "1..="]),
        ("--rounds=0", &["--rounds", "1..="]),
        ("--inputs=1000000", &["--outputs and --inputs", "at most"]),
    ] {
        Run::forerun().with(&["bench", "kernels", option]).finish().assert_refused(option, words);
    }
}

#[test]
fn sweeps_with_too_many_combinations_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sweep.toml");
    let list = |value: &str| [value; 1000].join(", ");
    let (lengths, temperatures) = (list("4"), list("0.5"));
    let sweep = format!("[[sweep]]\ndraft-tokens = [{lengths}]\ntemperature = [{temperatures}]\n");
    fs::write(&file, sweep).unwrap();
    let run = Run::of("bench run").with_path("--sweep", &file);
    let run = run.with_path("--out", &folder.path().join("out"));
    run.finish().assert_refused("a long sweep", &["1000000 combinations", "at most 100000"]);
}

#[test]
fn a_small_stack_for_threads_does_not_matter() {
    let models = Models::pair();
    let run = Run::generate_with_drafter(&models).words("-p Hello -n 4");
    run.variable("RUST_MIN_STACK", "1").succeed();
}
