//! Parsers of option values.

#[cfg(feature = "laboratory")]
pub(crate) mod laboratory;

use crate::generate::{DEMONSTRATION_DRAFTER, DEMONSTRATION_TARGET};
use clap::builder::{PossibleValue, RangedU64ValueParser, TypedValueParser};
use forerun::checkpoint::UnknownCacheType;
use forerun::{
    CacheType, CalibrationPolicy, DrafterKind, LayerStrategy, Lookup, Method, ModelSource, TokenId,
    UnknownValue, VerificationChoice, WeightType, WeightTypes,
};
use forerun_bench::{Preset, PromptStyle};
use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeBounds;
use std::path::Path;
use std::str::FromStr;

/// A value's name and its description.
type Name = (&'static str, &'static str);

const VERIFICATIONS: [Name; 4] = [
    (
        "auto",
        "`coupled` if a seed is given, otherwise `block` where the method verifies whole drafts, and \
         `rejection` where it does not",
    ),
    ("block", "Block verification: the target's distribution, whole drafts, most tokens accepted"),
    ("rejection", "Rejection sampling: the target's distribution, token by token"),
    ("coupled", "Coupled sampling: for a given seed, exactly the tokens of plain decoding"),
];

const LOOKUPS: [Name; 2] = [
    ("none", "The drafter drafts in every round"),
    ("suffix", "Suffix decoding, as `--drafter suffix`"),
];

const CALIBRATION_POLICIES: [Name; 2] =
    [("every-round", "At the start of every round"), ("never", "Never, the paper's ablation")];

const AUTO_TYPE: Name = ("auto", "The checkpoint's own type");
const ALL_TYPES: Name = ("all", "All types and mixes");
const F32: Name = ("f32", "32-bit floats");
const BF16: Name = ("bf16", "16-bit brain floats");
const F16: Name = ("f16", "16-bit IEEE floats");

const WEIGHT_TYPES: [Name; 16] = [
    F32,
    BF16,
    F16,
    ("int8", "8-bit integers in blocks of 32, as GGUF's q8_0"),
    ("q4_0", "4 bits, blocks of 32 with a scale"),
    ("q4_1", "4 bits, blocks of 32 with a scale and a minimum"),
    ("q5_0", "5 bits, blocks of 32 with a scale"),
    ("q5_1", "5 bits, blocks of 32 with a scale and a minimum"),
    ("q2_k", "2 bits, blocks of 256"),
    ("q3_k", "3 bits, blocks of 256"),
    ("q4_k", "4 bits, blocks of 256"),
    ("q5_k", "5 bits, blocks of 256"),
    ("q6_k", "6 bits, blocks of 256"),
    ("iq4_nl", "4 bits with uneven steps, blocks of 32"),
    ("iq4_xs", "4 bits with uneven steps, blocks of 256"),
    ("mxfp4", "4-bit floats, blocks of 32"),
];

const CACHE_TYPES: [Name; 6] = [
    ("auto", "f32 if all weights are f32, otherwise f16"),
    F32,
    ("f16", "16-bit IEEE floats: up to 65,504"),
    ("bf16", "16-bit brain floats: the range of f32, less precise"),
    ("q8", "8-bit integers in blocks of 32 with a scale: 56 % of the memory of f16"),
    ("q4", "4-bit integers in blocks of 32 with a scale: 28 % of the memory of f16"),
];

const MIXES: [Name; 9] = [
    ("q2_k_s", "mix: mostly q2_k"),
    ("q2_k_m", "mix: q2_k and q3_k"),
    ("q3_k_s", "mix: mostly q3_k"),
    ("q3_k_m", "mix: q3_k, q4_k and q5_k"),
    ("q3_k_l", "mix: q3_k and q5_k"),
    ("q4_k_s", "mix: mostly q4_k"),
    ("q4_k_m", "mix: q4_k and q6_k"),
    ("q5_k_s", "mix: mostly q5_k"),
    ("q5_k_m", "mix: q5_k and q6_k"),
];

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

