//! The grid of a sweep: lists and ranges of parameters.

use super::SweepError;
use crate::{Calibration, Parameters, SimError};
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// A parameter with the values that it takes in a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The name of the parameter.
    pub name: String,
    /// The values of the parameter.
    pub values: Vec<Value>,
}

/// A grid of configurations, read from a TOML file such as
///
/// ```toml
/// target-ms = 30
/// draft-ms = { from = 0.3, to = 30, steps = 100 }
/// acceptance = { from = 0, to = 1, step = 0.01 }
/// draft-tokens = [1, 5, 10]
/// max-tokens = 50
/// repeats = 5
/// ```
///
/// Every combination of values is a configuration. The last parameter of [`Parameters::NAMES`]
/// varies fastest. `calibration` names a calibration file, relative to the folder of this file.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The given parameters, in the order of [`Parameters::NAMES`].
    pub axes: Vec<Axis>,
    /// The number of simulations of each configuration, with consecutive seeds.
    pub repeats: u64,
    /// The calibration with its name, which includes a hash of the file.
    pub calibration: Option<(String, Calibration)>,
}

/// Largest number of values in a range.
const MAX_VALUES: usize = 1_000_000;

impl Sweep {
    /// Reads a sweep file and the calibration that it names.
    ///
    /// # Errors
    /// If a file cannot be read, has an unknown parameter, or has a value out of range.
    pub fn read(file: &Path) -> Result<Self, SweepError> {
        let read = |file: &Path| {
            let failed = |cause| SweepError::Read { file: file.to_owned(), cause };
            fs::read_to_string(file).map_err(failed)
        };
        let wrong = |reason| SweepError::File { file: file.to_owned(), reason };
        let (mut sweep, calibration) = Self::parse(&read(file)?).map_err(wrong)?;
        if let Some(name) = calibration {
            let file = file.parent().unwrap_or(Path::new("")).join(&name);
            let text = read(&file)?;
            let calibration = Calibration::parse(&text)
                .map_err(|reason| SweepError::File { file: file.clone(), reason })?;
            // Rows name the calibration with its hash, because the file may change.
            sweep.calibration = Some((format!("{name}@{:08x}", hash(&text)), calibration));
        }
        sweep.check().map_err(wrong)?;
        Ok(sweep)
    }

    /// Parses the text of a sweep file. Returns the sweep and the name of its calibration file.
    fn parse(text: &str) -> Result<(Self, Option<String>), String> {
        let mut table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let repeats = match table.remove("repeats") {
            None => 1,
            Some(Value::Integer(repeats @ 1..)) => repeats as u64,
            Some(other) => {
                return Err(format!("repeats is {}, but must be at least 1", shown(&other)));
            }
        };
        let calibration = match table.remove("calibration") {
            None => None,
            Some(Value::String(name)) => Some(name),
            Some(other) => {
                return Err(format!("calibration is {}, but must be a file name", shown(&other)));
            }
        };
        if let Some(name) = table.keys().find(|name| !Parameters::NAMES.contains(&name.as_str())) {
            let names = Parameters::NAMES.join(", ");
            return Err(format!(
                "unknown parameter {name}; the parameters are {names}, repeats, calibration"
            ));
        }
        let mut axes = Vec::new();
        for name in Parameters::NAMES {
            if let Some(value) = table.remove(name) {
                let values = values(value).map_err(|reason| format!("{name}: {reason}"))?;
                axes.push(Axis { name: name.to_owned(), values });
            }
        }
        Ok((Self { axes, repeats, calibration: None }, calibration))
    }

    /// Returns the number of configurations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    /// Returns whether the sweep has no configurations because an axis has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the parameters of the configuration with this index.
    ///
    /// # Errors
    /// If a value has the wrong type for its parameter.
    pub fn configuration(&self, index: usize) -> Result<Parameters, String> {
        let mut left = index;
        let mut table = Table::new();
        for axis in self.axes.iter().rev() {
            let count = axis.values.len().max(1);
            table.insert(axis.name.clone(), axis.values[left % count].clone());
            left /= count;
        }
        table.try_into().map_err(|error| error.to_string())
    }

    /// Returns the calibration, if the sweep has one.
    #[must_use]
    pub fn measured(&self) -> Option<&Calibration> {
        self.calibration.as_ref().map(|(_, calibration)| calibration)
    }

    /// Checks every value once, so that most mistakes are found before the first simulation.
    fn check(&self) -> Result<(), String> {
        let limit = usize::MAX as f64 / 2.0;
        if self.axes.iter().map(|axis| axis.values.len() as f64).product::<f64>() > limit {
            return Err(
                "the grid has too many configurations: give some lists or ranges fewer values"
                    .into(),
            );
        }
        let mut stride = 1;
        for axis in self.axes.iter().rev() {
            for at in 0..axis.values.len() {
                let parameters = self.configuration(at * stride)?;
                parameters.simulation(self.measured()).map_err(in_file)?;
            }
            stride *= axis.values.len();
        }
        Ok(())
    }
}

/// Returns the message of an error, with the name that a parameter has in the file.
fn in_file(error: SimError) -> String {
    match error {
        SimError::Range { option, found, expected } => {
            let name = option.trim_matches('`').replace('_', "-");
            format!("{name} is {found}, but must be {expected}")
        }
        other => other.to_string(),
    }
}

