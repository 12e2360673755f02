//! Jobs, completions and the cluster: all that a decoder sees of the hardware.
//!
//! Everything here can be serialised, so a cluster may as well span processes or hosts.

use crate::trace::SpanOutcome;
use crate::{
    Distribution, Draft, DraftShape, FeatureRows, Node, RowLogprobs, Sampling, TargetFeedback,
    TokenId, TokenLogprob, TokenTree,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One sequence; its caches live on the workers under this name until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequenceId(pub u64);

/// Names a submitted job; unique within a cluster, ascending in order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// What a job runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// The drafter of that index.
    Drafter(usize),
    /// The target replica of that index.
    Target(usize),
}

impl Role {
    /// The index of a target replica.
    #[must_use]
    pub fn target(self) -> Option<usize> {
        match self {
            Self::Target(index) => Some(index),
            Self::Drafter(_) => None,
        }
    }
}

/// A unit of work. It carries the full token sequence: the worker's cache finds out by itself what
/// it still holds, so nothing ever has to be rolled back by command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// Propose candidates for the tokens behind `tokens`.
    Draft {
        /// The sequence.
        sequence: SequenceId,
        /// All tokens so far, at least one.
        tokens: Arc<[TokenId]>,
        /// How many of them are the prompt, which some penalties do not count.
        prompt_len: usize,
        /// The request's sampling options.
        sampling: Sampling,
        /// The candidates asked for.
        shape: DraftShape,
        /// What the target has told, where the drafter reads it.
        feedback: TargetFeedback,
    },
    /// Score the token behind `tokens` and the one behind each node of `tree`.
    Score {
        /// The sequence.
        sequence: SequenceId,
        /// All tokens before the first row, at least one.
        tokens: Arc<[TokenId]>,
        /// How many of them are the prompt, which some penalties do not count.
        prompt_len: usize,
        /// Candidates behind them.
        tree: TokenTree,
        /// The request's sampling options.
        sampling: Sampling,
        /// Whether log-probabilities are wanted, and how many of the best of each row.
        logprobs: Option<usize>,
        /// The first token whose features are wanted, with those of all behind it and of the tree's
        /// nodes; `None` wants none.
        features_from: Option<usize>,
    },
}

impl Job {
    /// The sequence that the job belongs to.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        match self {
            Self::Draft { sequence, .. } | Self::Score { sequence, .. } => *sequence,
        }
    }
}

/// What a job yields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobOutput {
    /// Of [`Job::Draft`].
    Draft(Draft),
    /// Of [`Job::Score`].
    Score(Scores),
}

/// The target's rows: index 0 for the token behind the prefix, `node + 1` for the one behind a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// What is sampled from.
    pub rows: Vec<Distribution>,
    /// What the model believes, where that was asked for.
    pub logprobs: Option<Vec<RowLogprobs>>,
    /// The features that were asked for: those of the tokens, then those of the nodes.
    pub features: Option<FeatureRows>,
}

impl Scores {
    /// Whether there is all that was asked for, for a tree of that many nodes: also the features of so
    /// many tokens before it, where any were wanted. Scores that come from elsewhere have to be asked.
    #[must_use]
    pub fn matches_request(
        &self,
        nodes: usize,
        logprobs: Option<usize>,
        features_of: Option<usize>,
    ) -> bool {
        let feedback = self.logprobs.as_ref().map(Vec::len);
        let features = self.features.as_ref().map(FeatureRows::len);
        self.rows.len() == nodes + 1
            && feedback == logprobs.map(|_| nodes + 1)
            && features == features_of.map(|tokens| tokens + nodes)
    }

    /// The rows behind the first `count`.
    #[must_use]
    pub fn skip_rows(mut self, count: usize) -> Self {
        self.rows.drain(..count.min(self.rows.len()));
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.drain(..count.min(logprobs.len()));
        }
        self
    }

    /// What is to be told of a token that was emitted behind `at`, where that was asked for.
    #[must_use]
    pub fn logprob(&self, at: Option<Node>, token: TokenId) -> Option<TokenLogprob> {
        let index = at.map_or(0, |node| node + 1);
        Some(self.logprobs.as_ref()?.get(index)?.of(self.rows.get(index)?, token))
    }
}

/// Why a job has no output.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobError {
    /// It was cancelled before it finished.
    #[error("the job was cancelled")]
    Cancelled,
    /// The model or drafter reported an error.
    #[error("{worker}: {message}")]
    Failed {
        /// The device group that ran it.
        worker: String,
        /// The error.
        message: String,
    },
    /// The worker panicked; its caches of the sequence were dropped, the worker goes on.
    #[error("{worker} panicked: {message}")]
    Panicked {
        /// The device group that ran it.
        worker: String,
        /// The panic's message.
        message: String,
    },
}

/// A job that has ended, one way or another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The job's name.
    pub ticket: Ticket,
    /// Its output, or why there is none.
    pub output: Result<JobOutput, JobError>,
    /// When a worker began it, on the cluster's clock.
    pub started_ns: u64,
    /// When it ended.
    pub finished_ns: u64,
}

impl Completion {
    /// Time that the job took, without its time in the queue.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.finished_ns.saturating_sub(self.started_ns)
    }
}

/// What became of a job, for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The job.
    pub ticket: Ticket,
    /// Its candidates, or those that it scored, that were accepted.
    pub accepted: usize,
    /// What came of it.
    pub fate: SpanOutcome,
}

/// A cluster that can no longer serve.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ClusterError {
    /// A job was sent to a role that nothing plays.
    #[error("no worker plays {0:?}: the placement has no such device group")]
    NoSuchRole(Role),
    /// A worker's thread has ended.
    #[error("the worker of {0:?} has stopped")]
    WorkerGone(Role),
    /// A completion was awaited while no job was under way.
    #[error("no job is under way, so none can complete")]
    Idle,
}

/// Devices that run jobs: threads, or a simulation.
///
/// A handle belongs to one sequence's decoder, and completions reach the handle that submitted
/// the job. Decoders learn times from completions; they read no clock.
pub trait Cluster {
    /// Queues a job and returns its name.
    ///
    /// # Errors
    /// If nothing plays the role, or its worker is gone.
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError>;

    /// Asks for a job to stop. It completes all the same: as cancelled, or, if it had already
    /// finished, with its output.
    fn cancel(&mut self, ticket: Ticket);

    /// Waits for the next job of this handle to end.
    ///
    /// # Errors
    /// [`ClusterError::Idle`] if no job is under way.
    fn next_completion(&mut self) -> Result<Completion, ClusterError>;

    /// Reports what became of a job that has completed.
    fn observe(&mut self, outcome: Outcome);

    /// Forgets a sequence: its caches on all workers are freed.
    fn release(&mut self, sequence: SequenceId);
}
