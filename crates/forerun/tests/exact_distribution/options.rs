//! Sampling options.

use crate::tables::VOCAB;
use forerun_core::{Constraint, Dry, Sampling, SamplingOptions, TokenId, Verification, reference};

pub(crate) fn sampling(temperature: f32, top_k: usize, top_p: f32) -> Sampling {
    let verification = Verification::Rejection;
    Sampling {
        options: SamplingOptions { temperature, top_k, top_p, ..SamplingOptions::default() },
        verification,
        ..Sampling::greedy()
    }
}

/// Returns a constraint that forbids other tokens after every prefix.
pub(crate) fn constraint(nth: TokenId) -> Option<Constraint> {
    Some(reference::EveryNth { vocab_size: VOCAB as TokenId, nth }.constraint())
}

/// Returns options under which a run of tokens follows some tokens, so that drafts begin with it or
/// have it in their middle, with and without penalties and a bias against it.
pub(crate) fn with_runs() -> [Sampling; 2] {
    let constraint = Some(reference::Runs { vocab_size: VOCAB as TokenId }.constraint());
    let warm = Sampling { constraint, ..sampling(1.0, 0, 1.0) };
    let options = SamplingOptions {
        repetition_penalty: 1.6,
        frequency_penalty: 0.7,
        logit_bias: [(1, -1.5), (2, -3.0)].into(),
        ..warm.options.clone()
    };
    [warm.clone(), Sampling { options, ..warm }]
}

/// Returns options that change rows of a tree differently, and all others, alone and together.
pub(crate) fn more_options() -> Vec<Sampling> {
    let warm = || sampling(1.0, 0, 1.0);
    let penalised = Sampling {
        options: SamplingOptions {
            repetition_penalty: 1.6,
            frequency_penalty: 0.7,
            presence_penalty: -0.4,
            logit_bias: [(1, 0.6)].into(),
            ..warm().options
        },
        ..warm()
    };
    vec![
        Sampling {
            options: SamplingOptions { repetition_penalty: 1.8, ..warm().options },
            ..warm()
        },
        Sampling {
            options: SamplingOptions { frequency_penalty: 1.2, ..warm().options },
            ..warm()
        },
        Sampling { options: SamplingOptions { presence_penalty: 1.5, ..warm().options }, ..warm() },
        Sampling {
            options: SamplingOptions { logit_bias: [(0, 1.5), (2, -1.0)].into(), ..warm().options },
            ..warm()
        },
        Sampling { options: SamplingOptions { min_p: 0.3, ..warm().options }, ..warm() },
        Sampling { options: SamplingOptions { typical_p: 0.6, ..warm().options }, ..warm() },
        Sampling { options: SamplingOptions { top_n_sigma: 0.9, ..warm().options }, ..warm() },
        Sampling {
            options: SamplingOptions {
                xtc_probability: 0.5,
                xtc_threshold: 0.2,
                dynatemp_range: 0.8,
                ..warm().options
            },
            ..warm()
        },
        Sampling {
            options: SamplingOptions {
                dry: Dry { multiplier: 0.8, allowed_length: 1, ..Dry::default() },
                ..warm().options
            },
            dry_breakers: [vec![2]].into(),
            ..warm()
        },
        Sampling { constraint: constraint(3), ..warm() },
        Sampling {
            constraint: constraint(2),
            options: SamplingOptions { top_k: 2, ..penalised.options.clone() },
            ..penalised.clone()
        },
        Sampling {
            options: SamplingOptions {
                temperature: 0.7,
                min_p: 0.1,
                top_p: 0.9,
                ..penalised.options.clone()
            },
            ..penalised.clone()
        },
        penalised,
    ]
}
