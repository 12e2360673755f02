//! Devices: their roles, the times of their passes, and their faults.

use crate::Cost;
use forerun_core::{Job, JobOutput, Role, SequenceId, TokenId, TokenTree};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A simulated device, or a group of devices that works as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// The name of its lane in the trace.
    pub name: String,
    /// The roles of the device. Jobs of all roles share one queue.
    pub roles: Vec<Role>,
    /// The times of its forward passes.
    pub cost: Cost,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The device stops for good, and its jobs fail.
    Die,
    /// The device pauses.
    Stall {
        /// The length of the pause in nanoseconds.
        ns: u64,
    },
}

/// A fault of a device at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The index of the device.
    pub device: usize,
    /// The time of the fault in nanoseconds.
    pub at_ns: u64,
    /// The kind of the fault.
    pub kind: FaultKind,
}

/// The forward passes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    first_ns: u64,
    /// The time of each pass after the first.
    next_ns: u64,
    count: u64,
    layers: u64,
}

impl Passes {
    pub(crate) fn total_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { self.first_ns + (self.count - 1) * self.next_ns }
    }

    /// Returns the time of each pass.
    pub(crate) fn each(&self) -> impl Iterator<Item = u64> {
        let (first_ns, next_ns) = (self.first_ns, self.next_ns);
        (0..self.count).map(move |index| if index == 0 { first_ns } else { next_ns })
    }

    /// Returns the number of passes that are complete after `ns` nanoseconds.
    pub(crate) fn done_after(&self, ns: u64) -> u64 {
        match ns.checked_sub(self.first_ns) {
            None => 0,
            Some(rest) => {
                (1 + rest.checked_div(self.next_ns).unwrap_or(u64::MAX - 1)).min(self.count)
            }
        }
    }

    /// Returns the end of the layer that is running after `ns` nanoseconds.
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

/// The tokens that the KV caches of a device hold for each role and sequence.
#[derive(Default)]
pub(crate) struct CacheState(BTreeMap<(Role, SequenceId), CachedTokens>);

/// Cached tokens of a sequence, and cached draft tokens after them.
struct CachedTokens {
    tokens: Arc<[TokenId]>,
    tree: TokenTree,
}

impl CachedTokens {
    /// Returns the length of the longest prefix of `tokens` that is cached.
    fn cached_prefix(&self, tokens: &[TokenId]) -> usize {
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

impl CacheState {
    /// Returns the forward passes of a job.
    ///
    /// The first pass of a sequence takes [`Cost::first_ns`], which includes the prompt. Every other first
    /// pass of a job has one row for each token that is not cached.
    pub(crate) fn passes(&self, cost: &Cost, role: Role, job: &Job) -> Passes {
        let (Job::Draft { tokens, prompt_len, .. } | Job::Score { tokens, prompt_len, .. }) = job;
        let past = self.0.get(&(role, job.sequence()));
        let cached = past.map_or(0, |past| past.cached_prefix(tokens));
        let cached = cached.max(prompt_len.saturating_sub(1));
        // The last token is always computed, because the job needs its row.
        let missing = tokens.len() - cached.min(tokens.len().saturating_sub(1));
        let (count, rows) = match job {
            Job::Draft { shape, .. } => (shape.length(), missing),
            Job::Score { tree, .. } => (1, missing + tree.len()),
        };
        let next_ns = cost.next_ns.unwrap_or_else(|| cost.forward.ns(1));
        let first_pass_ns = cost.forward.first_pass_ns(rows);
        // Rows of draft tokens are added to the time of the prompt.
        let draft_rows_ns = first_pass_ns.saturating_sub(cost.forward.first_pass_ns(1));
        let prompt_ns = cost.first_ns.filter(|_| past.is_none());
        let first_ns = prompt_ns.map_or(first_pass_ns, |prompt_ns| prompt_ns + draft_rows_ns);
        Passes { first_ns, next_ns, count: count as u64, layers: cost.layers as u64 }
    }

    /// Records the tokens that a job has computed.
    pub(crate) fn record(&mut self, role: Role, job: Job, output: Option<&JobOutput>) {
        let key = (role, job.sequence());
        let past = match (job, output) {
            (Job::Score { tokens, tree, .. }, Some(_)) => CachedTokens { tokens, tree },
            // The last token of a draft was never an input of a pass.
            (Job::Draft { tokens, .. }, Some(JobOutput::Draft(draft))) => {
                let tree = draft.tree.first(draft.tree.len().saturating_sub(1));
                CachedTokens { tokens, tree }
            }
            (Job::Draft { tokens, .. } | Job::Score { tokens, .. }, _) => {
                CachedTokens { tokens, tree: TokenTree::new() }
            }
        };
        self.0.insert(key, past);
    }

    /// Drops the cached tokens of a sequence.
    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.0.retain(|(_, cached), _| *cached != sequence);
    }
}
