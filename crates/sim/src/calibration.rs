//! Calibrations: measured times and acceptance of real models, as input of simulations.

use crate::{AcceptanceModel, Cost, ForwardCost, GatherCosts, SimError, TransferCosts};
use serde::Deserialize;
use std::fmt::Write;

/// Measured times and acceptance of a model pair, read from a TOML file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Calibration {
    /// The latency from a job's submission to its start, and again from its end to the decoder, in
    /// milliseconds each. It includes the decoder's own work.
    pub link_ms: f64,
    /// The number of prompt tokens, whose time is part of `first_ms`.
    pub prompt_tokens: usize,
    /// The passes of the target.
    pub target: MeasuredPasses,
    /// The passes of the drafter.
    pub drafter: MeasuredPasses,
    /// Where the drafter agrees with the target: one line per prompt, one character per generated
    /// token. It is `1` if the drafter, given the target's own text so far, proposes the target's
    /// next token, else `0`.
    pub agreement: Vec<String>,
}

/// The measured passes of one model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MeasuredPasses {
    /// A description of the model and its placement.
    pub model: String,
    /// The number of layers in a pass.
    pub layers: usize,
    /// The time of the pass over a prompt, in milliseconds.
    pub first_ms: f64,
    /// The times of passes as pairs of rows and milliseconds, in ascending order of rows.
    pub rows_ms: Vec<(usize, f64)>,
    /// The time of each pass of a job after the first, in milliseconds, if it differs.
    #[serde(default)]
    pub next_ms: Option<f64>,
    /// What is added to these times because several ranks compute each layer together. Without it,
    /// they include everything.
    #[serde(default)]
    pub gathers: Option<GatherCosts>,
    /// What is added to these times because several ranks have some layers each. Without it, they
    /// include everything.
    #[serde(default)]
    pub hand_overs: Option<TransferCosts>,
}

/// Converts milliseconds to nanoseconds.
pub(crate) fn ns(option: &'static str, ms: f64) -> Result<u64, SimError> {
    if (0.0..=1e9).contains(&ms) {
        return Ok((ms * 1e6).round() as u64);
    }
    let expected = "from 0 to 1e9 milliseconds";
    Err(SimError::Range { option, found: ms.to_string(), expected })
}

impl MeasuredPasses {
    pub(crate) fn cost(&self, link_ns: u64) -> Result<Cost, SimError> {
        let point = |&(rows, ms): &(usize, f64)| Ok((rows, ns("rows-ms", ms)?));
        let points = self.rows_ms.iter().map(point).collect::<Result<Vec<_>, SimError>>()?;
        if points.is_empty() || !points.is_sorted_by(|a, b| a.0 < b.0) {
            let found = format!("{:?}", self.rows_ms);
            let expected = "pairs of rows and milliseconds, in ascending order of rows";
            return Err(SimError::Range { option: "rows-ms", found, expected });
        }
        let cost = Cost {
            forward: ForwardCost::Rows { points },
            first_ns: Some(ns("first-ms", self.first_ms)?),
            next_ns: self.next_ms.map(|ms| ns("next-ms", ms)).transpose()?,
            sequence_ns: 0,
            layers: self.layers,
            link_ns,
            reads_features: false,
        };
        match (&self.gathers, &self.hand_overs) {
            (None, None) => Ok(cost),
            (Some(gathers), None) => {
                gathers.check()?;
                Ok(gathers.added_to(&cost))
            }
            (None, Some(hand_overs)) => {
                hand_overs.check()?;
                Ok(hand_overs.added_to(&cost))
            }
            (Some(_), Some(_)) => {
                let (option, found) = ("hand-overs", "next to gathers".into());
                Err(SimError::Range { option, found, expected: "alone" })
            }
        }
    }

    pub(crate) fn write(&self, name: &str, text: &mut String) -> std::fmt::Result {
        let points: Vec<String> =
            self.rows_ms.iter().map(|(rows, ms)| format!("[{rows}, {ms:.4}]")).collect();
        writeln!(text, "\n[{name}]\nmodel = {:?}\nlayers = {}", self.model, self.layers)?;
        writeln!(text, "first-ms = {:.4}\nrows-ms = [{}]", self.first_ms, points.join(", "))?;
        self.next_ms.map_or(Ok(()), |ms| writeln!(text, "next-ms = {ms:.4}"))?;
        self.gathers.as_ref().map_or(Ok(()), |gathers| gathers.write(name, text))?;
        self.hand_overs.as_ref().map_or(Ok(()), |hand_overs| hand_overs.write(name, text))
    }
}

