//! The slow reference of sampling: what the options mean, in plain loops over the whole vocabulary.
//!
//! It shares no line with the production path but the Gumbel noise, counts everything anew, sorts all
//! tokens, and works in double precision once the logits are penalised. Tests use it as their oracle.

use crate::{Sampling, TokenId, Verification};

/// The probability of every token behind `prompt` and `answer`, given its logits: `[vocab_size]`. At
/// temperature 0 one token has them all.
#[must_use]
pub fn probabilities(
    sampling: &Sampling,
    prompt: &[TokenId],
    answer: &[TokenId],
    logits: &[f32],
) -> Vec<f64> {
    let logits: Vec<f32> = (0..)
        .zip(logits)
        .map(|(token, &logit)| penalised(sampling, prompt, answer, token, logit))
        .collect();
    // The order in which tokens rank.
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(a.cmp(&b)));
    let mut weights = vec![0.0; logits.len()];
    if sampling.temperature == 0.0 {
        weights[order[0]] = 1.0;
        return weights;
    }
    let peak = f64::from(logits[order[0]]);
    let weight =
        |token: usize| ((f64::from(logits[token]) - peak) / f64::from(sampling.temperature)).exp();
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let mass: f64 = order.iter().map(|&token| weight(token)).sum();
    let mut before = 0.0;
    for token in order {
        // A token stays unless those that rank above it reach the mass already.
        let within = sampling.top_p >= 1.0 || before < mass * f64::from(sampling.top_p);
        if within && weight(token) >= f64::from(sampling.min_p) {
            weights[token] = weight(token);
        }
        before += weight(token);
    }
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// A logit with its bias and penalties, in single precision.
fn penalised(
    sampling: &Sampling,
    prompt: &[TokenId],
    answer: &[TokenId],
    token: TokenId,
    logit: f32,
) -> f32 {
    let mut logit = logit + sampling.logit_bias.get(&token).unwrap_or(&0.0);
    if prompt.contains(&token) || answer.contains(&token) {
        if logit > 0.0 {
            logit /= sampling.repetition_penalty;
        } else {
            logit *= sampling.repetition_penalty;
        }
    }
    let count = answer.iter().filter(|&&other| other == token).count();
    logit -= count as f32 * sampling.frequency_penalty;
    if count > 0 {
        logit -= sampling.presence_penalty;
    }
    logit
}

/// The token that greedy or coupled decoding emits behind `prompt` and `answer`.
///
/// # Panics
/// If sampling is neither, or there are no logits: a test's mistake.
#[must_use]
pub fn token(
    sampling: &Sampling,
    prompt: &[TokenId],
    answer: &[TokenId],
    logits: &[f32],
) -> TokenId {
    assert!(sampling.is_deterministic(), "the token is a matter of chance");
    let position = prompt.len() + answer.len();
    let probabilities = probabilities(sampling, prompt, answer, logits);
    let score = |token: TokenId| {
        let noise = match sampling.verification {
            Verification::Coupled => sampling.randomness.gumbel(position, token),
            Verification::Rejection => 0.0,
        };
        probabilities[token as usize].ln() + noise
    };
    let tokens = 0..logits.len() as TokenId;
    // The last of the largest, seen from the end, is the first.
    tokens.rev().max_by(|&a, &b| score(a).total_cmp(&score(b))).expect("logits")
}

/// The natural logarithm of the softmax of the raw logits: `[vocab_size]`.
#[must_use]
pub fn logprobs(logits: &[f32]) -> Vec<f64> {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |&logit: &f32| f64::from(logit) - f64::from(peak);
    let log_mass = logits.iter().map(|logit| above(logit).exp()).sum::<f64>().ln();
    logits.iter().map(|logit| above(logit) - log_mass).collect()
}
