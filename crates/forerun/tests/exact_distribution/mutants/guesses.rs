//! Mutants of guesses: a guess is tested after the draft token for the same position.

use crate::methods::chain;
use crate::mutants::explicit::{commit_verified, draft, scores};
use crate::mutants::{Mutant, Setup, SharedModels};
use forerun_core::{
    Cluster, Distribution, Draft, Guesser, Key, Proposal, Purpose, TokenTree, Verdict, Verification,
};
use forerun_decode::{DecodeError, Decoder, Sequence};
use std::rc::Rc;

/// A draft token and a guess for the same position, or a mistake.
struct ExplicitGuess {
    guesser: Box<dyn Guesser>,
    mistake: GuessMistake,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum GuessMistake {
    None,
    /// The guess is tested as if the draft token had not been rejected.
    TargetRow,
    /// Both are tested with one number.
    OneKey,
    /// The correction may be the rejected guess.
    KeepsGuess,
}

impl Decoder for ExplicitGuess {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let mistake = self.mistake;
        let drafted = draft(sequence, cluster, chain(1))?;
        let guess = self.guesser.guess(sequence.tokens(), sequence.prompt_len(), 1).tokens[0];
        let guessed = Draft::deterministic(TokenTree::chain(&[guess]));
        let scores = scores(sequence, cluster, &guessed)?;
        let rule = sequence.sampling().verification;
        let (Verification::Rejection, Proposal::Sampled(proposed)) = (rule, &drafted.proposal)
        else {
            commit_verified(sequence, &guessed, &scores);
            return Ok(());
        };
        let (rows, token, position) =
            (&scores.rows, drafted.tree.token(0), sequence.tokens().len());
        let random = sequence.randomness();
        let accepts = |candidate, chance| {
            random.below(Key { position, purpose: Purpose::Accept, candidate }, chance)
        };
        let pick = |row: &Distribution, position| {
            row.pick(random, Key { position, purpose: Purpose::Sample, candidate: 0 })
        };
        let after = |token| (token == guess).then(|| pick(&rows[1], position + 1));
        let chance = rows[0].probability(token) / proposed[0].probability(token);
        let (walked, token, rejected) = if accepts(0, chance) {
            (token, after(token), false)
        } else {
            let residual = rows[0].residual(&proposed[0]).unwrap_or_default();
            let tested = if mistake == GuessMistake::TargetRow { &rows[0] } else { &residual };
            let key = u32::from(mistake != GuessMistake::OneKey);
            let rest = residual.without(guess).filter(|_| mistake != GuessMistake::KeepsGuess);
            match accepts(key, tested.probability(guess)) {
                true => (guess, after(guess), false),
                false => (guess, Some(pick(&rest.unwrap_or(residual), position)), true),
            }
        };
        let accepted = if rejected { vec![] } else { vec![0] };
        let walked = Draft::deterministic(TokenTree::chain(&[walked]));
        sequence.commit(&walked, &Verdict { accepted, token, rejected }, &scores);
        Ok(())
    }
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let with = |mistake| {
        let guessing = Rc::clone(models);
        Setup::with_model(models, move || {
            Box::new(ExplicitGuess { guesser: guessing.guesser(), mistake })
        })
    };
    let mistakes = [GuessMistake::TargetRow, GuessMistake::OneKey, GuessMistake::KeepsGuess];
    let mutant = |mistake| {
        Mutant::new(format!("guess, {mistake:?}"), with(GuessMistake::None), with(mistake))
    };
    mistakes.map(mutant).into()
}
