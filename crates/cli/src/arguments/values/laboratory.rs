//! Parsers of values for the laboratory's commands.

use super::{BF16, F16, F32, Name, NamedValue, count, not_one_of, parse};
use clap::builder::TypedValueParser;
use forerun::checkpoint::Dtype;
use forerun_sim::SimulatedMethod;
use forerun_sim::papers::PaperTable;
use std::num::NonZero;

const SIMULATED_METHODS: [Name; 9] = [
    ("autoregressive", "One forward pass of the target per token, no drafts"),
    ("speculative", "Draft, then verify"),
    ("pearl", "Draft and verify at the same time; rounds end with the target's pass"),
    ("pearl-auto", "PEARL with automatic draft lengths up to `--draft-tokens`"),
    ("pearl-paper", "PEARL as published: rounds wait for all draft tokens"),
    ("pearl-no-pre-verify", "PEARL without pre-verify"),
    ("pearl-no-post-verify", "PEARL without post-verify"),
    (
        "dsi",
        "Verify on several target replicas while drafting continues; `--draft-tokens` is the \
         lookahead",
    ),
    ("ssd", "Prepare drafts for the likely verdicts during verification"),
];

/// A number of things: at least one, and at most `most`.
pub(crate) fn nonzero_count(most: u64) -> impl TypedValueParser<Value = NonZero<usize>> {
    count(1..=most).try_map(|count| NonZero::new(count).ok_or("it must be at least 1"))
}

const STORED_TYPES: [Name; 3] = [F32, BF16, F16];

pub(crate) fn simulated_method() -> NamedValue<SimulatedMethod> {
    NamedValue { parse, names: SIMULATED_METHODS.to_vec() }
}

/// The types in which a synthetic pair can be stored.
pub(crate) fn stored_type() -> NamedValue<Dtype> {
    let parse = |text: &str| match text {
        "f32" => Ok(Dtype::F32),
        "bf16" => Ok(Dtype::Bf16),
        "f16" => Ok(Dtype::F16),
        _ => Err(not_one_of(text, &STORED_TYPES)),
    };
    NamedValue { parse, names: STORED_TYPES.to_vec() }
}

pub(crate) fn paper_table() -> NamedValue<PaperTable> {
    NamedValue { parse, names: PaperTable::ALL.map(|table| (table.name, table.help)).to_vec() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::assert_all_names_are_described;
    use super::*;

    #[test]
    fn help_describes_every_name_of_a_value() {
        assert_all_names_are_described(&simulated_method());
        assert_all_names_are_described(&stored_type());
        assert_all_names_are_described(&paper_table());
    }
}
