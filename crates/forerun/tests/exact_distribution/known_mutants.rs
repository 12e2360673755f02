//! The counts of `forerun certify` find mutants that decode with its known models. The mutants have
//! decoders of their own, not those of an engine, and all answers have the mistake. That the
//! decoders of an engine's configuration run there is tested in `forerun-certify`.

use crate::certified_mutants::OPTION_TOPICS;
use crate::mutants::{ChangedKeys, Models, Mutant, Setup, SharedModels, mutants};
use forerun::Canceller;
use forerun_certify::{
    DecoderSetup, DecoderSource, KNOWN_VOCAB, KnownCheck, KnownModel, KnownPair, KnownVerdict,
};
use forerun_core::testing::cases;
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

fn decoder_setup(setup: Setup) -> DecoderSetup {
    let Setup { drafters, decoder, keys: change, verifies_whole_drafts } = setup;
    DecoderSetup {
        drafters: drafters.iter().map(|make| make()).collect(),
        replaced: Vec::new(),
        replicas: REPLICAS,
        decoders: vec![DecoderSource::Function(Box::new(move || decoder()))],
        randomness: Box::new(move |randomness| Arc::new(ChangedKeys { randomness, change })),
        feedback: false,
        drafts: true,
        verifies_whole_drafts,
    }
}

/// Counts answers of a mutant, or of its setup without the mistake.
fn count(index: usize, is_mutated: bool, answers: usize) -> KnownVerdict {
    let check = KnownCheck { answers, temperature: 0.8, seed: 1 };
    let setup = |pair: &KnownPair| {
        let models: SharedModels = Rc::new(Known(*pair));
        let Mutant { original, mutated, .. } = mutants(&models).swap_remove(index);
        decoder_setup(if is_mutated { mutated } else { original })
    };
    check.run(&setup, &Canceller::new()).unwrap()
}

/// Mutants that only change penalties and constraints do nothing without them. Seeded answers show
/// them, on checkpoints.
fn changes_options(name: &str) -> bool {
    OPTION_TOPICS.iter().any(|topic| name.starts_with(topic))
}

/// Topics of mutants that need many answers, with their number for each rule of verification. All
/// others show with [`FEW_ANSWERS`].
const ANSWERS: [(&str, usize); 9] = [
    ("accept uniform shared by drafters", 8_000),
    ("low confidence dropped", 4_000),
    ("Draft uniform reused between siblings", 8_000),
    ("block verification, NoMinimum", 30_000),
    ("repeated sibling tested once", 30_000),
    ("keys of tests by position", 30_000),
    ("Accept uniform reused between siblings", MANY_ANSWERS),
    ("keys of draws by position", MANY_ANSWERS),
    ("block verification, TokenResidual", MANY_ANSWERS),
];
const FEW_ANSWERS: usize = 2_000;
/// The default of `forerun certify --known-answers`.
const MANY_ANSWERS: usize = 40_000;
/// The largest number of answers, unless `FORERUN_CASES` is larger.
const MOST_ANSWERS: usize = 4_000;

/// With `FORERUN_CASES`, the number of answers, mutants that need many are certified, too.
#[test]
fn certify_finds_mutants_on_known_models() {
    let most = MOST_ANSWERS.max(cases(0) as usize);
    let models: SharedModels = Rc::new(Known(KnownPair::ALL[0]));
    for (index, Mutant { name, .. }) in mutants(&models).into_iter().enumerate() {
        let answers = ANSWERS.iter().find(|(topic, _)| name.starts_with(topic));
        let answers = answers.map_or(FEW_ANSWERS, |&(_, answers)| answers);
        if changes_options(&name) || answers > most {
            continue;
        }
        let found = count(index, true, answers);
        println!(
            "{name}: p ≤ {:.1e}, {} answers, {}",
            found.probability,
            found.answers(),
            found.farthest
        );
        assert!(!found.plausible, "{name} was not found: {found:?}");
        let original = count(index, false, answers);
        assert!(original.passes(), "{name} without the mistake: {original:?}");
    }
}
