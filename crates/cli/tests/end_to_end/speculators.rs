//! Drafters trained for a target: they are recognised by their tensors, the text is the target's,
//! and invalid combinations are refused.

use crate::common::{Models, Run, edit_json};
use forerun::checkpoint::Checkpoint;
use forerun_formats::MarkovKind;
use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use serde_json::Value;
use std::path::{Path, PathBuf};

const LAYOUTS: [(SpeculatorLayout, &str); 14] = [
    (SpeculatorLayout::Medusa, "medusa"),
    (SpeculatorLayout::SharedHeadMedusa, "medusa"),
    (SpeculatorLayout::Hydra, "hydra"),
    (SpeculatorLayout::HydraPlusPlus, "hydra"),
    (SpeculatorLayout::SharedHeadHydra, "hydra"),
    (SpeculatorLayout::SharedEmbeddingEagle, "eagle"),
    (SpeculatorLayout::Eagle3, "eagle"),
    (SpeculatorLayout::PEagle, "parallel"),
    (SpeculatorLayout::DFlash, "dflash"),
    (SpeculatorLayout::JetSpec, "dflash"),
    (SpeculatorLayout::DFlash2, "dflash2"),
    (SpeculatorLayout::DSpark(MarkovKind::Gated), "dspark"),
    (SpeculatorLayout::ParallelMedusa, "parallel"),
    (SpeculatorLayout::ParallelEagle, "parallel"),
];

/// Writes a drafter for the target of `models`.
pub(crate) fn speculator(models: &Models, layout: SpeculatorLayout) -> PathBuf {
    let target = Checkpoint::open(&models.target()).unwrap();
    let path = models.folder().join(format!("{layout:?}"));
    let (hash, target) = (target.embedding_sha256().unwrap(), target.config());
    let target_embedding_sha256 = Some(hash);
    RandomSpeculator { layout, target, seed: 5, positions: 4, target_embedding_sha256 }
        .write(&path)
        .unwrap();
    path
}

fn run(models: &Models, drafter: &Path, options: &str) -> Run {
    let run = Run::generate(models).with_path("--draft-model", drafter).on_one_core();
    run.with(&["--prompt", "one two one"]).words("--max-tokens 50 --ignore-eos").words(options)
}

#[test]
fn a_drafter_is_recognised_by_its_tensors_and_gives_the_targets_text() {
    let models = Models::pair();
    let sampling = ["--temperature 0", "--temperature 0.9 --seed 7"];
    let expected = sampling.map(|sampling| {
        run(&models, &models.drafter(), &format!("--method autoregressive {sampling}"))
            .succeed()
            .output()
    });
    // PARD-2 is also a whole model, so it is not among those that cannot draft as one.
    for (layout, drafter) in LAYOUTS.into_iter().chain([(SpeculatorLayout::Pard2, "parallel")]) {
        let path = speculator(&models, layout);
        let named = format!("--drafter {drafter} --tree top:3x4:9");
        for options in ["--draft-tokens 4", "--draft-tokens assisted", &named] {
            for (sampling, expected) in sampling.iter().zip(&expected) {
                let options = format!("{options} {sampling}");
                let text = run(&models, &path, &options).succeed().output();
                assert_eq!(text, *expected, "{layout:?} {options}");
            }
        }
        let json = run(&models, &path, "--draft-tokens 3 --json").succeed().output();
        let json: Value = serde_json::from_str(&json).unwrap();
        let drafted = &json["usage"]["speculative"]["draft_tokens"];
        assert!(json["drafter"] == drafter && drafted.as_u64() > Some(0), "{json}");
    }
}

/// The trained drafters of the demonstration target give its text with fewer forward passes than
/// tokens.
#[test]
fn drafters_of_the_demonstration_target_save_forward_passes() {
    let family = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let generate = |options: &[&str], drafter: Option<&str>| {
        let run = Run::of("generate").with_path("--model", &family.join("target"));
        let run = match drafter {
            Some(name) => run.with_path("--draft-model", &family.join(name)),
            None => run.words("--method autoregressive"),
        };
        let length = ["--max-tokens", "64", "--ignore-eos", "--json"];
        let run = run.on_one_core().with(&["--prompt", "Once upon a time"]).with(&length);
        run.with(options).succeed().json()
    };
    let plain = generate(&[], None);
    for name in ["medusa", "parallelspec-medusa", "eagle", "parallelspec-eagle"] {
        for options in [&["--draft-tokens", "4"][..], &["--draft-tokens", "4", "--tree", "top:3x4"]]
        {
            let drafted = generate(options, Some(name));
            assert_eq!(drafted["text"], plain["text"], "{name} {options:?}");
            let forwards = drafted["usage"]["speculative"]["target_forwards"].as_u64().unwrap();
            assert!(forwards < 50, "{name} {options:?}: {forwards} forward passes for 64 tokens");
        }
    }
}

