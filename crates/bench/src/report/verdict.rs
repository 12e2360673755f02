//! The result of a comparison in a few sentences.

use super::shown;
use crate::metrics::{Measured, Metric};
use crate::summary::{ConfigurationSummary, OVERALL, Summary};
use forerun_draw::number;

/// Returns one sentence or two for each baseline: the fastest configuration, and which differences
/// are noise.
pub(super) fn verdict(summary: &Summary) -> Vec<String> {
    let is_peer = |name: &str| summary.same_text.iter().any(|agreement| agreement.peer == name);
    let baselines = summary.configurations.iter().filter(|entry| entry.baseline == entry.name);
    let groups: Vec<_> = baselines
        .filter_map(|baseline| {
            let speed = |entry: &ConfigurationSummary| entry.cells[OVERALL].get(Metric::SpeedRatio);
            let others = summary.configurations.iter().filter(|entry| {
                let is_other = entry.baseline == baseline.name && entry.name != baseline.name;
                is_other && !is_peer(&entry.name)
            });
            let speeds = others.filter_map(|entry| Some((entry.name.as_str(), speed(entry)?)));
            Group::of(&baseline.name, speeds.collect(), summary.repeats)
        })
        .collect();
    let several = groups.len() > 1;
    groups.iter().map(|group| group.sentence(several)).collect()
}

/// The configurations that are compared with a baseline.
struct Group<'a> {
    baseline: &'a str,
    fastest: (&'a str, Measured),
    others: Vec<(&'a str, Measured)>,
    /// Smaller differences of speed ratios are noise; `None` if there is only one repeat.
    noise: Option<f64>,
}

impl<'a> Group<'a> {
    fn of(baseline: &'a str, mut speeds: Vec<(&'a str, Measured)>, repeats: usize) -> Option<Self> {
        speeds.sort_by(|(_, a), (_, b)| b.mean.total_cmp(&a.mean));
        let noise = noise(speeds.iter().map(|(_, speed)| speed.deviation), repeats);
        let mut speeds = speeds.into_iter();
        let fastest = speeds.next()?;
        Some(Self { baseline, fastest, others: speeds.collect(), noise })
    }

    fn sentence(&self, several: bool) -> String {
        let (name, speed) = self.fastest;
        let noise = self.noise.unwrap_or(0.0);
        let plain = match several {
            true => format!("plain decoding (\"{}\")", self.baseline),
            false => "plain decoding".to_owned(),
        };
        let value = shown(Metric::SpeedRatio, Some(speed));
        let mut sentence = match speed.mean - 1.0 {
            gain if gain > noise => format!("\"{name}\" is {value} × {plain}"),
            gain if gain >= -noise => {
                format!("No configuration is clearly faster than {plain}: \"{name}\" is {value} ×")
            }
            _ => format!("All configurations are slower than {plain}: \"{name}\" is {value} ×"),
        };
        let close = self.others.iter().filter(|(_, other)| speed.mean - other.mean <= noise);
        let close: Vec<&str> = close.map(|(name, _)| *name).collect();
        sentence += &match &close[..] {
            [] => String::new(),
            [one] => format!(", and \"{one}\" may be as fast"),
            [one, other] => format!(", and \"{one}\" and \"{other}\" may be as fast"),
            more => format!(", and {} others may be as fast", more.len()),
        };
        sentence + &match self.noise {
            Some(noise) => format!("; differences below {} are noise.", number(noise)),
            None => {
                "; measured once, so it is not known which differences are noise (repeat it with \
                     --repeats 3)."
                    .to_owned()
            }
        }
    }
}

/// Returns the largest difference of two means that is noise: twice its standard deviation, from
/// the configurations' mean variance over repeats. `None` if there is only one repeat.
fn noise(deviations: impl Iterator<Item = Option<f64>>, repeats: usize) -> Option<f64> {
    let variances: Option<Vec<f64>> =
        deviations.map(|deviation| deviation.map(|deviation| deviation * deviation)).collect();
    let variances = variances.filter(|variances| !variances.is_empty() && repeats > 1)?;
    let variance = variances.iter().sum::<f64>() / variances.len() as f64;
    Some(2.0 * (2.0 * variance / repeats as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(speeds: &[(&str, f64, Option<f64>)]) -> String {
        let speeds =
            speeds.iter().map(|&(name, mean, deviation)| (name, Measured { mean, deviation }));
        Group::of("autoregressive", speeds.collect(), 2).map_or(String::new(), |group| {
            assert!(group.sentence(true).contains("plain decoding (\"autoregressive\")"));
            group.sentence(false)
        })
    }

    #[test]
    fn the_fastest_configuration_is_named_with_the_noise() {
        // Twice the deviation of a difference of two means of two values is twice their deviation.
        assert_eq!(
            sentence(&[("speculative", 1.1, Some(0.02)), ("pearl", 1.24, Some(0.02))]),
            "\"pearl\" is 1.24 ± 0.02 × plain decoding; differences below 0.04 are noise."
        );
        assert_eq!(
            sentence(&[("a", 1.5, Some(0.1)), ("b", 1.45, Some(0.1)), ("c", 1.0, Some(0.1))]),
            "\"a\" is 1.50 ± 0.10 × plain decoding, and \"b\" may be as fast; differences below \
             0.20 are noise."
        );
        let three =
            sentence(&[("a", 1.5, Some(0.1)), ("b", 1.4, Some(0.1)), ("c", 1.4, Some(0.1))]);
        let four = ["a", "b", "c", "d"].map(|name| (name, 1.5, Some(0.1)));
        assert!(sentence(&four).contains(", and 3 others may be as fast;"));
        assert!(three.contains(", and \"b\" and \"c\" may be as fast;"), "{three}");
    }

    #[test]
    fn no_gain_is_claimed_within_the_noise_or_below_one() {
        let within = sentence(&[("pearl", 1.03, Some(0.02))]);
        assert!(
            within.starts_with(
                "No configuration is clearly faster than plain decoding: \"pearl\" is 1.03"
            ),
            "{within}"
        );
        let below = sentence(&[("pearl", 0.7, Some(0.02))]);
        assert!(
            below.starts_with("All configurations are slower than plain decoding: \"pearl\""),
            "{below}"
        );
    }

    #[test]
    fn one_repeat_says_that_the_noise_is_unknown() {
        let once = sentence(&[("pearl", 1.2, None)]);
        assert!(once.starts_with("\"pearl\" is 1.20 × plain decoding; measured once"), "{once}");
        assert_eq!(sentence(&[]), "");
    }
}
