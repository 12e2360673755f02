//! Predicted configurations, run for real.

use super::Laboratory;
use forerun_sim::planning::{Prediction, fastest_mean};
use serde::Serialize;

/// A prediction and the speed that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The prediction.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// The measured speed after the first step, in tokens per second.
    pub measured_tokens_per_second: f64,
    /// The speed in the odd rounds of the check divided by that in the even ones, minus 1. This is
    /// noise, so no prediction can be better. None: there was one round.
    pub noise: Option<f64>,
}

impl Checked {
    /// Returns how much faster it is than predicted, as a share; below 0 if it is slower.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.measured_tokens_per_second / self.prediction.tokens_per_second - 1.0
    }
}

/// Returns the median of the absolute errors; 0 if there are none.
#[must_use]
pub fn median_error(checked: &[Checked]) -> f64 {
    median_size(checked.iter().map(Checked::error)).unwrap_or(0.0)
}

/// Returns the median of the absolute noise, if there were two rounds.
#[must_use]
pub fn median_noise(checked: &[Checked]) -> Option<f64> {
    median_size(checked.iter().filter_map(|checked| checked.noise))
}

/// Returns the median of absolute values.
pub(super) fn median_size(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sizes: Vec<f64> = values.map(f64::abs).collect();
    sizes.sort_by(f64::total_cmp);
    let upper = sizes.get(sizes.len() / 2)?;
    Some((sizes[(sizes.len() - 1) / 2] + upper) / 2.0)
}

/// Returns the speed in tokens per second from the times of a token in nanoseconds, by prompt and
/// round, of every `step`th round from `first` on.
fn speed(prompts: &[Vec<f64>], first: usize, step: usize) -> f64 {
    let of_rounds = |times: &Vec<f64>| -> Option<f64> {
        let mut times: Vec<f64> = times.iter().skip(first).step_by(step).copied().collect();
        fastest_mean(&mut times)
    };
    let token_ns: f64 = prompts.iter().filter_map(of_rounds).sum();
    prompts.len() as f64 * 1e9 / f64::max(token_ns, 1.0)
}

impl Laboratory<'_> {
    /// Returns the measured speeds of predictions, in their order. [`measure`](Self::measure) has
    /// measured them, if the options say so.
    #[must_use]
    pub fn checked(&self, predictions: &[Prediction]) -> Vec<Checked> {
        let checked = |prediction: &Prediction| {
            let prompts = self.checks.get(&(prediction.timing, prediction.draft))?;
            let rounds = prompts.first().map_or(0, Vec::len);
            Some(Checked {
                prediction: prediction.clone(),
                measured_tokens_per_second: speed(prompts, 0, 1),
                noise: (rounds > 1).then(|| speed(prompts, 0, 2) / speed(prompts, 1, 2) - 1.0),
            })
        };
        predictions.iter().filter_map(checked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_of_the_fastest_quarter_of_each_prompt() {
        // The fastest two of five take 3 ms on average, and the only one 5 ms.
        let ms = |times: &[f64]| times.iter().map(|ms| ms * 1e6).collect::<Vec<_>>();
        let prompts = [ms(&[9.0, 2.0, 4.0, 8.0, 7.0]), ms(&[5.0])];
        assert!((speed(&prompts, 0, 1) - 2.0 * 1e3 / 8.0).abs() < 1e-9);
        // The odd rounds: 4 ms is the fastest of 9, 4 and 7; the even ones: 2 of 2 and 8.
        assert!((speed(&prompts[..1], 0, 2) - 250.0).abs() < 1e-9);
        assert!((speed(&prompts[..1], 1, 2) - 500.0).abs() < 1e-9);
    }
}
