//! Predicted configurations, run for real.

use super::laboratory::{Bench, decode_ns};
use super::{Laboratory, PlanningError, Setting};
use forerun_sim::planning::{Prediction, lower_quartile, ns_per_token};
use serde::Serialize;

/// A prediction and the speed that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The prediction.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// The measured speed after the first token, in tokens per second: see [`ns_per_token`].
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
    /// `progress` gets the number of configurations that are done in all rounds.
    ///
    /// # Errors
    /// As [`Laboratory::measure`].
    pub fn check(
        &mut self,
        predictions: &[Prediction],
        rounds: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Checked>, PlanningError> {
        // The times of a token, by prediction and prompt.
        let mut times: Vec<Vec<Vec<f64>>> = vec![Vec::new(); predictions.len()];
        let mut done = 0;
        for _ in 0..rounds {
            for group in self.groups() {
                let of_group: Vec<usize> = (0..predictions.len())
                    .filter(|&index| group.contains(&predictions[index].timing))
                    .collect();
                if of_group.is_empty() {
                    continue;
                }
                let bench = self.open(&group)?;
                // The first answer warms up.
                let first = &predictions[of_group[0]];
                self.answer(&bench.engine, self.setting_of(first), &bench.prompts[0], first.draft)?;
                for index in of_group {
                    self.check_once(&bench, &predictions[index], &mut times[index])?;
                    done += 1;
                    progress(done);
                }
            }
        }
        let checked = |(prediction, prompts): (&Prediction, Vec<Vec<f64>>)| {
            let count = prompts.len() as f64;
            let fastest = prompts.into_iter().map(|mut times| lower_quartile(&mut times));
            let token_ns: f64 = fastest.flatten().sum();
            let measured_tokens_per_second = count * 1e9 / f64::max(token_ns, 1.0);
            Checked { prediction: prediction.clone(), measured_tokens_per_second }
        };
        Ok(predictions.iter().zip(times).map(checked).collect())
    }

    /// Adds the times of a token in an answer to each prompt.
    fn check_once(
        &self,
        bench: &Bench,
        prediction: &Prediction,
        times: &mut Vec<Vec<f64>>,
    ) -> Result<(), PlanningError> {
        let (setting, draft) = (self.setting_of(prediction), prediction.draft);
        // A new engine learns sizes that are chosen while decoding.
        for prompt in bench.prompts.iter().filter(|_| draft.is_auto()) {
            self.answer(&bench.engine, setting, prompt, draft)?;
        }
        times.resize(bench.prompts.len(), Vec::new());
        for (prompt, times) in bench.prompts.iter().zip(times) {
            let answer = self.answer(&bench.engine, setting, prompt, draft)?;
            times.push(ns_per_token(answer.tokens.len(), decode_ns(&answer)));
        }
        Ok(())
    }

    fn setting_of(&self, prediction: &Prediction) -> &Setting {
        &self.settings[prediction.timing]
    }
}
