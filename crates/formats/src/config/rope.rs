//! The scaling of rotary position embeddings, and the options that configure it.

use super::Family;
use crate::architecture::Rope;
use crate::json_options::{JsonOptions, MAX_SIZE};
use crate::load_error::LoadError;
use std::f64::consts::TAU;
use std::path::Path;
use std::sync::Arc;

/// The scaling of RoPE's frequencies, for texts longer than those of the original training: the
/// `rope_type` of `config.json` with its options.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// No scaling (`default`).
    #[default]
    None,
    /// All frequencies are divided by a factor (`linear`): position interpolation, Chen et al.
    /// 2023.
    Linear {
        /// The divisor of the frequencies, at least 1.
        factor: f32,
    },
    /// Low frequencies are divided by a factor, high ones are unchanged, and those in between are
    /// interpolated (`llama3`).
    Llama3 {
        /// The divisor of low frequencies, at least 1.
        factor: f32,
        /// Frequencies with fewer rotations than this over the original context are low.
        low_freq_factor: f32,
        /// Frequencies with more rotations than this over the original context are high.
        high_freq_factor: f32,
        /// The length of the context before it was extended, in positions.
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al. 2023, arXiv 2309.00071; `yarn`): low frequencies are divided by a factor,
    /// high ones are unchanged, and those in between are interpolated by the index of their pair.
    Yarn(Yarn),
    /// Only the first pairs of a head are rotated, with the frequencies of the whole head
    /// (`proportional`, Gemma 4).
    Proportional {
        /// The share of pairs that are rotated.
        share: f32,
        /// The divisor of the frequencies, at least 1.
        factor: f32,
    },
    /// Each pair's frequency is divided by its own number: as stored in GGUF files, and LongRoPE's
    /// factors for short texts (`longrope`).
    Divisors {
        /// The divisor of each pair, `[dims / 2]`.
        divisors: Arc<[f32]>,
        /// The factor of rotated queries and keys.
        attention_factor: f32,
    },
}

/// The options of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// The divisor of low frequencies, at least 1.
    pub factor: f32,
    /// Pairs with more rotations than this over the original context keep their frequency.
    pub beta_fast: f32,
    /// Pairs with fewer rotations than this over the original context have it divided.
    pub beta_slow: f32,
    /// Whether the borders between pairs are rounded to whole pairs.
    pub truncate: bool,
    /// The factor of rotated queries and keys.
    pub attention_factor: f32,
    /// The length of the context before it was extended, in positions.
    pub original_max_position_embeddings: usize,
}

