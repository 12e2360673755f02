//! The end of a connection that submits jobs.

use crate::WireError;
use crate::held::{FeaturesDelta, Held, TokensDelta};
use crate::message::{JobMessage, ToHost, ToWorker, Work, read, write};
use forerun_core::{Completion, Job, Role, ScoreJob, SequenceId, Ticket};
use std::borrow::Cow;
use std::collections::HashMap;

/// A message from the worker, as [`HostEnd::receive`] returns it.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A job has ended.
    Completed(Completion),
    /// The worker does not hold the tokens that a job refers to. Send it these bytes: the whole
    /// job.
    Resend(Vec<u8>),
}

/// The end of a connection that submits jobs and gets their completions.
///
/// Each method returns the bytes of a message. The channel must deliver the messages to the
/// [`WorkerEnd`](crate::WorkerEnd) complete and in this order. The crate's documentation has an
/// example.
#[derive(Debug, Default)]
pub struct HostEnd {
    /// What the worker holds of each sequence, unless it has forgotten it.
    sequences: HashMap<SequenceId, Held>,
    /// The jobs in flight, in case the worker asks for one again.
    jobs: HashMap<Ticket, (Role, Job)>,
}

impl HostEnd {
    /// Creates the end of a new connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the message that submits a job. `ticket` must not be in flight on this connection.
    #[must_use]
    pub fn submit(&mut self, ticket: Ticket, role: Role, job: Job) -> Vec<u8> {
        let held = self.sequences.entry(job.sequence()).or_default();
        let message = message(ticket, role, &job, Some(held));
        self.jobs.insert(ticket, (role, job));
        message
    }

    /// Returns the message that requests that a job stops. The job still completes.
    #[must_use]
    pub fn cancel(&self, ticket: Ticket) -> Vec<u8> {
        write(&ToWorker::Cancel(ticket))
    }

    /// Returns the message that frees a sequence's caches on the worker. Until then this end keeps
    /// the tokens and features of the sequence's last job alive.
    #[must_use]
    pub fn release(&mut self, sequence: SequenceId) -> Vec<u8> {
        self.sequences.remove(&sequence);
        write(&ToWorker::Release(sequence))
    }

    /// Reads a message from the worker.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a valid message about a job in flight. Close the
    /// connection then.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Reply, WireError> {
        match read(bytes)? {
            ToHost::Completion(message) => {
                let ticket = message.ticket();
                let completion = message.into_completion()?;
                self.jobs.remove(&ticket).ok_or(WireError::UnknownJob(ticket))?;
                Ok(Reply::Completed(completion))
            }
            ToHost::Missing(ticket) => {
                let (role, job) = self.jobs.get(&ticket).ok_or(WireError::UnknownJob(ticket))?;
                Ok(Reply::Resend(message(ticket, *role, job, None)))
            }
        }
    }

    /// Returns the jobs in flight, such as to complete them as failed when the connection is lost.
    pub fn in_flight(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.jobs.keys().copied()
    }
}

/// Returns the message for a worker that holds `held` of the job's sequence, which is updated.
/// `None`: the worker holds nothing.
fn message(ticket: Ticket, role: Role, job: &Job, mut held: Option<&mut Held>) -> Vec<u8> {
    let (Job::Draft { sequence, tokens, prompt_len, sampling, .. }
    | Job::Score(ScoreJob { sequence, tokens, prompt_len, sampling, .. })) = job;
    let delta = match &mut held {
        Some(held) => held.send_tokens(sampling, tokens),
        None => TokensDelta::whole(sampling, tokens),
    };
    let work = match job {
        Job::Draft { shape, feedback, .. } => Work::Draft {
            shape: Cow::Borrowed(shape),
            features: match held {
                Some(held) => held.send_features(&feedback.features),
                None => FeaturesDelta::whole(&feedback.features),
            },
            last_draft: feedback.last_draft.as_deref().map(Cow::Borrowed),
        },
        Job::Score(ScoreJob { tree, logprobs, features_from, .. }) => Work::Score {
            tree: Cow::Borrowed(tree),
            logprobs: *logprobs,
            features_from: *features_from,
        },
    };
    write(&ToWorker::Job(JobMessage {
        ticket,
        role,
        sequence: *sequence,
        tokens: delta,
        prompt_len: *prompt_len,
        work,
    }))
}
