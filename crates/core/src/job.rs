//! Jobs, completions and the cluster: everything that a decoder sees of the hardware.
//!
//! Jobs and completions can be serialised, so a cluster may span several processes or hosts.

use crate::{
    Distribution, Draft, DraftShape, FeatureRows, JobCost, Node, RowLogprobs, Sampling,
    TargetFeedback, TokenId, TokenLogprob, TokenTree, row_of,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The id of a sequence. Workers keep its caches under this id until the sequence is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequenceId(pub u64);

/// The bits of an id that name the sequence. Those above them name a branch of it.
const SEQUENCE_BITS: u32 = 48;

impl SequenceId {
    /// Returns the id of a branch: a possible continuation, which has caches of its own. Workers
    /// run jobs of several branches together. The caches of each are kept until the branch is
    /// released.
    #[must_use]
    pub fn branch(self, number: u16) -> Self {
        Self(self.base().0 | (u64::from(number) + 1) << SEQUENCE_BITS)
    }

    /// Returns the id of the sequence itself, if this one is of a branch.
    #[must_use]
    pub fn base(self) -> Self {
        Self(self.0 & ((1 << SEQUENCE_BITS) - 1))
    }
}

/// The id of a submitted job: unique within a cluster, and ascending in order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// The worker that a job runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// The drafter with this index.
    Drafter(usize),
    /// The target replica with this index.
    Target(usize),
}

impl Role {
    /// Returns the index of the target replica; `None` for a drafter.
    #[must_use]
    pub fn target(self) -> Option<usize> {
        match self {
            Self::Target(index) => Some(index),
            Self::Drafter(_) => None,
        }
    }
}

/// A unit of work for a worker: drafting or scoring.
///
/// A job carries the full token sequence. The worker's cache compares it with the tokens that it
/// holds and computes the rest, so caches never have to be rolled back explicitly.
///
/// ```rust
/// use forerun_core::{
///     DraftShape, Job, Sampling, ScoreJob, SequenceId, TargetFeedback, TokenTree,
/// };
///
/// // Ask a drafter for up to four tokens after a prompt of three.
/// let sequence = SequenceId(0);
/// let prompt = [5, 8, 13];
/// let draft = Job::Draft {
///     sequence,
///     tokens: prompt.into(),
///     prompt_len: prompt.len(),
///     sampling: Sampling::greedy(),
///     shape: DraftShape::Chain { length: 4 },
///     feedback: TargetFeedback::default(),
/// };
/// assert_eq!(draft.sequence(), sequence);
///
/// // Ask the target for its distributions after the prompt, and after each of two draft tokens.
/// let tree = TokenTree::chain(&[21, 34]);
/// let score = Job::Score(ScoreJob { tree, ..ScoreJob::greedy(sequence, prompt) });
/// assert_eq!(score.sequence(), sequence);
/// ```
///
/// [`Cluster`] has an example that runs a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// Propose candidates for the tokens after `tokens`.
    Draft {
        /// The sequence.
        sequence: SequenceId,
        /// All tokens so far, at least one.
        tokens: Arc<[TokenId]>,
        /// The number of prompt tokens at the start of `tokens`. Some penalties do not count them.
        prompt_len: usize,
        /// The request's sampling options.
        sampling: Sampling,
        /// The requested shape.
        shape: DraftShape,
        /// Feedback from the target, for drafters that use it.
        feedback: TargetFeedback,
    },
    /// Compute the target's distribution after `tokens` and after each node of `tree`.
    Score(ScoreJob),
}

/// A score job: the target's distribution after `tokens` and after each node of `tree`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreJob {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the tree, at least one.
    pub tokens: Arc<[TokenId]>,
    /// The number of prompt tokens at the start of `tokens`. Some penalties do not count them.
    pub prompt_len: usize,
    /// The candidates after `tokens`.
    pub tree: TokenTree,
    /// The request's sampling options.
    pub sampling: Sampling,
    /// The number of most probable tokens to report for each row with their log-probabilities;
    /// `None` requests no log-probabilities.
    pub logprobs: Option<usize>,
    /// The index of the first token to return features for. The result has the features of all
    /// tokens from there on and of the tree's nodes; `None` requests no features.
    pub features_from: Option<usize>,
}

