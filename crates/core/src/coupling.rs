//! Coupled sampling: the tokens with the highest scores after adding keyed Gumbel noise.
//!
//! *Coupling without Communication and Drafter-Invariant Speculative Decoding*, Daliri et al. 2024,
//! arXiv 2408.07978.

use crate::logit_row::BLOCK;
use crate::{Distribution, KeyedRandomness, TokenId};
use forerun_vector::{Isa, Lanes, Vectorized, vectorize};

/// Returns the `count` tokens with the highest `ln probability + noise`, best first. Ties go to the
/// lower token.
pub(crate) fn best_perturbed(
    row: &Distribution,
    randomness: &KeyedRandomness,
    position: usize,
    count: usize,
) -> Vec<(TokenId, f64)> {
    let (weights, total) = row.weights();
    let mut best: Vec<(TokenId, f64)> = Vec::with_capacity(count + 1);
    let mut tokens = [0; BLOCK];
    let mut heads = [0; BLOCK];
    for (block, weights) in weights.chunks(BLOCK).enumerate() {
        let mut bound = weight_bound(&best, count, total);
        let (tokens, heads) = (&mut tokens[..weights.len()], &mut heads[..weights.len()]);
        for (index, token) in tokens.iter_mut().enumerate() {
            *token = row.support().token(block * BLOCK + index);
        }
        let mut any_reaches = false;
        let block = NoiseBlock { randomness, position, tokens, weights, bound, heads };
        vectorize(Isa::best(), DrawNoise { block, any_reaches: &mut any_reaches });
        if !any_reaches {
            continue;
        }
        for ((&token, &weight), &head) in tokens.iter().zip(weights).zip(&*heads) {
            if !may_reach(weight, head, bound) {
                continue;
            }
            let score = (f64::from(weight) / total).ln() + randomness.gumbel(position, token);
            let place = best.partition_point(|&(_, other)| other >= score);
            if place < count {
                best.insert(place, (token, score));
                best.truncate(count);
                bound = weight_bound(&best, count, total);
            }
        }
    }
    best
}

/// Returns the factor that bounds a token's weight from below.
///
/// A token can be among the best only if its weight is at least this factor times `1 − uniform`, in
/// units of 2⁻³¹. A score is `ln probability − ln(−ln uniform)`, and `−ln uniform ≥ 1 − uniform`,
/// so one product excludes most tokens without computing a logarithm.
fn weight_bound(best: &[(TokenId, f64)], count: usize, total: f64) -> f32 {
    let Some(&(_, score)) = best.last().filter(|_| best.len() == count) else { return 0.0 };
    // The margin exceeds all rounding errors. A bound too small to be accurate excludes nothing.
    let bound = (score.exp() * total / f64::from(1_u32 << 31) * (1.0 - 1e-5)) as f32;
    if bound < 1e-30 { 0.0 } else { bound }
}

/// Returns whether a token can be among the best. `head` holds the highest bits of its uniform.
#[inline(always)]
fn may_reach(weight: f32, head: u32, bound: f32) -> bool {
    weight >= bound * (!head >> 1) as i32 as f32
}

/// The tokens of one block, with the memory for their noise.
struct NoiseBlock<'a> {
    randomness: &'a KeyedRandomness,
    position: usize,
    tokens: &'a [TokenId],
    weights: &'a [f32],
    bound: f32,
    heads: &'a mut [u32],
}

/// Draws the noise of a block, and checks whether any of its tokens can be among the best.
struct DrawNoise<'a> {
    block: NoiseBlock<'a>,
    any_reaches: &'a mut bool,
}

impl Vectorized for DrawNoise<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let NoiseBlock { randomness, position, tokens, weights, bound, heads } = self.block;
        randomness.noise_heads(position, tokens, heads);
        let mut any_reaches = 0;
        for (&head, &weight) in heads.iter().zip(weights) {
            any_reaches |= u32::from(may_reach(weight, head, bound));
        }
        *self.any_reaches = any_reaches != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_excludes_none_of_the_best_tokens() {
        for seed in 0..40 {
            let randomness = KeyedRandomness { seed, sample: 0 };
            let weight = |token: TokenId| {
                let exponent = 3.0 * randomness.gumbel(9_999, token) * (seed % 5) as f64 / 4.0;
                (token, exponent.min(60.0).exp() as f32 * 1e-12)
            };
            let row = Distribution::from_weights((0..700).map(weight));
            for (position, count) in [(0, 1), (1, 3), (2, 16), (3, 1_000)] {
                let score = |(token, probability): (TokenId, f64)| {
                    (token, probability.ln() + randomness.gumbel(position, token))
                };
                let mut plain: Vec<_> = row.iter().map(score).collect();
                plain.sort_by(|a, b| b.1.total_cmp(&a.1));
                plain.truncate(count);
                assert_eq!(best_perturbed(&row, &randomness, position, count), plain, "{seed}");
            }
        }
    }
}
