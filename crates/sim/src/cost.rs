//! The time of forward passes.

use forerun_runtime::{PassTimes, ns_of_rows};
use serde::{Deserialize, Serialize};

/// The time of one forward pass by its number of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForwardCost {
    /// The same time for any number of rows, as the papers assume.
    Constant {
        /// The time in nanoseconds.
        ns: u64,
    },
    /// Measured times at some numbers of rows, interpolated linearly. The last segment is
    /// extrapolated.
    Rows {
        /// Pairs of rows and nanoseconds, in ascending order of rows.
        points: Vec<(usize, u64)>,
    },
    /// A drafter that computes groups of layers in parallel (EasySpec, arXiv 2502.02493, algorithm
    /// 2), each layer of a group on its own device. The first pass of a round calibrates and runs
    /// the layers in order. A round goes on in jobs that extend its draft, as in PEARL, until it
    /// has five tokens.
    Layers {
        /// The time of one layer's attention in nanoseconds.
        attention_ns: u64,
        /// The time of one layer's MLP in nanoseconds. The MLPs run one after another.
        mlp_ns: u64,
        /// The time of gathering the attention outputs of a group of several layers, in
        /// nanoseconds.
        communication_ns: u64,
        /// The number of layers in each group.
        groups: Vec<usize>,
    },
}

impl ForwardCost {
    /// Returns the time of a pass over `rows` rows in nanoseconds.
    #[must_use]
    pub fn ns(&self, rows: usize) -> u64 {
        match self {
            Self::Constant { ns } => *ns,
            Self::Rows { points } => ns_of_rows(points, rows),
            Self::Layers { attention_ns, mlp_ns, communication_ns, groups } => {
                let group_ns = |&layers: &usize| {
                    let gather_ns = if layers > 1 { *communication_ns } else { 0 };
                    attention_ns + gather_ns + layers as u64 * mlp_ns
                };
                groups.iter().map(group_ns).sum()
            }
        }
    }

    /// Returns the time of the first pass of a round over `rows` rows in nanoseconds.
    #[must_use]
    pub fn first_pass_ns(&self, rows: usize) -> u64 {
        match self {
            Self::Layers { attention_ns, mlp_ns, groups, .. } => {
                groups.iter().sum::<usize>() as u64 * (attention_ns + mlp_ns)
            }
            _ => self.ns(rows),
        }
    }
}

/// The times of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The time of one forward pass.
    pub forward: ForwardCost,
    /// The time of the first pass of a sequence, which includes the prompt but no draft tokens, in
    /// nanoseconds. `None`: the same as other passes.
    pub first_ns: Option<u64>,
    /// The time of each pass of a job after the first, in nanoseconds. It may be shorter because
    /// the weights are still in the device's caches. `None`: the same as other passes.
    pub next_ns: Option<u64>,
    /// The time that each further sequence adds to a pass, in nanoseconds: the part of its cost
    /// that does not depend on rows.
    #[serde(default)]
    pub sequence_ns: u64,
    /// The number of layers in a pass. A job can be cancelled between two layers.
    pub layers: usize,
    /// The latency from the decoder to the device, and back again, in nanoseconds each.
    pub link_ns: u64,
    /// Whether it is a drafter that reads the target's features. It reads nothing before it drafts
    /// for the first time, and the tokens of a draft again when the target has verified them,
    /// because it had only predicted their features.
    #[serde(default)]
    pub reads_features: bool,
}

impl Cost {
    /// Returns the cost of passes that always take `ns` nanoseconds.
    #[must_use]
    pub fn constant(ns: u64) -> Self {
        Self {
            forward: ForwardCost::Constant { ns },
            first_ns: None,
            next_ns: None,
            sequence_ns: 0,
            layers: 1,
            link_ns: 0,
            reads_features: false,
        }
    }

    /// Returns the times of passes for a paced device. They leave out links, the shorter passes of a
    /// job after its first, and layers in parallel.
    #[must_use]
    pub fn pass_times(&self) -> PassTimes {
        let rows_ns = match &self.forward {
            ForwardCost::Rows { points } => points.clone(),
            forward => vec![(1, forward.ns(1))],
        };
        PassTimes { rows_ns, first_ns: self.first_ns }
    }

    /// Returns whether all tokens of a draft take one pass.
    #[must_use]
    pub fn drafts_in_one_pass(&self) -> bool {
        self.next_ns == Some(0)
    }

    /// Returns the cost of passes during which ranks also send messages: `messages_ns` is their
    /// time by rows, in nanoseconds. Those of a prompt count as those of one row.
    pub(crate) fn with_messages(&self, messages_ns: impl Fn(usize) -> f64) -> Self {
        let messages_ns = |rows| messages_ns(rows).round() as u64;
        let with = |rows: usize| (rows, self.forward.ns(rows) + messages_ns(rows));
        let mut points: Vec<_> = match &self.forward {
            ForwardCost::Rows { points } => points.iter().map(|(rows, _)| with(*rows)).collect(),
            _ => vec![with(1), with(2)],
        };
        // More rows take longer, also if only one number of rows was measured.
        if let [(rows, _)] = points[..] {
            points.push(with(rows + 1));
        }
        let one_row_ns = messages_ns(1);
        Self {
            forward: ForwardCost::Rows { points },
            first_ns: self.first_ns.map(|ns| ns + one_row_ns),
            next_ns: self.next_ns.map(|ns| ns + one_row_ns),
            ..self.clone()
        }
    }

    /// Returns the time of a pass over `rows` rows of `sequences` sequences in nanoseconds.
    #[must_use]
    pub fn pass_ns(&self, rows: usize, sequences: usize) -> u64 {
        self.forward.ns(rows) + self.further_sequences_ns(sequences)
    }

    /// Returns the time of the first pass of rounds over `rows` rows of `sequences` sequences,
    /// without prompts, in nanoseconds.
    pub(crate) fn first_pass_ns(&self, rows: usize, sequences: usize) -> u64 {
        self.forward.first_pass_ns(rows) + self.further_sequences_ns(sequences)
    }

    /// Returns the time of a pass after the first, with one row for each sequence, in nanoseconds.
    pub(crate) fn next_pass_ns(&self, sequences: usize) -> u64 {
        let ns = self.pass_ns(sequences, sequences);
        let added_ns = || ns.saturating_sub(self.pass_ns(1, 1));
        self.next_ns.map_or(ns, |next_ns| next_ns + added_ns())
    }

    fn further_sequences_ns(&self, sequences: usize) -> u64 {
        self.sequence_ns * sequences.saturating_sub(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_take_time_for_rows_and_for_sequences() {
        let forward = ForwardCost::Rows { points: vec![(1, 100), (2, 110)] };
        let cost = Cost { forward, sequence_ns: 7, ..Cost::constant(0) };
        assert_eq!([(1, 1), (4, 1), (4, 3)].map(|(r, s)| cost.pass_ns(r, s)), [100, 130, 144]);
        assert_eq!((cost.next_pass_ns(1), cost.next_pass_ns(3)), (100, 134));
        let warm = Cost { next_ns: Some(60), ..cost };
        assert_eq!((warm.next_pass_ns(1), warm.next_pass_ns(3)), (60, 94));
    }

    #[test]
    fn parallel_layers_share_the_time_of_attention() {
        let groups = vec![1, 3, 4, 1];
        let cost = ForwardCost::Layers { attention_ns: 10, mlp_ns: 3, communication_ns: 2, groups };
        assert_eq!(cost.ns(1), 4 * 10 + 2 * 2 + 9 * 3);
        assert_eq!(cost.first_pass_ns(1), 9 * 13);
    }
}
