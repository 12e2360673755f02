//! The scaling of rotary position embeddings, and the options that configure it.

use std::f64::consts::TAU;
use std::path::Path;
use std::sync::Arc;

use crate::json_options::{JsonOptions, MAX_SIZE};
use crate::load_error::LoadError;

/// The scaling of RoPE's frequencies, for texts longer than those of the original training: the
/// `rope_type` of `config.json` with its options.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// No scaling (`default`).
    #[default]
    None,
    /// All frequencies are divided by a factor (`linear`): position interpolation, Chen et al. 2023.
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
    /// Each pair's frequency is divided by its own number, `[head_dim / 2]`, as stored in GGUF files.
    Divisors(Arc<[f32]>),
}

impl RopeScaling {
    /// Returns the scaled value of the frequency of a pair (radians per position).
    pub(crate) fn scaled(&self, frequency: f64, pair: usize) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / f64::from(factor),
            Self::Divisors(ref divisors) => {
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
                let unscaled_share = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - unscaled_share) * frequency / f64::from(factor) + unscaled_share * frequency
            }
        }
    }

    /// Checks that the options are valid for heads of this size.
    pub(super) fn validate(&self, head_dim: usize, file: &Path) -> Result<(), LoadError> {
        let invalid = |option, found: &dyn std::fmt::Display, expected: &str| {
            let (file, found, expected) = (file.to_owned(), found.to_string(), expected.to_owned());
            Err(LoadError::InvalidOption { file, option, found, expected })
        };
        if let Self::Divisors(divisors) = self {
            // Frequencies divided by normal numbers are finite.
            let valid = |divisor: &&f32| divisor.is_normal() && **divisor > 0.0;
            return match divisors.iter().find(|divisor| !valid(divisor)) {
                Some(divisor) => invalid("rope_freqs", divisor, "positive, finite divisors"),
                None if divisors.len() != head_dim / 2 => {
                    let expected = format!("one for each of the {} pairs of a head", head_dim / 2);
                    invalid("rope_freqs", &format!("{} divisors", divisors.len()), &expected)
                }
                None => Ok(()),
            };
        }
        let &(Self::Linear { factor } | Self::Llama3 { factor, .. }) = self else { return Ok(()) };
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
            if original == 0 || original > MAX_SIZE {
                let expected = format!("a size from 1 to {}", MAX_SIZE);
                return invalid("original_max_position_embeddings", &original, &expected);
            }
        }
        Ok(())
    }
}

/// Reads the base and the scaling of RoPE. The base is a separate option or, since transformers 5, part
/// of `rope_parameters`. `rope_scaling` is the older name of the same object.
pub(super) fn read(
    options: &JsonOptions<'_>,
    default_theta: f32,
) -> Result<(f32, RopeScaling), LoadError> {
    let outer = ("rope_theta", options.number("rope_theta")?);
    let (mut theta, mut scaling) = (outer, None);
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(object) = options.object(name)? else { continue };
        let inner = (name, object.number("rope_theta")?);
        match (theta.1, inner.1) {
            (Some(one), Some(other)) if one != other => {
                let expected = format!("{other}, as in \"{}\"", inner.0);
                return Err(options.invalid("rope_theta", &one, &expected));
            }
            (None, Some(_)) => theta = inner,
            _ => {}
        }
        let found = read_scaling(options, name, &object)?;
        if scaling.is_some_and(|scaling| scaling != found) {
            let found = options.displayed(name);
            return Err(options.invalid(name, &found, "the same as \"rope_parameters\""));
        }
        scaling = Some(found);
    }
    Ok((theta.1.unwrap_or(default_theta), scaling.unwrap_or_default()))
}

/// Reads the scaling from `object`, the value of the option `name`.
fn read_scaling(
    options: &JsonOptions<'_>,
    name: &'static str,
    object: &JsonOptions<'_>,
) -> Result<RopeScaling, LoadError> {
    const TYPES: &str = "\"default\", \"linear\", \"llama3\"";
    let is_one = |value: &serde_json::Value| value.as_f64() == Some(1.0);
    object.check_supported("partial_rotary_factor", "1.0", is_one)?;
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
    // Neither type reads the original length. Some writers note it nonetheless.
    let (scaling, type_options): (_, &[&str]) = match value.as_str() {
        "default" => (RopeScaling::None, &[original]),
        "linear" => {
            let factor = object.required_number("factor")?;
            (RopeScaling::Linear { factor }, &["factor", original])
        }
        "llama3" => {
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
    if object.names().any(|name| !common.contains(&name) && !type_options.contains(&name)) {
        let supported = "\"rope_theta\", \"rope_type\", and the options of that type";
        return Err(options.unsupported(name, supported));
    }
    Ok(scaling)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
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
        let frequency = |rotations: f64| rotations * TAU / 8192.0;
        assert_eq!(scaling.scaled(frequency(5.0), 0), frequency(5.0));
        assert_eq!(scaling.scaled(frequency(0.5), 0), frequency(0.5) / 8.0);
        // In the middle between the two, half of each.
        let halfway = scaling.scaled(frequency(2.5), 0);
        assert!((halfway / frequency(2.5) - (1.0 + 1.0 / 8.0) / 2.0).abs() < 1e-12);
        // The function is continuous.
        for edge in [1.0, 4.0] {
            let [above, below] =
                [edge + 1e-9, edge - 1e-9].map(|rotations| scaling.scaled(frequency(rotations), 0));
            assert!((above - below).abs() < 1e-11);
        }
    }

    fn message(text: &str) -> String {
        let file = Path::new("config.json");
        let options = JsonOptions::parse(text, file).unwrap();
        let read = read(&options, 10_000.0).and_then(|(_, scaling)| scaling.validate(8, file));
        read.unwrap_err().to_string()
    }

    #[test]
    fn each_pair_has_its_own_divisor() {
        let scaling = RopeScaling::Divisors([1.0, 2.5, 8.0, 8.0].into());
        assert_eq!([0, 1, 2].map(|pair| scaling.scaled(1.0, pair)), [1.0, 0.4, 0.125]);
        let file = Path::new("a.gguf");
        assert!(scaling.validate(8, file).is_ok());
        let message = scaling.validate(10, file).unwrap_err().to_string();
        assert!(message.contains("4 divisors; expected one for each of the 5 pairs"), "{message}");
        for divisor in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
            let scaling = RopeScaling::Divisors([1.0, divisor].into());
            let message = scaling.validate(4, file).unwrap_err().to_string();
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
