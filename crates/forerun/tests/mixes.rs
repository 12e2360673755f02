//! Models that are quantised at load, and those that are exported as a GGUF file and loaded again,
//! are the same.

use forerun::checkpoint::{BlockType, Checkpoint, Config, GgufOptions, Mix, export_gguf};
use forerun::cpu::{Isa, Weights};
use forerun::{Loader, ModelSource, WeightType, WeightTypes};
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_reference::ReferenceModel;
use std::path::PathBuf;
use tempfile::TempDir;

/// A random model with a tokenizer.
struct Model(TempDir);

impl Model {
    fn new(hidden_size: usize, intermediate_size: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let config = Config {
            hidden_size,
            intermediate_size,
            num_attention_heads: 4,
            num_key_value_heads: 1,
            head_dim: hidden_size / 4,
            ..example_config()
        };
        write_random_checkpoint(&folder.path().join("model"), &config, 5, RandomDtype::F32)
            .unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("model")
    }

    fn export(&self, options: impl Into<GgufOptions<'static>>) -> Result<Checkpoint, String> {
        let (source, file) = (ModelSource::from(self.path()), self.0.path().join("model.gguf"));
        let exported = export_gguf(&source, &file, options, &mut Loader::new());
        exported.map_err(|error| error.to_string())?;
        Ok(Checkpoint::open(&file).unwrap())
    }
}

fn bits(model: &ReferenceModel) -> Vec<u32> {
    model.logits(&[1, 7, 200]).concat().into_iter().map(f32::to_bits).collect()
}

#[test]
fn exported_models_compute_what_dtype_computes() {
    let block = |block_type| WeightTypes::from(WeightType::Quantized(block_type));
    let with_large_blocks = [
        Mix::Q2_K_M.into(),
        Mix::Q3_K_M.into(),
        Mix::Q4_K_S.into(),
        Mix::Q4_K_M.into(),
        Mix::Q5_K_M.into(),
        block(BlockType::Q6_K),
        block(BlockType::IQ4_XS),
    ];
    let with_small_blocks = [
        Mix::Q2_K_S.into(),
        Mix::Q4_K_M.into(),
        block(BlockType::Q4_1),
        block(BlockType::MXFP4),
        WeightType::INT8.into(),
        WeightType::F16.into(),
        WeightType::Bf16.into(),
    ];
    for (model, all) in
        [(Model::new(256, 256), with_large_blocks), (Model::new(96, 160), with_small_blocks)]
    {
        let original = Checkpoint::open(&model.path()).unwrap();
        for types in all {
            let exported = model.export(types).unwrap();
            // Reference and CPU give each matrix the same type, as other tests show.
            let at_load = ReferenceModel::load_as(&original, types, Isa::best()).unwrap();
            let stored = ReferenceModel::load(&exported).unwrap();
            assert_eq!(bits(&at_load), bits(&stored), "{types}");
            let [at_load, stored] =
                [Weights::load_as(&original, types).unwrap(), Weights::load(&exported).unwrap()];
            assert_eq!(at_load.weight_types(), stored.weight_types(), "{types}");
        }
    }
}

#[test]
fn importance_changes_blocks_towards_outputs() {
    let model = Model::new(96, 160);
    let types = WeightTypes::from(Mix::Q4_K_M);
    let text = "Once upon a time, there was a small model that read a small text. ".repeat(9);
    let text: &str = text.leak();
    let query = |options: GgufOptions<'static>| {
        model.export(options).unwrap().tensor(Tensor::Layer(0, LayerTensor::Query)).unwrap()
    };
    let plain = query(types.into());
    let weighted = query(GgufOptions { types, importance: Some(text) });
    assert_ne!(plain, weighted);
    let error = |importance, types| {
        let options = GgufOptions { types, importance: Some(importance) };
        model.export(options).err().unwrap()
    };
    assert!(error("", types).contains("fewer than two tokens"));
    assert!(error(text, WeightType::Bf16.into()).contains("no effect on bf16"));
}

#[test]
fn types_that_do_not_fit_are_refused_and_mixes_fit() {
    let model = Model::new(96, 160);
    let error = model.export(WeightType::Quantized(BlockType::Q4_K)).err().unwrap();
    assert!(error.contains("\"hidden_size\" is 96 inputs") && error.contains("q4_k_m"), "{error}");
    let exported = model.export(Mix::Q4_K_M).unwrap();
    let block_type = |tensor| exported.rows(tensor).unwrap().block_type();
    assert_eq!(block_type(Tensor::Layer(0, LayerTensor::Query)), Some(BlockType::Q5_0));
    assert_eq!(block_type(Tensor::Head), Some(BlockType::Q8_0));
    assert_eq!(block_type(Tensor::FinalNorm), None);
}

/// Stored blocks and everything about the tokenizer are copied.
#[test]
fn a_gguf_file_that_is_exported_again_is_the_same() {
    let model = Model::new(96, 160);
    model.export(Mix::Q4_K_M).unwrap();
    let file = model.0.path().join("model.gguf");
    let again = tempfile::tempdir().unwrap();
    let other = again.path().join("model.gguf");
    export_gguf(&file.clone().into(), &other, Mix::Q4_K_M, &mut Loader::new()).unwrap();
    let [first, second] = [file, other].map(|file| Checkpoint::open(&file).unwrap());
    let architecture = first.config().architecture();
    assert_eq!(first.config(), second.config());
    for tensor in architecture.tensors() {
        let [first, second] = [&first, &second].map(|checkpoint| checkpoint.rows(tensor).unwrap());
        assert_eq!(first.block_type(), second.block_type());
        for row in 0..first.len() {
            assert_eq!(first.stored(row).unwrap(), second.stored(row).unwrap());
        }
        assert_eq!(first.read_all().unwrap(), second.read_all().unwrap());
    }
    let [first, second] = [&first, &second].map(|checkpoint| checkpoint.gguf().unwrap());
    for key in first.keys().filter(|key| key.starts_with("tokenizer.")) {
        assert_eq!(first.stored(key), second.stored(key), "{key}");
    }
    assert!(first.keys().eq(second.keys()));
}
