//! What is swept: lists and ranges of parameters.

use super::SweepError;
use crate::{Calibration, Parameters};
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// A parameter and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Vec<Value>,
}

/// A grid of configurations, from a TOML file such as
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
/// Every combination is a configuration, the last parameter of [`Parameters::NAMES`] turning fastest.
/// `calibration` names a file, from this one's folder, that says what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// What is given, in the order of [`Parameters::NAMES`].
    pub axes: Vec<Axis>,
    /// Simulations of each configuration, with seeds from its own on.
    pub repeats: u64,
    /// What was measured, and where that stands.
    pub calibration: Option<(String, Calibration)>,
}

/// Values of a parameter at the most.
const MOST_VALUES: usize = 1_000_000;

impl Sweep {
    /// Reads a file, and the calibration that it names.
    ///
    /// # Errors
    /// If a file cannot be read, or names what there is not.
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
            // Rows name what they come from: a file of the same name may change.
            sweep.calibration = Some((format!("{name}@{:08x}", hash(&text)), calibration));
        }
        sweep.check().map_err(wrong)?;
        Ok(sweep)
    }

    /// A sweep, and the name of its calibration.
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
                return Err(format!("calibration is {}, but must be a file's name", shown(&other)));
            }
        };
        if let Some(name) = table.keys().find(|name| !Parameters::NAMES.contains(&name.as_str())) {
            let names = Parameters::NAMES.join(", ");
            return Err(format!(
                "there is no parameter {name}; there are {names}, repeats, calibration"
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

    /// Number of configurations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    /// Whether there is none: an axis has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The configuration of an index.
    ///
    /// # Errors
    /// If a value is not what its parameter takes.
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

    /// What was measured, if anything was.
    #[must_use]
    pub fn measured(&self) -> Option<&Calibration> {
        self.calibration.as_ref().map(|(_, calibration)| calibration)
    }

    /// Tries every value once, so that most mistakes show before the first simulation.
    fn check(&self) -> Result<(), String> {
        let most = usize::MAX as f64 / 2.0;
        if self.axes.iter().map(|axis| axis.values.len() as f64).product::<f64>() > most {
            return Err("there are more configurations than can be counted".into());
        }
        let mut stride = 1;
        for axis in self.axes.iter().rev() {
            for at in 0..axis.values.len() {
                let parameters = self.configuration(at * stride)?;
                let simulation = parameters.simulation(self.measured());
                simulation.map_err(|error| error.to_string())?;
            }
            stride *= axis.values.len();
        }
        Ok(())
    }
}

/// The values that a parameter's entry stands for.
fn values(entry: Value) -> Result<Vec<Value>, String> {
    match entry {
        Value::Array(values) if values.is_empty() => Err("the list is empty".into()),
        Value::Array(values) => {
            match values.iter().find(|value| matches!(value, Value::Array(_) | Value::Table(_))) {
                Some(value) => Err(format!("a list has plain values, not {}", shown(value))),
                None => Ok(values),
            }
        }
        Value::Table(range) => range_values(&range),
        value => Ok(vec![value]),
    }
}

/// `{ from, to, step }` or `{ from, to, steps }`, both ends included.
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
        // A step that does not quite reach the end for rounding reaches it.
        if step > 0.0 { ((to - from) / step + 1e-9).floor() + 1.0 } else { return Err(form.into()) }
    } else {
        number("steps")?
    };
    if !(1.0..=MOST_VALUES as f64).contains(&count) || count.fract() != 0.0 {
        return Err(format!("{form}, of 1 to {MOST_VALUES} values"));
    }
    let step = match has_step {
        true => number("step")?,
        false => (to - from) / (count - 1.0).max(1.0),
    };
    let whole = |name: &str| !matches!(range.get(name), Some(Value::Float(_)));
    let whole = whole("from") && whole("to") && whole("step");
    let value = |index: usize| {
        let value = from + index as f64 * step;
        // 0.3, not 0.30000000000000004.
        let value = format!("{value:.12e}").parse().unwrap_or(value);
        if whole && value.fract() == 0.0 {
            Value::Integer(value as i64)
        } else {
            Value::Float(value)
        }
    };
    Ok((0..count as usize).map(value).collect())
}

/// A value in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        other => format!("one of type {}", other.type_str()),
    }
}

/// FNV-1a of 32 bits.
fn hash(text: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
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
        let of = |index| {
            let own = sweep.configuration(index).unwrap();
            (
                own.target_ms.unwrap(),
                own.draft_ms.unwrap(),
                own.acceptance.unwrap(),
                own.draft_tokens,
            )
        };
        assert_eq!(of(0), (20.0, 1.0, 0.0, 1));
        assert_eq!(of(1), (20.0, 1.0, 0.0, 2));
        assert_eq!(of(2), (20.0, 1.0, 0.3, 1));
        assert_eq!(of(7), (20.0, 1.0, 0.9, 2));
        assert_eq!(of(15), (20.0, 3.0, 0.9, 2));
    }

    #[test]
    fn ranges_have_both_ends() {
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
    fn what_makes_no_sense_is_named() {
        for (text, word) in [
            ("speed = 1", "no parameter speed"),
            ("acceptance = [0.5, 1.5]", "acceptance probability cannot be 1.5"),
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
