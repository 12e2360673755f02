//! Decoders and shapes of drafts.

use crate::tables::VOCAB;
use forerun_core::{Cluster, DraftShape, Guess, Guesser, TokenId};
use forerun_decode::{
    DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Pearl, PearlDraftLength, PearlOptions,
    PearlSchedule, Sequence, Speculative, SpeculativeDraftLength, Ssd,
};

pub(crate) fn speculative(shape: &DraftShape) -> Box<dyn Decoder> {
    Box::new(Speculative::new(SpeculativeDraftLength::new(shape.clone(), DraftLength::Fixed)))
}

pub(crate) fn chain(length: usize) -> DraftShape {
    DraftShape::Chain { length }
}

pub(crate) fn top(width: usize, depth: usize) -> DraftShape {
    DraftShape::Top { width, depth, budget: None }
}

/// A tree that reaches its budget within a depth, so that only some siblings of expanded nodes
/// stay.
pub(crate) fn best(budget: usize) -> DraftShape {
    DraftShape::Top { width: 2, depth: 2, budget: Some(budget) }
}

/// A tree of the most probable continuations, as one pass of a drafter can make it.
pub(crate) fn most_probable(nodes: usize) -> DraftShape {
    DraftShape::Top { width: nodes, depth: 3, budget: Some(nodes) }
}

/// A tree of ranked candidates: the number of children of each row.
pub(crate) fn ranked(children: &[usize]) -> DraftShape {
    DraftShape::Ranked { children: children.to_vec() }
}

pub(crate) fn iid(branching: &[usize]) -> DraftShape {
    DraftShape::Sampled { branching: branching.to_vec() }
}

pub(crate) fn pearl(length: usize, options: &str) -> Box<dyn Decoder> {
    let options: PearlOptions = options.parse().unwrap();
    let eager = options.schedule == PearlSchedule::Eager;
    let draft_length = PearlDraftLength::new(length, DraftLength::Fixed, eager);
    Box::new(Pearl::new(options, draft_length))
}

/// Guesses that the text counts on from its last token.
pub(crate) struct Counting;

impl Guesser for Counting {
    fn guess(&mut self, tokens: &[TokenId], _prompt_len: usize, length: usize) -> Guess {
        let last = tokens[tokens.len() - 1];
        let tokens = (1..=length as TokenId).map(|step| (last + step) % VOCAB as TokenId).collect();
        Guess { tokens, score: length as f64 }
    }
}

pub(crate) fn dsi(replicas: usize, lookahead: usize) -> Dsi {
    Dsi::new(replicas, DsiLookahead::new(lookahead, DraftLength::Fixed, replicas))
}

pub(crate) fn ssd(length: usize, verdicts: usize) -> Box<dyn Decoder> {
    let draft_length = SpeculativeDraftLength::new(chain(length), DraftLength::Fixed);
    Box::new(Ssd::new(draft_length).with_verdicts(verdicts))
}

/// Takes turns between decoders, as `auto` does at its changes.
pub(crate) struct InTurn(pub(crate) Vec<Box<dyn Decoder>>);

impl Decoder for InTurn {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        self.0.rotate_left(1);
        self.0[0].step(sequence, cluster)?;
        self.0[0].stop(cluster);
        Ok(())
    }
}
