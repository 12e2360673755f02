//! Mutants of block verification.

use crate::methods::chain;
use crate::mutants::explicit::{commit_verified, draft, scores};
use crate::mutants::{Mutant, Setup, SharedModels};
use forerun_core::{Cluster, Key, Proposal, Purpose, TokenId, Verdict, Verification};
use forerun_decode::{DecodeError, Decoder, Sequence};

/// Algorithm 2 of block verification for chains, written as in the paper, or with a mistake.
struct ExplicitBlock(BlockMistake);

#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockMistake {
    None,
    /// The product of the ratios may exceed 1 on the way.
    NoMinimum,
    /// The threshold of each token is that of token-by-token verification.
    TokenThresholds,
    /// The tests stop at the first one that fails.
    StopsAtFirst,
    /// The correction is drawn from the residual of token-by-token verification.
    TokenResidual,
    /// The correction is drawn from the target's whole row.
    NoResidual,
}

impl Decoder for ExplicitBlock {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let mistake = self.0;
        let draft = draft(sequence, cluster, chain(2))?;
        let scores = scores(sequence, cluster, &draft)?;
        let (rows, tokens) = (&scores.rows, draft.tree.tokens());
        let rule = sequence.sampling().verification;
        let (Verification::Block, Proposal::Sampled(proposed)) = (rule, &draft.proposal) else {
            commit_verified(sequence, &draft, &scores);
            return Ok(());
        };
        let position = sequence.tokens().len();

        let mut products = vec![1.0];
        for (index, &token) in tokens.iter().enumerate() {
            let ratio = rows[index].probability(token) / proposed[index].probability(token);
            let product = products[index] * ratio;
            products.push(if mistake == BlockMistake::NoMinimum {
                product
            } else {
                product.min(1.0)
            });
        }
        let mut accepted = 0;
        for length in 1..=tokens.len() {
            let product: f64 = products[length].min(1.0);
            let threshold = if mistake == BlockMistake::TokenThresholds {
                let (at, token) = (length - 1, tokens[length - 1]);
                rows[at].probability(token) / proposed[at].probability(token)
            } else if length == tokens.len() {
                product
            } else {
                let excess = |(token, target): (TokenId, f64)| {
                    (products[length] * target - proposed[length].probability(token)).max(0.0)
                };
                let excess: f64 = rows[length].iter().map(excess).sum();
                if product >= 1.0 { 1.0 } else { excess / (excess + 1.0 - product) }
            };
            let key = Key { position, purpose: Purpose::Accept, candidate: length as u32 };
            if threshold >= 1.0 || sequence.randomness().below(key, threshold) {
                accepted = length;
            } else if mistake == BlockMistake::StopsAtFirst {
                break;
            }
        }
        let rejected = accepted < tokens.len();
        let row = &rows[accepted];
        let rest = match mistake {
            _ if !rejected => None,
            BlockMistake::NoResidual => None,
            BlockMistake::TokenResidual => row.residual(&proposed[accepted]),
            _ => row.excess(products[accepted], &proposed[accepted]),
        };
        let key = Key { position: position + accepted, purpose: Purpose::Sample, candidate: 0 };
        let token = rest.as_ref().unwrap_or(row).pick(sequence.randomness(), key);
        let verdict = Verdict { accepted: (0..accepted).collect(), token: Some(token), rejected };
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let with = |mistake| Setup::with_model(models, move || Box::new(ExplicitBlock(mistake)));
    let mistakes = [
        BlockMistake::NoMinimum,
        BlockMistake::TokenThresholds,
        BlockMistake::StopsAtFirst,
        BlockMistake::TokenResidual,
        BlockMistake::NoResidual,
    ];
    let mutant = |mistake| {
        let name = format!("block verification, {mistake:?}");
        let (original, mutated) = (with(BlockMistake::None), with(mistake));
        Mutant { rule: Verification::Block, ..Mutant::new(name, original, mutated) }
    };
    mistakes.map(mutant).into()
}