impl Yarn {
    /// Returns the share of a pair's frequency that is not divided.
    fn unscaled_share(&self, rope: &Rope, pair: usize) -> f64 {
        let (dims, base) = (rope.dims as f64, f64::from(rope.theta));
        // The pair, as a fraction, that rotates so often over the original context.
        let pair_of = |rotations: f32| {
            let length = self.original_max_position_embeddings as f64;
            dims * (length / (f64::from(rotations) * TAU)).ln() / (2.0 * base.ln())
        };
        let (low, high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        let high = if low == high { high + 0.001 } else { high };
        1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }
}

impl RopeScaling {
    /// Returns the scaled frequency of a pair (radians per position).
    pub(crate) fn scaled(&self, rope: &Rope, pair: usize) -> f64 {
        let frequency = rope.unscaled_frequency(pair);
        let interpolated = |unscaled_share: f64, factor: f32| {
            (1.0 - unscaled_share) * frequency / f64::from(factor) + unscaled_share * frequency
        };
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / f64::from(factor),
            // The share is rounded to f32.
            Self::Proportional { share, .. }
                if pair + 1 > ((rope.dims as f64 * f64::from(share) + 1e-4) / 2.0) as usize =>
            {
                0.0
            }
            Self::Proportional { factor, .. } => frequency / f64::from(factor),
            Self::Divisors { ref divisors, .. } => {
                frequency / divisors.get(pair).map_or(1.0, |divisor| f64::from(*divisor))
            }
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                // At its ends the interpolation equals the low and the high case.
                let rotations = original_max_position_embeddings as f64 * frequency / TAU;
                interpolated(((rotations - low) / (high - low)).clamp(0.0, 1.0), factor)
            }
            Self::Yarn(yarn) => interpolated(yarn.unscaled_share(rope, pair), yarn.factor),
        }
    }

    /// Returns the factor of rotated queries and keys.
    pub(crate) fn amplitude(&self) -> f32 {
        match self {
            Self::Yarn(Yarn { attention_factor, .. }) | Self::Divisors { attention_factor, .. } => {
                *attention_factor
            }
            Self::None | Self::Linear { .. } | Self::Proportional { .. } | Self::Llama3 { .. } => {
                1.0
            }
        }
    }

    /// Checks that the options are valid for this base and number of rotated dimensions.
    pub(super) fn validate(&self, theta: f32, dims: usize, file: &Path) -> Result<(), LoadError> {
        let invalid = |option, found: &dyn std::fmt::Display, expected: &str| {
            Err(LoadError::invalid_option(file, option, found, expected))
        };
        if !(self.amplitude().is_finite() && self.amplitude() > 0.0) {
            return invalid("attention_factor", &self.amplitude(), "a positive, finite number");
        }
        // Powers of a smaller base between −1 and 0 may be infinite in f32.
        if !theta.is_normal() {
            return invalid("rope_theta", &theta, "a number of at least 1.2e-38");
        }
        if let Self::Divisors { divisors, .. } = self {
            // Frequencies divided by normal numbers are finite.
            let valid = |divisor: &&f32| divisor.is_normal() && **divisor > 0.0;
            return match divisors.iter().find(|divisor| !valid(divisor)) {
                Some(divisor) => invalid("rope_freqs", divisor, "positive, finite divisors"),
                None if divisors.len() != dims / 2 => {
                    let expected = format!("one for each of the {} pairs of a head", dims / 2);
                    invalid("rope_freqs", &format!("{} divisors", divisors.len()), &expected)
                }
                None => Ok(()),
            };
        }
        if let &Self::Proportional { share, .. } = self
            && !(share.is_finite() && (0.0..=1.0).contains(&share))
        {
            return invalid("partial_rotary_factor", &share, "a share from 0 to 1");
        }
        let &(Self::Linear { factor }
        | Self::Proportional { factor, .. }
        | Self::Llama3 { factor, .. }
        | Self::Yarn(Yarn { factor, .. })) = self
        else {
            return Ok(());
        };
        if !(factor.is_finite() && factor >= 1.0) {
            return invalid("factor", &factor, "a finite number of at least 1");
        }
        if let &Self::Llama3 {
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
            ..
        } = self
        {
            if !(low.is_finite() && low > 0.0) {
                return invalid("low_freq_factor", &low, "a positive, finite number");
            }
            if !(high.is_finite() && high > low) {
                let expected = format!("a finite number above \"low_freq_factor\", {low}");
                return invalid("high_freq_factor", &high, &expected);
            }
            if !(1..=MAX_SIZE).contains(&original) {
                let expected = format!("a size from 1 to {MAX_SIZE}");
                return invalid("original_max_position_embeddings", &original, &expected);
            }
        }
        if let &Self::Yarn(yarn) = self {
            if theta == 1.0 {
                return invalid("rope_theta", &theta, "another base than 1, because of YaRN");
            }
            if !(yarn.beta_slow.is_finite() && yarn.beta_slow > 0.0) {
                return invalid("beta_slow", &yarn.beta_slow, "a positive, finite number");
            }
            if !(yarn.beta_fast.is_finite() && yarn.beta_fast >= yarn.beta_slow) {
                let expected = format!("a finite number of at least {}", yarn.beta_slow);
                return invalid("beta_fast", &yarn.beta_fast, &expected);
            }
            let original = yarn.original_max_position_embeddings;
            if !(1..=MAX_SIZE).contains(&original) {
                let expected = format!("a size from 1 to {MAX_SIZE}");
                return invalid("original_max_position_embeddings", &original, &expected);
            }
        }
        Ok(())
    }
}

/// The options of RoPE, as a configuration has them.
pub(super) struct RopeOptions {
    /// The base, of all layers or of those without a window.
    pub(super) theta: f32,
    pub(super) scaling: RopeScaling,
    pub(super) partial_rotary_factor: f32,
    /// The base and the scaling in layers with a window, if they have their own.
    pub(super) local: Option<(f32, RopeScaling)>,
    /// The largest number of positions. `dynamic` and `longrope` rotate all positions of a longer
    /// text in another way, so a row would not depend on its own prefix alone.
    pub(super) context_length: usize,
}

