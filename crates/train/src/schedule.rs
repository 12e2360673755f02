//! The learning rate schedule.

use serde::{Deserialize, Serialize};

/// A linear warm-up followed by cosine annealing without restarts (arXiv 1608.03983).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRateSchedule {
    /// The highest learning rate.
    pub peak: f64,
    /// The last learning rate, as a share of the highest one.
    pub final_share: f64,
    /// Number of warm-up steps.
    pub warmup_steps: u64,
    /// Number of steps, including the warm-up.
    pub steps: u64,
}

impl LearningRateSchedule {
    /// Returns the learning rate of a step. Steps are counted from 0.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let decay_steps = self.steps.saturating_sub(self.warmup_steps).max(1);
        let done = ((step - self.warmup_steps) as f64 / decay_steps as f64).min(1.0);
        let share = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        self.peak * (self.final_share + (1.0 - self.final_share) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_the_final_share() {
        let schedule =
            LearningRateSchedule { peak: 2.0, final_share: 0.1, warmup_steps: 10, steps: 110 };
        assert_eq!(schedule.rate(0), 0.2);
        assert_eq!(schedule.rate(9), 2.0);
        assert_eq!(schedule.rate(10), 2.0);
        assert!((schedule.rate(60) - 1.1).abs() < 1e-12);
        assert!((schedule.rate(110) - 0.2).abs() < 1e-12);
        assert_eq!(schedule.rate(500), schedule.rate(110));
        let rates: Vec<f64> = (9..110).map(|step| schedule.rate(step)).collect();
        assert!(rates.is_sorted_by(|a, b| a >= b));
        let none = LearningRateSchedule { warmup_steps: 0, steps: 0, ..schedule };
        assert_eq!(none.rate(0), 2.0);
    }
}