/// A parser of values with fixed names. The help lists the names with their descriptions; errors
/// are those of the type's own parser.
#[derive(Clone)]
pub(crate) struct NamedValue<T> {
    parse: fn(&str) -> Result<T, String>,
    names: Vec<Name>,
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

/// A number of things, in this range.
pub(crate) fn count(range: impl RangeBounds<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

fn parse<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Parses a method. Errors name a similar one, and say which option takes the name of a drafter.
/// Parses a rate or a time, from a thousandth to a billion.
pub(crate) fn rate_or_time(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (1e-3..=1e9).contains(number));
    number.ok_or_else(|| "expected a number from 0.001 to 1000000000".to_owned())
}

pub(crate) fn parse_method(text: &str) -> Result<Method, String> {
    text.parse().map_err(|error: UnknownValue| match DrafterKind::from_str(text) {
        Ok(drafter) => format!("{drafter} is a drafter: use --drafter {drafter}"),
        Err(_) => with_similar(error, text, Method::all().map(Method::name)),
    })
}

/// Parses a drafter. Errors name a similar one, and say which option takes the name of a method.
fn parse_drafter(text: &str) -> Result<DrafterKind, String> {
    text.parse().map_err(|error: UnknownValue| match Method::from_str(text) {
        Ok(method) => format!("{method} is a method: use --method {method}"),
        Err(_) => with_similar(error, text, DrafterKind::all().map(DrafterKind::name)),
    })
}

/// Returns an error, after the most similar name if one differs by at most two letters.
fn with_similar(
    error: impl Display,
    text: &str,
    names: impl Iterator<Item = &'static str>,
) -> String {
    let near = names.map(|name| (distance(text, name), name)).min();
    match near.filter(|(letters, name)| *letters <= 2 && letters * 2 < name.len()) {
        Some((_, name)) => format!("did you mean {name}? {error}"),
        None => error.to_string(),
    }
}

/// Returns how many letters must be inserted, removed or replaced to make one text another one
/// (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, a) in from.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], index + 1);
        for (place, b) in to.bytes().enumerate() {
            let replaced = before + usize::from(a != b);
            before = row[place + 1];
            row[place + 1] = replaced.min(before + 1).min(row[place] + 1);
        }
    }
    row[to.len()]
}

pub(crate) fn method() -> NamedValue<Method> {
    NamedValue {
        parse: parse_method,
        names: Method::all().map(|method| (method.name(), method.help())).collect(),
    }
}

pub(crate) fn drafter() -> NamedValue<DrafterKind> {
    NamedValue {
        parse: parse_drafter,
        names: DrafterKind::all().map(|kind| (kind.name(), kind.help())).collect(),
    }
}

pub(crate) fn lookup() -> NamedValue<Lookup> {
    NamedValue { parse, names: LOOKUPS.to_vec() }
}

pub(crate) fn verification() -> NamedValue<VerificationChoice> {
    NamedValue { parse, names: VERIFICATIONS.to_vec() }
}

pub(crate) fn calibration_policy() -> NamedValue<CalibrationPolicy> {
    NamedValue { parse, names: CALIBRATION_POLICIES.to_vec() }
}

pub(crate) fn prompt_style() -> NamedValue<PromptStyle> {
    NamedValue { parse, names: PROMPT_STYLES.to_vec() }
}

pub(crate) fn preset() -> NamedValue<Preset> {
    NamedValue { parse, names: PRESETS.to_vec() }
}

/// The types of matrices in a GGUF file.
pub(crate) fn gguf_types() -> NamedValue<WeightTypes> {
    let int8 = ("q8_0", "8-bit integers in blocks of 32; the same numbers as `--dtype int8`");
    let in_gguf = |name: Name| if name.0 == "int8" { int8 } else { name };
    let names = [&WEIGHT_TYPES[..], &MIXES].concat().into_iter().map(in_gguf).collect();
    NamedValue { parse: |text| parse_types(text, "q8_0"), names }
}

