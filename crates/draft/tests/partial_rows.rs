//! Drafts are the same whether a model returns whole rows or only the tokens that are read of them.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    Draft, DraftShape, KeyedRandomness, RowUse, Sampling, SamplingOptions, SequenceId,
    TargetFeedback, TokenId, Verification,
};
use forerun_draft::{
    DraftContext, Drafter, Masks, ModelDrafter, OuroborosDrafter, ParallelDrafter,
};
use forerun_lm::fake::TableModel;
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

const VOCAB: usize = 40;

/// The target has fewer tokens.
const TARGET_VOCAB: usize = 33;

const MODEL: TableModel = TableModel::new(3, VOCAB, 6.0);

/// A model that returns whole rows, or what is read of them.
struct Rows {
    returns_whole: bool,
    /// The number of requests of which not all logits are read.
    partial: Rc<Cell<usize>>,
}

impl LanguageModel for Rows {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        100
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        for BatchEntry { request, progress } in batch {
            let is_partial = request.rows_for != RowUse::Full;
            self.partial.set(self.partial.get() + usize::from(is_partial));
            let rows_for = if self.returns_whole { RowUse::Full } else { request.rows_for };
            progress.result = Some({ MODEL }.logits(&ForwardRequest { rows_for, ..*request }));
        }
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

fn samplings() -> Vec<Sampling> {
    let greedy = Sampling::greedy();
    let randomness = KeyedRandomness { seed: 8, sample: 0 };
    let with = |options: SamplingOptions| Sampling { options, randomness, ..Sampling::greedy() };
    let options = SamplingOptions { temperature: 0.8, ..SamplingOptions::default() };
    let top_k = |top_k| with(SamplingOptions { top_k, ..options.clone() });
    let nucleus = with(SamplingOptions { top_k: 9, top_p: 0.8, min_p: 0.05, ..options.clone() });
    let coupled = Sampling { verification: Verification::Coupled, ..top_k(6) };
    let penalty = with(SamplingOptions { repetition_penalty: 1.2, ..options.clone() });
    let free = with(options.clone());
    vec![greedy, free, top_k(1), top_k(4), top_k(99), nucleus, coupled, penalty]
}

fn shapes() -> Vec<DraftShape> {
    let top = |budget| DraftShape::Top { width: 3, depth: 3, budget };
    vec![
        DraftShape::Chain { length: 5 },
        DraftShape::Sampled { branching: vec![3, 2, 1] },
        top(None),
        top(Some(7)),
        DraftShape::Top { width: 4, depth: 1, budget: None },
        DraftShape::Ranked { children: vec![3, 0, 2, 0, 1] },
        DraftShape::Phrases { length: 4, width: 2, phrase: 2, budget: None },
    ]
}

/// Returns the drafts of a drafter after several prompts.
fn drafts(drafter: &mut dyn Drafter, sampling: &Sampling, shape: &DraftShape) -> Vec<Draft> {
    let prompts = (0..12).map(|start| {
        let tokens: Vec<TokenId> = (start..start + 4).map(|token| token * 5 % 31).collect();
        let context = DraftContext {
            sequence: SequenceId(u64::from(start)),
            tokens: &tokens,
            prompt_len: 2,
            sampling,
            randomness: &sampling.randomness,
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap()
    });
    prompts.collect()
}

#[test]
fn drafts_are_the_same_from_whole_and_from_partial_rows() {
    let partial = Rc::new(Cell::new(0));
    let rows = |returns_whole| Rows { returns_whole, partial: Rc::clone(&partial) };
    let new: [fn(Rows) -> Box<dyn Drafter>; 3] = [
        |rows| Box::new(ModelDrafter::new(rows).with_vocab_size(TARGET_VOCAB)),
        |rows| Box::new(OuroborosDrafter::new(rows).with_vocab_size(TARGET_VOCAB)),
        |rows| {
            let masks = Masks::Repeated(VOCAB as TokenId - 1);
            Box::new(ParallelDrafter::new(rows, masks).with_vocab_size(TARGET_VOCAB))
        },
    ];
    for (number, new) in new.into_iter().enumerate() {
        for (index, sampling) in samplings().iter().enumerate() {
            for shape in shapes() {
                let [whole, part] = [true, false]
                    .map(|returns_whole| drafts(&mut *new(rows(returns_whole)), sampling, &shape));
                assert_eq!(whole, part, "drafter {number}, options {index}, {shape:?}");
                assert!(part.iter().any(|draft| !draft.tree.is_empty()));
            }
        }
    }
    assert!(partial.get() > 1000, "{} requests of partial rows", partial.get());
}

/// Returns what a drafter reads of its model's rows.
fn read_of(sampling: &Sampling, shape: &DraftShape) -> bool {
    let partial = Rc::new(Cell::new(0));
    let rows = Rows { returns_whole: false, partial: Rc::clone(&partial) };
    drafts(&mut ModelDrafter::new(rows), sampling, shape);
    partial.get() > 0
}

#[test]
fn only_probabilities_of_greedy_trees_and_unlimited_samples_read_whole_rows() {
    let [greedy, free, _, top_k, all, nucleus, coupled, penalty] =
        <[Sampling; 8]>::try_from(samplings()).unwrap();
    let [chain, _, top, _, level, ranked, _] = <[DraftShape; 7]>::try_from(shapes()).unwrap();
    for (sampling, shape, is_partial) in [
        (&greedy, &chain, true),
        (&greedy, &ranked, true),
        (&greedy, &level, true),
        (&greedy, &top, false),
        (&top_k, &top, true),
        (&nucleus, &chain, true),
        (&coupled, &chain, true),
        (&free, &chain, false),
        (&free, &ranked, true),
        (&all, &chain, false),
        (&penalty, &ranked, false),
    ] {
        assert_eq!(read_of(sampling, shape), is_partial, "{sampling:?}, {shape:?}");
    }
}
