//! A device and the slow reference compute the same bits for every architecture, type and variant,
//! in passes over several sequences, trees, features and layer groups.

use crate::prelude::*;
use forerun_formats::checkpoint::gguf::write_gguf;
use forerun_formats::checkpoint::{LayerTensor, Tensor, TensorRows};
use forerun_formats::{
    Attention, Factors, Head, Input, Layer, LoadError, MatrixTypes, Mlp, Norm, PositionTable,
    QkNorms, Rope, RopeScaling,
};

suite! { $ reference_device:
    families_have_the_bits_of_the_reference,
    all_types_of_caches_have_the_bits_of_the_reference,
    mixes_have_the_bits_of_the_reference,
    blocks_of_gguf_files_have_the_bits_of_the_reference,
    partly_quantised_projections_have_the_bits_of_the_reference,
    a_made_up_family_has_the_bits_of_the_reference,
    tiled_heads_have_the_bits_of_the_reference,
    texts_of_several_splits_have_the_bits_of_the_reference,
}

/// Compares a model in all types: those of each kind in all variants, the others by turns. A sample
/// with this number has only some of the types, in one variant each, other ones for each number.
fn assert_same_in_types<D: Device>(
    device: &D,
    (architecture, source): (&Architecture, &dyn TensorSource),
    sample: Option<usize>,
    name: &str,
) {
    let mut turns = device.turns().skip(sample.unwrap_or(0));
    let step = device.effort().step_of_types;
    for (number, weight_type) in device.offer().weight_types.into_iter().enumerate() {
        if sample.is_some_and(|sample| !(number + sample).is_multiple_of(step)) {
            continue;
        }
        let in_all = sample.is_none() && device.offer().kinds_of_weights.contains(&weight_type);
        let count = if in_all { device.offer().variants.len() } else { 1 };
        for run in turns.by_ref().take(count) {
            let name = format!("{name} in {weight_type}");
            assert_same(device, architecture, source, (weight_type, run), &name);
        }
    }
}

fn families_have_the_bits_of_the_reference<D: Device>(device: &D) {
    for (number, config) in device.offer().configs.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = random_checkpoint(folder.path(), &config);
        let sample = Some(number).filter(|_| number >= device.effort().whole_examples);
        let model = (checkpoint.architecture(), &checkpoint as &dyn TensorSource);
        assert_same_in_types(device, model, sample, &format!("{config:?}"));
    }
}

fn all_types_of_caches_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let mut turns = device.turns();
    let examples = device.offer().configs.into_iter().take(device.effort().examples_with_caches);
    // Caches in q4 rotate the keys of its larger heads.
    for config in examples.chain([blocks_config()]) {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        for (cache, run) in device.offer().cache_types.into_iter().zip(&mut turns) {
            let types = ModelTypes { cache: Some(cache), ..ModelTypes::default() };
            let models = Models::load(device, &architecture, &tensors, types, run.variant);
            for features in [FeatureSource::LastHidden, all_layers(&architecture)] {
                let name = format!("{config:?} with a cache in {cache}");
                models.assert_same(device, run, (&features, 40), &name);
            }
        }
    }
}

/// The sizes have blocks of 256 and of 32, and some projections have two types of blocks. A device
/// that lacks types for these sizes computes others.
fn mixes_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let (mut turns, mut compared) = (device.turns(), 0);
    let offered = device.offer().weight_types;
    for (hidden_size, intermediate_size) in [(256, 288), (96, 256), (256, 512)] {
        if compared > 0 && intermediate_size == 512 {
            break;
        }
        let config = Config {
            hidden_size,
            intermediate_size,
            head_dim: hidden_size / 4,
            tie_word_embeddings: hidden_size == 96,
            ..blocks_config()
        };
        let architecture = config.architecture();
        let source = RandomTensors::new(&architecture, 7);
        for (mix, run) in device.offer().mixes.into_iter().zip(&mut turns) {
            let types = MatrixTypes::of_model(Some(mix.into()), &architecture, &source).unwrap();
            if !architecture.matrices().all(|matrix| offered.contains(&types.of(matrix))) {
                continue;
            }
            compared += 1;
            let [query, value] = [LayerTensor::Query, LayerTensor::Value]
                .map(|part| types.of(Tensor::Layer(1, part)));
            assert!(query != value || matches!(mix, Mix::Q3_K_S | Mix::Q5_K_S));
            let name = format!("{mix} with hidden size {hidden_size}");
            assert_same(device, &architecture, &source, (mix, run), &name);
        }
    }
    assert!(compared > 0);
}

/// Stored blocks stay as they are, and a mix has several types in a projection. Rows of 288 inputs
/// end within a block.
fn blocks_of_gguf_files_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let mut turns = device.turns();
    for (mix, run) in device.offer().mixes.into_iter().zip(&mut turns) {
        let folder = tempfile::tempdir().unwrap();
        let mixed = mixed_file(folder.path(), &blocks_config(), mix);
        let types = ModelTypes::default();
        assert_same(
            device,
            mixed.architecture(),
            &mixed,
            (types, run),
            &format!("a file in {mix}"),
        );
    }
    let architecture = Config { intermediate_size: 288, ..blocks_config() }.architecture();
    let tensors = RandomTensors::new(&architecture, 7);
    for (weight_type, run) in device.offer().kinds_of_weights.into_iter().zip(turns) {
        let name = format!("rows of 288 inputs in {weight_type}");
        assert_same(device, &architecture, &tensors, (weight_type, run), &name);
    }
}

