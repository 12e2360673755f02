//! Mutants of drafts: they are not what the drafter says of them.

use crate::methods::{chain, iid, speculative, top};
use crate::mutants::{Mutant, Setup, SharedModels};
use crate::tables::rows_of;
use forerun_core::{Draft, DraftShape, Proposal, Sampler, SequenceId, TokenTree};
use forerun_draft::{DraftContext, Drafter};
use forerun_lm::ModelError;
use forerun_lm::fake::row_prefix;
use std::rc::Rc;

/// A change of drafts after they were made.
type Change = fn(&SharedModels, Draft, &DraftContext<'_>) -> Draft;

/// Changes drafts after they were made.
struct MutantDrafter {
    models: SharedModels,
    drafter: Box<dyn Drafter>,
    change: Change,
}

impl Drafter for MutantDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let draft = self.drafter.draft(context)?;
        Ok((self.change)(&self.models, draft, context))
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let mutant = |name: String, shape: DraftShape, change: Change| {
        let decoder = shape.clone();
        let original = Setup::with_model(models, move || speculative(&decoder));
        Mutant::new(name, original, with_change(models, shape, change))
    };
    let mut all = vec![
        mutant("repeated sibling tested once".into(), iid(&[2]), without_repetition),
        mutant("low confidence dropped".into(), chain(1), if_confident),
    ];
    for shape in [top(1, 1), top(2, 1), top(2, 2)] {
        all.push(mutant(format!("ratio test on {shape:?}"), shape, with_rows));
    }
    for shape in [top(1, 2), top(2, 1), top(2, 2)] {
        let (ours, published) = (Rc::clone(models), Rc::clone(models));
        let name = format!("layer-parallel ratio test on {shape:?}");
        let decoder = move || speculative(&shape);
        let drafter = move || -> Box<dyn Drafter> {
            let (models, drafter) = (Rc::clone(&published), published.layer_parallel_drafter());
            Box::new(MutantDrafter { models, drafter, change: with_layer_parallel_rows })
        };
        let original = Setup::new(move || ours.layer_parallel_drafter(), decoder.clone());
        all.push(Mutant::new(name, original, Setup::new(drafter, decoder)));
    }
    all
}

/// Returns speculative decoding with changed drafts.
fn with_change(models: &SharedModels, shape: DraftShape, change: Change) -> Setup {
    let models = Rc::clone(models);
    let drafter = move || -> Box<dyn Drafter> {
        let (models, drafter) = (Rc::clone(&models), models.drafter());
        Box::new(MutantDrafter { models, drafter, change })
    };
    Setup::new(drafter, move || speculative(&shape))
}

pub(super) fn unchanged(models: &SharedModels, shape: DraftShape) -> Setup {
    with_change(models, shape, |_, draft, _| draft)
}

/// As in EasySpec's published code: the most probable candidates are accepted with min(1,
/// target/draft).
fn with_rows(models: &SharedModels, draft: Draft, context: &DraftContext<'_>) -> Draft {
    let row = |at| models.draft_row(&row_prefix(context.tokens, &draft.tree, at));
    let rows: Vec<_> = rows_of(&draft.tree).map(row).collect();
    sampled_from(&rows, draft, context)
}

/// The published rule for EasySpec's drafts. They are exact as they are verified here.
fn with_layer_parallel_rows(
    models: &SharedModels,
    draft: Draft,
    context: &DraftContext<'_>,
) -> Draft {
    let row = |at| models.layer_parallel_row(context.tokens, &draft.tree, at);
    let rows: Vec<_> = rows_of(&draft.tree).map(row).collect();
    sampled_from(&rows, draft, context)
}

/// Returns a draft as if it had been drawn from rows of logits.
fn sampled_from(rows: &[Vec<f32>], draft: Draft, context: &DraftContext<'_>) -> Draft {
    let sampler = Sampler::new(context.sampling, context.tokens, context.prompt_len);
    let tree = &draft.tree;
    let distribution = |(at, row): (_, &Vec<f32>)| sampler.distribution(row, tree, at).unwrap();
    let proposal = Proposal::Sampled(rows_of(tree).zip(rows).map(distribution).collect());
    Draft { proposal, ..draft }
}

fn without_repetition(_: &SharedModels, draft: Draft, _: &DraftContext<'_>) -> Draft {
    let mut tree = TokenTree::new();
    for node in draft.tree.children(None) {
        let token = draft.tree.token(node);
        if tree.child_with(None, token).is_none() {
            tree.push(None, token);
        }
    }
    Draft { tree, ..draft }
}

/// A token is dropped for its own low confidence.
fn if_confident(models: &SharedModels, draft: Draft, context: &DraftContext<'_>) -> Draft {
    let sampler = Sampler::new(context.sampling, context.tokens, context.prompt_len);
    let logits = models.draft_row(context.tokens);
    let row = sampler.distribution(&logits, &TokenTree::new(), None).unwrap();
    let confident = draft.tree.tokens().first().is_some_and(|&t| row.probability(t) > 0.4);
    if confident { draft } else { Draft::empty() }
}
