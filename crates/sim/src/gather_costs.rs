//! What it costs that ranks compute a model together.

use crate::{Cost, SimError, calibration::ns};
use serde::Deserialize;
use std::fmt::{self, Write};

/// The bytes of a number that ranks send.
pub(crate) const NUMBER_BYTES: f64 = 4.0;
/// The largest number of ranks, and of numbers of a row.
const MOST: usize = 1 << 20;

/// How the ranks of a model gather activations in each layer (tensor parallelism), over which link.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GatherCosts {
    /// The number of ranks.
    pub ranks: usize,
    /// How many numbers of a row they gather in a layer, for each gathering: the heads' outputs,
    /// the hidden size, the inside of the MLP, and the hidden size again.
    pub numbers: Vec<usize>,
    /// The numbers of a row's embedding, which they gather once a pass; 0 to leave that out.
    #[serde(default)]
    pub hidden: usize,
    /// The numbers of a row's logits, which the first rank receives once a pass; 0 to leave that
    /// out.
    #[serde(default)]
    pub vocabulary: usize,
    /// How long a gathering takes without the link, in milliseconds.
    pub gathering_ms: f64,
    /// The latency of the link, in milliseconds.
    #[serde(default)]
    pub latency_ms: f64,
    /// The bandwidth of the link into a rank, in gigabytes per second.
    pub gigabytes_per_second: f64,
}

impl GatherCosts {
    /// Returns how long the gatherings of a pass over `rows` rows take, in nanoseconds: for each of
    /// them the fixed time and the latency, and the time in which the numbers of the other ranks
    /// arrive.
    #[must_use]
    pub fn ns(&self, layers: usize, rows: usize) -> f64 {
        if self.ranks < 2 {
            return 0.0;
        }
        let others = (self.ranks - 1) as f64 / self.ranks as f64;
        let gathering = |&numbers: &usize| {
            let bytes = NUMBER_BYTES * (numbers * rows) as f64 * others;
            (self.gathering_ms + self.latency_ms) * 1e6 + bytes / self.gigabytes_per_second
        };
        let of_layer: f64 = self.numbers.iter().map(gathering).sum();
        let once = [self.hidden, self.vocabulary];
        let of_pass: f64 = once.iter().filter(|numbers| **numbers > 0).map(gathering).sum();
        layers as f64 * of_layer + of_pass
    }

    /// Adds the gatherings to the cost of a rank's own work. The numbers of a prompt count as those
    /// of one row.
    #[must_use]
    pub fn added_to(&self, cost: &Cost) -> Cost {
        cost.with_messages(|rows| self.ns(cost.layers, rows))
    }

    /// Checks the numbers of a file.
    pub(crate) fn check(&self) -> Result<(), SimError> {
        check_numbers("hidden", self.hidden, 0)?;
        check_numbers("vocabulary", self.vocabulary, 0)?;
        check_numbers("ranks", self.ranks, 1)?;
        if self.numbers.is_empty() || self.numbers.iter().any(|numbers| *numbers > MOST) {
            let expected = "one or more numbers from 0 to 1048576";
            let found = format!("{:?}", self.numbers);
            return Err(SimError::Range { option: "numbers", found, expected });
        }
        ns("gathering-ms", self.gathering_ms)?;
        ns("latency-ms", self.latency_ms)?;
        check_bandwidth(self.gigabytes_per_second)
    }

    pub(crate) fn write(&self, name: &str, text: &mut String) -> fmt::Result {
        let Self { ranks, numbers, hidden, vocabulary, gathering_ms, latency_ms, .. } = self;
        writeln!(text, "\n[{name}.gathers]\nranks = {ranks}\nnumbers = {numbers:?}")?;
        writeln!(text, "hidden = {hidden}\nvocabulary = {vocabulary}")?;
        writeln!(text, "gathering-ms = {gathering_ms:.6}\nlatency-ms = {latency_ms:.6}")?;
        // All digits: a slow link must not become 0.
        writeln!(text, "gigabytes-per-second = {}", self.gigabytes_per_second)
    }
}

/// Checks a number of ranks, or of numbers of a row.
pub(crate) fn check_numbers(
    option: &'static str,
    found: usize,
    least: usize,
) -> Result<(), SimError> {
    let expected = if least == 0 { "from 0 to 1048576" } else { "from 1 to 1048576" };
    match (least..=MOST).contains(&found) {
        true => Ok(()),
        false => Err(SimError::Range { option, found: found.to_string(), expected }),
    }
}

/// Checks the bandwidth of a link.
pub(crate) fn check_bandwidth(gigabytes_per_second: f64) -> Result<(), SimError> {
    match gigabytes_per_second.is_finite() && gigabytes_per_second > 0.0 {
        true => Ok(()),
        false => Err(SimError::Range {
            option: "gigabytes-per-second",
            found: gigabytes_per_second.to_string(),
            expected: "above 0",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForwardCost;

    fn gathers() -> GatherCosts {
        GatherCosts {
            ranks: 4,
            numbers: vec![100, 300],
            hidden: 0,
            vocabulary: 0,
            gathering_ms: 0.005,
            latency_ms: 0.002,
            gigabytes_per_second: 2.0,
        }
    }

    #[test]
    fn gatherings_take_a_fixed_time_and_that_of_their_bytes() {
        // Each rank receives three quarters of 1,600 bytes, in two gatherings of each of ten
        // layers.
        assert_eq!(gathers().ns(10, 1), 10.0 * (2.0 * 7_000.0 + 1_200.0 / 2.0));
        assert_eq!(gathers().ns(10, 5), 10.0 * (2.0 * 7_000.0 + 6_000.0 / 2.0));
        assert_eq!(GatherCosts { ranks: 1, ..gathers() }.ns(10, 5), 0.0);
        // Embeddings and logits are gathered once a pass.
        let all = GatherCosts { hidden: 100, vocabulary: 1_000, ..gathers() };
        assert_eq!(all.ns(10, 5) - gathers().ns(10, 5), 2.0 * 7_000.0 + 16_500.0 / 2.0);
        let logits = GatherCosts { vocabulary: 1_000, ..gathers() };
        assert_eq!(logits.ns(10, 1) - gathers().ns(10, 1), 7_000.0 + 3_000.0 / 2.0);
        assert!(GatherCosts { vocabulary: MOST + 1, ..gathers() }.check().is_err());
    }

    #[test]
    fn they_are_added_to_every_pass() {
        let rows = |points: &[(usize, u64)]| ForwardCost::Rows { points: points.to_vec() };
        let cost = |forward| Cost { forward, layers: 10, ..Cost::constant(0) };
        let with = gathers().added_to(&cost(rows(&[(1, 1_000), (4, 1_600)])));
        assert_eq!(
            [1, 2, 4, 8].map(|rows| with.forward.ns(rows)),
            [147_000, 153_200, 165_600, 190_400]
        );
        assert_eq!(gathers().added_to(&cost(rows(&[(1, 1_000)]))).forward.ns(3), 159_000);
        let constant = Cost { first_ns: Some(9_000), ..cost(ForwardCost::Constant { ns: 1_000 }) };
        let with = gathers().added_to(&constant);
        assert_eq!(
            (with.forward.ns(3), with.first_ns, with.next_ns),
            (159_000, Some(155_000), None)
        );
    }
}