pub(crate) fn cache_type_or_auto() -> NamedValue<ChosenCacheType> {
    let parse = |text: &str| match text {
        "auto" => Ok(None),
        other => other.parse().map(Some).map_err(|error: UnknownCacheType| error.to_string()),
    };
    NamedValue { parse, names: CACHE_TYPES.to_vec() }
}

/// The chosen type of cached keys and values; `None` (written `auto`) is each model's default.
pub(crate) type ChosenCacheType = Option<CacheType>;

/// The chosen weight types; `None` (written `auto`) keeps each checkpoint's own types.
pub(crate) type ChosenTypes = Option<WeightTypes>;

pub(crate) fn weight_types_or_auto() -> NamedValue<ChosenTypes> {
    let parse = |text: &str| match text {
        "auto" => Ok(None),
        _ => parse(text).map(Some),
    };
    NamedValue { parse, names: [&[AUTO_TYPE], &WEIGHT_TYPES[..], &MIXES].concat() }
}

pub(crate) fn weight_types() -> NamedValue<WeightTypes> {
    let names = [&WEIGHT_TYPES[..], &MIXES].concat();
    NamedValue { parse: |text| parse_types(text, "int8"), names }
}

/// One choice of weight types, or `all` of them.
pub(crate) fn weight_types_or_all() -> NamedValue<Vec<WeightTypes>> {
    let parse = |text: &str| match text {
        "all" => Ok(WeightTypes::all()),
        _ => parse_types(text, "int8").map(|types| vec![types]),
    };
    NamedValue { parse, names: [&[ALL_TYPES], &WEIGHT_TYPES[..], &MIXES].concat() }
}

/// Parses weight types. The error calls 8-bit integers `int8`.
fn parse_types(text: &str, int8: &str) -> Result<WeightTypes, String> {
    let name = |types: WeightTypes| match types {
        WeightTypes::All(WeightType::INT8) => int8.to_owned(),
        types => types.to_string(),
    };
    text.parse().map_err(|_unknown| {
        let names: Vec<String> = WeightTypes::all().into_iter().map(name).collect();
        format!("{text:?} is not one of {}", names.join(", "))
    })
}

pub(crate) fn weight_type() -> NamedValue<WeightType> {
    let parse = |text: &str| text.parse().map_err(|_unknown| not_one_of(text, &WEIGHT_TYPES));
    NamedValue { parse, names: WEIGHT_TYPES.to_vec() }
}

fn not_one_of(text: &str, names: &[Name]) -> String {
    let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    format!("{text:?} is not one of {}", names.join(", "))
}

/// Parses layer groups, or `@` and a file that contains layer groups.
pub(crate) fn layer_groups(text: &str) -> Result<LayerStrategy, String> {
    let Some(file) = text.strip_prefix('@') else {
        return text.parse().map_err(|error: forerun::draft::LayerGroupsError| error.to_string());
    };
    let text = crate::text_file::read(Path::new(file))
        .map_err(|error| format!("cannot read the layer groups in {file}: {error}"))?;
    LayerStrategy::from_file_text(&text).map_err(|error| format!("{file}: {error}"))
}

/// Parses a number of bytes, such as `1048576`, `512M` or `8G`. `K`, `M` and `G` are powers of
/// 1024.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..].to_ascii_uppercase()[..] {
        "" | "B" => Some(0),
        "K" | "KB" | "KIB" => Some(10),
        "M" | "MB" | "MIB" => Some(20),
        "G" | "GB" | "GIB" => Some(30),
        "T" | "TB" | "TIB" => Some(40),
        _ => None,
    };
    let number = digits.parse::<usize>().ok().filter(|&number| number > 0);
    let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(1 << unit));
    bytes.ok_or_else(|| "expected a number of bytes, such as 1048576, 512M or 8G".to_owned())
}

/// Parses a number of tokens; -1 sets no limit, as in llama.cpp.
pub(crate) fn tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => parse(text),
    }
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

/// What the ids of hub models may begin with.
const HUB_ADDRESSES: [&str; 4] =
    ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];