#[test]
fn invalid_combinations_are_refused_with_advice() {
    let models = Models::pair();
    for (layout, drafter) in LAYOUTS {
        let path = speculator(&models, layout);
        let other = if drafter == "medusa" { "eagle" } else { "medusa" };
        let table: [(&str, &[&str]); 3] = [
            (other, &["which --drafter", &format!("set --drafter {drafter}")]),
            ("model", &["which --drafter model", &format!("set --drafter {drafter}")]),
            ("prompt-lookup", &["does not use a model"]),
        ];
        for (requested, words) in table {
            let options = format!("--drafter {requested}");
            run(&models, &path, &options).finish().assert_refused(&options, words);
        }
        for method in ["pearl", "dsi"] {
            let run = run(&models, &path, &format!("--method {method} --draft-tokens 2"));
            match layout {
                // This drafter reads only tokens.
                SpeculatorLayout::ParallelMedusa => drop(run.succeed().output()),
                // They draft ahead on the hidden states that they predict, or without those that
                // are missing.
                _ if matches!(
                    (drafter, method),
                    ("eagle" | "parallel" | "dflash" | "dflash2" | "dspark", "pearl")
                ) =>
                {
                    drop(run.succeed().output());
                }
                _ => {
                    run.finish().assert_refused(method, &["--method speculative", "hidden states"]);
                }
            }
        }
    }
    // The error for a pickled file, or for its directory, says how to convert it.
    let pickled = models.folder().join("pickled");
    std::fs::create_dir(&pickled).unwrap();
    std::fs::write(pickled.join("config.json"), "{\"medusa_num_heads\": 4}").unwrap();
    std::fs::write(pickled.join("medusa_lm_head.pt"), b"PK\x03\x04...").unwrap();
    for path in [pickled.clone(), pickled.join("medusa_lm_head.pt")] {
        for options in ["", "--drafter medusa", "--drafter model"] {
            let words = ["medusa_lm_head.pt", "weights_only=True", "medusa_lm_head.safetensors"];
            run(&models, &path, options).finish().assert_refused(options, &words);
        }
    }
    let whole = run(&models, &models.drafter(), "--drafter eagle").finish();
    whole.assert_refused("a whole model", &["holds no drafter for --drafter eagle", "model"]);
    // The hash of the embedding identifies the target.
    let path = speculator(&models, SpeculatorLayout::ParallelMedusa);
    edit_json(&path.join("config.json"), |config| {
        config["target_embedding_sha256"] = "00".into();
    });
    let other = run(&models, &path, "").finish();
    other
        .assert_refused("another target", &["trained for the target the random target", "--model"]);
}

/// A whole model with a mask token (PARD) drafts in one forward pass, unless `--drafter model` is
/// given.
#[test]
fn a_model_with_a_mask_token_drafts_in_one_forward_pass() {
    let models = Models::pair();
    let path = models.drafter();
    let answer = |options: &str| -> Value {
        let run = run(&models, &path, &format!("--json {options}"));
        serde_json::from_str(&run.succeed().output()).unwrap()
    };
    let expected = answer("--method autoregressive")["text"].clone();
    let assert_drafts = |options: &str, drafter: &str| {
        let answer = answer(options);
        assert!(answer["text"] == expected && answer["drafter"] == drafter, "{options}: {answer}");
    };
    assert_drafts("--draft-tokens 3", "model");
    edit_json(&path.join("config.json"), |config| config["pard_token"] = 258.into());
    assert_drafts("--draft-tokens 3", "parallel");
    assert_drafts("--draft-tokens 3 --drafter model", "model");
    assert_drafts("--draft-tokens 3 --method pearl", "parallel");
}
