//! Coupled draws: the tokens that are best once keyed Gumbel noise is added (Daliri et al. 2024,
//! arXiv 2408.07978).

use crate::logit_row::BLOCK;
use crate::{Distribution, KeyedRandomness, TokenId};
use forerun_vector::{Isa, Lanes, Vectorized, vectorize};

/// The `count` tokens with the highest `ln probability + noise`, best first, the lower token among
/// equals.
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
        let mut bound = bound(&best, count, total);
        let (tokens, heads) = (&mut tokens[..weights.len()], &mut heads[..weights.len()]);
        for (index, token) in tokens.iter_mut().enumerate() {
            *token = row.support().token(block * BLOCK + index);
        }
        let mut hopeful = false;
        let noise = Noise { randomness, position, tokens, weights, bound, heads };
        vectorize(Isa::best(), Hope { noise, hopeful: &mut hopeful });
        if !hopeful {
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
                bound = self::bound(&best, count, total);
            }
        }
    }
    best
}

/// What a token's weight must reach, times `1 − uniform` in units of 2⁻³¹, to be among the best.
///
/// A score is `ln probability − ln(−ln uniform)`, and `−ln uniform ≥ 1 − uniform`: most tokens are told
/// from the best by one product, without a logarithm.
fn bound(best: &[(TokenId, f64)], count: usize, total: f64) -> f32 {
    let Some(&(_, score)) = best.last().filter(|_| best.len() == count) else { return 0.0 };
    // A margin above all rounding; what is too small to be rounded well excludes nothing.
    let bound = (score.exp() * total / f64::from(1_u32 << 31) * (1.0 - 1e-5)) as f32;
    if bound < 1e-30 { 0.0 } else { bound }
}

/// Whether a token can be among the best. `head`: the highest bits of its uniform.
#[inline(always)]
fn may_reach(weight: f32, head: u32, bound: f32) -> bool {
    weight >= bound * (!head >> 1) as i32 as f32
}

struct Noise<'a> {
    randomness: &'a KeyedRandomness,
    position: usize,
    tokens: &'a [TokenId],
    weights: &'a [f32],
    bound: f32,
    heads: &'a mut [u32],
}

/// Draws the noise of a block, and tells whether one of its tokens can be among the best.
struct Hope<'a> {
    noise: Noise<'a>,
    hopeful: &'a mut bool,
}

impl Vectorized for Hope<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Noise { randomness, position, tokens, weights, bound, heads } = self.noise;
        randomness.noise_heads(position, tokens, heads);
        let mut hopeful = 0;
        for (&head, &weight) in heads.iter().zip(weights) {
            hopeful |= u32::from(may_reach(weight, head, bound));
        }
        *self.hopeful = hopeful != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_leaves_out_none_of_the_best() {
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
