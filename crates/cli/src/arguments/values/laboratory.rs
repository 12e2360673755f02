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

const PAPER_TABLES: [Name; 21] = [
    ("pearl-1", "PEARL, table 1: speed"),
    ("pearl-2b", "PEARL, figure 2b: the best draft length of each round of a recorded run"),
    ("pearl-4", "PEARL, table 4: ablations"),
    ("pearl-5", "PEARL, table 5: speed by γ"),
    ("pearl-6", "PEARL, table 6: speed by γ and task"),
    ("pearl-8", "PEARL, table 8: shared devices, MT-bench"),
    ("pearl-14", "PEARL, table 14: speculative decoding by γ"),
    ("pearl-16", "PEARL, table 16: sending the drafter's cache between devices"),
    ("pearl-17", "PEARL, table 17: shared devices, four benchmarks"),
    ("pearl-18", "PEARL, table 18: shared devices, MGSM"),
    ("dsi-2", "DSI, table 2: speed for ten pairs"),
    ("dsi-3.1", "DSI, section 3.1: several target replicas against one faster target"),
    ("dsi-e", "DSI, appendix E: latency of speculative decoding"),
    ("easyspec-1", "EasySpec, table 1: tensor parallelism"),
    ("easyspec-2", "EasySpec, table 2: from plain decoding to EasySpec"),
    ("ssd", "SSD: speeds of its authors' runs"),
    ("ssd-pairs", "SSD with the papers' times, against speculative decoding and PEARL"),
    (
        "pearl-features",
        "PEARL with drafters that read the target's features, against speculative decoding",
    ),
    ("hosts", "A 70B target with an 8B drafter on 2 to 16 hosts"),
    ("cores", "A target with a drafter of a quarter of its size on 2 to 64 cores"),
    ("gpus", "An 8B target with a 1.2B drafter on one to eight GPUs"),
];

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
    let parse = |text: &str| {
        let found = PaperTable::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(table, _)| *table).ok_or_else(|| not_one_of(text, &PAPER_TABLES))
    };
    NamedValue { parse, names: PAPER_TABLES.to_vec() }
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
        assert_eq!(PAPER_TABLES.map(|(name, _)| name), PaperTable::NAMES.map(|(_, name)| name));
    }
}
