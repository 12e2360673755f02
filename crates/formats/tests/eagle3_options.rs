//! EAGLE-3's options in both layouts: what they say, and that whatever is not understood is refused
//! by name. Ignoring an option would keep the text and silently cost acceptance.

use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout,
};
use forerun_formats::{
    Architecture, AttentionNorm, Checkpoint, Config, FeatureNorm, FeatureSource, Input, Speculator,
    SpeculatorArchitecture,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const LAYERS: usize = 7;
const IDS: &str = "eagle_aux_hidden_state_layer_ids";

const PLAIN: Eagle3Options = Eagle3Options {
    speculators: true,
    layers: 1,
    feature_norm: FeatureNorm::None,
    norm_before_residual: true,
    norm_output: false,
};
const AUTHORS: Eagle3Options = Eagle3Options { speculators: false, ..PLAIN };

struct Fixture {
    folder: TempDir,
    target: Checkpoint,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { num_hidden_layers: LAYERS, ..example_config() };
        let path = folder.path().join("target");
        write_random_checkpoint(&path, &config, 3, RandomDtype::F32).unwrap();
        Self { target: Checkpoint::open(&path).unwrap(), folder }
    }

    fn drafter(&self) -> PathBuf {
        self.folder.path().join("drafter")
    }

    /// Writes a drafter, with changes to its configuration. `null` removes an option.
    fn write(&self, options: Eagle3Options, changes: &Value) {
        let (path, target) = (self.drafter(), self.target.config());
        drop(fs::remove_dir_all(&path));
        let layout = SpeculatorLayout::Eagle3With(options);
        RandomSpeculator { layout, target, seed: 3, positions: 0, target_embedding_sha256: None }
            .write(&path)
            .unwrap();
        let file = path.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for (option, value) in changes.as_object().unwrap() {
            match option.split_once('/') {
                Some((object, option)) => config[object][option] = value.clone(),
                None => config[option] = value.clone(),
            }
        }
        fs::write(file, config.to_string()).unwrap();
    }

    /// Renames tensors. Those for which `rename` returns `None` are left out.
    fn rename(&self, rename: impl Fn(&str) -> Option<String>) {
        let file = self.drafter().join("model.safetensors");
        let bytes = fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let renamed = tensors.iter().filter_map(|(name, view)| Some((rename(name)?, view)));
        let bytes = safetensors::serialize(renamed.collect::<Vec<_>>(), None).unwrap();
        fs::write(&file, bytes).unwrap();
    }

    fn open(&self) -> Result<(Speculator, Architecture), String> {
        let speculator = Speculator::open(&self.drafter(), &self.target);
        let speculator = speculator.map_err(|error| error.to_string())?.unwrap();
        match speculator.architecture().map_err(|error| error.to_string())? {
            SpeculatorArchitecture::Layers(layers) => Ok((speculator, layers)),
            SpeculatorArchitecture::Heads(_) => panic!("layers"),
        }
    }

    fn message(&self) -> String {
        self.open().err().unwrap()
    }
}

#[test]
fn all_options_become_pieces_of_the_architecture() {
    let fixture = Fixture::new();
    let size = fixture.target.config().hidden_size;
    for options in Eagle3Options::all() {
        fixture.write(options, &json!({}));
        let (_, found) = fixture.open().unwrap();
        let parts = if options.speculators { 3 } else { 2 };
        let (norm, normed_predictions) = (options.feature_norm, options.norm_output);
        assert_eq!(found.input, Input::Feature { width: parts * size, norm, normed_predictions });
        let normed_residual = options.norm_before_residual;
        let norms: Vec<_> = found.layers.iter().map(|layer| layer.attention_norm).collect();
        let mut expected = vec![AttentionNorm::Hidden; options.layers];
        expected[0] = AttentionNorm::EmbeddingAndHidden { normed_residual };
        assert_eq!(norms, expected, "{options:?}");
        assert_eq!(found.head_tokens.as_ref().unwrap().len(), 130);
    }
}