impl ScoreJob {
    /// Returns a job for the next token of a greedy answer to the prompt `tokens`.
    #[must_use]
    pub fn greedy(sequence: SequenceId, tokens: impl Into<Arc<[TokenId]>>) -> Self {
        let tokens = tokens.into();
        let (prompt_len, tree, sampling) = (tokens.len(), TokenTree::new(), Sampling::greedy());
        Self { sequence, tokens, prompt_len, tree, sampling, logprobs: None, features_from: None }
    }
}

impl Job {
    /// Returns the sequence that the job belongs to.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        match self {
            Self::Draft { sequence, .. } | Self::Score(ScoreJob { sequence, .. }) => *sequence,
        }
    }
}

/// The output of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobOutput {
    /// The output of [`Job::Draft`].
    Draft(Draft),
    /// The output of [`Job::Score`].
    Score(Scores),
}

/// The target's rows for a tree: row 0 is for the token after the prefix, and row `node + 1` for
/// the token after `node` ([`row_of`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The distributions to sample from.
    pub rows: Vec<Distribution>,
    /// The log-probabilities of each row, if they were requested.
    pub logprobs: Option<Vec<RowLogprobs>>,
    /// The requested features: first those of the tokens, then those of the nodes.
    pub features: Option<FeatureRows>,
}

impl Scores {
    /// Returns whether the scores have all the requested parts, for a tree of `nodes` nodes and
    /// features of `features_of` tokens before it. Check this for scores from other processes.
    #[must_use]
    pub fn matches_request(
        &self,
        nodes: usize,
        logprobs: Option<usize>,
        features_of: Option<usize>,
    ) -> bool {
        let logprob_rows = self.logprobs.as_ref().map(Vec::len);
        let features = self.features.as_ref().map(FeatureRows::len);
        self.rows.len() == nodes + 1
            && logprob_rows == logprobs.map(|_| nodes + 1)
            && features == features_of.map(|tokens| tokens + nodes)
    }

    /// Returns the scores without the first `count` rows. The features are unchanged.
    #[must_use]
    pub fn skip_rows(mut self, count: usize) -> Self {
        self.rows.drain(..count.min(self.rows.len()));
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.drain(..count.min(logprobs.len()));
        }
        self
    }

    /// Returns the log-probability of a token that was emitted after `at`, if log-probabilities
    /// were requested.
    #[must_use]
    pub fn logprob(&self, at: Option<Node>, token: TokenId) -> Option<TokenLogprob> {
        let index = row_of(at);
        Some(self.logprobs.as_ref()?.get(index)?.for_token(self.rows.get(index)?, token))
    }
}

/// The reason why a job has no output.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum JobError {
    /// The job was cancelled before it finished.
    #[error("the job was cancelled")]
    Cancelled,
    /// The model or drafter of a worker, a device group, reported an error.
    #[error("{worker}: {message}")]
    Failed { worker: String, message: String },
    /// The worker panicked. It dropped its caches of the sequence and continues to serve.
    #[error("{worker} panicked: {message}")]
    Panicked { worker: String, message: String },
}

/// A job that has ended: finished, failed or cancelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The job's id.
    pub ticket: Ticket,
    /// The output, or the reason why there is none.
    pub output: Result<JobOutput, JobError>,
    /// The time when a worker started the job, in nanoseconds on the cluster's clock.
    pub started_ns: u64,
    /// The time when the job ended, in nanoseconds on the cluster's clock.
    pub finished_ns: u64,
    /// What the job's forward passes cost, with the jobs that shared them.
    #[serde(default)]
    pub cost: JobCost,
}

impl Completion {
    /// Returns how long the job ran, without its time in the queue. This includes the work for the
    /// jobs that ran with it.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.finished_ns.saturating_sub(self.started_ns)
    }
}

/// The verdict on a span's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanOutcome {
    /// No verdict was reported.
    Open,
    /// All tested candidates were accepted.
    Accepted,
    /// A candidate was rejected.
    Rejected,
    /// The job was cancelled or failed, or its output was not used.
    Wasted,
}

/// The verdict on a job's candidates, for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The job.
    pub ticket: Ticket,
    /// The number of accepted candidates among those that the job drafted or scored.
    pub accepted: usize,
    /// The verdict.
    pub outcome: SpanOutcome,
}

