//! DSpark and DFlash 2: heads that correct a block position by position.

use crate::drafters::Make;
use crate::exactness::assert_exact_of;
use crate::experiment::Experiment;
use crate::kinds_of_drafters::assert_pearl_on_features_is_exact;
use crate::methods::{best, chain, iid, most_probable, ranked, speculative, top};
use crate::options::sampling;
use crate::tables::{DRAFT_MODEL, FeatureTable, VOCAB, rows_of};
use forerun_core::{
    Distribution, Draft, FeatureRows, Features, Proposal, Sampling, SequenceId, TargetFeedback,
    TokenId,
};
use forerun_draft::{DraftContext, Drafter, Masks, ParallelEagleDrafter};
use forerun_lm::fake::{TableModel, row_prefix};
use forerun_lm::{
    BatchEntry, BlockCorrection, BlockPosition, FeatureModel, ForwardBlockHeads, ForwardOutput,
    LanguageModel, ModelError, complete_each,
};
use std::sync::atomic::AtomicBool;

/// A drafter's table that returns a number for each row of a block as its hidden state.
struct BlockTable(FeatureTable);

impl LanguageModel for BlockTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.0.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let output = self.0.logits(request)?;
            let last = &request.tokens[request.tokens.len() - 1..];
            let hidden = |at| self.0.0.row(&row_prefix(last, request.tree, at))[0];
            let hidden: Vec<f32> = rows_of(request.tree).map(hidden).collect();
            let features = request.features_from.map(|_| FeatureRows::new(1, hidden.clone()));
            Ok(ForwardOutput { features, ..output })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for BlockTable {}

/// Heads whose state is a number that depends on all tokens of the block so far. Some of their
/// confidences end a draft.
struct TableHeads {
    table: TableModel,
    is_recurrent: bool,
    /// A token after which the logits overflow.
    overflows_after: Option<TokenId>,
    /// The number of tokens that the heads choose among, as DFlash 2's selector does. Nothing ends
    /// a draft then.
    candidates: Option<usize>,
}

impl ForwardBlockHeads for TableHeads {
    fn is_recurrent(&self) -> bool {
        self.is_recurrent
    }

    fn candidates(&self) -> Option<usize> {
        self.candidates
    }

    fn forward(&mut self, positions: &[BlockPosition<'_>]) -> Vec<BlockCorrection> {
        let correction = |position: &BlockPosition<'_>| {
            let BlockPosition { hidden, previous, state, .. } = *position;
            let state = state.first().map_or(0, |state| *state as TokenId);
            let mut row = self.table.row(&[hidden[0].to_bits(), previous, state]);
            if self.candidates.is_some() {
                assert_eq!(Some(position.candidates.len()), self.candidates);
                let candidates = position.candidates.iter();
                let logit_bias = candidates.map(|&token| row[token as usize]).collect();
                return BlockCorrection { logit_bias, confidence: 1.0, state: Vec::new() };
            }
            if self.overflows_after == Some(previous) {
                row[0] = f32::INFINITY;
                return BlockCorrection { logit_bias: row, confidence: 0.6, state: vec![0.0] };
            }
            let confidence = if row[0] > 0.75 { 0.05 } else { 0.6 };
            let next = (3 * state + previous + 1) as f32;
            let state = if self.is_recurrent { vec![next] } else { Vec::new() };
            BlockCorrection { logit_bias: row, confidence, state }
        };
        positions.iter().map(correction).collect()
    }
}

fn dspark(masks: &Masks, is_recurrent: bool) -> Box<dyn Drafter> {
    let drafter = ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
    let table = TableModel::new(11, VOCAB, 3.0);
    Box::new(drafter.with_heads(Box::new(TableHeads {
        table,
        is_recurrent,
        overflows_after: None,
        candidates: None,
    })))
}

/// The best two tokens of each position are corrected, and the third one is never drafted.
fn dflash2(masks: &Masks, candidates: usize) -> Box<dyn Drafter> {
    let drafter = ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
    Box::new(drafter.with_heads(Box::new(TableHeads {
        table: TableModel::new(11, VOCAB, 3.0),
        is_recurrent: false,
        overflows_after: None,
        candidates: Some(candidates),
    })))
}

/// Overflow depends on the tokens that the drafter draws.
#[test]
fn blocks_whose_heads_overflow_are_exact() {
    for token in 0..VOCAB as TokenId {
        let drafter = || -> Box<dyn Drafter> {
            let masks = Masks::AnchoredBlock { mask: 1, size: 3 };
            let drafter = ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks);
            let table = TableModel::new(11, VOCAB, 3.0);
            let overflows_after = Some(token);
            Box::new(drafter.with_heads(Box::new(TableHeads {
                table,
                is_recurrent: false,
                overflows_after,
                candidates: None,
            })))
        };
        for shape in [chain(2), best(3), iid(&[2, 1])] {
            let name = format!("speculative, dspark that overflows after {token}, {shape:?}");
            assert_exact_of(&name, &drafter, &|| speculative(&shape), (3, true));
        }
    }
}

