//! Mutants of rounds that verify a guess in place of a draft.

use crate::methods::chain;
use crate::mutants::explicit::{commit_verified, draft, scores};
use crate::mutants::{Mutant, Setup, SharedModels};
use forerun_core::{Cluster, Draft, Guesser, TokenTree};
use forerun_decode::{DecodeError, Decoder, Sequence};
use std::rc::Rc;

/// Verifies a guess or a draft token in each round, or makes a mistake.
struct GuessOrDraft {
    guesser: Box<dyn Guesser>,
    mistake: LookupMistake,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LookupMistake {
    None,
    /// The guess is tested with the distribution of the drafter, which has not drawn it.
    DraftersRow,
    /// Whether to verify the guess depends on the drafter's token, which is then not tested.
    FollowsDraw,
}

impl Decoder for GuessOrDraft {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let drafted = draft(sequence, cluster, chain(1))?;
        let guess = self.guesser.guess(sequence.tokens(), sequence.prompt_len(), 1).tokens[0];
        let tree = TokenTree::chain(&[guess]);
        let takes_guess = match self.mistake {
            LookupMistake::FollowsDraw => drafted.tree.tokens() != [guess],
            // A function of the committed tokens.
            _ => sequence.tokens().len().is_multiple_of(2),
        };
        let chosen = match (takes_guess, self.mistake) {
            (false, _) => drafted,
            (true, LookupMistake::DraftersRow) => Draft { tree, ..drafted },
            (true, _) => Draft::deterministic(tree),
        };
        let scores = scores(sequence, cluster, &chosen)?;
        commit_verified(sequence, &chosen, &scores);
        Ok(())
    }
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let with = |mistake| {
        let guessing = Rc::clone(models);
        Setup::with_model(models, move || {
            Box::new(GuessOrDraft { guesser: guessing.guesser(), mistake })
        })
    };
    let mutant = |mistake| {
        Mutant::new(format!("lookup, {mistake:?}"), with(LookupMistake::None), with(mistake))
    };
    [LookupMistake::DraftersRow, LookupMistake::FollowsDraw].map(mutant).into()
}