/// An error of the cluster itself, as opposed to an error of a single job.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ClusterError {
    /// A job was submitted for a role that no worker has.
    #[error("no worker has the role {0:?}: add a device group for it to the placement")]
    NoSuchRole(Role),
    /// The worker's thread has ended.
    #[error("the worker with the role {0:?} has stopped")]
    WorkerGone(Role),
    /// A completion was awaited while no job was in flight.
    #[error("cannot wait for a completion: no job is in flight")]
    Idle,
}

/// A set of devices that run jobs: worker threads, or a simulation.
///
/// A handle belongs to the decoder of one sequence. Completions reach the handle that submitted
/// the job. Decoders take all times from completions and read no clock.
///
/// ```rust
/// use forerun_core::{
///     Cluster, ClusterError, Completion, Distribution, Draft, Job, JobCost, JobOutput, Outcome,
///     Role, ScoreJob, Scores, SequenceId, Ticket, TokenTree,
/// };
/// use std::collections::VecDeque;
///
/// /// Runs every job at once. Its target always continues a number with the next one.
/// #[derive(Default)]
/// struct CountingCluster {
///     submitted: u64,
///     completed: VecDeque<Completion>,
/// }
///
/// impl Cluster for CountingCluster {
///     fn submit(&mut self, _on: Role, job: Job) -> Result<Ticket, ClusterError> {
///         let ticket = Ticket(self.submitted);
///         self.submitted += 1;
///         let output = match job {
///             Job::Score(ScoreJob { tokens, tree, .. }) => {
///                 // One row for the last token, and one for each node of the tree.
///                 let last = &tokens[tokens.len() - 1..];
///                 let row = |token: &u32| Distribution::point(token + 1);
///                 let rows = last.iter().chain(tree.tokens()).map(row).collect();
///                 JobOutput::Score(Scores { rows, ..Scores::default() })
///             }
///             Job::Draft { .. } => JobOutput::Draft(Draft::empty()),
///         };
///         let (started_ns, finished_ns) = (self.submitted, self.submitted + 1);
///         let (output, cost) = (Ok(output), JobCost::default());
///         self.completed.push_back(Completion { ticket, output, started_ns, finished_ns, cost });
///         Ok(ticket)
///     }
///
///     fn cancel(&mut self, _ticket: Ticket) {}
///
///     fn next_completion(&mut self) -> Result<Completion, ClusterError> {
///         self.completed.pop_front().ok_or(ClusterError::Idle)
///     }
///
///     fn observe(&mut self, _outcome: Outcome) {}
///
///     fn release(&mut self, _sequence: SequenceId) {}
/// }
///
/// let mut cluster = CountingCluster::default();
/// let tree = TokenTree::chain(&[4, 9]);
/// let job = Job::Score(ScoreJob { tree, ..ScoreJob::greedy(SequenceId(0), [1, 2, 3]) });
/// let ticket = cluster.submit(Role::Target(0), job)?;
/// let completion = cluster.next_completion()?;
/// assert_eq!(completion.ticket, ticket);
/// let Ok(JobOutput::Score(scores)) = completion.output else { panic!("the job failed") };
/// let tokens: Vec<_> = scores.rows.iter().filter_map(Distribution::as_point).collect();
/// assert_eq!(tokens, [4, 5, 10]);
/// # Ok::<(), ClusterError>(())
/// ```
pub trait Cluster {
    /// Queues a job and returns its ticket.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchRole`] if no worker has the role, [`ClusterError::WorkerGone`] if its
    /// worker has stopped.
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError>;

    /// Requests that a job stops. The job still completes: as cancelled, or with its output if it
    /// had already finished.
    fn cancel(&mut self, ticket: Ticket);

    /// Waits until the next job of this handle ends.
    ///
    /// # Errors
    /// [`ClusterError::Idle`] if no job is in flight.
    fn next_completion(&mut self) -> Result<Completion, ClusterError>;

    /// Reports the verdict on a completed job, for the trace.
    fn observe(&mut self, outcome: Outcome);

    /// Frees a sequence's caches on all workers.
    fn release(&mut self, sequence: SequenceId);
}