#[test]
fn blocks_with_heads_are_exact() {
    let anchored = |size| Masks::AnchoredBlock { mask: 1, size };
    for (name, masks, is_recurrent) in [
        ("dspark", anchored(3), false),
        ("recurrent dspark", anchored(3), true),
        ("recurrent dspark in place", Masks::Block { mask: 1, size: 4 }, true),
    ] {
        let drafter = || dspark(&masks, is_recurrent);
        for shape in
            [chain(1), chain(2), top(2, 2), ranked(&[2, 1]), most_probable(3), iid(&[2, 1])]
        {
            let name = format!("speculative, {name}, {shape:?}");
            assert_exact_of(&name, &drafter, &|| speculative(&shape), (3, true));
        }
    }
    for (name, size) in [("dspark", 7), ("dspark with a short block", 3)] {
        assert_pearl_on_features_is_exact(name, &|| dspark(&anchored(size), true));
    }
}

#[test]
fn blocks_with_selectors_are_exact() {
    let masks = Masks::Block { mask: 1, size: 4 };
    for candidates in [1, 2, VOCAB] {
        let drafter = || dflash2(&masks, candidates);
        for shape in
            [chain(1), chain(2), top(2, 2), ranked(&[2, 1]), most_probable(3), iid(&[2, 1])]
        {
            let name = format!("speculative, dflash 2 of {candidates}, {shape:?}");
            assert_exact_of(&name, &drafter, &|| speculative(&shape), (3, true));
        }
    }
    for (name, masks) in [
        ("dflash 2", Masks::Block { mask: 1, size: 7 }),
        ("dflash 2 with a short block", Masks::Block { mask: 1, size: 4 }),
        ("causal dflash 2", Masks::CausalBlock { mask: 1, size: 5 }),
    ] {
        assert_pearl_on_features_is_exact(name, &|| dflash2(&masks, 2));
    }
}

/// The proposal's distributions are those of all tokens, not of the candidates only.
#[test]
fn mutant_proposals_of_all_tokens_instead_of_candidates() {
    struct Unrestricted;

    impl Drafter for Unrestricted {
        fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
            let masks = Masks::Block { mask: 1, size: 4 };
            let draft = dflash2(&masks, 2).draft(context)?;
            let Proposal::Sampled(rows) = dflash2(&masks, VOCAB).draft(context)?.proposal else {
                return Ok(draft);
            };
            Ok(Draft { proposal: Proposal::Sampled(rows), ..draft })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    let decoder = || speculative(&chain(1));
    let drafter = || -> Box<dyn Drafter> { Box::new(Unrestricted) };
    let off = |drafter: Make<'_>| {
        let experiment = Experiment::of(sampling(1.0, 0, 1.0), drafter, &decoder);
        Experiment { tokens: 3, features: true, ..experiment }.deviation()
    };
    let deviation = off(&drafter);
    println!("mutant \"all tokens proposed\" is off by {deviation:.4}");
    assert!(deviation > 1e-3, "the mutant was not caught: off by {deviation}");
}

/// Heads end some drafts, and change their tokens.
#[test]
fn heads_make_a_difference() {
    let features = |tokens: &[TokenId]| {
        let mut features = Features::new();
        let rows = tokens.iter().map(|&token| token as f32).collect();
        features.push(FeatureRows::new(1, rows));
        features
    };
    let draft = |drafter: &mut dyn Drafter, tokens: &[TokenId]| {
        let sampling = Sampling::greedy();
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len: 1,
            sampling: &sampling,
            randomness: &sampling.randomness,
            shape: &chain(3),
            feedback: &TargetFeedback { features: features(tokens), last_draft: None },
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap().tree.tokens().to_vec()
    };
    let masks = Masks::AnchoredBlock { mask: 1, size: 3 };
    let mut plain = ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
    let [mut shorter, mut longest, mut other] = [0; 3];
    for number in 0..27 {
        let tokens = [number / 9, number / 3 % 3, number % 3];
        let (with, without) =
            (draft(&mut *dspark(&masks, true), &tokens), draft(&mut plain, &tokens));
        assert_eq!(without.len(), 3);
        shorter += usize::from(with.len() < 3);
        longest += usize::from(with.len() == 3);
        other += usize::from(!without.starts_with(&with));
    }
    assert!(shorter > 3 && longest > 3 && other > 3, "{shorter}, {longest}, {other}");
}

/// The proposal's distributions are those before the bias.
#[test]
fn mutant_proposals_without_the_bias_of_the_heads() {
    struct Uncorrected;

    impl Drafter for Uncorrected {
        fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
            let masks = Masks::AnchoredBlock { mask: 1, size: 3 };
            let mut plain =
                ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
            let draft = dspark(&masks, false).draft(context)?;
            let Proposal::Sampled(mut rows) = plain.draft(context)?.proposal else {
                return Ok(draft);
            };
            rows.resize(draft.tree.len() + 1, Distribution::default());
            rows[draft.tree.len()] = Distribution::default();
            Ok(Draft { proposal: Proposal::Sampled(rows), ..draft })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    let decoder = || speculative(&chain(1));
    let drafter = || -> Box<dyn Drafter> { Box::new(Uncorrected) };
    let off = |drafter: Make<'_>| {
        let experiment = Experiment::of(sampling(1.0, 0, 1.0), drafter, &decoder);
        Experiment { tokens: 3, features: true, ..experiment }.deviation()
    };
    let deviation = off(&drafter);
    println!("mutant \"bias left out\" is off by {deviation:.4}");
    assert!(deviation > 1e-3, "the mutant was not caught: off by {deviation}");
    assert!(off(&|| dspark(&Masks::AnchoredBlock { mask: 1, size: 3 }, false)) < 1e-6);
}
