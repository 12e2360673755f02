//! A drafter that misses rounds, because drafting paused or a lookup took its place, drafts as one
//! that has drafted in every round, on real caches.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    Draft, DraftShape, FeatureRows, Features, KeyedRandomness, Proposal, Sampling, SamplingOptions,
    SequenceId, TargetFeedback, TokenId, Verification,
};
use forerun_cpu::{
    BlockHeadWeights, CpuBlockHeads, CpuHeads, SpeculatorWeights, Team, Transformer, Weights,
};
use forerun_draft::{
    CalibrationPolicy, DraftContext, Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter,
    Masks, MedusaDrafter, ModelDrafter, ParallelEagleDrafter,
};
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use forerun_formats::{Checkpoint, Config, Speculator, SpeculatorKind, WeightType};
use forerun_lm::LayerGroups;
use forerun_model::{BlockModel, CachedTransformer, EagleModel};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const PROMPT: usize = 12;
const POSITIONS: usize = 4;

fn transformer(weights: &Arc<Weights>) -> Transformer {
    Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread()))
}

/// The models of a target's drafters.
struct Models {
    target: Arc<Weights>,
    checkpoint: Checkpoint,
    folder: tempfile::TempDir,
}

impl Models {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { num_hidden_layers: 4, ..example_config() };
        let path = folder.path().join("target");
        write_random_checkpoint(&path, &config, 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let target = Arc::new(Weights::load_as(&checkpoint, WeightType::F32).unwrap());
        Self { target, checkpoint, folder }
    }

    fn speculator(&self, layout: SpeculatorLayout) -> (Speculator, SpeculatorWeights) {
        let path: &Path = &self.folder.path().join(format!("{layout:?}"));
        let target_embedding_sha256 = Some(self.checkpoint.embedding_sha256().unwrap());
        let target = self.checkpoint.config();
        RandomSpeculator { layout, target, seed: 3, positions: POSITIONS, target_embedding_sha256 }
            .write(path)
            .unwrap();
        let speculator = Speculator::open(path, &self.checkpoint).unwrap().unwrap();
        let types = WeightType::F32.into();
        let weights = SpeculatorWeights::load(&speculator, &self.target, types).unwrap();
        (speculator, weights)
    }

    /// Returns a drafter of a layout, and the width of the features that it reads.
    fn drafter(&self, layout: SpeculatorLayout) -> (Box<dyn Drafter>, usize) {
        let (speculator, weights) = self.speculator(layout);
        let width = speculator.features().unwrap().width(self.checkpoint.config().hidden_size);
        let drafter: Box<dyn Drafter> = match (weights, speculator.block()) {
            (SpeculatorWeights::Layers(weights), Some(block)) => {
                let (mask, size) = (block.mask, block.size);
                let masks = match block.causal {
                    true => Masks::CausalBlock { mask, size },
                    false => Masks::Block { mask, size },
                };
                let model = BlockModel::new(transformer(&weights));
                let drafter = ParallelEagleDrafter::new(model, masks);
                match speculator.block_heads().unwrap() {
                    None => Box::new(drafter),
                    Some(heads) => {
                        let types = WeightType::F32.into();
                        let heads = BlockHeadWeights::load(heads, &speculator, types).unwrap();
                        let team = Arc::new(Team::single_thread());
                        let heads = CpuBlockHeads::new(Arc::new(heads), team);
                        Box::new(drafter.with_heads(Box::new(heads)))
                    }
                }
            }
            (SpeculatorWeights::Layers(weights), None) => {
                if let SpeculatorKind::Pard2 { mask } = speculator.kind() {
                    let model = BlockModel::new(transformer(&weights));
                    let drafter = ParallelEagleDrafter::new(model, Masks::Repeated(mask));
                    return (Box::new(drafter), width);
                }
                let model = EagleModel::new(transformer(&weights));
                match weights.architecture().mask_ids() {
                    masks if masks.is_empty() => Box::new(EagleDrafter::new(model)),
                    masks => Box::new(ParallelEagleDrafter::new(model, Masks::PerPosition(masks))),
                }
            }
            (SpeculatorWeights::Heads(weights), _) => {
                let team = Arc::new(Team::single_thread());
                let (heads, reads_tokens) =
                    (weights.architecture().n_heads, weights.architecture().reads_tokens);
                let model = CpuHeads::model(weights, &team);
                match reads_tokens {
                    true => Box::new(HydraDrafter::new(model, heads)),
                    false => Box::new(MedusaDrafter::new(model, heads)),
                }
            }
        };
        (drafter, width)
    }
}

/// Returns features that depend on their position.
fn features(count: usize, width: usize) -> Features {
    let row = |index: usize| {
        let value = move |column: usize| ((index * 31 + column * 17) % 64) as f32 / 32.0 - 1.0;
        (0..width).map(value)
    };
    let mut features = Features::new();
    features.push(FeatureRows::new(width, (0..count).flat_map(row).collect()));
    features
}

fn draft(
    drafter: &mut dyn Drafter,
    tokens: &[TokenId],
    width: usize,
    shape: &DraftShape,
    sampling: &Sampling,
) -> Draft {
    draft_after(drafter, (tokens, tokens.len()), width, shape, sampling)
}

