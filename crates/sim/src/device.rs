//! Devices: their roles, the times of their passes, and their faults.

use crate::{Cost, ForwardCost};
use forerun_core::{Job, JobCost, JobOutput, Role, ScoreJob, SequenceId, TokenId, TokenTree};
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

/// What a job asks of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// The number of rows of each pass, without those of a prompt.
    rows: Vec<usize>,
    /// The time of the prompt and one row, if the first pass includes the prompt.
    prompt_ns: Option<u64>,
    /// The number of the prompt's rows without the last one, if the first pass includes them.
    prompt_rows: usize,
    /// Whether it starts a round of a layer-parallel drafter.
    starts_round: bool,
}

impl Work {
    /// Returns the number of rows of a pass; 0 after the last one.
    fn rows(&self, pass: usize) -> usize {
        self.rows.get(pass).copied().unwrap_or(0)
    }
}

/// A forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass {
    ns: u64,
    /// The rows of all sequences, with those of prompts.
    rows: usize,
    sequences: usize,
}

impl Pass {
    /// Returns the first pass of jobs that run together.
    fn first(cost: &Cost, batch: &[Work]) -> Self {
        let (rows, sequences) = (batch.iter().map(|work| work.rows(0)).sum(), batch.len());
        let base_ns = match batch.iter().any(|work| work.starts_round) {
            true => cost.first_pass_ns(rows, sequences),
            false => cost.pass_ns(rows, sequences),
        };
        let prompts: Vec<u64> = batch.iter().filter_map(|work| work.prompt_ns).collect();
        let prompt_rows: usize = batch.iter().map(|work| work.prompt_rows).sum();
        let ns = match prompts.len() {
            0 => base_ns,
            // Other rows are added to the time of the prompts.
            count => {
                let other_ns = base_ns.saturating_sub(cost.first_pass_ns(count, count));
                prompts.iter().sum::<u64>() + other_ns
            }
        };
        Self { ns, rows: rows + prompt_rows, sequences }
    }

    /// Returns a later pass.
    fn next(cost: &Cost, rows: usize, sequences: usize) -> Self {
        let one_row_each_ns = cost.pass_ns(sequences, sequences);
        let further_ns = cost.pass_ns(rows, sequences).saturating_sub(one_row_each_ns);
        Self { ns: cost.next_pass_ns(sequences) + further_ns, rows, sequences }
    }
}

/// The forward passes of a job, which it may share with other jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    work: Work,
    passes: Vec<Pass>,
    layers: u64,
}

impl Passes {
    /// Returns the passes of a job that runs in a batch. Jobs that need fewer passes leave it
    /// earlier.
    pub(crate) fn new(cost: &Cost, work: Work, batch: &[Work]) -> Self {
        let rows = |index| batch.iter().map(|other| other.rows(index)).sum();
        let sequences = |index| batch.iter().filter(|other| other.rows.len() > index).count();
        let passes = (0..work.rows.len()).map(|index| match index {
            0 => Pass::first(cost, batch),
            _ => Pass::next(cost, rows(index), sequences(index)),
        });
        let passes = passes.collect();
        Self { work, passes, layers: cost.layers as u64 }
    }

    pub(crate) fn count(&self) -> usize {
        self.passes.len()
    }

    pub(crate) fn total_ns(&self) -> u64 {
        self.each().sum()
    }

    /// Returns the time of each pass.
    pub(crate) fn each(&self) -> impl Iterator<Item = u64> {
        self.passes.iter().map(|pass| pass.ns)
    }

    /// Returns the number of passes that are complete after `ns` nanoseconds.
    pub(crate) fn done_after(&self, ns: u64) -> usize {
        let mut end_ns = 0;
        let is_done = |&pass_ns: &u64| {
            end_ns += pass_ns;
            end_ns <= ns
        };
        self.each().take_while(is_done).count()
    }

    /// Returns the end of the layer that is running after `ns` nanoseconds.
    pub(crate) fn layer_end(&self, ns: u64) -> u64 {
        let done = self.done_after(ns);
        let Some(running) = self.passes.get(done) else { return self.total_ns().min(ns) };
        let before_ns: u64 = self.each().take(done).sum();
        let layer_ns = running.ns as f64 / self.layers as f64;
        let layers = ((ns - before_ns) as f64 / layer_ns).ceil();
        before_ns + (layers * layer_ns).round() as u64
    }

    /// Changes a later pass, because another job has left it.
    pub(crate) fn set_sequences(&mut self, cost: &Cost, pass: usize, sequences: usize) {
        let rows = self.work.rows(pass) + sequences.saturating_sub(1);
        if let Some(pass) = self.passes.get_mut(pass) {
            *pass = Pass::next(cost, rows, sequences);
        }
    }

    /// Returns the cost of the passes that are complete after `ns` nanoseconds.
    pub(crate) fn cost_after(&self, ns: u64) -> JobCost {
        let mut cost = JobCost::default();
        for (index, pass) in self.passes.iter().enumerate().take(self.done_after(ns)) {
            let prompt_rows = if index == 0 { self.work.prompt_rows } else { 0 };
            let own_rows = self.work.rows(index) + prompt_rows;
            cost.add_pass(own_rows, pass.rows, pass.sequences, pass.ns);
        }
        cost
    }
}

