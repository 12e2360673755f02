//! What a pass costs.

use std::fmt;
use std::time::Duration;

/// What a pass costs on a GPU: counted while it is recorded, not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassCost {
    /// Number of rows.
    pub rows: usize,
    /// Bytes of weights that are read from memory, if each matrix is read once. Of experts, only
    /// those that some row has chosen are read.
    pub weight_bytes: u64,
    /// Number of experts that some row has chosen, summed over layers.
    pub experts: usize,
    /// Bytes of keys and values that are read, if each head of each row reads its own, and of
    /// states of recurrent layers that are read before a row or written after it.
    pub cache_bytes: u64,
    /// Number of dispatches. Each waits for the one before it.
    pub dispatches: usize,
    /// Number of submissions to the driver.
    pub submissions: usize,
    /// Bytes that come back to the processor.
    pub read_back_bytes: u64,
}

/// Where the time of a pass went, as the processor saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Recording and submitting the dispatches. Long passes are computed meanwhile.
    pub recording: Duration,
    /// Waiting for the GPU.
    pub waiting: Duration,
    /// Copying the results.
    pub reading: Duration,
}

impl PassCost {
    /// Estimates the time of the pass in seconds, on a GPU that reads so many bytes a second and
    /// needs so many seconds between two dispatches. Arithmetic counts as free, which is right for
    /// few rows only.
    #[must_use]
    pub fn estimated_seconds(&self, bytes_per_second: f64, dispatch_seconds: f64) -> f64 {
        let bytes = (self.weight_bytes + self.cache_bytes) as f64;
        bytes / bytes_per_second + self.dispatches as f64 * dispatch_seconds
    }
}

impl fmt::Display for PassCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows: {} bytes of weights, {} experts, {} bytes of keys, values and states, {} dispatches, {} submissions, {} bytes back",
            self.rows,
            self.weight_bytes,
            self.experts,
            self.cache_bytes,
            self.dispatches,
            self.submissions,
            self.read_back_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_that_of_bytes_and_of_dispatches() {
        let cost = PassCost {
            weight_bytes: 3_000,
            cache_bytes: 1_000,
            dispatches: 5,
            ..PassCost::default()
        };
        assert!((cost.estimated_seconds(2_000.0, 0.5) - 4.5).abs() < 1e-12);
    }
}
