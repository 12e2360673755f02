//! `forerun certify` finds mutants that decode with its known models.

use crate::mutants::{ChangedKeys, Models, Mutant, Setup, SharedModels, mutants};
use forerun::Canceller;
use forerun_certify::{Decoding, KNOWN_VOCAB, KnownCheck, KnownModel, KnownPair, KnownVerdict};
use forerun_core::{Guess, Guesser, Node, SequenceId, TokenId, TokenTree};
use forerun_draft::{CalibrationPolicy, Drafter, LayerParallelDrafter, ModelDrafter};
use forerun_lm::fake::row_prefix;
use forerun_lm::{BatchEntry, LanguageModel, LayerGroups, LayeredModel};
use std::rc::Rc;
use std::sync::Arc;

/// The number of replicas that a setup may use.
const REPLICAS: usize = 3;

/// The models of a known pair.
struct Known(KnownPair);

impl Models for Known {
    fn target_row(&self, prefix: &[TokenId]) -> Vec<f32> {
        self.0.target.row(prefix)
    }

    fn draft_row(&self, prefix: &[TokenId]) -> Vec<f32> {
        self.0.drafters[0].row(prefix)
    }

    fn layer_parallel_row(
        &self,
        tokens: &[TokenId],
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Vec<f32> {
        self.draft_row(&row_prefix(tokens, tree, at))
    }

    fn drafter(&self) -> Box<dyn Drafter> {
        Box::new(ModelDrafter::new(self.0.drafters[0]))
    }

    fn other_drafter(&self) -> Box<dyn Drafter> {
        Box::new(ModelDrafter::new(self.0.drafters[1]))
    }

    fn layer_parallel_drafter(&self) -> Box<dyn Drafter> {
        let (model, calibration) = (WithLayers(self.0.drafters[0]), CalibrationPolicy::EveryRound);
        Box::new(LayerParallelDrafter::new(model, LayerGroups::of_sizes(&[2]), calibration))
    }

    fn guesser(&self) -> Box<dyn Guesser> {
        Box::new(Counting)
    }
}

/// A known model whose layers are exact in any order.
struct WithLayers(KnownModel);

impl LanguageModel for WithLayers {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.0.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        self.0.forward(batch);
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl LayeredModel for WithLayers {}

/// Guesses that the text counts on from its last token.
struct Counting;

impl Guesser for Counting {
    fn guess(&mut self, tokens: &[TokenId], _prompt_len: usize, length: usize) -> Guess {
        let last = tokens[tokens.len() - 1];
        let next = |step| (last + step) % KNOWN_VOCAB as TokenId;
        Guess { tokens: (1..=length as TokenId).map(next).collect(), score: length as f64 }
    }
}

fn decoding(setup: Setup) -> Decoding<'static> {
    let Setup { drafters, decoder, keys: change, verifies_whole_drafts } = setup;
    Decoding {
        drafters: drafters.iter().map(|make| make()).collect(),
        replicas: REPLICAS,
        decoder: Box::new(move |_| decoder()),
        randomness: Box::new(move |randomness| Arc::new(ChangedKeys { randomness, change })),
        feedback: false,
        verifies_whole_drafts,
    }
}

/// Counts answers of a mutant, or of its setup without the mistake.
fn count(index: usize, is_mutated: bool, answers: usize) -> KnownVerdict {
    let check = KnownCheck { answers, temperature: 0.8, seed: 1 };
    let decoding = |pair: &KnownPair| {
        let models: SharedModels = Rc::new(Known(*pair));
        let Mutant { original, mutated, .. } = mutants(&models).swap_remove(index);
        Some(decoding(if is_mutated { mutated } else { original }))
    };
    check.run(decoding, &Canceller::new()).unwrap().unwrap()
}

/// Mutants that only change sampling options do nothing if there are none. Seeded answers show them.
fn changes_options(name: &str) -> bool {
    name.starts_with("the root's ") || name.starts_with("prompt counted")
}

#[test]
fn certify_finds_mutants_on_known_models() {
    let answers = 10_000;
    let [first, ..] = KnownPair::ALL;
    let models: SharedModels = Rc::new(Known(first));
    for (index, Mutant { name, .. }) in mutants(&models).into_iter().enumerate() {
        if changes_options(&name) {
            continue;
        }
        let found = count(index, true, answers);
        println!("{name}: {found:?}");
        assert!(!found.plausible, "{name} was not found: {found:?}");
        let original = count(index, false, answers);
        assert!(original.plausible, "{name} without the mistake: {original:?}");
    }
}