/// The tokens that the KV caches of a device hold for each role and sequence.
#[derive(Default)]
pub(crate) struct CacheState(BTreeMap<(Role, SequenceId), CachedTokens>);

/// Cached tokens of a sequence, and cached draft tokens after them.
struct CachedTokens {
    tokens: Arc<[TokenId]>,
    tree: TokenTree,
    /// The round of a layer-parallel drafter that these tokens belong to.
    round: Option<LayerParallelRound>,
}

/// The last draft of a round, with the number of tokens before the round.
struct LayerParallelRound {
    start: usize,
    draft: TokenTree,
}

/// The number of tokens in a round of a layer-parallel drafter whose jobs have fewer, as the
/// engine's drafter has it.
const LAYER_PARALLEL_ROUND: usize = 5;

impl CachedTokens {
    /// Returns tokens of which no round is known.
    fn new(tokens: Arc<[TokenId]>, tree: TokenTree) -> Self {
        Self { tokens, tree, round: None }
    }

    /// Returns the number of tokens before the round, if `tokens` are its tokens and a part of its
    /// draft, and the round is not over.
    fn round_start(&self, tokens: &[TokenId]) -> Option<usize> {
        let LayerParallelRound { start, draft } = self.round.as_ref()?;
        let further = tokens.strip_prefix(&self.tokens[..])?;
        let mut at = None;
        let is_draft = further.iter().all(|&token| {
            at = draft.child_with(at, token);
            at.is_some()
        });
        Some(*start).filter(|start| is_draft && tokens.len() < start + LAYER_PARALLEL_ROUND)
    }

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
    /// Returns what a job asks of the device.
    ///
    /// The first pass of a sequence takes [`Cost::first_ns`], which includes the prompt. Every
    /// other first pass of a job has one row for each token that is not cached.
    pub(crate) fn work(&self, cost: &Cost, role: Role, job: &Job) -> Work {
        let (Job::Draft { tokens, prompt_len, .. }
        | Job::Score(ScoreJob { tokens, prompt_len, .. })) = job;
        // Sequences share the tokens on which they agree, so a branch finds those of its sequence.
        let base = job.sequence().base();
        let related = self.0.iter().filter(|((of, id), _)| *of == role && id.base() == base);
        let held = related.map(|(_, past)| past.cached_prefix(tokens)).max();
        let cached = held.unwrap_or(0).max(prompt_len.saturating_sub(1));
        // The last token is always computed, because the job needs its row.
        let missing = tokens.len() - cached.min(tokens.len().saturating_sub(1));
        let rows = match job {
            Job::Draft { shape, .. } => {
                let mut rows = shape.parents_by_depth();
                rows.first_mut().into_iter().for_each(|first| *first = missing);
                rows
            }
            Job::Score(ScoreJob { tree, .. }) => vec![missing + tree.len()],
        };
        let prompt_ns = cost.first_ns.filter(|_| held.is_none());
        let prompt_rows = prompt_ns.map_or(0, |_| prompt_len.saturating_sub(1));
        let starts_round = self.round_start(role, job.sequence(), tokens).is_none();
        Work { rows, prompt_ns, prompt_rows, starts_round }
    }

    /// Returns the number of tokens before the round of a layer-parallel drafter that goes on after
    /// `tokens`; `None` if one starts there.
    fn round_start(&self, role: Role, sequence: SequenceId, tokens: &[TokenId]) -> Option<usize> {
        self.0.get(&(role, sequence))?.round_start(tokens)
    }

    /// Returns the forward passes of a job that runs alone.
    pub(crate) fn passes(&self, cost: &Cost, role: Role, job: &Job) -> Passes {
        let work = self.work(cost, role, job);
        Passes::new(cost, work.clone(), &[work])
    }

    /// Records the tokens that a job has computed on a device with this cost.
    pub(crate) fn record(&mut self, cost: &Cost, role: Role, job: Job, output: Option<&JobOutput>) {
        let key = (role, job.sequence());
        let past = match (job, output) {
            (Job::Score(ScoreJob { tokens, tree, .. }), Some(_)) => CachedTokens::new(tokens, tree),
            (Job::Draft { tokens, .. }, Some(JobOutput::Draft(draft))) if cost.reads_features => {
                // Without features, there is nothing to draft from yet.
                if draft.tree.is_empty() && !self.0.contains_key(&key) {
                    return;
                }
                CachedTokens::new(tokens, TokenTree::new())
            }
            // The last token of a draft was never an input of a pass.
            (Job::Draft { tokens, .. }, Some(JobOutput::Draft(draft))) => {
                let tree = draft.tree.first(draft.tree.len().saturating_sub(1));
                let start = || self.round_start(role, key.1, &tokens).unwrap_or(tokens.len());
                let is_layer_parallel = matches!(cost.forward, ForwardCost::Layers { .. });
                let round = is_layer_parallel
                    .then(|| LayerParallelRound { start: start(), draft: draft.tree.clone() });
                CachedTokens { round, ..CachedTokens::new(tokens, tree) }
            }
            (Job::Draft { tokens, .. } | Job::Score(ScoreJob { tokens, .. }), _) => {
                CachedTokens::new(tokens, TokenTree::new())
            }
        };
        self.0.insert(key, past);
    }

    /// Drops the cached tokens of a sequence.
    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.0.retain(|(_, cached), _| *cached != sequence);
    }
}