/// Drafts after tokens, of which the target has read the first `read` but the last one.
fn draft_after(
    drafter: &mut dyn Drafter,
    (tokens, read): (&[TokenId], usize),
    width: usize,
    shape: &DraftShape,
    sampling: &Sampling,
) -> Draft {
    let features = if width > 0 { features(read - 1, width) } else { Features::new() };
    let context = DraftContext {
        sequence: SequenceId(0),
        tokens,
        prompt_len: PROMPT,
        sampling,
        randomness: &KeyedRandomness { seed: 3, sample: 0 },
        shape,
        feedback: &TargetFeedback { features, last_draft: None },
        cancel: &AtomicBool::new(false),
        tokens_on_last_device: None,
    };
    drafter.draft(&context).unwrap()
}

fn warm() -> Sampling {
    Sampling {
        options: SamplingOptions { temperature: 0.8, ..SamplingOptions::default() },
        verification: Verification::Rejection,
        ..Sampling::greedy()
    }
}

/// Compares the drafts of a drafter that misses rounds with those of one that does not.
fn assert_same_drafts(name: &str, make: &dyn Fn() -> Box<dyn Drafter>, width: usize) {
    for sampling in [Sampling::greedy(), warm()] {
        for shape in [
            DraftShape::Chain { length: 4 },
            DraftShape::Top { width: 3, depth: 3, budget: Some(7) },
        ] {
            let (mut drafts_always, mut misses_rounds) = (make(), make());
            let mut tokens: Vec<TokenId> = (0..PROMPT as u32).map(|at| at * 37 % 250).collect();
            for round in 0..10 {
                let expected = draft(&mut *drafts_always, &tokens, width, &shape, &sampling);
                assert!(!expected.tree.is_empty(), "{name}, round {round}");
                if [0, 1, 4, 5, 9].contains(&round) {
                    let found = draft(&mut *misses_rounds, &tokens, width, &shape, &sampling);
                    assert_eq!(found, expected, "{name}, {shape:?}, round {round}");
                }
                // The round commits a part of the draft, or a long lookup, and another token.
                let path = expected.tree.path(expected.tree.len() - 1);
                let accepted = path[..round % (path.len() + 1)].iter();
                tokens.extend(accepted.map(|&node| expected.tree.token(node)));
                tokens.extend((0..if round == 6 { 16 } else { 0 }).map(|at| at * 11 % 250));
                tokens.push(round as TokenId);
            }
        }
    }
}

#[test]
fn drafters_that_miss_rounds_draft_as_those_that_do_not() {
    let models = Models::new();
    let cached = || CachedTransformer::new(transformer(&models.target));
    let model = || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(cached())) };
    assert_same_drafts("model", &model, 0);
    let easyspec = || -> Box<dyn Drafter> {
        let (groups, every_round) = (LayerGroups::of_sizes(&[1, 3]), CalibrationPolicy::EveryRound);
        Box::new(LayerParallelDrafter::new(cached(), groups, every_round))
    };
    assert_same_drafts("easyspec", &easyspec, 0);
    for layout in [
        SpeculatorLayout::Medusa,
        SpeculatorLayout::HydraPlusPlus,
        SpeculatorLayout::Eagle,
        SpeculatorLayout::Eagle3,
        SpeculatorLayout::ParallelEagle,
        SpeculatorLayout::DFlash,
        SpeculatorLayout::JetSpec,
        SpeculatorLayout::DFlash2,
        SpeculatorLayout::Pard2,
    ] {
        let width = models.drafter(layout).1;
        assert_same_drafts(&format!("{layout:?}"), &|| models.drafter(layout).0, width);
    }
}

/// Others have drafted the first tokens, as where a grammar determines them. The drafter may have
/// seen them before, or not.
#[test]
fn a_draft_goes_on_after_tokens_that_the_target_has_not_read() {
    let models = Models::new();
    for layout in [
        SpeculatorLayout::Medusa,
        SpeculatorLayout::Hydra,
        SpeculatorLayout::HydraPlusPlus,
        SpeculatorLayout::Eagle,
        SpeculatorLayout::Eagle3,
    ] {
        let tokens: Vec<TokenId> = (0..PROMPT as u32).map(|at| at * 37 % 250).collect();
        for sampling in [Sampling::greedy(), warm()] {
            let chain = |length| DraftShape::Chain { length };
            let (mut used, width) = models.drafter(layout);
            let whole = draft(&mut *used, &tokens, width, &chain(POSITIONS), &sampling);
            let Proposal::Sampled(rows) = &whole.proposal else { panic!("{layout:?}") };
            for ahead in [3, 1, 2] {
                let all = [&tokens[..], &whole.tree.tokens()[..ahead]].concat();
                // There are heads for one token less.
                let shape = chain(POSITIONS - ahead + 1);
                for drafter in [&mut *used, &mut *models.drafter(layout).0] {
                    let at = (&all[..], tokens.len());
                    let rest = draft_after(drafter, at, width, &shape, &sampling);
                    let count = POSITIONS - ahead;
                    let case = format!("{layout:?}, {ahead} ahead");
                    assert_eq!(rest.tree.tokens()[..count], whole.tree.tokens()[ahead..], "{case}");
                    let Proposal::Sampled(found) = &rest.proposal else { panic!("{case}") };
                    assert_eq!(found[..count], rows[ahead..POSITIONS], "{case}");
                }
            }
        }
    }
}
