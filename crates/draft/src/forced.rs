//! Drafts that begin with the tokens that a constraint determines. These need no pass of the
//! drafter.
//!
//! 1. Where a grammar determines how an answer goes on, a draft begins with these tokens, in the
//!    tokenizer's own spelling.
//! 2. If they are fewer than requested, the drafter goes on after them, as after draft tokens that
//!    are not verified yet.
//!
//! A model may spell the same text otherwise, so the tokens are verified like others. They are a
//! function of the tokens before them. A tree has them only if they fill all of its depths, and
//! these are several: its candidates are allowed tokens anyway.

use crate::{DraftContext, Drafter};
use forerun_core::{Draft, DraftShape, Key, Purpose, Randomness, TokenId, TokenTree, Verification};
use forerun_lm::ModelError;
use std::borrow::Cow;

/// Drafts for several sequences, as [`Drafter::draft_batch`] does. Drafts begin with the tokens
/// that the constraints of their sequences determine.
pub fn draft_with_forced_tokens(
    drafter: &mut dyn Drafter,
    contexts: &[DraftContext<'_>],
    done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
) {
    let mut starts = Vec::new();
    for (index, context) in contexts.iter().enumerate() {
        let forced = forced_tokens(context);
        if !forced.is_empty() {
            drafter.record_forced(context, &forced);
        }
        match context.shape.depth() == forced.len() && !forced.is_empty() {
            true => done(index, Ok(Draft::deterministic(TokenTree::chain(&forced)))),
            false => starts.push(Start::new(index, context, forced)),
        }
    }
    let further: Vec<DraftContext<'_>> = starts.iter().map(Start::further).collect();
    if !further.is_empty() {
        drafter.draft_batch(&further, &mut |number, draft| {
            let start: &Start<'_> = &starts[number];
            done(start.index, draft.map(|further| start.followed_by(further)));
        });
    }
}

/// Returns the tokens with which a draft begins.
fn forced_tokens(context: &DraftContext<'_>) -> Vec<TokenId> {
    let depth = context.shape.depth();
    let constraint = context.sampling.constraint.as_ref().filter(|_| depth > 0);
    // If it could not be compiled here, the rows of the drafter report that.
    let constraint = constraint.and_then(|constraint| constraint.compiled().ok());
    let answer = context.tokens.get(context.prompt_len..);
    let (Some(constraint), Some(answer)) = (constraint, answer) else { return Vec::new() };
    let forced = constraint.forced(answer, depth);
    let is_chain =
        matches!(context.shape, DraftShape::Chain { .. } | DraftShape::ConfidentChain { .. });
    // A tree of one depth asks for alternatives.
    let fills_tree = depth > 1 && forced.len() == depth;
    if is_chain || fills_tree { forced } else { Vec::new() }
}

/// The first tokens of a draft, which do not fill it, if there are any.
struct Start<'a> {
    /// The index of its context.
    index: usize,
    context: &'a DraftContext<'a>,
    forced: Vec<TokenId>,
    /// The context's tokens and the forced ones.
    tokens: Cow<'a, [TokenId]>,
    /// What is left of the requested shape.
    shape: DraftShape,
    randomness: FurtherRandomness<'a>,
}

impl<'a> Start<'a> {
    fn new(index: usize, context: &'a DraftContext<'a>, forced: Vec<TokenId>) -> Self {
        let shape = context.shape.truncated(context.shape.depth() - forced.len());
        let randomness = FurtherRandomness {
            randomness: context.randomness,
            verification: context.sampling.verification,
            forced: forced.len(),
        };
        let tokens = match forced.is_empty() {
            true => context.tokens.into(),
            false => [context.tokens, &forced].concat().into(),
        };
        Self { index, context, forced, tokens, shape, randomness }
    }

    /// Returns what the drafter gets.
    fn further(&self) -> DraftContext<'_> {
        let Self { tokens, shape, randomness, .. } = self;
        DraftContext { tokens, shape, randomness, ..*self.context }
    }

    /// Returns the draft that goes on with the drafter's.
    fn followed_by(&self, mut further: Draft) -> Draft {
        let mut confidences = std::mem::take(&mut further.confidences);
        if !confidences.is_empty() {
            confidences.splice(..0, vec![1.0; self.forced.len()]);
        }
        let mut draft = Draft::deterministic(TokenTree::chain(&self.forced));
        draft.extend(further);
        Draft { confidences, ..draft }
    }
}

/// The draws of a drafter that goes on after forced tokens. The keys of block verification name the
/// draft's start and the node ([`draft_key`](forerun_core::draft_key)), and the forced tokens are
/// the draft's first nodes.
struct FurtherRandomness<'a> {
    randomness: &'a dyn Randomness,
    verification: Verification,
    /// The number of forced tokens.
    forced: usize,
}

