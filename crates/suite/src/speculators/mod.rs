//! Drafters that were trained for a target: they compute what their papers define, compared with
//! plain loops; they have the bits of the slow reference, in passes over several sequences, trees,
//! masks and blocks, and after rollbacks; and a round keeps no rows that were computed from
//! predicted features.

mod eagle;
mod heads;
mod parallel;
mod plain;
mod rollbacks;
mod rounds;

use crate::prelude::*;
use SpeculatorLayout as L;
use tempfile::TempDir;
use {eagle::*, heads::*, parallel::*, plain::*, rollbacks::*, rounds::*};

pub use rounds::{assert_same_rounds, layouts};

suite! { $ speculators:
    eagle_matches_its_paper,
    eagle_3_matches_its_paper,
    parallelspec_matches_its_paper,
    parallelspec_continues_a_draft_on_its_predictions,
    medusa_matches_its_paper_in_every_layout,
    hydra_matches_its_paper,
    drafters_with_fewer_tokens_have_the_logits_of_their_tokens,
    logits_of_the_targets_head_are_divided_and_limited,
    every_drafter_for_a_target_has_the_bits_of_the_reference,
    eagle_3_has_the_bits_of_the_reference_with_all_options,
    parts_of_heads_of_all_types_have_the_bits_of_the_reference,
    many_features_have_the_bits_of_the_reference,
    mtp_heads_have_the_bits_of_the_reference,
    assistants_have_the_bits_of_the_reference,
    drafters_for_other_families_have_the_bits_of_the_reference,
    the_rest_of_a_block_has_the_bits_of_the_reference,
    a_round_keeps_no_predicted_rows,
    rounds_of_mtp_heads_have_the_bits_of_fresh_ones,
    hydras_cached_states_equal_those_of_a_fresh_model,
    cancelled_passes_of_drafters_leave_no_wrong_rows,
    pard_2_drafts_the_same_with_the_targets_final_norm_alone,
    long_prompts_of_pard_2_have_the_bits_of_short_steps,
}

/// The number of mask tokens or heads of random drafters.
pub const POSITIONS: usize = 3;

const SEQUENCE: SequenceId = SequenceId(7);

/// A random target of drafters, and the folder of both.
pub struct Target {
    /// The folder.
    pub folder: TempDir,
    /// The target's configuration.
    pub config: Config,
    /// The target.
    pub checkpoint: Checkpoint,
}

impl Target {
    /// Writes a target, with its MTP heads if it has some.
    #[must_use]
    pub fn of(config: Config, has_mtp: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target");
        let write =
            if has_mtp { write_random_checkpoint_with_mtp } else { write_random_checkpoint };
        write(&path, &config, 3, RandomDtype::F32).unwrap();
        Self { folder, config, checkpoint: Checkpoint::open(&path).unwrap() }
    }

    /// Writes a plain target.
    #[must_use]
    pub fn plain() -> Self {
        Self::of(examples().remove(0), false)
    }

    /// Writes a plain target with one layer.
    fn of_one_layer() -> Self {
        Self::of(Config { num_hidden_layers: 1, ..example_config() }, false)
    }

    /// Writes a random drafter, and opens it.
    #[must_use]
    pub fn drafter(&self, layout: L) -> Speculator {
        let path = self.folder.path().join(format!("{layout:?}"));
        let hash = Some(self.checkpoint.embedding_sha256().unwrap());
        let (target, positions) = (&self.config, POSITIONS);
        RandomSpeculator { layout, target, seed: 3, positions, target_embedding_sha256: hash }
            .write(&path)
            .unwrap();
        Speculator::open(&path, &self.checkpoint).unwrap().unwrap()
    }

    /// Returns a drafter in f32 on a device.
    fn on<'a, D: Device>(&'a self, device: &'a D, speculator: Speculator) -> Drafter<'a, D> {
        let types = ModelTypes::from(device.offer().weight_types[0]);
        let part = TargetPart::Whole;
        Drafter { device, target: self, speculator, types, part }
    }

