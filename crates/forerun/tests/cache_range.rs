//! Models whose keys or values are too large for a cache in f16: an error that names the cache, or
//! an answer without the drafter.

use crate::common::Pair;
use forerun::placement::available_cores;
use forerun::{DraftTokens, DrafterKind, Engine, Method, Options, Request, WeightType};
use forerun_formats::checkpoint::random::scale_tensor;
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
use std::path::Path;

/// Scales the keys or values of a layer far beyond the range of f16.
fn enlarge(model: &Path, tensor: &str) {
    scale_tensor(&model.join("model.safetensors"), tensor, 1e7).unwrap();
}

fn options(pair: &Pair, method: Method, weight_type: WeightType) -> Options {
    let core = available_cores()[0];
    let draft_model = method.drafts().then(|| pair.drafter.clone().into());
    let placement = format!("drafter=cpu:{core},target=cpu:{core},shared");
    Options {
        model: pair.target.clone().into(),
        draft_model,
        method: Some(method.into()),
        draft_tokens: DraftTokens::Fixed(3),
        placement: method.is_parallel().then(|| placement.parse().unwrap()),
        weight_type: Some(weight_type.into()),
        ..Options::default()
    }
}

/// Returns the tokens of an answer and its failures, or the error.
fn run(options: Options, prompt: &str) -> Result<(Vec<u32>, Vec<String>), String> {
    let engine = Engine::open(options).unwrap();
    let request = Request { max_tokens: 20, ignore_eos: true, seed: Some(3), ..Request::default() };
    let answer = engine.complete(prompt, &request).map_err(|error| error.to_string())?;
    Ok((answer.tokens, answer.statistics.failures))
}

#[test]
fn a_target_beyond_the_range_of_its_cache_is_named() {
    for (tensor, part) in [("k_proj", "key"), ("v_proj", "value")] {
        let pair = Pair::generated();
        enlarge(&pair.target, &format!("model.layers.4.self_attn.{tensor}.weight"));
        for method in [Method::Autoregressive, Method::Speculative, Method::Pearl, Method::Dsi] {
            let error = run(options(&pair, method, WeightType::Bf16), &pair.prompts[0]);
            let error = error.unwrap_err();
            let expected = format!(
                "the target's f16 key/value cache cannot hold a {part} of layer 4, which is beyond \
                 ±65504: set `cache_type = bf16`"
            );
            assert!(error.contains(&expected), "{method}: {error}");
            let (_, failures) =
                run(options(&pair, method, WeightType::F32), &pair.prompts[0]).unwrap();
            assert!(failures.is_empty(), "{method}: {failures:?}");
        }
    }
}

/// Runs a drafter that fails, and returns its failure. The tokens must be the target's.
fn failure(pair: &Pair, options: Options) -> String {
    let plain = self::options(pair, Method::Autoregressive, WeightType::Bf16);
    let (expected, _) = run(plain, &pair.prompts[0]).unwrap();
    let (tokens, failures) = run(options, &pair.prompts[0]).unwrap();
    assert_eq!(tokens, expected);
    let [failure] = failures.try_into().unwrap();
    failure
}

#[test]
fn answers_go_on_without_a_drafter_beyond_the_range_of_its_cache() {
    let pair = Pair::generated();
    enlarge(&pair.drafter, "model.layers.0.self_attn.v_proj.weight");
    let expected = "the drafter's f16 key/value cache cannot hold a value of layer 0,";
    for method in [Method::Speculative, Method::Pearl, Method::Dsi] {
        let options = options(&pair, method, WeightType::Bf16);
        let easyspec = Options { drafter: Some(DrafterKind::EasySpec.into()), ..options.clone() };
        for options in [options, easyspec] {
            let failure = failure(&pair, options);
            assert!(failure.starts_with("drafter 0 failed: "), "{method}: {failure}");
            assert!(failure.contains(expected), "{method}: {failure}");
        }
    }
}

#[test]
fn answers_go_on_without_a_drafter_on_features_beyond_the_range_of_its_cache() {
    let (pair, speculators) = Pair::with_speculators();
    for (layout, path) in speculators {
        let (kind, file) = match layout {
            SpeculatorLayout::Eagle => (DrafterKind::Eagle, "model.safetensors"),
            SpeculatorLayout::HydraPlusPlus => (DrafterKind::Hydra, "hydra_lm_head.safetensors"),
            _ => continue,
        };
        let names = safetensors_names(&path.join(file));
        let keys = names.iter().find(|name| name.ends_with("k_proj.weight")).unwrap();
        scale_tensor(&path.join(file), keys, 1e7).unwrap();
        let options = Options {
            draft_model: Some(path.clone().into()),
            drafter: Some(kind.into()),
            ..options(&pair, Method::Speculative, WeightType::Bf16)
        };
        let failure = failure(&pair, options);
        let expected = "the drafter's f16 key/value cache cannot hold a key of layer 0,";
        assert!(failure.contains(expected), "{layout:?}: {failure}");
    }
}

/// Returns the names of a file's tensors.
fn safetensors_names(file: &Path) -> Vec<String> {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    let header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(header).unwrap();
    header.keys().cloned().collect()
}
