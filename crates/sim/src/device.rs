//! Devices: what they play, what their passes take, what goes wrong with them.

use crate::Cost;
use forerun_core::{Job, JobOutput, Role, SequenceId, TokenId, TokenTree};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its lane in the trace.
    pub name: String,
    /// What it plays; jobs of all roles wait in one queue.
    pub roles: Vec<Role>,
    /// What its passes take.
    pub cost: Cost,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The device does nothing any more; its jobs fail.
    Die,
    /// The device stands still for a while.
    Stall {
        /// Nanoseconds.
        ns: u64,
    },
}

/// Something that goes wrong at a known moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Index of the device.
    pub device: usize,
    /// When.
    pub at_ns: u64,
    /// What.
    pub kind: FaultKind,
}

/// The forward passes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    first_ns: u64,
    /// Each of the further ones.
    next_ns: u64,
    count: u64,
    layers: u64,
}

impl Passes {
    pub(crate) fn total_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { self.first_ns + (self.count - 1) * self.next_ns }
    }

    /// The time of each pass.
    pub(crate) fn each(&self) -> impl Iterator<Item = u64> {
        let (first_ns, next_ns) = (self.first_ns, self.next_ns);
        (0..self.count).map(move |index| if index == 0 { first_ns } else { next_ns })
    }

    /// Passes that are done after so many nanoseconds.
    pub(crate) fn done_after(&self, ns: u64) -> u64 {
        match ns.checked_sub(self.first_ns) {
            None => 0,
            Some(rest) => {
                (1 + rest.checked_div(self.next_ns).unwrap_or(u64::MAX - 1)).min(self.count)
            }
        }
    }

    /// When the layer ends that is under way after so many nanoseconds.
    pub(crate) fn layer_end(&self, ns: u64) -> u64 {
        let done = self.done_after(ns);
        if done >= self.count {
            return self.total_ns().min(ns);
        }
        let (before_ns, pass_ns) = match done {
            0 => (0, self.first_ns),
            done => (self.first_ns + (done - 1) * self.next_ns, self.next_ns),
        };
        let layer_ns = pass_ns as f64 / self.layers as f64;
        let layers = ((ns - before_ns) as f64 / layer_ns).ceil();
        before_ns + (layers * layer_ns).round() as u64
    }
}

/// What a device has computed of its sequences, as the caches of its models would hold it.
#[derive(Default)]
pub(crate) struct Held(BTreeMap<(Role, SequenceId), Past>);

/// Tokens, and candidates behind them.
struct Past {
    tokens: Arc<[TokenId]>,
    tree: TokenTree,
}

impl Past {
    /// How many of the first of `tokens` need not be computed again.
    fn covers(&self, tokens: &[TokenId]) -> usize {
        if !tokens.starts_with(&self.tokens) {
            return self.tokens.iter().zip(tokens).take_while(|(own, other)| own == other).count();
        }
        let (mut count, mut at) = (self.tokens.len(), None);
        while let Some(&next) = tokens.get(count)
            && let Some(node) = self.tree.child_with(at, next)
        {
            (count, at) = (count + 1, Some(node));
        }
        count
    }
}

impl Held {
    /// The passes of a job. The first pass of a sequence takes what the cost says of it, which counts
    /// the prompt; every other one has a row for each token that is not held.
    pub(crate) fn passes(&self, cost: &Cost, role: Role, job: &Job) -> Passes {
        let (Job::Draft { tokens, prompt_len, .. } | Job::Score { tokens, prompt_len, .. }) = job;
        let past = self.0.get(&(role, job.sequence()));
        let held = past.map_or(0, |past| past.covers(tokens)).max(prompt_len.saturating_sub(1));
        // The last token is always computed: its row is what is asked for.
        let missing = tokens.len() - held.min(tokens.len().saturating_sub(1));
        let (count, rows) = match job {
            Job::Draft { shape, .. } => (shape.length(), missing),
            Job::Score { tree, .. } => (1, missing + tree.len()),
        };
        let next_ns = cost.next_ns.unwrap_or_else(|| cost.forward.of(1));
        let opening_ns = cost.forward.opening(rows);
        // Candidates come on top of a prompt.
        let more_ns = opening_ns.saturating_sub(cost.forward.opening(1));
        let prompt_ns = cost.first_ns.filter(|_| past.is_none());
        let first_ns = prompt_ns.map_or(opening_ns, |prompt_ns| prompt_ns + more_ns);
        Passes { first_ns, next_ns, count: count as u64, layers: cost.layers as u64 }
    }

    /// Notes what a job has computed.
    pub(crate) fn keep(&mut self, role: Role, job: Job, output: Option<&JobOutput>) {
        let key = (role, job.sequence());
        let past = match (job, output) {
            (Job::Score { tokens, tree, .. }, Some(_)) => Past { tokens, tree },
            // The last token of a draft was never computed from.
            (Job::Draft { tokens, .. }, Some(JobOutput::Draft(draft))) => {
                let tree = draft.tree.first(draft.tree.len().saturating_sub(1));
                Past { tokens, tree }
            }
            (Job::Draft { tokens, .. } | Job::Score { tokens, .. }, _) => {
                Past { tokens, tree: TokenTree::new() }
            }
        };
        self.0.insert(key, past);
    }

    /// Forgets a sequence.
    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.0.retain(|(_, held), _| *held != sequence);
    }
}
