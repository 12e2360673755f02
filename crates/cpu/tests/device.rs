//! The CPU as a device of the suites that all devices share.

use forerun_core::testing::{cases, is_complete};
use forerun_cpu::{CpuHeads, HeadWeights, Isa, Team, Transformer, Weights};
use forerun_formats::{
    Architecture, BlockType, CacheType, Checkpoint, DraftHeads, FeatureSource, Mix, ModelTypes,
    TensorSource, WeightType,
};
use forerun_model::HeadsModel;
use forerun_reference::Arithmetic;
use forerun_suite::{Device, DrafterSource, Effort, Offer, Run, TargetPart, examples};
use std::sync::Arc;

/// Cores with all their instruction sets.
pub(crate) struct Cpu;

/// Makes the team of threads that runs a model.
pub(crate) fn team(run: Run<Isa>) -> Arc<Team> {
    Arc::new(Team::unpinned(run.threads).unwrap().with_isa(run.variant))
}

impl Device for Cpu {
    type Variant = Isa;
    type Weights = Weights;
    type Model = Transformer;
    type Heads = CpuHeads;

    const THREADS: usize = 2;
    const BEST_TOKENS: usize = 0;

    fn get() -> Option<&'static Self> {
        Some(&Self)
    }

    /// All families and types on all instruction sets with `FORERUN_CASES` (`just rows`).
    fn effort(&self) -> Effort {
        let or_all = |sample| if is_complete() { usize::MAX } else { sample };
        let or_each = |step| if is_complete() { 1 } else { step };
        Effort {
            row_cases: cases(24),
            schedules: cases(100),
            moments: [300, 100],
            kinds_of_deep_trees: or_all(2),
            step_of_examples: 1,
            step_of_long_prompts: or_each(6),
            whole_examples: or_all(4),
            step_of_types: or_each(3),
            examples_with_caches: usize::MAX,
            types_of_drafters: usize::MAX,
        }
    }

    fn offer(&self) -> Offer<Isa> {
        let floats = [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::INT8];
        // With minima, with scales for 16 weights, and with a table.
        let blocks = [BlockType::Q4_K, BlockType::Q6_K, BlockType::MXFP4];
        Offer {
            variants: Isa::available(),
            configs: examples(),
            weight_types: WeightType::all(),
            kinds_of_weights: [&floats[..], &blocks.map(WeightType::Quantized)].concat(),
            cache_types: CacheType::ALL.into(),
            mixes: Mix::ALL.into(),
        }
    }

    fn arithmetic(&self, types: ModelTypes, isa: Isa) -> Arithmetic {
        Arithmetic::cpu(types, isa)
    }

    fn load(
        &self,
        (architecture, source): (&Architecture, &dyn TensorSource),
        types: ModelTypes,
    ) -> Weights {
        Weights::load_architecture(architecture.clone(), source, None, types).unwrap()
    }

    fn load_target(&self, of: &Checkpoint, types: ModelTypes, part: TargetPart) -> Weights {
        let weights = match part {
            TargetPart::Whole => Weights::load_as(of, types),
            TargetPart::WithoutLayers => Weights::load_without_layers(of, types),
            TargetPart::FinalNorm => Weights::load_final_norm(of),
        };
        weights.unwrap()
    }

    fn load_layers(
        &self,
        (speculator, target, types): DrafterSource<'_, Self>,
        layers: Architecture,
    ) -> Weights {
        Weights::load_architecture(layers, speculator, Some(target), types).unwrap()
    }

    fn heads(
        &self,
        (speculator, target, types): DrafterSource<'_, Self>,
        heads: DraftHeads,
        run: Run<Isa>,
    ) -> HeadsModel<CpuHeads, Transformer> {
        let weights = HeadWeights::load(heads, speculator, target, types).unwrap();
        CpuHeads::model(Arc::new(weights), &team(run))
    }

    fn model(&self, weights: &Arc<Weights>, run: Run<Isa>) -> Transformer {
        Transformer::new(Arc::clone(weights), team(run))
    }

    fn with_features(model: Transformer, features: FeatureSource) -> Transformer {
        model.with_features(features)
    }
}
