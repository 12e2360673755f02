//! Learning rates.

use serde::{Deserialize, Serialize};

/// Warm-up, then half a cosine (Loshchilov and Hutter 2017).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRateSchedule {
    /// The highest rate.
    pub peak: f64,
    /// What is left of it at the end.
    pub final_share: f64,
    /// Steps until the highest rate.
    pub warmup_steps: u64,
    /// Steps in all.
    pub steps: u64,
}

impl LearningRateSchedule {
    /// The rate of a step, counted from 0.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let falling = self.steps.saturating_sub(self.warmup_steps).max(1);
        let done = ((step - self.warmup_steps) as f64 / falling as f64).min(1.0);
        let share = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        self.peak * (self.final_share + (1.0 - self.final_share) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_its_end() {
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