/// Reads the options of RoPE. The base is a separate option or, since transformers 5, part of
/// `rope_parameters`, which may have an object for each kind of layer. `rope_scaling` is the older
/// name of the same object.
pub(super) fn read(
    options: &JsonOptions<'_>,
    family: Family,
    context_length: usize,
) -> Result<RopeOptions, LoadError> {
    let defaults = &family.description().defaults;
    let theta_option = if options.contains("rotary_emb_base") && family == Family::GptNeoX {
        "rotary_emb_base"
    } else {
        "rope_theta"
    };
    let mut reader = Reader {
        options,
        family,
        theta: options.number(theta_option)?,
        scaling: None,
        partial: partial_rotary_factor(options, family)?,
        context_length,
    };
    let mut local = None;
    if let Some(local_theta) = defaults.local_rope_theta {
        let base = options.number("rope_local_base_freq")?;
        // OLMo 3 has the same base in all layers.
        let shared = reader.theta.filter(|_| family == Family::Olmo3);
        local = Some((base.or(shared).unwrap_or(local_theta), RopeScaling::None));
    }
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(object) = options.object(name)? else { continue };
        let [full, sliding] = ["full_attention", "sliding_attention"]
            .map(|layers| object.object(layers).map(|found| found.map(|found| (layers, found))));
        match (&mut local, full?, sliding?) {
            (Some(local), Some((layers, full)), sliding) => {
                reader.read(layers, &full)?;
                if let Some((layers, sliding)) = sliding {
                    let mut reader = Reader { theta: None, scaling: None, ..reader };
                    reader.read(layers, &sliding)?;
                    local.0 = reader.theta.unwrap_or(local.0);
                    local.1 = reader.scaling.take().unwrap_or_default();
                }
            }
            _ => reader.read(name, &object)?,
        }
    }
    let Reader { theta, scaling, partial, context_length, .. } = reader;
    Ok(RopeOptions {
        theta: theta.unwrap_or(defaults.rope_theta),
        scaling: scaling.unwrap_or_default(),
        partial_rotary_factor: partial.or(defaults.partial_rotary_factor).unwrap_or(1.0),
        local,
        context_length,
    })
}

/// Returns the share of a head that is rotated, if the family reads it from a separate option.
fn partial_rotary_factor(
    options: &JsonOptions<'_>,
    family: Family,
) -> Result<Option<f32>, LoadError> {
    let option = "partial_rotary_factor";
    if family.description().defaults.partial_rotary_factor.is_none() {
        let is_one = |value: &serde_json::Value| value.as_f64() == Some(1.0);
        return options.check_supported(option, "1.0", is_one).map(|()| None);
    }
    let old = if family == Family::GptNeoX { options.number("rotary_pct")? } else { None };
    Ok(options.number(option)?.or(old))
}

/// Reads the objects that hold the options of RoPE.
struct Reader<'a, 'b> {
    options: &'a JsonOptions<'b>,
    family: Family,
    theta: Option<f32>,
    scaling: Option<RopeScaling>,
    partial: Option<f32>,
    context_length: usize,
}

impl Reader<'_, '_> {
    fn read(&mut self, name: &'static str, object: &JsonOptions<'_>) -> Result<(), LoadError> {
        let theta = object.number("rope_theta")?;
        match (self.theta, theta) {
            (Some(one), Some(other)) if one != other => {
                let expected = format!("{other}, as in \"{name}\"");
                return Err(self.options.invalid("rope_theta", &one, &expected));
            }
            (None, Some(_)) => self.theta = theta,
            _ => {}
        }
        let found = self.read_scaling(name, object)?;
        // There the option is a part of the scaling.
        if !matches!(found, RopeScaling::Proportional { .. })
            && let Some(partial) = partial_rotary_factor(object, self.family)?
        {
            self.partial = Some(partial);
        }
        if self.scaling.as_ref().is_some_and(|scaling| *scaling != found) {
            let displayed = self.options.displayed(name);
            return Err(self.options.invalid(name, &displayed, "the same as \"rope_parameters\""));
        }
        self.scaling = Some(found);
        Ok(())
    }

