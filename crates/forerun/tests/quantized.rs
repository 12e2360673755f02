//! Checkpoints with quantised matrices give the tokens of the same checkpoints restored to f32 by
//! their formats' definitions (`scripts/goldens/make_quantized.py`), and their default types are
//! those of the engine.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forerun::checkpoint::{BlockType, Checkpoint};
use forerun::cpu::Weights;
use forerun::{Engine, Options, Request, TokenId, WeightType, WeightTypes};
use forerun_cpu::Isa;
use forerun_formats::ModelTypes;
use forerun_reference::ReferenceModel;
use serde_json::Value;

/// Returns the folders of all formats.
fn formats() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/goldens/quantized");
    let mut folders: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert_eq!(folders.len(), 19);
    folders
}

/// Returns the prompt and the tokens of the restored checkpoint.
fn golden(folder: &Path) -> [Vec<TokenId>; 2] {
    let golden = fs::read(folder.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    ["prompt", "generated"].map(|field| serde_json::from_value(golden[field].clone()).unwrap())
}

/// Returns the engine's greedy tokens.
fn answer(
    folder: &Path,
    weight_type: Option<WeightTypes>,
    [prompt, tokens]: &[Vec<TokenId>; 2],
) -> Vec<TokenId> {
    let options = Options { model: folder.into(), weight_type, ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let request = Request { max_tokens: tokens.len(), ignore_eos: true, ..Request::default() };
    let go_on = |_: &str| ControlFlow::Continue(());
    engine.generate_tokens(prompt.clone(), &request, go_on).unwrap().tokens
}

#[test]
fn tokens_are_those_of_the_restored_checkpoint() {
    for folder in formats() {
        let golden = golden(&folder);
        let tokens = answer(&folder, Some(WeightType::F32.into()), &golden);
        assert_eq!(tokens, golden[1], "{}", folder.display());
    }
}

/// Without a type, integers that blocks hold exactly are blocks, and the engine's text is that of
/// the reference with the same types.
#[test]
fn the_default_type_loses_nothing_and_is_that_of_the_reference() {
    for (name, expected) in [
        ("awq", WeightType::Quantized(BlockType::Q5_0)),
        ("compressed-int8", WeightType::INT8),
        ("fp8-power", WeightType::Bf16),
        ("fp8-block", WeightType::F32),
        ("gptq", WeightType::Quantized(BlockType::Q4_0)),
        ("gptq-order", WeightType::F32),
        ("mxfp4", WeightType::Quantized(BlockType::MXFP4)),
    ] {
        let folder = formats().into_iter().find(|folder| folder.ends_with(name)).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let types = Weights::load(&checkpoint).unwrap().weight_types();
        assert!(types.iter().any(|(kind, _)| *kind == expected), "{name}: {types:?}");
        let reference = ReferenceModel::load_as(&checkpoint, ModelTypes::default(), Isa::best());
        let reference = reference.unwrap();
        let golden = golden(&folder);
        let tokens = answer(&folder, None, &golden);
        let all = [&golden[0][..], &tokens].concat();
        let rows = reference.logits(&all);
        for (row, token) in rows[golden[0].len() - 1..].iter().zip(&tokens) {
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(row[*token as usize].to_bits(), best.to_bits(), "{name}");
        }
    }
}
