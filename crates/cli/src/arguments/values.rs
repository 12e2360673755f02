//! Parsers of option values.

use clap::builder::{PossibleValue, TypedValueParser};
use forerun::{
    CalibrationPolicy, DrafterKind, Dtype, GgufType, LayerStrategy, Method, TokenId,
    VerificationChoice, WeightType,
};
use forerun_bench::{Preset, PromptStyle};
use forerun_sim::SimulatedMethod;
use forerun_sim::papers::PaperTable;
use std::ffi::OsStr;
use std::str::FromStr;

/// A value's name and its description.
type Name = (&'static str, &'static str);

const METHODS: [Name; 4] = [
    ("autoregressive", "One forward pass of the target per token, no drafts"),
    ("speculative", "Draft, then verify the draft in one forward pass of the target"),
    ("pearl", "Draft and verify at the same time, on separate devices (PEARL)"),
    ("dsi", "Verify on one or more target replicas while drafting continues (DSI)"),
];

const DRAFTERS: [Name; 10] = [
    ("none", "No drafts"),
    ("model", "The draft model, one token per forward pass"),
    ("easyspec", "The draft model, several of its layers at a time (EasySpec)"),
    ("prompt-lookup", "Continuations of earlier occurrences of the last tokens; needs no model"),
    (
        "lookahead",
        "N-grams that the target guesses in its own forward passes (lookahead decoding); needs no \
         model",
    ),
    (
        "ouroboros",
        "The draft model, with phrases that save forward passes and lengthen drafts (Ouroboros)",
    ),
    ("medusa", "Heads on the target's last hidden state (Medusa)"),
    ("hydra", "Heads that also read the tokens drafted before them (Hydra, Hydra++)"),
    ("eagle", "A layer on the target's hidden states (EAGLE, EAGLE-2, EAGLE-3)"),
    ("parallel", "All draft tokens in one forward pass (ParallelSpec, PARD)"),
];

const VERIFICATIONS: [Name; 3] = [
    ("auto", "`coupled` if a seed is given, otherwise `rejection`"),
    ("rejection", "Rejection sampling: the target's distribution, most tokens accepted"),
    ("coupled", "Coupled sampling: for a given seed, exactly the tokens of plain decoding"),
];

const CALIBRATION_POLICIES: [Name; 4] = [
    ("every-round", "At the start of every round"),
    ("on-mismatch", "Only when the new tokens do not continue the last draft"),
    ("prefill-only", "Only for the prompt"),
    ("never", "Never"),
];

const AUTO_TYPE: Name = ("auto", "The checkpoint's own type");
const F32: Name = ("f32", "32-bit floats");
const BF16: Name = ("bf16", "16-bit brain floats");
const F16: Name = ("f16", "16-bit IEEE floats");
const INT8: Name = ("int8", "8-bit integers in blocks, quantised when the model is loaded");

const AUTO_OR_WEIGHT_TYPES: [Name; 5] = [AUTO_TYPE, F32, BF16, F16, INT8];
const WEIGHT_TYPES: [Name; 4] = [F32, BF16, F16, INT8];
const STORED_TYPES: [Name; 3] = [F32, BF16, F16];

const GGUF_TYPES: [Name; 3] =
    [F32, BF16, ("q8_0", "8-bit integers in blocks; the same numbers as `--dtype int8`")];

const PROMPT_STYLES: [Name; 3] = [
    ("auto", "As chat if the checkpoint ships a chat template, otherwise as text"),
    ("text", "As text to continue"),
    ("chat", "As chat messages"),
];

const PRESETS: [Name; 3] = [
    (
        "easyspec-ladder",
        "EasySpec's table 2: plain decoding on one core and on all cores, speculation, trees, and \
         layer-parallel drafting, at temperatures 0 and 0.8",
    ),
    ("easyspec-sweep", "EasySpec's figure 4: layers at a time × tree width × calibration"),
    ("easyspec-variance", "EasySpec's table 4: variance from prompt to prompt"),
];

const SIMULATED_METHODS: [Name; 7] = [
    ("autoregressive", "One forward pass of the target per token, no drafts"),
    ("speculative", "Draft, then verify"),
    ("pearl", "Draft and verify at the same time; rounds end with the target's pass"),
    ("pearl-paper", "PEARL as published: rounds wait for all draft tokens"),
    ("pearl-no-pre-verify", "PEARL without pre-verify, as in its ablation"),
    ("pearl-no-post-verify", "PEARL without post-verify, as in its ablation"),
    (
        "dsi",
        "Verify on several target replicas while drafting continues; `--draft-tokens` is the \
         lookahead",
    ),
];

const PAPER_TABLES: [Name; 15] = [
    ("pearl-1", "PEARL, table 1: speed"),
    ("pearl-2b", "PEARL, figure 2b: the best draft length of each round of a recorded run"),
    ("pearl-4", "PEARL, table 4: ablations"),
    ("pearl-5", "PEARL, table 5: speed by γ"),
    ("pearl-6", "PEARL, table 6: speed by γ and task"),
    ("pearl-8", "PEARL, table 8: drafter and target on the same devices, MT-bench"),
    ("pearl-14", "PEARL, table 14: speculative decoding by γ"),
    ("pearl-16", "PEARL, table 16: sending the drafter's cache between devices"),
    ("pearl-17", "PEARL, table 17: drafter and target on the same devices, four benchmarks"),
    ("pearl-18", "PEARL, table 18: drafter and target on the same devices, MGSM"),
    ("dsi-2", "DSI, table 2: speed for ten pairs"),
    ("dsi-3.1", "DSI, section 3.1: several target replicas against one faster target"),
    ("dsi-e", "DSI, appendix E: latency of speculative decoding"),
    ("easyspec-1", "EasySpec, table 1: tensor parallelism"),
    ("easyspec-2", "EasySpec, table 2: from plain decoding to EasySpec"),
];

