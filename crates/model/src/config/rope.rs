//! The scaling of rotary position embeddings, and where configurations say it.

use std::f64::consts::TAU;
use std::path::Path;

use crate::json_options::JsonOptions;
use crate::load_error::LoadError;

/// How RoPE's frequencies are scaled, to serve longer texts than the model was first trained on:
/// the `rope_type` of `config.json` with its options.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all (`default`).
    #[default]
    None,
    /// All are divided by a factor (`linear`): position interpolation, Chen et al. 2023.
    Linear {
        /// What divides frequencies; at least 1.
        factor: f32,
    },
    /// Low ones are divided by a factor, high ones kept, those between are blended (`llama3`).
    Llama3 {
        /// What divides low frequencies; at least 1.
        factor: f32,
        /// Frequencies that turn fewer times than this over the original context are low.
        low_freq_factor: f32,
        /// Frequencies that turn more often than this over the original context are high.
        high_freq_factor: f32,
        /// Positions of the context before it was lengthened.
        original_max_position_embeddings: usize,
    },
}

impl RopeScaling {
    /// A frequency (radians from one position to the next), scaled.
    pub(super) fn scaled(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / f64::from(factor),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                // Turns over the original context. Halfway cases agree with the blend's ends.
                let turns = original_max_position_embeddings as f64 * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / f64::from(factor) + kept * frequency
            }
        }
    }

    /// Checks that the options make frequencies.
    pub(super) fn validate(self, file: &Path) -> Result<(), LoadError> {
        let invalid = |option, found: &dyn std::fmt::Display, expected: &str| {
            let (file, found, expected) = (file.to_owned(), found.to_string(), expected.to_owned());
            Err(LoadError::InvalidOption { file, option, found, expected })
        };
        let (Self::Linear { factor } | Self::Llama3 { factor, .. }) = self else { return Ok(()) };
        if !(factor.is_finite() && factor >= 1.0) {
            return invalid("factor", &factor, "a finite number of at least 1");
        }
        if let Self::Llama3 {
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
                let expected = format!("a finite number above `low_freq_factor`, {low}");
                return invalid("high_freq_factor", &high, &expected);
            }
            if original == 0 || original > super::MAX_SIZE {
                let expected = format!("a size from 1 to {}", super::MAX_SIZE);
                return invalid("original_max_position_embeddings", &original, &expected);
            }
        }
        Ok(())
    }
}

/// The base and the scaling of RoPE. The base is an option of its own or, since transformers 5,
/// stands within `rope_parameters`; `rope_scaling` is the older name of the same object.
pub(super) fn read(options: &JsonOptions<'_>) -> Result<(f32, RopeScaling), LoadError> {
    let outer = ("rope_theta", options.number("rope_theta")?);
    let (mut theta, mut scaling) = (outer, None);
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(object) = options.object(name)? else { continue };
        let inner = (name, object.number("rope_theta")?);
        match (theta.1, inner.1) {
            (Some(one), Some(other)) if one != other => {
                let expected = format!("{other}, as in `{}`", inner.0);
                return Err(options.invalid("rope_theta", &one, &expected));
            }
            (None, Some(_)) => theta = inner,
            _ => {}
        }
        let found = read_scaling(options, name, &object)?;
        if scaling.is_some_and(|scaling| scaling != found) {
            let found = options.found(name);
            return Err(options.invalid(name, &found, "the same as `rope_parameters`"));
        }
        scaling = Some(found);
    }
    Ok((theta.1.unwrap_or(10_000.0), scaling.unwrap_or_default()))
}

/// The scaling that an object says; `name` is the option it is the value of.
fn read_scaling(
    options: &JsonOptions<'_>,
    name: &'static str,
    object: &JsonOptions<'_>,
) -> Result<RopeScaling, LoadError> {
    const TYPES: &str = "\"default\", \"linear\", \"llama3\"";
    object.only("partial_rotary_factor", "1.0", |value| value.as_f64() == Some(1.0))?;
    // Files of the years between have the type under both of its names.
    let named = |option| Ok(object.text(option)?.map(|value| (option, value)));
    let (new, old) = (named("rope_type")?, named("type")?);
    if let (Some((_, new)), Some((_, old))) = (&new, &old)
        && new != old
    {
        return Err(object.invalid("type", old, &format!("\"{new}\", as in `rope_type`")));
    }
    let (option, value) = new.or(old).unwrap_or(("rope_type", "default".to_owned()));
    let (scaling, own): (_, &[&str]) = match value.as_str() {
        "default" => (RopeScaling::None, &[]),
        "linear" => {
            (RopeScaling::Linear { factor: object.required_number("factor")? }, &["factor"])
        }
        "llama3" => {
            let original = "original_max_position_embeddings";
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
    let known = ["rope_theta", "rope_type", "type", "partial_rotary_factor"];
    if object.names().any(|name| !known.contains(&name) && !own.contains(&name)) {
        let supported = "`rope_theta`, `rope_type`, and the options of that type";
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
        let turning = |turns: f64| turns * TAU / 8192.0;
        assert_eq!(scaling.scaled(turning(5.0)), turning(5.0));
        assert_eq!(scaling.scaled(turning(0.5)), turning(0.5) / 8.0);
        // Halfway between, half of each.
        let halfway = scaling.scaled(turning(2.5));
        assert!((halfway / turning(2.5) - (1.0 + 1.0 / 8.0) / 2.0).abs() < 1e-12);
        // It never jumps.
        for edge in [1.0, 4.0] {
            let jump = scaling.scaled(turning(edge + 1e-9)) - scaling.scaled(turning(edge - 1e-9));
            assert!(jump.abs() < 1e-11);
        }
    }

    fn message(text: &str) -> String {
        let file = Path::new("config.json");
        let options = JsonOptions::parse(text, file).unwrap();
        let read = read(&options).and_then(|(_, scaling)| scaling.validate(file));
        read.unwrap_err().to_string()
    }

    #[test]
    fn what_is_contradictory_or_lacking_is_refused() {
        let cases = [
            (r#"{"rope_scaling": {"type": "linear"}}"#, "`factor` is missing; expected a number"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 0.5}}"#, "`factor` is 0.5"),
            (r#"{"rope_scaling": {"type": "linear", "factor": "4"}}"#, "`factor` is \"4\""),
            (r#"{"rope_scaling": {"type": 3}}"#, "`type` is 3; expected a text"),
            (
                r#"{"rope_scaling": {"type": "linear", "rope_type": "llama3"}}"#,
                "`type` is linear; expected \"llama3\", as in `rope_type`",
            ),
            (
                r#"{"rope_parameters": {"rope_type": "default"},
                    "rope_scaling": {"type": "linear", "factor": 2}}"#,
                "expected the same as `rope_parameters`",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                    "high_freq_factor": 4, "original_max_position_embeddings": 64}}"#,
                "`high_freq_factor` is 4; expected a finite number above `low_freq_factor`, 4",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                    "high_freq_factor": 4}}"#,
                "`original_max_position_embeddings` is missing",
            ),
        ];
        for (text, words) in cases {
            let message = message(text);
            assert!(message.starts_with("config.json: ") && message.contains(words), "{message}");
        }
    }
}