    fn read_scaling(
        &mut self,
        name: &'static str,
        object: &JsonOptions<'_>,
    ) -> Result<RopeScaling, LoadError> {
        const TYPES: &str =
            "\"default\", \"linear\", \"dynamic\", \"yarn\", \"longrope\", \"llama3\"";
        // Some files contain the type under both its old and its new name.
        let type_option = |option| Ok(object.string(option)?.map(|value| (option, value)));
        let (new, old) = (type_option("rope_type")?, type_option("type")?);
        if let (Some((_, new)), Some((_, old))) = (&new, &old)
            && new != old
        {
            return Err(object.invalid("type", old, &format!("\"{new}\", as in \"rope_type\"")));
        }
        let (option, value) = new.or(old).unwrap_or(("rope_type", "default".to_owned()));
        let original = "original_max_position_embeddings";
        let (scaling, type_options): (_, &[&str]) = match (value.as_str(), self.family) {
            // These do not read the original length. Some writers note it nonetheless.
            ("default", _) => (RopeScaling::None, &[original]),
            ("linear", _) => {
                let factor = object.required_number("factor")?;
                (RopeScaling::Linear { factor }, &["factor", original])
            }
            // Within the context the frequencies are unscaled.
            ("dynamic", _) => (RopeScaling::None, &["factor", "alpha", original]),
            ("proportional", Family::Gemma4 | Family::Gemma4Unified) => {
                let share = object.number("partial_rotary_factor")?.unwrap_or(1.0);
                let factor = object.number("factor")?.unwrap_or(1.0);
                (RopeScaling::Proportional { share, factor }, &["factor"])
            }
            // Phi-3's older names of LongRoPE.
            ("longrope", _) | ("su" | "yarn", Family::Phi3) => {
                (self.read_longrope(object)?, &["factor", "short_factor", "long_factor", original])
            }
            ("yarn", _) => (RopeScaling::Yarn(self.read_yarn(object)?), YARN_OPTIONS),
            ("llama3", _) => {
                let scaling = RopeScaling::Llama3 {
                    factor: object.required_number("factor")?,
                    low_freq_factor: object.required_number("low_freq_factor")?,
                    high_freq_factor: object.required_number("high_freq_factor")?,
                    original_max_position_embeddings: object.required_size(original)?,
                };
                (scaling, &["factor", "low_freq_factor", "high_freq_factor", original])
            }
            _ => return Err(object.unsupported(option, TYPES)),
        };
        let common = ["rope_theta", "rope_type", "type", "partial_rotary_factor"];
        let has_factor = matches!(scaling, RopeScaling::Yarn(_) | RopeScaling::Divisors { .. });
        // Parts of a head that rotate by positions in images, which a text does not have.
        let is_vl = matches!(self.family, Family::Qwen3Vl | Family::Qwen3VlMoe);
        let of_images =
            (is_vl || self.family.is_hybrid_qwen()) && matches!(scaling, RopeScaling::None);
        let is_known = |name: &str| {
            common.contains(&name)
                || of_images && ["mrope_section", "mrope_interleaved"].contains(&name)
                || type_options.contains(&name)
                || has_factor && name == "attention_factor"
        };
        if object.names().any(|name| !is_known(name)) {
            let supported = "\"rope_theta\", \"rope_type\", and the options of that type";
            return Err(self.options.unsupported(name, supported));
        }
        Ok(scaling)
    }

    /// Returns the length of the context before it was extended. As in transformers, that of the
    /// configuration comes before that of the object.
    fn original_length(&self, object: &JsonOptions<'_>) -> Result<usize, LoadError> {
        let option = "original_max_position_embeddings";
        let found = self.options.size(option)?.or(object.size(option)?);
        let default = if self.family == Family::Phi3 { 4096 } else { self.context_length };
        Ok(found.unwrap_or(default))
    }

    /// Reads LongRoPE. Texts are no longer than the original context, where the short factors
    /// count.
    fn read_longrope(&mut self, object: &JsonOptions<'_>) -> Result<RopeScaling, LoadError> {
        let original = self.original_length(object)?;
        let by_lengths = self.context_length as f64 / original.max(1) as f64;
        let factor = object.number("factor")?.map_or(by_lengths, f64::from);
        let recommended = if factor <= 1.0 {
            1.0
        } else {
            (1.0 + factor.ln() / (original.max(1) as f64).ln()).sqrt() as f32
        };
        let attention_factor = object.number("attention_factor")?.unwrap_or(recommended);
        let divisors = object.required_numbers("short_factor")?.into();
        self.context_length = self.context_length.min(original);
        Ok(RopeScaling::Divisors { divisors, attention_factor })
    }

