//! What it costs that ranks have some layers of a model each.

use crate::gather_costs::{NUMBER_BYTES, check_bandwidth, check_numbers};
use crate::{Cost, SimError, calibration::ns};
use serde::Deserialize;
use std::fmt::{self, Write};

/// How the ranks of a model hand rows over to each other (pipeline stages), over which link.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TransferCosts {
    /// The number of ranks, with a stage each.
    pub stages: usize,
    /// The numbers of a row's hidden state.
    pub hidden: usize,
    /// The numbers of a row's features that travel with it because a drafter reads them.
    #[serde(default)]
    pub features: usize,
    /// How long a message takes without the link, in milliseconds.
    pub message_ms: f64,
    /// The latency of the link, in milliseconds.
    #[serde(default)]
    pub latency_ms: f64,
    /// The bandwidth of the link into a rank, in gigabytes per second.
    pub gigabytes_per_second: f64,
}

impl TransferCosts {
    /// Returns how long the messages of a pass over `rows` rows take, in nanoseconds: one from the
    /// last rank, which leads, to the first, and one with the rows from each rank to the next.
    #[must_use]
    pub fn ns(&self, rows: usize) -> f64 {
        if self.stages < 2 {
            return 0.0;
        }
        let bytes = NUMBER_BYTES * ((self.hidden + self.features) * rows) as f64;
        let message = (self.message_ms + self.latency_ms) * 1e6;
        let (messages, hand_overs) = (self.stages as f64, (self.stages - 1) as f64);
        messages * message + hand_overs * bytes / self.gigabytes_per_second
    }

    /// Adds the messages to the cost of the work of all ranks together. The numbers of a prompt
    /// count as those of one row.
    #[must_use]
    pub fn added_to(&self, cost: &Cost) -> Cost {
        cost.with_messages(|rows| self.ns(rows))
    }

    /// Checks the numbers of a file.
    pub(crate) fn check(&self) -> Result<(), SimError> {
        check_numbers("stages", self.stages, 1)?;
        check_numbers("hidden", self.hidden, 0)?;
        check_numbers("features", self.features, 0)?;
        ns("message-ms", self.message_ms)?;
        ns("latency-ms", self.latency_ms)?;
        check_bandwidth(self.gigabytes_per_second)
    }

    pub(crate) fn write(&self, name: &str, text: &mut String) -> fmt::Result {
        let Self { stages, hidden, features, message_ms, latency_ms, .. } = self;
        writeln!(text, "\n[{name}.hand-overs]\nstages = {stages}\nhidden = {hidden}")?;
        writeln!(text, "features = {features}")?;
        writeln!(text, "message-ms = {message_ms:.6}\nlatency-ms = {latency_ms:.6}")?;
        // All digits: a slow link must not become 0.
        writeln!(text, "gigabytes-per-second = {}", self.gigabytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForwardCost;

    fn hand_overs() -> TransferCosts {
        TransferCosts {
            stages: 3,
            hidden: 100,
            features: 0,
            message_ms: 0.005,
            latency_ms: 0.002,
            gigabytes_per_second: 2.0,
        }
    }

    #[test]
    fn a_pass_has_a_message_for_each_stage_and_rows_between_them() {
        assert_eq!(hand_overs().ns(1), 3.0 * 7_000.0 + 2.0 * 400.0 / 2.0);
        assert_eq!(hand_overs().ns(5), 3.0 * 7_000.0 + 2.0 * 2_000.0 / 2.0);
        let features = TransferCosts { features: 50, ..hand_overs() };
        assert_eq!(features.ns(1) - hand_overs().ns(1), 2.0 * 200.0 / 2.0);
        assert_eq!(TransferCosts { stages: 1, ..hand_overs() }.ns(5), 0.0);
        for wrong in [
            TransferCosts { stages: 0, ..hand_overs() },
            TransferCosts { hidden: usize::MAX, ..hand_overs() },
            TransferCosts { features: usize::MAX, ..hand_overs() },
            TransferCosts { message_ms: -1.0, ..hand_overs() },
            TransferCosts { latency_ms: f64::NAN, ..hand_overs() },
            TransferCosts { gigabytes_per_second: 0.0, ..hand_overs() },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        assert!(hand_overs().check().is_ok());
    }

    #[test]
    fn they_are_added_to_every_pass() {
        let forward = ForwardCost::Rows { points: vec![(1, 1_000), (4, 1_600)] };
        let with = hand_overs().added_to(&Cost { forward, layers: 10, ..Cost::constant(0) });
        assert_eq!([1, 4, 8].map(|rows| with.forward.ns(rows)), [22_400, 24_200, 26_600]);
    }
}