impl Calibration {
    /// Parses the text of a calibration file.
    ///
    /// # Errors
    /// If the text is not valid TOML, a value is missing or out of range, or `agreement` is empty.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let is_record = |line: &String| {
            !line.is_empty() && line.bytes().all(|byte| matches!(byte, b'0' | b'1'))
        };
        if read.agreement.is_empty() || !read.agreement.iter().all(is_record) {
            return Err("agreement must have one line of 0s and 1s for each prompt".into());
        }
        read.target_cost().and(read.drafter_cost()).map_err(|error| error.to_string())?;
        Ok(read)
    }

    /// Returns the text of the calibration file. It starts with `comment`, which should say where
    /// the numbers come from.
    #[must_use]
    pub fn to_toml(&self, comment: &str) -> String {
        let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "link-ms = {:.4}\nprompt-tokens = {}", self.link_ms, self.prompt_tokens);
        text += "agreement = [\n";
        text.extend(self.agreement.iter().map(|line| format!("    \"{line}\",\n")));
        text += "]\n";
        let _ = self.target.write("target", &mut text);
        let _ = self.drafter.write("drafter", &mut text);
        text
    }

    /// Returns the cost of the target's passes.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn target_cost(&self) -> Result<Cost, SimError> {
        self.target.cost(ns("link-ms", self.link_ms)?)
    }

    /// Returns the cost of the drafter's passes.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn drafter_cost(&self) -> Result<Cost, SimError> {
        self.drafter.cost(ns("link-ms", self.link_ms)?)
    }

    /// Returns the recorded acceptance of a prompt. Indices beyond the last prompt wrap around.
    #[must_use]
    pub fn acceptance(&self, prompt: u64) -> AcceptanceModel {
        let line = prompt.checked_rem(self.agreement.len() as u64).unwrap_or(0) as usize;
        let record = self.agreement.get(line).map_or("", String::as_str);
        AcceptanceModel::Recorded(record.bytes().map(|byte| byte == b'1').collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_calibration_reads_back_unchanged() {
        let passes = |model: &str| MeasuredPasses {
            model: model.into(),
            layers: 7,
            first_ms: 80.5,
            rows_ms: vec![(1, 10.25), (4, 12.5)],
            next_ms: (model == "b").then_some(1.25),
            gathers: (model == "b").then(|| GatherCosts {
                ranks: 2,
                numbers: vec![64, 256],
                hidden: 64,
                vocabulary: 1_000,
                gathering_ms: 0.005,
                latency_ms: 0.03,
                gigabytes_per_second: 0.000_25,
            }),
            hand_overs: (model != "b").then_some(TransferCosts {
                stages: 4,
                hidden: 0,
                features: 0,
                message_ms: 0.001,
                latency_ms: 0.0,
                gigabytes_per_second: 1.5,
            }),
        };
        let calibration = Calibration {
            link_ms: 0.02,
            prompt_tokens: 32,
            target: passes("a \"model\" on cpu:1"),
            drafter: passes("b"),
            agreement: vec!["1101".into(), "0".into()],
        };
        let text = calibration.to_toml("measured\nhere");
        assert!(text.starts_with("# measured\n# here\n"), "{text}");
        assert_eq!(Calibration::parse(&text).unwrap(), calibration);
        let cost = calibration.target_cost().unwrap();
        assert_eq!(
            (cost.forward.ns(2), cost.first_ns, cost.link_ns),
            (11_004_000, Some(80_504_000), 20_000)
        );
        assert_eq!(calibration.acceptance(3), AcceptanceModel::Recorded(vec![false]));
        for (from, to) in [
            ("1101", "1121"),
            ("[4, 12", "[1, 12"),
            ("0.02", "-1"),
            ("layers", "layer"),
            ("ranks = 2", "ranks = 0"),
            ("gigabytes-per-second = 0.00025", "gigabytes-per-second = 0"),
            ("vocabulary = 1000", "vocabulary = 1048577"),
            ("stages = 4", "stages = 0"),
            ("[target.hand-overs]", "[drafter.hand-overs]"),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            assert!(Calibration::parse(&text.replacen(from, to, 1)).is_err(), "{from}");
        }
        // Both are optional.
        let shorter = text.replace("hidden = 64\nvocabulary = 1000\n", "");
        let gathers = Calibration::parse(&shorter).unwrap().drafter.gathers.unwrap();
        assert_eq!((gathers.hidden, gathers.vocabulary), (0, 0));
    }
}