    fn read_yarn(&self, object: &JsonOptions<'_>) -> Result<Yarn, LoadError> {
        let original = self.original_length(object)?;
        let factor = f64::from(object.required_number("factor")?);
        let scale = |weight: f32| match factor {
            factor if factor <= 1.0 => 1.0,
            factor => 0.1 * f64::from(weight) * factor.ln() + 1.0,
        };
        let nonzero = |option| Ok::<_, LoadError>(object.number(option)?.filter(|n| *n != 0.0));
        let recommended = match (nonzero("mscale")?, nonzero("mscale_all_dim")?) {
            (Some(part), Some(all)) => scale(part) / scale(all),
            _ => scale(1.0),
        };
        Ok(Yarn {
            factor: factor as f32,
            beta_fast: nonzero("beta_fast")?.unwrap_or(32.0),
            beta_slow: nonzero("beta_slow")?.unwrap_or(1.0),
            truncate: object.flag("truncate")?.unwrap_or(true),
            attention_factor: object.number("attention_factor")?.unwrap_or(recommended as f32),
            original_max_position_embeddings: original,
        })
    }
}

/// The options of YaRN.
const YARN_OPTIONS: &[&str] = &[
    "factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_high_frequencies_and_divides_low_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        // The frequency of pair 1 of 2 is 1 / √theta.
        let scaled = |rotations: f64| {
            let frequency = rotations * TAU / 8192.0;
            let theta = (1.0 / (frequency * frequency)) as f32;
            let rope = Rope { theta, scaling: scaling.clone(), dims: 4 };
            scaling.scaled(&rope, 1) / rope.unscaled_frequency(1)
        };
        assert_eq!(scaled(5.0), 1.0);
        assert_eq!(scaled(0.5), 1.0 / 8.0);
        // In the middle between the two, half of each.
        assert!((scaled(2.5) - (1.0 + 1.0 / 8.0) / 2.0).abs() < 1e-6);
        // The function is continuous.
        for edge in [1.0, 4.0] {
            assert!((scaled(edge + 1e-6) - scaled(edge - 1e-6)).abs() < 1e-5);
        }
    }

    fn message(text: &str) -> String {
        let file = Path::new("config.json");
        let options = JsonOptions::parse(text, file).unwrap();
        let read = read(&options, Family::Llama, 2048);
        read.and_then(|rope| rope.scaling.validate(1e4, 8, file)).unwrap_err().to_string()
    }

    #[test]
    fn each_pair_has_its_own_divisor() {
        let of = |divisors: &[f32]| RopeScaling::Divisors {
            divisors: divisors.into(),
            attention_factor: 1.0,
        };
        let scaling = of(&[1.0, 2.5, 8.0, 8.0]);
        let rope = Rope { theta: 1.0, scaling: scaling.clone(), dims: 8 };
        assert_eq!([0, 1, 2].map(|pair| rope.frequency(pair)), [1.0, 0.4, 0.125]);
        let file = Path::new("a.gguf");
        assert!(scaling.validate(1e4, 8, file).is_ok());
        let message = scaling.validate(1e4, 10, file).unwrap_err().to_string();
        assert!(message.contains("4 divisors; expected one for each of the 5 pairs"), "{message}");
        for divisor in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
            let scaling = of(&[1.0, divisor]);
            let message = scaling.validate(1e4, 4, file).unwrap_err().to_string();
            assert!(message.contains("positive, finite divisors"), "{message}");
        }
    }

    #[test]
    fn contradictory_or_incomplete_options_are_rejected() {
        let cases = [
            (r#"{"rope_scaling": {"type": "linear"}}"#, "\"factor\" is missing; expected a number"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 0.5}}"#, "\"factor\" is 0.5"),
            (r#"{"rope_scaling": {"type": "linear", "factor": "4"}}"#, "\"factor\" is \"4\""),
            (r#"{"rope_scaling": {"type": 3}}"#, "\"type\" is 3; expected a string"),
            (
                r#"{"rope_scaling": {"type": "linear", "rope_type": "llama3"}}"#,
                "\"type\" is linear; expected \"llama3\", as in \"rope_type\"",
            ),
            (
                r#"{"rope_parameters": {"rope_type": "default"},
                    "rope_scaling": {"type": "linear", "factor": 2}}"#,
                "expected the same as \"rope_parameters\"",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                    "high_freq_factor": 4, "original_max_position_embeddings": 64}}"#,
                "\"high_freq_factor\" is 4; expected a finite number above \"low_freq_factor\", 4",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                    "high_freq_factor": 4}}"#,
                "\"original_max_position_embeddings\" is missing",
            ),
        ];
        for (text, words) in cases {
            let message = message(text);
            assert!(message.starts_with("config.json: ") && message.contains(words), "{message}");
        }
    }
}
