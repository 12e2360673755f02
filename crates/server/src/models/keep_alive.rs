//! How long a model stays loaded after its last use.

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long a model stays loaded after its last use, unless its memory is needed before.
///
/// As in ollama, it is written as a duration such as `5m` or `1h30m`, or as a number of seconds.
/// Numbers below 0 mean for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive(Option<Duration>);

/// A text that is no time for which a model is kept.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no duration: give one such as \"5m\" or \"1h30m\", seconds, or -1 for ever")]
pub struct UnknownKeepAlive(String);

/// The longest duration, which is 30 years.
const LONGEST_SECONDS: f64 = 1e9;

/// The units of durations, in seconds. Longer names come before those that they begin with.
const UNITS: [(&str, f64); 6] =
    [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

impl KeepAlive {
    /// For ever.
    pub const ALWAYS: Self = Self(None);

    /// Returns the time; `None` for ever.
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        self.0
    }

    /// Returns the time of a number of seconds.
    fn of_seconds(seconds: f64) -> Self {
        let is_long = !(0.0..=LONGEST_SECONDS).contains(&seconds);
        Self((!is_long).then(|| Duration::from_secs_f64(seconds)))
    }
}

impl FromStr for KeepAlive {
    type Err = UnknownKeepAlive;

    fn from_str(text: &str) -> Result<Self, UnknownKeepAlive> {
        let unknown = || UnknownKeepAlive(text.to_owned());
        let (sign, mut rest) = match text.trim().strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.trim()),
        };
        let is_number =
            |text: &str| text.starts_with(|one: char| one.is_ascii_digit() || one == '.');
        if let Some(seconds) = rest.parse::<f64>().ok().filter(|_| is_number(rest)) {
            return Ok(Self::of_seconds(sign * seconds));
        }
        if rest.is_empty() {
            return Err(unknown());
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let end = rest.find(|one: char| !one.is_ascii_digit() && one != '.');
            let (number, after) = rest.split_at(end.ok_or_else(unknown)?);
            let number: f64 = number.parse().map_err(|_| unknown())?;
            let unit =
                UNITS.iter().find_map(|(name, unit)| Some((after.strip_prefix(name)?, unit)));
            let (after, unit) = unit.ok_or_else(unknown)?;
            seconds += number * unit;
            rest = after;
        }
        Ok(Self::of_seconds(sign * seconds))
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeepAliveVisitor)
    }
}

struct KeepAliveVisitor;

impl Visitor<'_> for KeepAliveVisitor {
    type Value = KeepAlive;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a duration such as \"5m\", or a number of seconds")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<KeepAlive, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<KeepAlive, E> {
        match seconds.is_finite() {
            true => Ok(KeepAlive::of_seconds(seconds)),
            false => Err(E::invalid_value(de::Unexpected::Float(seconds), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<KeepAlive, E> {
        Ok(KeepAlive::of_seconds(seconds as f64))
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<KeepAlive, E> {
        Ok(KeepAlive::of_seconds(seconds as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_ollama() {
        let milliseconds = |value: &str| {
            let kept =
                serde_json::from_str::<KeepAlive>(value).map_err(|error| error.to_string())?;
            Ok::<_, String>(kept.duration().map(|time| time.as_millis()))
        };
        for (value, expected) in [
            ("300", Some(300_000)),
            ("0", Some(0)),
            ("0.5", Some(500)),
            ("\"5m\"", Some(300_000)),
            ("\"1h30m\"", Some(5_400_000)),
            ("\"1.5s\"", Some(1_500)),
            ("\"250ms\"", Some(250)),
            ("\"10\"", Some(10_000)),
            ("\"0\"", Some(0)),
            ("-1", None),
            ("\"-1\"", None),
            ("\"-1m\"", None),
            ("1e300", None),
        ] {
            assert_eq!(milliseconds(value), Ok(expected), "{value}");
        }
        for wrong in ["\"\"", "\"soon\"", "\"5 minutes\"", "\"5m3\"", "\"inf\"", "true", "[5]"] {
            let error = milliseconds(wrong).expect_err(wrong);
            assert!(error.contains("\"5m\""), "{wrong}: {error}");
        }
    }
}
