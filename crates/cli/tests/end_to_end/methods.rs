//! The text is the target's for every method, drafter and verification.

use crate::common::{Finished, Models, Run, edit_json};

/// A repetitive prompt, so that prompt lookup finds drafts.
const PROMPT: &str = "one two one two one two";

/// Options of every way to generate the text, and whether there is a draft model. Plain decoding is
/// first.
const CONFIGURATIONS: [(&str, bool); 18] = [
    ("--method autoregressive", true),
    ("--method autoregressive", false),
    ("--method speculative --draft-tokens 3", true),
    ("--draft-tokens 1", true),
    ("--draft-tokens auto", true),
    ("--tree top:3x3", true),
    ("--tree top:4x4:7", true),
    ("--tree sampled:2,2", true),
    ("--drafter prompt-lookup", false),
    ("--drafter prompt-lookup --tree top:2x2", false),
    ("--drafter suffix", false),
    ("--drafter suffix --tree top:2x2", false),
    ("--lookup suffix --draft-tokens 2", true),
    ("--lookup suffix", true),
    ("--lookup suffix --tree top:3x3", true),
    ("--method ssd --lookup suffix --draft-tokens 2", true),
    ("--method ssd --draft-tokens 3", true),
    ("--method ssd --drafter prompt-lookup", false),
];

fn run(models: &Models, drafted: bool, options: &[&str]) -> Run {
    let run = if drafted { Run::generate_with_drafter(models) } else { Run::generate(models) };
    run.with(&["--prompt", PROMPT]).words("--max-tokens 60 --ignore-eos").words(&options.join(" "))
}

#[test]
fn every_configuration_gives_the_text_of_plain_decoding() {
    let models = Models::pair();
    // With a seed, coupled verification is the default.
    for sampling in [
        "--temperature 0",
        "--temperature 0.9 --seed 7",
        "--temperature 1.4 --top-k 40 --top-p 0.9 --seed 8",
    ] {
        let text =
            |(options, drafted)| run(&models, drafted, &[options, sampling]).succeed().output();
        let expected = text(CONFIGURATIONS[0]);
        assert!(expected.ends_with('\n') && expected.chars().count() > 20, "{expected:?}");
        for configuration in &CONFIGURATIONS[1..] {
            assert_eq!(text(*configuration), expected, "{configuration:?} {sampling}");
        }
    }
}

/// Drafter and target are on one core, and each has the times of an H100.
#[test]
fn paced_devices_give_the_text_of_plain_decoding_and_say_that_they_are_paced() {
    let models = Models::pair();
    let core = forerun::placement::available_cores()[0];
    let placement = format!("drafter=cpu:{core},target=cpu:{core},paced=llama-3-1.2b-8b-h100");
    let expected = run(&models, true, &["--method autoregressive"]).succeed().output();
    let paced = run(&models, false, &["--method pearl --draft-tokens 3"]);
    let paced = paced.with_path("--draft-model", &models.drafter());
    let paced = paced.with(&["--placement", &placement]).succeed();
    assert_eq!(paced.output(), expected);
    let line = paced.statistics();
    assert!(line.contains(" | paced as llama-3-1.2b-8b-h100: "), "{line}");
}

/// DSI with three drafters on one core: the draft model, the target itself, and prompt lookup.
#[test]
fn several_drafters_give_the_text_of_plain_decoding() {
    let models = Models::pair();
    let target = models.target().display().to_string();
    let also = format!("--also-draft {target} --also-draft prompt-lookup");
    let one_core = Run::one_core_placement();
    let placement = one_core.replacen("drafter=", "drafter=cpu:CORE,drafter=", 1);
    let core = one_core.split(['=', ',']).nth(1).unwrap().trim_start_matches("cpu:");
    let placement = placement.replace("CORE", core);
    for sampling in ["--temperature 0", "--temperature 0.9 --seed 7"] {
        let expected =
            run(&models, true, &["--method autoregressive", sampling]).succeed().output();
        for method in ["dsi", "speculative", "auto"] {
            let several = Run::generate(&models).with_path("--draft-model", &models.drafter());
            let several = several.with(&["--prompt", PROMPT, "--max-tokens", "60", "--ignore-eos"]);
            let several = several.with(&["--method", method]).words(&also).words(sampling);
            let several = several.with(&["--placement", &placement]).succeed();
            assert_eq!(several.output(), expected, "{method}, {sampling}");
            let line = several.statistics();
            assert!(line.contains(&format!("{method}, model + ")), "{line}");
            assert!(line.contains(" + prompt-lookup: 60"), "{line}");
            // All drafters of DSI draft at the same time.
            let counts = "draft tokens by drafter: ";
            assert!(line.contains(counts) || method != "dsi", "{line}");
        }
    }
    let refused = run(&models, true, &["--method ssd --also-draft prompt-lookup"]).finish();
    refused.assert_refused("ssd", &["ssd has one drafter", "--method auto"]);
    let few = run(&models, true, &["--method dsi --also-draft", &target]).finish();
    few.assert_refused("a group", &["1 drafter group for 2 drafters", "repeat the group"]);
}