    /// Returns a random drafter in f32 on a device, and its tensors.
    fn random<'a, D: Device>(
        &'a self,
        device: &'a D,
        layout: SpeculatorLayout,
    ) -> (Drafter<'a, D>, Tensors) {
        let drafter = self.on(device, self.drafter(layout));
        let tensors = Tensors::of_drafter(
            &self.folder.path().join(format!("{layout:?}")),
            &self.folder.path().join("target"),
        );
        (drafter, tensors)
    }
}

/// A drafter on a device, in some types, next to some of its target.
struct Drafter<'a, D: Device> {
    device: &'a D,
    target: &'a Target,
    speculator: Speculator,
    types: ModelTypes,
    part: TargetPart,
}

impl<D: Device> Drafter<'_, D> {
    fn target_weights(&self) -> D::Weights {
        self.device.load_target(&self.target.checkpoint, self.types, self.part)
    }

    /// Loads the weights of the drafter's layers.
    fn weights(&self) -> Arc<D::Weights> {
        let SpeculatorArchitecture::Layers(layers) = self.speculator.architecture().unwrap() else {
            panic!("a drafter of layers")
        };
        let target = self.target_weights();
        Arc::new(self.device.load_layers((&self.speculator, &target, self.types), layers))
    }

    /// Loads the drafter's layers.
    fn layers(&self, run: Run<D::Variant>) -> D::Model {
        self.device.model(&self.weights(), run)
    }

    /// Loads a drafter whose rows read features.
    fn eagle(&self, threads: usize) -> EagleModel<D::Model> {
        EagleModel::new(self.layers(Run { threads, ..self.device.best() }))
    }

    /// Loads a drafter's heads.
    fn heads(&self, run: Run<D::Variant>) -> HeadsModel<D::Heads, D::Model> {
        let SpeculatorArchitecture::Heads(heads) = self.speculator.architecture().unwrap() else {
            panic!("a drafter of heads")
        };
        let target = self.target_weights();
        self.device.heads((&self.speculator, &target, self.types), heads, run)
    }
}

fn tokens() -> Vec<TokenId> {
    vec![17, 3, 250, 3, 99, 41, 41, 7, 120]
}

/// ```text
/// 5 ─ 6 ─ 7
/// └ 8
/// 9
/// ```
fn tree() -> TokenTree {
    let mut tree = TokenTree::chain(&[5, 6, 7]);
    tree.push(Some(0), 8);
    tree.push(None, 9);
    tree
}

/// Returns arbitrary features for `count` tokens.
fn features(count: usize, size: usize) -> Features {
    let mut features = Features::new();
    // In two parts, as they arrive in different rounds.
    for part in [0..count / 2, count / 2..count] {
        let value = |at: usize| ((at * 7919 + 13) % 1000) as f32 / 500.0 - 1.0;
        let values = part.flat_map(|token| (0..size).map(move |i| value(token * size + i)));
        features.push(FeatureRows::new(size, values.collect()));
    }
    features
}

fn rows_of(features: &Features) -> Vec<Vec<f64>> {
    features.rows_from(0).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
}

fn assert_near(found: &[f32], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.iter().map(Vec::len).sum::<usize>(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected.iter().flatten()).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 1e-3, "{what}, {at}: {found} {expected}");
    }
}

fn logits(
    model: &mut impl LanguageModel,
    tokens: &[TokenId],
    features: &Features,
    tree: &TokenTree,
    first_row: usize,
) -> Vec<f32> {
    let request = ForwardRequest::new(SEQUENCE, tokens, tree);
    let request = ForwardRequest { first_row, features: Some(features), ..request };
    model.logits(&request).unwrap().logits
}

/// Returns the logits of a tree that grows level by level.
fn grown_logits(
    model: &mut impl LanguageModel,
    tokens: &[TokenId],
    features: &Features,
    tree: &TokenTree,
) -> Vec<f32> {
    let rows = 0..=tree.len();
    rows.flat_map(|row| logits(model, tokens, features, &tree.first(row), row)).collect()
}
