//! What forward passes take.

use serde::{Deserialize, Serialize};

/// The time of one forward pass, by its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForwardCost {
    /// The same however many rows, as the papers assume.
    Constant {
        /// Nanoseconds.
        ns: u64,
    },
    /// Measured at some numbers of rows, in rising order: straight lines lie between, and the last
    /// one goes on.
    Rows {
        /// Rows and nanoseconds.
        points: Vec<(usize, u64)>,
    },
    /// A drafter whose layers run side by side in groups (EasySpec, arXiv 2502.02493, algorithm 2),
    /// each on a device of its own. Its first pass of a draft, which calibrates, runs them in order.
    Layers {
        /// Nanoseconds of one layer's attention.
        attention_ns: u64,
        /// Nanoseconds of one layer's MLP, which all devices compute one after another.
        mlp_ns: u64,
        /// Nanoseconds of gathering the attentions of a group of more than one layer.
        communication_ns: u64,
        /// Layers of each group.
        groups: Vec<usize>,
    },
}

impl ForwardCost {
    /// Nanoseconds of a pass of so many rows.
    #[must_use]
    pub fn of(&self, rows: usize) -> u64 {
        match self {
            Self::Constant { ns } => *ns,
            Self::Rows { points } => interpolated(points, rows),
            Self::Layers { attention_ns, mlp_ns, communication_ns, groups } => {
                let group_ns = |&layers: &usize| {
                    let gather_ns = if layers > 1 { *communication_ns } else { 0 };
                    attention_ns + gather_ns + layers as u64 * mlp_ns
                };
                groups.iter().map(group_ns).sum()
            }
        }
    }

    /// Nanoseconds of the first pass of a job, over so many rows.
    #[must_use]
    pub fn opening(&self, rows: usize) -> u64 {
        match self {
            Self::Layers { attention_ns, mlp_ns, groups, .. } => {
                groups.iter().sum::<usize>() as u64 * (attention_ns + mlp_ns)
            }
            _ => self.of(rows),
        }
    }
}

fn interpolated(points: &[(usize, u64)], rows: usize) -> u64 {
    let above = points.iter().position(|&(at, _)| at >= rows);
    let (low, high) = match (above, points) {
        (_, []) => return 0,
        (_, [(_, ns)]) | (Some(0), [(_, ns), ..]) => return *ns,
        (Some(above), points) => (points[above - 1], points[above]),
        (None, points) => (points[points.len() - 2], points[points.len() - 1]),
    };
    let slope = (high.1 as f64 - low.1 as f64) / (high.0 as f64 - low.0 as f64);
    (low.1 as f64 + slope * (rows as f64 - low.0 as f64)).max(0.0).round() as u64
}

/// What a device takes for its jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// One forward pass.
    pub forward: ForwardCost,
    /// What the first pass of a sequence takes instead (time to the first token, which holds the
    /// prompt), candidates apart; `None` where it takes what the others do.
    pub first_ns: Option<u64>,
    /// What each further pass of one job takes instead, whose weights may still be in the device's
    /// caches; `None` where it takes what the others do.
    pub next_ns: Option<u64>,
    /// Layers of a pass: between two of them a job can be cancelled.
    pub layers: usize,
    /// What passes on the way to the device, and as much back.
    pub link_ns: u64,
}

impl Cost {
    /// Passes that always take the same time.
    #[must_use]
    pub fn constant(ns: u64) -> Self {
        Self {
            forward: ForwardCost::Constant { ns },
            first_ns: None,
            next_ns: None,
            layers: 1,
            link_ns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_side_by_side_share_their_attention() {
        let groups = vec![1, 3, 4, 1];
        let cost = ForwardCost::Layers { attention_ns: 10, mlp_ns: 3, communication_ns: 2, groups };
        assert_eq!(cost.of(1), 4 * 10 + 2 * 2 + 9 * 3);
        assert_eq!(cost.opening(1), 9 * 13);
    }

    #[test]
    fn measured_costs_are_joined_by_lines() {
        let cost = ForwardCost::Rows { points: vec![(1, 100), (4, 130), (8, 250)] };
        let of = |rows| cost.of(rows);
        assert_eq!(
            [of(0), of(1), of(2), of(4), of(6), of(8), of(10)],
            [100, 100, 110, 130, 190, 250, 310]
        );
        assert_eq!(ForwardCost::Rows { points: vec![(3, 7)] }.of(9), 7);
        assert_eq!(ForwardCost::Rows { points: Vec::new() }.of(9), 0);
        assert_eq!(ForwardCost::Constant { ns: 5 }.of(9), 5);
    }
}
