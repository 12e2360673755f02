//! The slow reference implementation of sampling, in plain loops over the whole vocabulary.
//!
//! Tests use it as their oracle. It shares only the Gumbel noise with the production path: it
//! recounts everything, sorts all tokens, and uses double precision after the penalties.

use crate::{
    Constraint, Key, Purpose, Sampling, TokenConstraint, TokenId, TokenMask, Verification,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the probability of every token after `prompt` and `answer`, given the logits:
/// `[vocab_size]`. At temperature 0 one token has probability 1.
///
/// # Panics
/// If the constraint is not compiled.
#[must_use]
pub fn probabilities(
    sampling: &Sampling,
    prompt: &[TokenId],
    answer: &[TokenId],
    logits: &[f32],
) -> Vec<f64> {
    let continuations = continuations(sampling, &[prompt, answer].concat());
    let mut logits: Vec<f32> = (0..)
        .zip(logits)
        .map(|(token, &logit)| {
            let penalty = continuations.get(&token).unwrap_or(&0.0);
            penalised(sampling, prompt, answer, token, logit) - penalty
        })
        .collect();
    let constraint = sampling.constraint.as_ref().map(|constraint| constraint.compiled());
    let constraint = constraint.transpose().expect("the constraint is compiled");
    if let Some(mask) = constraint.and_then(|constraint| constraint.allowed(answer)) {
        for (token, logit) in (0..).zip(&mut logits) {
            if !mask.allows(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    // Tokens in the order of their rank.
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(a.cmp(&b)));
    if sampling.temperature == 0.0 {
        return shares(&logits, &order[..1], 1.0);
    }
    order.retain(|&token| logits[token].is_finite());
    let is_dynamic = sampling.dynatemp_range > 0.0;
    let mut temperature = if is_dynamic { 1.0 } else { f64::from(sampling.temperature) };
    if sampling.top_n_sigma > 0.0 {
        let finite = || order.iter().map(|&token| f64::from(logits[token]));
        let mean = finite().sum::<f64>() / order.len() as f64;
        let variance = finite().map(|logit| (logit - mean).powi(2)).sum::<f64>();
        let sigma = (variance / order.len() as f64).sqrt();
        let floor = f64::from(logits[order[0]]) - f64::from(sampling.top_n_sigma) * sigma;
        order.retain(|&token| f64::from(logits[token]) >= floor);
    }
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    if sampling.typical_p < 1.0 {
        let probabilities = shares(&logits, &order, temperature);
        let entropy = entropy(&probabilities);
        let distance = |token: usize| (-probabilities[token].ln() - entropy).abs();
        let mut typical = order.clone();
        typical.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        typical.truncate(count_to(&probabilities, &typical, |mass| {
            mass > f64::from(sampling.typical_p)
        }));
        order.retain(|token| typical.contains(token));
    }
    if sampling.top_p < 1.0 {
        let probabilities = shares(&logits, &order, temperature);
        order.truncate(count_to(&probabilities, &order, |mass| mass >= f64::from(sampling.top_p)));
    }
    let probabilities = shares(&logits, &order, temperature);
    let least = probabilities[order[0]] * f64::from(sampling.min_p);
    order.retain(|&token| probabilities[token] >= least);
    let key =
        Key { position: prompt.len() + answer.len(), purpose: Purpose::Exclude, candidate: 0 };
    if sampling.randomness.uniform(key) < f64::from(sampling.xtc_probability) {
        let probabilities = shares(&logits, &order, temperature);
        let is_top = |&token: &usize| probabilities[token] >= f64::from(sampling.xtc_threshold);
        let tops = order.iter().filter(|token| is_top(token)).count();
        order.drain(..tops.saturating_sub(1));
    }
    if is_dynamic && order.len() > 1 {
        let entropy = entropy(&shares(&logits, &order, 1.0)) / (order.len() as f64).ln();
        let range = f64::from(sampling.dynatemp_range);
        let least = (f64::from(sampling.temperature) - range).max(0.0);
        let most = f64::from(sampling.temperature) + range;
        let share = entropy.powf(f64::from(sampling.dynatemp_exponent));
        temperature = least + (most - least) * share;
    }
    shares(&logits, &order, temperature)
}

/// Returns the softmax of some tokens' logits, the best one first, and 0 for all others:
/// `[vocab_size]`.
fn shares(logits: &[f32], tokens: &[usize], temperature: f64) -> Vec<f64> {
    let mut shares = vec![0.0; logits.len()];
    let peak = f64::from(logits[tokens[0]]);
    for &token in tokens {
        let below = f64::from(logits[token]) - peak;
        shares[token] = if below == 0.0 { 1.0 } else { (below / temperature).exp() };
    }
    let total: f64 = shares.iter().sum();
    shares.into_iter().map(|share| share / total).collect()
}

/// Returns how many tokens are needed until `is_enough` holds for their mass; all if it never does.
fn count_to(probabilities: &[f64], tokens: &[usize], is_enough: impl Fn(f64) -> bool) -> usize {
    let mut mass = 0.0;
    let last = tokens.iter().position(|&token| {
        mass += probabilities[token];
        is_enough(mass)
    });
    last.map_or(tokens.len(), |last| last + 1)
}

fn entropy(probabilities: &[f64]) -> f64 {
    let positive = probabilities.iter().filter(|probability| **probability > 0.0);
    positive.map(|probability| -probability * probability.ln()).sum()
}

/// Returns a logit with its bias and penalties, in single precision.
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

/// Returns the DRY penalties after a text, in plain loops.
fn continuations(sampling: &Sampling, text: &[TokenId]) -> BTreeMap<TokenId, f32> {
    let dry = &sampling.dry;
    let mut penalties = BTreeMap::new();
    if dry.multiplier == 0.0 {
        return penalties;
    }
    let text = &text[text.len() - dry.penalty_last_n.unwrap_or(text.len()).min(text.len())..];
    let ends = |breaker: &Vec<TokenId>| {
        (breaker.len()..=text.len()).rfind(|&end| text[..end].ends_with(breaker)).unwrap_or(0)
    };
    let unbroken = &text[sampling.dry_breakers.iter().map(ends).max().unwrap_or(0)..];
    let is_breaker = |end: &usize| sampling.dry_breakers.contains(&vec![text[*end]]);
    for end in (1..text.len()).filter(|end| !is_breaker(end)) {
        let longest = (dry.allowed_length..=end.min(unbroken.len()))
            .rev()
            .find(|length| text[..end].ends_with(&text[text.len() - length..]));
        if let Some(length) = longest {
            let exponent = length - dry.allowed_length;
            let penalty = dry.multiplier * dry.base.powi(exponent as i32);
            let kept: &mut f32 = penalties.entry(text[end]).or_default();
            *kept = penalty.max(*kept);
        }
    }
    penalties
}

/// Returns the token that greedy or coupled decoding emits after `prompt` and `answer`.
///
/// # Panics
/// If sampling is neither greedy nor coupled, or if there are no logits.
#[must_use]
pub fn token(
    sampling: &Sampling,
    prompt: &[TokenId],
    answer: &[TokenId],
    logits: &[f32],
) -> TokenId {
    assert!(sampling.is_deterministic(), "only greedy and coupled decoding determine the token");
    let position = prompt.len() + answer.len();
    let probabilities = probabilities(sampling, prompt, answer, logits);
    let score = |token: TokenId| {
        let noise = match sampling.verification {
            Verification::Coupled => sampling.randomness.gumbel(position, token),
            Verification::Rejection | Verification::Block => 0.0,
        };
        probabilities[token as usize].ln() + noise
    };
    let tokens = 0..logits.len() as TokenId;
    // `max_by` returns the last maximum. In reverse order that is the lowest token.
    tokens.rev().max_by(|&a, &b| score(a).total_cmp(&score(b))).expect("there are no logits")
}

/// Returns the natural logarithm of the softmax of the raw logits: `[vocab_size]`.
#[must_use]
pub fn logprobs(logits: &[f32]) -> Vec<f64> {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |&logit: &f32| f64::from(logit) - f64::from(peak);
    let log_mass = logits.iter().map(|logit| above(logit).exp()).sum::<f64>().ln();
    logits.iter().map(|logit| above(logit) - log_mass).collect()
}

/// A constraint for tests. It forbids each `nth` token of the vocabulary, counted from another
/// token after every prefix of the answer.
#[derive(Clone, Copy, Debug)]
pub struct EveryNth {
    /// The number of tokens in the vocabulary, at least two.
    pub vocab_size: TokenId,
    /// How many tokens there are from one forbidden token to the next, at least two.
    pub nth: TokenId,
}

impl EveryNth {
    /// Returns this as the constraint of sampling options.
    #[must_use]
    pub fn constraint(self) -> Constraint {
        Constraint::new(format!("{self:?}"), Arc::new(self))
    }

    /// Returns whether a token may follow an answer that is itself allowed.
    fn allows(self, answer: &[TokenId], token: TokenId) -> bool {
        let sum: TokenId = answer.iter().map(|token| token + 1).sum();
        !(token + sum).is_multiple_of(self.nth)
    }
}

impl TokenConstraint for EveryNth {
    fn allowed(&self, answer: &[TokenId]) -> Option<TokenMask> {
        let is_allowed = |at: usize| self.allows(&answer[..at], answer[at]);
        let tokens = 0..self.vocab_size;
        (0..answer.len())
            .all(is_allowed)
            .then(|| TokenMask::of(tokens.filter(|&token| self.allows(answer, token))))
    }

    fn forced(&self, answer: &[TokenId], limit: usize) -> Vec<TokenId> {
        let mut forced = Vec::new();
        while forced.len() < limit {
            let mask = self.allowed(&[answer, &forced].concat());
            let tokens: Vec<TokenId> = mask.iter().flat_map(TokenMask::tokens).collect();
            let &[token] = &tokens[..] else { break };
            forced.push(token);
        }
        forced
    }
}

/// A constraint for tests, under which a run of tokens follows some tokens: `2 1` after a 0, and
/// `1` after a 2 and at the start. The 2 is the only allowed token there. In place of the 1, a 0 is
/// allowed, too, as a text has several spellings.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// The number of tokens in the vocabulary, at least three.
    pub vocab_size: TokenId,
}

impl Runs {
    /// Returns this as the constraint of sampling options.
    #[must_use]
    pub fn constraint(self) -> Constraint {
        Constraint::new(format!("{self:?}"), Arc::new(self))
    }

    fn after(self, answer: &[TokenId]) -> TokenMask {
        match answer.last() {
            Some(0) => TokenMask::of([2]),
            None | Some(2) => TokenMask::of([0, 1]),
            _ => TokenMask::of(0..self.vocab_size),
        }
    }
}

impl TokenConstraint for Runs {
    fn allowed(&self, answer: &[TokenId]) -> Option<TokenMask> {
        let is_allowed = |at: usize| self.after(&answer[..at]).allows(answer[at]);
        (0..answer.len()).all(is_allowed).then(|| self.after(answer))
    }

    fn forced(&self, answer: &[TokenId], limit: usize) -> Vec<TokenId> {
        let run: &[TokenId] = match answer.last() {
            Some(0) => &[2, 1],
            None | Some(2) => &[1],
            _ => &[],
        };
        run[..run.len().min(limit)].to_vec()
    }
}
