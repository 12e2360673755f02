//! Predicted configurations, run for real.

use super::laboratory::after_first_step;
use super::{Laboratory, PlanningError, Setting};
use forerun_sim::planning::{Prediction, lower_quartile};
use serde::Serialize;

/// A prediction and the speed that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The prediction.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// The measured speed after the first token, in tokens per second.
    pub measured_tokens_per_second: f64,
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
    let mut errors: Vec<f64> = checked.iter().map(|checked| checked.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    match errors.len() {
        0 => 0.0,
        count => (errors[(count - 1) / 2] + errors[count / 2]) / 2.0,
    }
}

impl Laboratory<'_> {
    /// Runs predicted configurations, `rounds` times each in turn, and returns them in the order of the predictions.
    /// `progress` gets the number of configurations that are done.
    ///
    /// # Errors
    /// As [`Laboratory::measure`].
    pub fn check(
        &mut self,
        predictions: &[Prediction],
        rounds: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Checked>, PlanningError> {
        let mut checked: Vec<Option<Checked>> = vec![None; predictions.len()];
        let mut done = 0;
        for group in self.groups() {
            let of_group: Vec<usize> = (0..predictions.len())
                .filter(|&index| group.contains(&predictions[index].timing))
                .collect();
            if of_group.is_empty() {
                continue;
            }
            let bench = self.open(&group)?;
            let mut times = vec![vec![Vec::new(); bench.prompts.len()]; of_group.len()];
            // The first round warms up, and lets automatic lengths learn.
            for round in 0..=rounds.max(1) {
                for (place, &index) in of_group.iter().enumerate() {
                    let setting: &Setting = &self.settings[predictions[index].timing];
                    let draft = predictions[index].draft;
                    for (prompt, times) in bench.prompts.iter().zip(&mut times[place]) {
                        let answer = self.answer(&bench.engine, setting, prompt, draft)?;
                        let (tokens, ns) = after_first_step(&answer);
                        if round > 0 {
                            times.push(ns as f64 / tokens.max(1) as f64);
                        }
                    }
                }
            }
            for (&index, prompts) in of_group.iter().zip(times) {
                let mut ns_per_token = 0.0;
                let count = prompts.len() as f64;
                for mut answers in prompts {
                    ns_per_token += lower_quartile(&mut answers).unwrap_or(0.0);
                }
                let prediction = predictions[index].clone();
                let measured_tokens_per_second = count * 1e9 / f64::max(ns_per_token, 1.0);
                checked[index] = Some(Checked { prediction, measured_tokens_per_second });
                done += 1;
                progress(done);
            }
        }
        Ok(checked.into_iter().flatten().collect())
    }
}