impl Randomness for FurtherRandomness<'_> {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let Self { forced, .. } = *self;
        let key = match (self.verification, key.purpose) {
            (Verification::Block, Purpose::Draft) => Key {
                position: key.position - forced,
                candidate: key.candidate + forced as u32,
                ..key
            },
            _ => key,
        };
        self.randomness.locate(key, thresholds)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{ModelDrafter, single_draft};
    use forerun_core::{
        KeyedRandomness, Proposal, Sampling, SamplingOptions, SequenceId, StopRule, TargetFeedback,
        reference,
    };
    use forerun_lm::fake::TableModel;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 3;

    /// Records the keys of its draws.
    #[derive(Default)]
    struct Recording(Mutex<Vec<(usize, u32)>>);

    impl Randomness for Recording {
        fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
            self.0.lock().unwrap().push((key.position, key.candidate));
            KeyedRandomness { seed: 1, sample: 0 }.locate(key, thresholds)
        }
    }

    /// Drafts after the prompt 1 2 and an answer. Returns the draft and the keys of its draws.
    fn draft(
        answer: &[TokenId],
        shape: &DraftShape,
        verification: Verification,
    ) -> (Draft, Vec<(usize, u32)>) {
        let options = SamplingOptions { temperature: 1.0, ..SamplingOptions::default() };
        let constraint = Some(reference::Runs { vocab_size: VOCAB as TokenId }.constraint());
        let sampling = Sampling { options, verification, constraint, ..Sampling::greedy() };
        let (tokens, randomness) = ([&[1, 2], answer].concat(), Recording::default());
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens: &tokens,
            prompt_len: 2,
            sampling: &sampling,
            randomness: &randomness,
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        let mut drafter = ModelDrafter::new(TableModel::new(7, VOCAB, 4.0));
        let draft =
            single_draft(|done| draft_with_forced_tokens(&mut drafter, &[context], done)).unwrap();
        assert!(draft.is_consistent());
        (draft, randomness.0.into_inner().unwrap())
    }

    #[test]
    fn forced_tokens_begin_a_draft_and_the_drafter_goes_on() {
        let rule = Verification::Rejection;
        let chain = |length| DraftShape::Chain { length };
        // After 0, a run is 2 1.
        for length in [1, 2] {
            let (draft, keys) = draft(&[0], &chain(length), rule);
            assert_eq!(draft, Draft::deterministic(TokenTree::chain(&[2, 1][..length])));
            assert!(keys.is_empty());
        }
        let (whole, keys) = draft(&[0], &chain(4), rule);
        assert_eq!((whole.tree.len(), &whole.tree.tokens()[..2]), (4, &[2, 1][..]));
        assert!(matches!(&whole.proposal, Proposal::Sampled(rows) if rows.len() == 5));
        assert_eq!(keys[0], (5, 0), "the keys name the positions");
        // A job of its own makes the same draft.
        let (rest, _) = draft(&[0, 2, 1], &chain(2), rule);
        assert_eq!(whole.tree.tokens()[2..], *rest.tree.tokens());
        // Nothing is determined after a 1.
        let (free, keys) = draft(&[1], &chain(2), rule);
        assert_eq!((free.tree.len(), keys[0]), (2, (3, 0)));
    }

    #[test]
    fn keys_of_blocks_name_the_start_of_the_draft() {
        let (_, keys) = draft(&[0], &DraftShape::Chain { length: 4 }, Verification::Block);
        assert!(!keys.is_empty() && keys.iter().all(|&(start, node)| start == 3 && node >= 2));
    }

    #[test]
    fn chains_of_every_shape_begin_with_forced_tokens_and_trees_if_these_fill_them() {
        let rule = Verification::Rejection;
        let confident = DraftShape::ConfidentChain { length: 4, stop: StopRule::NEVER };
        let (chain, _) = draft(&[0], &confident, rule);
        assert_eq!((chain.confidences.len(), &chain.confidences[..2]), (4, &[1.0, 1.0][..]));
        for (depth, nodes) in [(2, 2), (3, 4)] {
            let shape = DraftShape::Top { width: 2, depth, budget: Some(4) };
            assert_eq!(draft(&[0], &shape, rule).0.tree.len(), nodes, "depth {depth}");
        }
        let alternatives = DraftShape::Top { width: 2, depth: 1, budget: None };
        assert_eq!(draft(&[2], &alternatives, rule).0.tree.len(), 2);
        let nothing = DraftShape::Chain { length: 0 };
        assert!(draft(&[0], &nothing, rule).0.tree.is_empty());
    }
}