#[test]
fn features_come_from_the_configured_layers() {
    let fixture = Fixture::new();
    let none = json!({});
    for (options, changes, expected) in [
        // As speculators count: the number of layers before.
        (PLAIN, json!({IDS: [0, 3, 7]}), vec![0, 3, 7]),
        (PLAIN, json!({IDS: null}), vec![2, 3, 4]),
        (PLAIN, json!({IDS: []}), vec![2, 3, 4]),
        (PLAIN, json!({IDS: [1, 2, 3], "num_aux_hidden_states": 3}), vec![1, 2, 3]),
        // Indices of layers whose outputs are read.
        (AUTHORS, json!({"eagle_config": {IDS: [0, 6]}}), vec![1, 7]),
        (AUTHORS, json!({IDS: [1, 7], "eagle_config": {IDS: [0, 6]}}), vec![1, 7]),
        (AUTHORS, json!({IDS: [0, 6], "eagle_config": null}), vec![0, 6]),
        (AUTHORS, none, vec![7, 1]),
    ] {
        fixture.write(options, &changes);
        let (speculator, _) = fixture.open().unwrap();
        assert_eq!(speculator.features(), Some(FeatureSource::Layers(expected)), "{changes}");
    }
}

#[test]
fn absent_options_are_what_the_tensors_say() {
    let fixture = Fixture::new();
    for norm in [FeatureNorm::Whole, FeatureNorm::Parts(2)] {
        let absent = json!({
            "norm_before_fc": null, "fc_norm": null, "norm_output": null,
            "norm_before_residual": null, "draft_vocab_size": null,
        });
        fixture.write(Eagle3Options { feature_norm: norm, ..AUTHORS }, &absent);
        let (_, found) = fixture.open().unwrap();
        let Input::Feature { norm: found_norm, normed_predictions, .. } = found.input else {
            panic!("features");
        };
        assert_eq!((found_norm, normed_predictions), (norm, false));
        let first = found.layers[0].attention_norm;
        assert_eq!(first, AttentionNorm::EmbeddingAndHidden { normed_residual: false });
    }
    // Other names in `eagle_config`.
    let nested = json!({"eagle_config": {
        "norm_before_fc": true, "return_hidden_post_norm": true, IDS: [1, 2],
        "use_aux_hidden_state": true, "use_last_layernorm": true, "parallel_draft_step": 1,
    }, "norm_before_fc": null, "norm_output": null});
    fixture.write(Eagle3Options { feature_norm: FeatureNorm::Whole, ..AUTHORS }, &nested);
    let input = fixture.open().unwrap().1.input;
    assert!(matches!(input, Input::Feature { normed_predictions: true, .. }));
}

