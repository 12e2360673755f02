//! How much work a submission has.
//!
//! Drivers take a GPU for hung, and reset it, if a submission lasts for seconds. Cancellation is
//! also quicker with short submissions. So a pass is split wherever the work so far would last for
//! too long at the speed of earlier submissions. Bits do not depend on it.

use std::time::{Duration, Instant};

/// How long a submission should last.
const SUBMISSION: Duration = Duration::from_millis(100);

/// The speed before any submission was measured, in bytes a second: low, so that the first
/// submissions are short also on slow GPUs.
const FIRST_SPEED: f64 = 2e9;

/// A submission of less work says little about the speed.
const MEASURED_BYTES: u64 = 16 << 20;

/// Rows that a kernel computes with one read of a matrix.
const ROWS_PER_READ: u64 = 16;

/// Splits passes by the measured speed of a model.
pub(crate) struct Pacer {
    /// Bytes of weights, keys and values a second.
    speed: f64,
    /// When the last submission ended, of which this is known.
    ended: Instant,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { speed: FIRST_SPEED, ended: Instant::now() }
    }
}

/// Returns the work of a product with a matrix of so many bytes, for some rows: the bytes that it
/// reads.
pub(crate) fn work_of_product(matrix_bytes: u64, rows: u32) -> u64 {
    matrix_bytes * u64::from(rows).div_ceil(ROWS_PER_READ)
}

/// Returns the work of a selection of the `count` best of so many candidates. The time grows with
/// each selected one, so each counts as another read of the candidates.
pub(crate) fn work_of_selection(candidates: u64, count: u32) -> u64 {
    candidates * size_of::<f32>() as u64 * (1 + u64::from(count))
}

impl Pacer {
    /// Whether so much work should be submitted.
    pub(crate) fn is_enough(&self, work: u64) -> bool {
        work as f64 >= self.speed * SUBMISSION.as_secs_f64()
    }

    /// Notes that a submission has just ended.
    pub(crate) fn observe(&mut self, work: u64, submitted: Instant) {
        let now = Instant::now();
        // It began when the one before it had ended.
        self.learn(work, now.duration_since(submitted.max(self.ended)));
        self.ended = now;
    }

    fn learn(&mut self, work: u64, duration: Duration) {
        if work >= MEASURED_BYTES && !duration.is_zero() {
            let speed = work as f64 / duration.as_secs_f64();
            // A faster submission than expected raises the speed slowly, a slower one lowers it at
            // once.
            self.speed = speed.min((self.speed + speed) / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submissions_last_as_long_as_they_should_once_the_speed_is_known() {
        let mut pacer = Pacer::default();
        assert!(!pacer.is_enough(199_999_999) && pacer.is_enough(200_000_000));
        for _ in 0..60 {
            pacer.learn(1 << 30, Duration::from_secs_f64((1_u64 << 30) as f64 / 1e12));
        }
        assert!(!pacer.is_enough(99_000_000_000) && pacer.is_enough(100_000_000_000));
        pacer.learn(1 << 30, Duration::from_secs(1));
        assert!(pacer.is_enough(108_000_000) && !pacer.is_enough(100_000_000));
        pacer.learn(1000, Duration::from_secs(1));
        assert!(!pacer.is_enough(100_000_000), "a short submission says nothing");
    }

    #[test]
    fn a_matrix_is_read_for_every_sixteen_rows() {
        let work = |rows| work_of_product(10, rows);
        assert_eq!([work(1), work(16), work(17), work(256)], [10, 10, 20, 160]);
    }

    #[test]
    fn the_work_of_a_selection_grows_with_the_selected_tokens() {
        let work = |count| work_of_selection(100, count);
        assert_eq!([work(1), work(2), work(20)], [800, 1200, 8400]);
        // Candidates of a large selection end a submission on a slow GPU.
        assert!(Pacer::default().is_enough(work_of_selection(32 * 128_256, 20)));
        assert!(!Pacer::default().is_enough(work_of_selection(32 * 128_256, 1)));
    }
}