/// Parses a model: a path, a hub id, or `demo`, the built-in demonstration pair.
#[expect(clippy::unnecessary_wraps, reason = "clap takes parsers of this form")]
pub(crate) fn model(text: &str) -> Result<ModelSource, String> {
    match text {
        "demo" if !Path::new(text).exists() => Ok(DEMONSTRATION_TARGET.into()),
        _ => Ok(text.into()),
    }
}

/// Parses the name of a draft model. `demo` is the demonstration pair's.
pub(crate) fn draft_model(text: &str) -> Result<ModelSource, String> {
    match text {
        "demo" if !Path::new(text).exists() => Ok(DEMONSTRATION_DRAFTER.into()),
        _ => Ok(text.into()),
    }
}

/// Parses the name of a model: a path, a hub id, also with the hub's address, or `demo`.
pub(crate) fn named_model(text: &str) -> Result<ModelSource, String> {
    if Path::new(text).exists() {
        return Ok(ModelSource::Path(text.into()));
    }
    if text == "demo" {
        return model(text);
    }
    let id = HUB_ADDRESSES.iter().find_map(|address| text.strip_prefix(address)).unwrap_or(text);
    let extension = Path::new(id).extension().and_then(OsStr::to_str);
    if matches!(extension, Some("gguf" | "bin")) {
        return model(id);
    }
    if id.contains(char::is_whitespace) || !id.contains(['/', '\\']) {
        return Err("there is no such file or directory, and hub ids have an owner, such as \
                    HuggingFaceTB/SmolLM2-135M-Instruct. Is that a prompt? Give it with --prompt, \
                    or after the model: forerun run MODEL \"text\""
            .into());
    }
    Ok(id.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn assert_all_names_are_described<T>(parser: &NamedValue<T>) {
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
    fn models_have_paths_ids_or_the_name_of_the_demonstration() {
        assert_eq!(named_model("demo"), Ok(DEMONSTRATION_TARGET.into()));
        assert_eq!(model("demo"), Ok(DEMONSTRATION_TARGET.into()));
        assert_eq!(model("other"), Ok(ModelSource::Path("other".into())));
        let here = env!("CARGO_MANIFEST_DIR");
        assert_eq!(named_model(here), Ok(ModelSource::Path(here.into())));
        for text in ["owner/name", "hf.co/owner/name", "https://huggingface.co/owner/name"] {
            assert_eq!(named_model(text), Ok("owner/name".into()), "{text}");
        }
        assert_eq!(named_model("./none/model.gguf").map(|model| model.path().is_some()), Ok(true));
        assert!(named_model("llama3.2").is_err_and(|error| error.contains("owner")));
        assert_eq!(named_model("nope.gguf"), model("nope.gguf"));
        assert!(named_model("Once upon a time").is_err_and(|error| error.contains("--prompt")));
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("1048576"), Ok(1 << 20));
        assert_eq!(
            (bytes("512M"), bytes("8G"), bytes("8GiB")),
            (Ok(512 << 20), Ok(8 << 30), Ok(8 << 30))
        );
        for wrong in ["", "0", "M", "4X", "-1", "1.5G", "99999999999T"] {
            assert!(bytes(wrong).is_err_and(|error| error.contains("512M or 8G")), "{wrong}");
        }
    }

    #[test]
    fn help_describes_every_name_of_a_value() {
        assert_all_names_are_described(&method());
        assert_all_names_are_described(&drafter());
        assert_all_names_are_described(&lookup());
        assert_all_names_are_described(&verification());
        assert_all_names_are_described(&calibration_policy());
        assert_all_names_are_described(&gguf_types());
        assert_all_names_are_described(&weight_types_or_auto());
        assert_all_names_are_described(&weight_type());
        assert_all_names_are_described(&weight_types());
        assert_all_names_are_described(&prompt_style());
        assert_all_names_are_described(&preset());
        assert_all_names_are_described(&cache_type_or_auto());
    }
}