/// Expands the entry of a parameter into its values.
fn values(entry: Value) -> Result<Vec<Value>, String> {
    match entry {
        Value::Array(values) if values.is_empty() => Err("the list is empty".into()),
        Value::Array(values) => {
            match values.iter().find(|value| matches!(value, Value::Array(_) | Value::Table(_))) {
                Some(value) => {
                    Err(format!("a list must contain plain values, not {}", shown(value)))
                }
                None => Ok(values),
            }
        }
        Value::Table(range) => range_values(&range),
        value => Ok(vec![value]),
    }
}

/// Expands a range `{ from, to, step }` or `{ from, to, steps }` into its values, both ends
/// included.
fn range_values(range: &Table) -> Result<Vec<Value>, String> {
    let form = "a range is { from = A, to = B, step = S } or { from = A, to = B, steps = N }";
    let number = |name: &str| match range.get(name) {
        Some(Value::Integer(number)) => Ok(*number as f64),
        Some(Value::Float(number)) if number.is_finite() => Ok(*number),
        _ => Err(form.to_owned()),
    };
    let (from, to) = (number("from")?, number("to")?);
    let has_step = range.contains_key("step");
    if range.len() != 3 || to < from {
        return Err(form.into());
    }
    let count = if has_step {
        let step = number("step")?;
        // The tolerance keeps the last value if rounding errors put it just beyond the end.
        if step > 0.0 { ((to - from) / step + 1e-9).floor() + 1.0 } else { return Err(form.into()) }
    } else {
        number("steps")?
    };
    if !(1.0..=MAX_VALUES as f64).contains(&count) || count.fract() != 0.0 {
        return Err(format!("{form}, with 1 to {MAX_VALUES} values"));
    }
    let step = match has_step {
        true => number("step")?,
        false => (to - from) / (count - 1.0).max(1.0),
    };
    let is_integer = |name: &str| !matches!(range.get(name), Some(Value::Float(_)));
    let all_integers = is_integer("from") && is_integer("to") && is_integer("step");
    let value = |index: usize| {
        let value = from + index as f64 * step;
        // Rounds to 12 decimals: 0.3, not 0.30000000000000004.
        let value = format!("{value:.12e}").parse().unwrap_or(value);
        if all_integers && value.fract() == 0.0 {
            Value::Integer(value as i64)
        } else {
            Value::Float(value)
        }
    };
    Ok((0..count as usize).map(value).collect())
}

/// Formats a value for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        other => format!("a value of type {}", other.type_str()),
    }
}

/// Computes the 32-bit FNV-1a hash of a text.
fn hash(text: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(text: &str) -> Result<Sweep, String> {
        let (sweep, _) = Sweep::parse(text)?;
        sweep.check()?;
        Ok(sweep)
    }

    #[test]
    fn every_combination_is_a_configuration() {
        let text = "draft-tokens = [1, 2]\nacceptance = { from = 0, to = 0.9, step = 0.3 }\n\
            target-ms = 20\ndraft-ms = { from = 1, to = 3, steps = 2 }\nrepeats = 3";
        let sweep = sweep(text).unwrap();
        assert_eq!((sweep.len(), sweep.repeats), (16, 3));
        let values = |index| {
            let parameters = sweep.configuration(index).unwrap();
            (
                parameters.target_ms.unwrap(),
                parameters.draft_ms.unwrap(),
                parameters.acceptance.unwrap(),
                parameters.draft_tokens,
            )
        };
        assert_eq!(values(0), (20.0, 1.0, 0.0, 1));
        assert_eq!(values(1), (20.0, 1.0, 0.0, 2));
        assert_eq!(values(2), (20.0, 1.0, 0.3, 1));
        assert_eq!(values(7), (20.0, 1.0, 0.9, 2));
        assert_eq!(values(15), (20.0, 3.0, 0.9, 2));
    }

    #[test]
    fn ranges_include_both_ends() {
        let values = |text: &str| {
            let (sweep, _) = Sweep::parse(text).unwrap();
            sweep.axes[0].values.iter().map(shown).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(values("draft-tokens = { from = 1, to = 4, step = 1 }"), "1 2 3 4");
        assert_eq!(values("draft-tokens = { from = 1, to = 201, steps = 3 }"), "1 101 201");
        assert_eq!(values("draft-ms = { from = 0.1, to = 0.3, step = 0.1 }"), "0.1 0.2 0.3");
        assert_eq!(values("draft-ms = { from = 5, to = 5, steps = 1 }"), "5");
    }

    #[test]
    fn invalid_sweeps_are_rejected_with_the_reason() {
        for (text, word) in [
            ("speed = 1", "unknown parameter speed"),
            ("acceptance = [0.5, 1.5]", "acceptance is 1.5, but must be from 0 to 1"),
            ("max-tokens = 0", "max-tokens is 0, but must be at least 1"),
            ("draft-ms = [1, -1]", "draft-ms is -1, but must be from 0"),
            ("draft-ms = []", "draft-ms: the list is empty"),
            ("draft-ms = [[1]]", "plain values"),
            ("draft-ms = { from = 1, to = 0, step = 1 }", "draft-ms: a range is"),
            ("draft-ms = { from = 1, to = 2, step = 0 }", "a range is"),
            ("draft-ms = { from = 1, to = 2, steps = 0 }", "1 to 1000000"),
            ("draft-ms = { from = 1, to = 2 }", "a range is"),
            ("draft-tokens = 'many'", "draft-tokens"),
            ("draft-tokens = { from = 1, to = 2, steps = 3 }", "draft-tokens"),
            ("method = 'magic'", "magic"),
            ("repeats = 0", "repeats is 0"),
            ("calibration = 1", "calibration is 1"),
        ] {
            let error = sweep(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