/// Some rounds verify a lookup, and others a draft. Seeded text is the same in each run, also where
/// it depends on drafts.
#[test]
fn lookups_take_the_place_of_some_drafts() {
    let models = Models::pair();
    let with_lookup =
        |options: &[&str]| run(&models, true, &[&["--lookup suffix"], options].concat());
    let report = with_lookup(&["--draft-tokens 2 --json --temperature 0"]).succeed().json();
    let speculative = &report["usage"]["speculative"];
    let [lookups, drafts] = ["lookups", "drafts"].map(|name| speculative[name].as_u64().unwrap());
    assert!(report["lookup"] == "suffix" && (1..=drafts).contains(&lookups), "{report}");
    let finished = with_lookup(&["--temperature 0"]).succeed();
    let line = finished.statistics();
    assert!(line.contains("speculative, model + suffix: 60"), "{line}");
    for verify in ["block", "rejection"] {
        let text =
            || with_lookup(&["--temperature 1 --seed 3 --verify", verify]).succeed().output();
        assert_eq!(text(), text(), "{verify}");
    }
    let words = ["--lookup", "the method pearl has none", "--method speculative"];
    with_lookup(&["--method pearl"]).finish().assert_refused("pearl", &words);
    let alone = Run::generate(&models).with(&["--prompt", PROMPT, "--lookup", "suffix"]).finish();
    alone.assert_refused("no drafter", &["--lookup", "no effect", "--draft-model"]);
    let lookahead = ["--prompt", PROMPT, "--lookup", "suffix", "--drafter", "lookahead"];
    let lookahead = Run::generate(&models).with(&lookahead).finish();
    lookahead.assert_refused("lookahead", &["--lookup", "lookahead learns from all of its own"]);
}

#[test]
fn the_seed_determines_the_text() {
    let models = Models::pair();
    let text = |verify, seed| {
        let sampling = ["--temperature 1 --draft-tokens 3 --verify", verify, "--seed", seed];
        run(&models, true, &sampling).succeed().output()
    };
    for verify in ["block", "rejection", "coupled", "auto"] {
        assert_eq!(text(verify, "1"), text(verify, "1"), "{verify}");
        assert_ne!(text(verify, "1"), text(verify, "2"), "{verify}");
    }
    assert_eq!(text("auto", "1"), text("coupled", "1"));
    assert_ne!(text("rejection", "1"), text("coupled", "1"));
    assert_ne!(text("block", "1"), text("rejection", "1"));
}

/// Sampled answers without a seed are verified in blocks where drafts are verified as a whole.
#[test]
fn the_method_decides_how_drafts_are_verified() {
    let models = Models::pair();
    let warm = "--temperature 1";
    let verification = |options: &[&str]| {
        let report = run(&models, true, &[&["--json", warm], options].concat()).succeed().json();
        report["verification"].as_str().map(ToOwned::to_owned)
    };
    assert_eq!(verification(&[]).as_deref(), Some("block"));
    assert_eq!(verification(&["--seed 1"]).as_deref(), Some("coupled"));
    assert_eq!(verification(&["--method ssd"]).as_deref(), Some("block"));
    assert_eq!(verification(&["--method pearl"]).as_deref(), Some("rejection"));
    // Only speculative decoding verifies in blocks, so `auto` is that.
    assert_eq!(verification(&["--method auto"]).as_deref(), Some("rejection"));
    assert_eq!(verification(&["--method auto --verify block"]).as_deref(), Some("block"));
    for method in ["pearl", "dsi"] {
        let parallel = run(&models, true, &[warm, "--verify block --method", method]).finish();
        parallel.assert_refused(method, &["--verify block", method, "--verify rejection"]);
    }
}

