//! A mutant of the residual.

use crate::methods::chain;
use crate::mutants::explicit::{commit_verified, draft, scores};
use crate::mutants::{Mutant, Setup, SharedModels};
use forerun_core::{Cluster, Distribution, Key, Proposal, Purpose, Verdict, Verification};
use forerun_decode::{DecodeError, Decoder, Sequence};

/// Chain verification without `verify`, with the correction drawn from the residual or, as a
/// mutant, from the target's whole row.
struct ExplicitVerification {
    subtract: bool,
}

impl Decoder for ExplicitVerification {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = draft(sequence, cluster, chain(1))?;
        let scores = scores(sequence, cluster, &draft)?;
        let rows = &scores.rows;
        let rule = sequence.sampling().verification;
        let (Verification::Rejection, Proposal::Sampled(proposed)) = (rule, &draft.proposal) else {
            commit_verified(sequence, &draft, &scores);
            return Ok(());
        };
        let position = sequence.tokens().len();
        let key = |position, purpose| Key { position, purpose, candidate: 0 };
        let token = draft.tree.token(0);
        let chance = rows[0].probability(token) / proposed[0].probability(token);
        let accepted = sequence.randomness().below(key(position, Purpose::Accept), chance);
        let pick =
            |row: &Distribution, at| row.pick(sequence.randomness(), key(at, Purpose::Sample));
        let verdict = if accepted {
            let token = Some(pick(&rows[1], position + 1));
            Verdict { accepted: vec![0], token, rejected: false }
        } else {
            let residual = rows[0].residual(&proposed[0]).unwrap_or_default();
            let token = Some(pick(if self.subtract { &residual } else { &rows[0] }, position));
            Verdict { accepted: Vec::new(), token, rejected: true }
        };
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let with =
        |subtract| Setup::with_model(models, move || Box::new(ExplicitVerification { subtract }));
    vec![Mutant::new("residual not subtracted", with(true), with(false))]
}