/// Projections of floats and blocks are computed in f32, and stored blocks are not quantised again.
fn partly_quantised_projections_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let config = Config {
        hidden_size: 64,
        intermediate_size: 64,
        num_key_value_heads: 2,
        head_dim: 16,
        ..blocks_config()
    };
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &config, 5, RandomDtype::Bf16).unwrap();
    // A type with blocks of 32, and another one.
    let types = device.offer().weight_types;
    let preferred = [BlockType::Q5_0, BlockType::Q4_0, BlockType::Q8_0, BlockType::Q4_K];
    let blocks = preferred.map(WeightType::Quantized).into_iter();
    let blocks: Vec<_> = blocks.filter(|block| types.contains(block)).take(2).collect();
    let floats = Checkpoint::open(folder.path()).unwrap();
    let file = folder.path().join("blocks.gguf");
    write_gguf(&floats, &file, blocks[0], &[]).unwrap();
    let source = PartlyQuantised { floats, blocks: Checkpoint::open(&file).unwrap() };
    let architecture = source.floats.architecture();
    for types in [ModelTypes::default(), blocks[0].into(), blocks[1].into()] {
        let name = format!("partly quantised, {types:?}");
        assert_same(device, architecture, &source, (types, device.best()), &name);
    }
}

/// A checkpoint whose queries and outputs of attention are stored as blocks.
struct PartlyQuantised {
    floats: Checkpoint,
    blocks: Checkpoint,
}

impl TensorSource for PartlyQuantised {
    fn has(&self, tensor: Tensor) -> bool {
        self.floats.has(tensor)
    }

    fn rows(&self, tensor: Tensor, _shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let has_blocks =
            matches!(tensor, Tensor::Layer(_, LayerTensor::Query | LayerTensor::Output));
        if has_blocks { self.blocks.rows(tensor) } else { self.floats.rows(tensor) }
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        self.floats.float_type()
    }
}

/// A family that nobody has published: every second layer has a window, more heads, faster
/// rotations and norms of the heads; the last layer has no RoPE, MLPs grow with depth, there is no
/// final norm, and constant factors scale embeddings, residuals and logits. It is data, so no
/// device changes.
fn made_up_family(layers: usize) -> Architecture {
    let layer = |index: usize| {
        let is_local = index % 2 == 1;
        let (n_heads, n_kv_heads, head_dim) = if is_local { (6, 3, 8) } else { (4, 1, 12) };
        let attention = Attention {
            window: is_local.then_some(5),
            score_scale: if is_local { 0.4 } else { Attention::default_scale(12) },
            rope: (index < 3).then_some(Rope {
                dims: head_dim,
                theta: if is_local { 1e3 } else { 1e6 },
                scaling: if is_local {
                    RopeScaling::None
                } else {
                    RopeScaling::Linear { factor: 4.0 }
                },
            }),
            qk_norms: if is_local { QkNorms::Heads } else { QkNorms::None },
            qkv_limit: is_local.then_some(0.9),
            qkv_bias: !is_local,
            output_bias: is_local,
            ..Attention::plain(n_heads, n_kv_heads, head_dim)
        };
        let mlp = Mlp { bias: is_local, ..Mlp::gated(40 + 24 * index) };
        Layer::plain(attention, mlp)
    };
    Architecture {
        hidden_size: 48,
        vocab_size: 260,
        context_length: 500,
        norm: Norm::Rms,
        norm_epsilon: 1e-5,
        factors: Factors { embedding: 1.7, residual: 0.6, logit_divisor: 0.7 },
        input: Input::Embedding,
        positions: Some(PositionTable { first: 3, rows: 503, token_types: 0 }),
        mask_tokens: 0,
        shares_embedding: false,
        layers: (0..layers).map(layer).collect(),
        final_norm: false,
        head: Head::Embedding,
        head_bias: false,
        logit_cap: None,
        head_tokens: None,
    }
}

fn a_made_up_family_has_the_bits_of_the_reference<D: Device>(device: &D) {
    let architecture = made_up_family(4);
    let tensors = RandomTensors::new(&architecture, 3);
    assert_same_in_types(device, (&architecture, &tensors), None, "the made-up family");
}

/// Value heads of GGUF files of Qwen3.5 are tiled, and rates of decays are no logarithms.
fn tiled_heads_have_the_bits_of_the_reference<D: Device>(device: &D) {
    for config in device.offer().configs.into_iter().filter(|config| config.recurrent.is_some()) {
        let mut architecture = config.architecture();
        for mixer in architecture.layers.iter_mut().filter_map(|layer| layer.recurrent.as_mut()) {
            (mixer.tiled, mixer.negative_rates) = (mixer.has_matrices(), true);
        }
        let tensors = RandomTensors::new(&architecture, 3);
        let name = format!("{} with tiled heads", config.family);
        assert_same_in_types(device, (&architecture, &tensors), None, &name);
    }
}

/// Some devices split attention at multiples of 256 positions.
fn texts_of_several_splits_have_the_bits_of_the_reference<D: Device>(device: &D) {
    let has_window = |config: &Config| {
        let layers = config.architecture().layers;
        layers.iter().flat_map(|layer| &layer.attention).any(|layer| layer.window.is_some())
    };
    let windowed = device.offer().configs.into_iter().find(has_window).unwrap();
    for config in [examples().remove(0), windowed] {
        let mut architecture = config.architecture();
        for layer in architecture.layers.iter_mut().flat_map(|layer| &mut layer.attention) {
            layer.window = layer.window.map(|_| 300);
        }
        let tensors = RandomTensors::new(&architecture, 5);
        let run: Run<D::Variant> = device.best();
        let models = Models::load(device, &architecture, &tensors, WeightType::F32, run.variant);
        let name = config.family.to_string();
        models.assert_same(device, run, (&all_layers(&architecture), 600), &name);
    }
}