/// A parser of values with fixed names. The help lists the names with their descriptions; errors
/// are those of the type's own parser.
#[derive(Clone)]
pub(crate) struct NamedValue<T> {
    parse: fn(&str) -> Result<T, String>,
    names: &'static [Name],
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for NamedValue<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        self.parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|(name, help)| PossibleValue::new(*name).help(*help))))
    }
}

fn parse<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

pub(crate) fn method() -> NamedValue<Method> {
    NamedValue { parse, names: &METHODS }
}

pub(crate) fn drafter() -> NamedValue<DrafterKind> {
    NamedValue { parse, names: &DRAFTERS }
}

pub(crate) fn verification() -> NamedValue<VerificationChoice> {
    NamedValue { parse, names: &VERIFICATIONS }
}

pub(crate) fn calibration_policy() -> NamedValue<CalibrationPolicy> {
    NamedValue { parse, names: &CALIBRATION_POLICIES }
}

pub(crate) fn prompt_style() -> NamedValue<PromptStyle> {
    NamedValue { parse, names: &PROMPT_STYLES }
}

pub(crate) fn preset() -> NamedValue<Preset> {
    NamedValue { parse, names: &PRESETS }
}

pub(crate) fn gguf_type() -> NamedValue<GgufType> {
    NamedValue { parse, names: &GGUF_TYPES }
}

pub(crate) fn simulated_method() -> NamedValue<SimulatedMethod> {
    NamedValue { parse, names: &SIMULATED_METHODS }
}

/// The chosen weight type; `None` (written `auto`) keeps each checkpoint's own type.
pub(crate) type ChosenType = Option<WeightType>;

pub(crate) fn weight_type_or_auto() -> NamedValue<ChosenType> {
    let parse = |text: &str| match text {
        "auto" => Ok(None),
        _ => parse(text).map(Some),
    };
    NamedValue { parse, names: &AUTO_OR_WEIGHT_TYPES }
}

pub(crate) fn weight_type() -> NamedValue<WeightType> {
    let parse = |text: &str| text.parse().map_err(|_unknown| not_one_of(text, &WEIGHT_TYPES));
    NamedValue { parse, names: &WEIGHT_TYPES }
}

/// The types in which a synthetic pair can be stored.
pub(crate) fn stored_type() -> NamedValue<Dtype> {
    let parse = |text: &str| match text {
        "f32" => Ok(Dtype::F32),
        "bf16" => Ok(Dtype::Bf16),
        "f16" => Ok(Dtype::F16),
        _ => Err(not_one_of(text, &STORED_TYPES)),
    };
    NamedValue { parse, names: &STORED_TYPES }
}

pub(crate) fn paper_table() -> NamedValue<PaperTable> {
    let parse = |text: &str| {
        let found = PaperTable::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(table, _)| *table).ok_or_else(|| not_one_of(text, &PAPER_TABLES))
    };
    NamedValue { parse, names: &PAPER_TABLES }
}

fn not_one_of(text: &str, names: &[Name]) -> String {
    let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    format!("{text:?} is not one of {}", names.join(", "))
}

/// Parses layer groups, or `@` and a file that contains layer groups.
pub(crate) fn layer_groups(text: &str) -> Result<LayerStrategy, String> {
    let Some(file) = text.strip_prefix('@') else {
        return text.parse().map_err(|error: forerun::LayerGroupsError| error.to_string());
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the layer groups in {file}: {error}"))?;
    LayerStrategy::from_file_text(&text).map_err(|error| format!("{file}: {error}"))
}

/// Parses a token's bias, such as `15043=-2.5`.
pub(crate) fn token_bias(text: &str) -> Result<(TokenId, f32), String> {
    let parts = text
        .split_once('=')
        .and_then(|(token, bias)| Some((token.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parts.ok_or_else(|| {
        "expected a token id and a number, such as 15043=-2.5 (--json prints token ids)".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_all_names_are_described<T>(parser: &NamedValue<T>) {
        let names: Vec<&str> = parser.names.iter().map(|(name, _)| *name).collect();
        for name in &names {
            assert!((parser.parse)(name).is_ok(), "{name}");
        }
        // The error lists all names that the type has.
        let Err(error) = (parser.parse)("?") else { panic!("{names:?}: \"?\" is no value") };
        let listed = error.replace(" and ", ", ").replace(" or ", ", ");
        let before = listed.strip_suffix(&names.join(", ")).unwrap_or_default();
        assert!(before.ends_with(" of ") || before.ends_with(" use "), "{names:?}: {error}");
    }

    #[test]
    fn help_describes_every_name_of_a_value() {
        assert_all_names_are_described(&method());
        assert_all_names_are_described(&drafter());
        assert_all_names_are_described(&verification());
        assert_all_names_are_described(&calibration_policy());
        assert_all_names_are_described(&prompt_style());
        assert_all_names_are_described(&preset());
        assert_all_names_are_described(&gguf_type());
        assert_all_names_are_described(&simulated_method());
        assert_all_names_are_described(&weight_type_or_auto());
        assert_all_names_are_described(&weight_type());
        assert_all_names_are_described(&stored_type());
        assert_all_names_are_described(&paper_table());
        assert_eq!(PAPER_TABLES.map(|(name, _)| name), PaperTable::NAMES.map(|(_, name)| name));
    }
}