#[test]
fn options_that_are_not_understood_are_refused_by_name() {
    let fixture = Fixture::new();
    let with = |feature_norm| Eagle3Options { feature_norm, ..PLAIN };
    let cases = [
        (PLAIN, json!({"norm_sideways": true}), "\"norm_sideways\" is true"),
        (AUTHORS, json!({"norm_sideways": false}), "\"norm_sideways\" is false"),
        (AUTHORS, json!({"eagle_config": {"depth": 2}}), "\"depth\" is 2"),
        (AUTHORS, json!({"eagle_config": {"use_mtp_layernorm": true}}), "\"use_mtp_layernorm\""),
        (AUTHORS, json!({"eagle_config": {"use_last_layernorm": false}}), "\"use_last_layernorm\""),
        (AUTHORS, json!({"eagle_config": {"use_aux_hidden_state": false}}), "\"use_aux_hidden"),
        (PLAIN, json!({"speculators_model_type": "peagle"}), "\"speculators_model_type\" is \"pe"),
        (PLAIN, json!({"speculators_config/algorithm": "dflash"}), "\"algorithm\" is \"dflash\""),
        (PLAIN, json!({"transformer_layer_config": null}), "\"transformer_layer_config\" is miss"),
        (PLAIN, json!({"transformer_layer_config/model_type": "gpt_oss"}), "\"gpt_oss\""),
        (PLAIN, json!({"transformer_layer_config/model_type": "mistral"}), "\"mistral\", which is"),
        (AUTHORS, json!({"model_type": "granite"}), "\"granite\", which is not supported yet"),
        (PLAIN, json!({"transformer_layer_config/hidden_act": "tanh"}), "\"hidden_act\" is"),
        (PLAIN, json!({"norm_before_residual": null}), "\"norm_before_residual\" is missing"),
        (PLAIN, json!({"norm_output": "yes"}), "\"norm_output\" is \"yes\"; expected true or"),
        (PLAIN, json!({IDS: [0, 3, 8]}), "is [0,3,8]; expected numbers up to 7"),
        (PLAIN, json!({IDS: [0, -1]}), "is [0,-1]; expected a list of numbers"),
        (AUTHORS, json!({"eagle_config": {IDS: [0, 7]}}), "is [0,7]; expected numbers up to 6"),
        (AUTHORS, json!({IDS: [0, 6]}), "is [0,6]; expected [7, 1], one more than"),
        (PLAIN, json!({"num_aux_hidden_states": 4}), "\"num_aux_hidden_states\" is 4; expected 3"),
        (PLAIN, json!({"draft_vocab_size": 99}), "\"draft_vocab_size\" is 99; expected 130"),
        (
            AUTHORS,
            json!({"bias": true}),
            "\"bias\" is true; expected false, because `fc.bias` is not",
        ),
        (PLAIN, json!({"target_hidden_size": 64}), "is 64, but in the target"),
        (AUTHORS, json!({"num_hidden_layers": 2}), "\"num_hidden_layers\" is 2; expected 1"),
        (
            with(FeatureNorm::Whole),
            json!({"norm_before_fc": false}),
            "\"norm_before_fc\" is false; expected true, because `input_norm.weight` is stored",
        ),
        (
            with(FeatureNorm::Parts(3)),
            json!({"fc_norm": false}),
            "\"fc_norm\" is false; expected true, because `fc_norm.0.weight` is stored",
        ),
        (with(FeatureNorm::Whole), json!({"fc_norm": true}), "\"fc_norm\" is true; expected false"),
        (
            Eagle3Options { norm_output: true, ..AUTHORS },
            json!({"eagle_config/return_hidden_post_norm": false}),
            "\"norm_output\" is true; expected false, as \"return_hidden_post_norm\"",
        ),
    ];
    for (options, changes, words) in cases {
        fixture.write(options, &changes);
        let message = fixture.message();
        assert!(message.contains(words), "{changes}: {message}");
    }
}

#[test]
fn tensors_that_are_not_understood_are_refused_by_name() {
    let fixture = Fixture::new();
    for (from, to) in [
        ("t2d", "layers.1.hidden_norm.weight"),
        ("t2d", "fc_norm.3.weight"),
        ("t2d", "aux_norm_low.weight"),
    ] {
        fixture.write(Eagle3Options { feature_norm: FeatureNorm::Parts(3), ..PLAIN }, &json!({}));
        fixture.rename(|name| Some(if name == from { to } else { name }.to_owned()));
        let message = fixture.message();
        assert!(message.contains(&format!("`{to}` is not part of")), "{message}");
    }
    // A hidden state for masks belongs to P-EAGLE.
    fixture.write(PLAIN, &json!({}));
    fixture.rename(|name| Some(if name == "t2d" { "mask_hidden" } else { name }.to_owned()));
    let message = fixture.message();
    assert!(message.contains("\"speculators_model_type\" is \"eagle3\""), "{message}");
    // Without a head of its own, the drafter has the target's vocabulary.
    fixture.write(PLAIN, &json!({}));
    fixture.rename(|name| (name != "lm_head.weight").then(|| name.to_owned()));
    let message = fixture.message();
    assert!(message.contains("\"draft_vocab_size\" is 130; expected 259"), "{message}");
    fixture.write(AUTHORS, &json!({"draft_vocab_size": 259, "tie_word_embeddings": true}));
    fixture.rename(|name| (name != "lm_head.weight").then(|| name.to_owned()));
    let message = fixture.message();
    assert!(message.contains("\"tie_word_embeddings\" is true; expected false for"), "{message}");
}