/// The suggestions of `generation_config.json` apply only with `--suggested-sampling`.
#[test]
fn suggested_sampling_applies_only_on_request() {
    let models = Models::pair();
    let generation_config = models.target().join("generation_config.json");
    edit_json(&generation_config, |options| {
        options["do_sample"] = true.into();
        options["temperature"] = 1.4.into();
        options["top_k"] = 40.into();
        options["repetition_penalty"] = 1.1.into();
    });
    let text = |sampling| run(&models, true, &[sampling]).succeed().output();
    let greedy = text("--temperature 0");
    assert_eq!(text("--seed 8"), greedy);
    let same = "--temperature 1.4 --top-k 40 --repetition-penalty 1.1 --seed 8";
    assert_eq!(text("--suggested-sampling --seed 8"), text(same));
    assert_ne!(text("--suggested-sampling --seed 8"), greedy);
    for option in ["--temperature 0.5", "--top-k 3", "--repetition-penalty 1.2"] {
        let both = run(&models, true, &["--suggested-sampling", option]);
        both.finish().assert_refused(option, &["--suggested-sampling", "cannot be used with"]);
    }
    edit_json(&generation_config, |options| options["top_p"] = 1.5.into());
    let wrong = run(&models, true, &["--suggested-sampling"]).finish();
    wrong.assert_refused("top_p", &["generation_config.json", "\"top_p\" is 1.5", "leave"]);
    // A chat reports the error when the model is loaded, before the first message.
    let chat = Run::of("chat --suggested-sampling").with_path("--model", &models.target()).finish();
    chat.assert_refused("top_p in a chat", &["generation_config.json", "\"top_p\" is 1.5"]);
    assert_eq!(text("--temperature 0"), greedy);
    edit_json(&generation_config, |options| options["do_sample"] = false.into());
    let none = run(&models, true, &["--suggested-sampling --seed 8"]).succeed();
    assert_eq!(none.output(), greedy);
    assert!(none.errors.contains("suggests no sampling"), "{}", none.errors);
}

#[test]
fn the_reported_random_seed_reproduces_the_text() {
    let models = Models::pair();
    let json = |options: &[&str]| {
        let run = run(&models, true, &["--temperature 1 --verify coupled --json"]);
        run.with(options).succeed().json()
    };
    let (first, second) = (json(&[]), json(&[]));
    assert_ne!(first["seed"], second["seed"]);
    assert_ne!(first["text"], second["text"]);
    assert_eq!(json(&["--seed", &first["seed"].to_string()])["text"], first["text"]);
}

#[test]
fn the_statistics_line_has_the_speed_and_the_acceptance_of_drafts() {
    let models = Models::pair();
    let drafted = run(&models, true, &["--draft-tokens 3"]).succeed();
    assert_words(
        &drafted,
        &["speculative, model: 60 tokens", "tokens/s", "MAT", "% of tested draft tokens"],
    );
    // Speculative decoding drafts and verifies in turn.
    assert!(!drafted.statistics().contains("together"), "{}", drafted.statistics());
    let lookup = run(&models, false, &["--drafter prompt-lookup --draft-tokens 3"]).succeed();
    assert_words(&lookup, &["speculative, prompt-lookup: 60 tokens", "% of tested draft tokens"]);
    let plain = run(&models, true, &["--method autoregressive"]).succeed();
    assert_words(&plain, &["plain decoding: 60 tokens", "tokens/s"]);
    // Without drafts, there is no acceptance.
    assert!(!plain.statistics().contains(" | "), "{}", plain.statistics());
}

fn assert_words(finished: &Finished, words: &[&str]) {
    for word in words {
        assert!(finished.statistics().contains(word), "{word}: {}", finished.errors);
    }
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
}

#[test]
fn the_default_placement_works_with_and_without_a_draft_model() {
    let models = Models::pair();
    let prompt = ["--prompt", PROMPT, "--max-tokens", "20"];
    let two = Run::generate(&models).with_path("--draft-model", &models.drafter());
    let two = two.with(&prompt).words("--draft-tokens 3 --json").succeed().json();
    let one = Run::generate(&models).with(&prompt).words("--json").succeed().json();
    assert_eq!(two["tokens"], one["tokens"]);
    for (answer, method) in [(&two, "speculative"), (&one, "autoregressive")] {
        assert_eq!(answer["method"], method);
        let placement = answer["placement"].as_str().unwrap();
        assert!(placement.contains("drafter=cpu:") && placement.contains("target=cpu:"));
    }
}
