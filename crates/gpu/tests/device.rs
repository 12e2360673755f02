//! A GPU as a device of the suites that all devices share.

use crate::common::{aligned, configs, gpu};
use forerun_core::testing::{cases, is_complete};
use forerun_formats::{
    Architecture, BlockType, CacheType, Checkpoint, Config, DraftHeads, Family, FeatureSource, Mix,
    ModelTypes, TensorSource, WeightType,
};
use forerun_gpu::{GpuDevice, GpuHeadWeights, GpuHeads, GpuModel, GpuWeights};
use forerun_model::HeadsModel;
use forerun_reference::Arithmetic;
use forerun_suite::{Device, DrafterSource, Effort, Offer, Run, TargetPart};
use std::sync::{Arc, LazyLock};

/// The types of weights that GPUs compute.
pub(crate) const TYPES: [WeightType; 6] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
];

/// The examples that GPUs do not compute, and how the reason begins.
pub(crate) const REFUSED: [(Family, &str); 6] = [
    (Family::Gemma4, "a matrix with 22 inputs, no multiple of 4"),
    (Family::DeepseekV3, "heads of 45 numbers in attention"),
    (Family::Glm4MoeLite, "a matrix with 18 inputs, no multiple of 4"),
    (Family::DeepseekV32, "heads of 45 numbers in attention"),
    (Family::GlmMoeDsa, "a matrix with 18 inputs, no multiple of 4"),
    (Family::Qwen35, "a matrix with 27 inputs, no multiple of 4"),
];

/// Returns an example of a family, with sizes that GPUs compute.
pub(crate) fn config_of(family: Family) -> Config {
    configs().into_iter().rfind(|config| config.family == family).unwrap()
}

pub(crate) struct Gpu(pub(crate) Arc<GpuDevice>);

impl Device for Gpu {
    type Variant = ();
    type Weights = GpuWeights;
    type Model = GpuModel;
    type Heads = GpuHeads;

    const THREADS: usize = 1;
    const BEST_TOKENS: usize = 32;

    fn get() -> Option<&'static Self> {
        static GPU: LazyLock<Option<Gpu>> = LazyLock::new(|| gpu().cloned().map(Gpu));
        GPU.as_ref()
    }

    /// Software drivers are slow, and CUDA's emulator compiles each kernel.
    fn effort(&self) -> Effort {
        // A software driver computes a row in milliseconds, so these are samples unless
        // `FORERUN_CASES` asks for more.
        Effort {
            row_cases: cases(8),
            schedules: cases(4),
            moments: if is_complete() { [60, 12] } else { [20, 6] },
            kinds_of_deep_trees: 1,
            step_of_examples: 12,
            step_of_long_prompts: 24,
            whole_examples: 1,
            step_of_types: TYPES.len(),
            examples_with_caches: 1,
            types_of_drafters: 1,
        }
    }

    fn offer(&self) -> Offer<()> {
        let is_computed = |config: &Config| {
            let mut refused = REFUSED.iter().map(|(family, _)| *family);
            !refused.any(|family| family == config.family) || aligned(config) == *config
        };
        Offer {
            variants: vec![()],
            configs: configs().into_iter().filter(is_computed).collect(),
            weight_types: TYPES.into(),
            kinds_of_weights: TYPES.into(),
            cache_types: vec![CacheType::F32, CacheType::F16, CacheType::Bf16],
            mixes: vec![Mix::Q4_K_M],
        }
    }

    fn arithmetic(&self, types: ModelTypes, (): ()) -> Arithmetic {
        Arithmetic::gpu(types)
    }

    fn load(
        &self,
        (architecture, source): (&Architecture, &dyn TensorSource),
        types: ModelTypes,
    ) -> GpuWeights {
        GpuWeights::load_architecture(&self.0, architecture.clone(), source, types).unwrap()
    }

    fn load_target(&self, of: &Checkpoint, types: ModelTypes, part: TargetPart) -> GpuWeights {
        let weights = match part {
            TargetPart::Whole => GpuWeights::load(&self.0, of, types),
            TargetPart::WithoutLayers => GpuWeights::load_without_layers(&self.0, of, types),
            TargetPart::FinalNorm => GpuWeights::load_final_norm(&self.0, of),
        };
        weights.unwrap()
    }

    fn load_layers(
        &self,
        (speculator, target, types): DrafterSource<'_, Self>,
        layers: Architecture,
    ) -> GpuWeights {
        GpuWeights::load_drafter(target, layers, speculator, types).unwrap()
    }

    fn heads(
        &self,
        (speculator, target, types): DrafterSource<'_, Self>,
        heads: DraftHeads,
        _run: Run<()>,
    ) -> HeadsModel<GpuHeads, GpuModel> {
        let weights = GpuHeadWeights::load(target, heads, speculator, types).unwrap();
        GpuHeads::model(Arc::new(weights))
    }

    fn model(&self, weights: &Arc<GpuWeights>, _run: Run<()>) -> GpuModel {
        GpuModel::new(Arc::clone(weights))
    }

    fn with_features(model: GpuModel, features: FeatureSource) -> GpuModel {
        model.with_features(features)
    }
}
