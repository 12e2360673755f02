//! The end of a connection that runs jobs.

use crate::WireError;
use crate::held::Held;
use crate::message::{CompletionMessage, JobMessage, ToHost, ToWorker, Work, read, write};
use forerun_core::{Completion, Job, JobError, Role, ScoreJob, SequenceId, TargetFeedback, Ticket};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// What the host asks for. Carry commands out in their order.
#[expect(clippy::large_enum_variant, reason = "nearly all messages are jobs")]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Run a job. It must complete once.
    Run {
        /// The job's id.
        ticket: Ticket,
        /// The role to run it in.
        role: Role,
        /// The job.
        job: Job,
    },
    /// Stop a job, which still completes.
    Cancel(Ticket),
    /// Free a sequence's caches.
    Release(SequenceId),
}

/// The result of [`WorkerEnd::receive`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// What to do now. There may be nothing, or several commands.
    pub commands: Vec<Command>,
    /// A message to send to the host.
    pub answer: Option<Vec<u8>>,
}

/// The end of a connection that runs jobs and reports their completions.
///
/// It holds the tokens and features of each sequence's last job. If it does not hold what a job
/// refers to, it asks the host for the whole job. Later messages wait for it, so commands keep
/// their order. Only cancellations do not wait: a job that is cancelled before it runs is cancelled
/// right after it starts.
#[derive(Debug)]
pub struct WorkerEnd {
    sequences: HashMap<SequenceId, Entry>,
    /// The memory for the sequences, in bytes.
    budget: usize,
    /// The number of jobs received.
    received: u64,
    /// The job that was asked for again.
    missing: Option<Ticket>,
    /// The messages after it.
    waiting: VecDeque<Vec<u8>>,
    /// The jobs among them that were cancelled since.
    cancelled: BTreeSet<Ticket>,
    /// The jobs to complete, and whether each was cancelled.
    running: BTreeMap<Ticket, bool>,
}

#[derive(Debug, Default)]
struct Entry {
    held: Held,
    bytes: usize,
    /// The number of the last job.
    used: u64,
}

impl WorkerEnd {
    /// Creates the end of a new connection. It holds up to `budget` bytes of tokens and features,
    /// of the sequences used last; always those of the very last one.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self {
            sequences: HashMap::new(),
            budget,
            received: 0,
            missing: None,
            waiting: VecDeque::new(),
            cancelled: BTreeSet::new(),
            running: BTreeMap::new(),
        }
    }

    /// Reads a message from the host.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a valid message. Close the connection then.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Received, WireError> {
        let message = read(bytes)?;
        let mut received = Received::default();
        let waits = match (self.missing, &message) {
            (None, _) | (Some(_), ToWorker::Cancel(_)) => false,
            (Some(missing), ToWorker::Job(job)) => job.ticket != missing,
            (Some(_), ToWorker::Release(_)) => true,
        };
        if waits {
            self.waiting.push_back(bytes.to_vec());
            return Ok(received);
        }
        if matches!(message, ToWorker::Job(_)) {
            self.missing = None;
        }
        self.handle(message, &mut received)?;
        while self.missing.is_none()
            && let Some(bytes) = self.waiting.pop_front()
        {
            self.handle(read(&bytes)?, &mut received)?;
        }
        if self.missing.is_none() {
            self.cancelled.clear();
        }
        Ok(received)
    }

    /// Returns the message for a job that has ended. The output of a cancelled job is left out.
    #[must_use]
    pub fn complete(&mut self, mut completion: Completion) -> Vec<u8> {
        if self.running.remove(&completion.ticket) == Some(true) && completion.output.is_ok() {
            completion.output = Err(JobError::Cancelled);
        }
        CompletionMessage::write(completion)
    }

    /// Returns whether commands wait for a job that was asked for again.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.missing.is_some()
    }

    /// Forgets the tokens and features of all sequences, to free memory. The host sends them again
    /// where they are needed.
    pub fn forget(&mut self) {
        self.sequences.clear();
    }

    /// Returns the memory used for tokens and features, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.sequences.values().map(|entry| entry.bytes).sum()
    }

    fn handle(&mut self, message: ToWorker<'_>, received: &mut Received) -> Result<(), WireError> {
        match message {
            ToWorker::Job(message) => {
                let (ticket, role) = (message.ticket, message.role);
                match self.job(message)? {
                    Some(job) => {
                        let is_cancelled = self.cancelled.remove(&ticket);
                        self.running.insert(ticket, is_cancelled);
                        received.commands.push(Command::Run { ticket, role, job });
                        if is_cancelled {
                            received.commands.push(Command::Cancel(ticket));
                        }
                    }
                    None => {
                        self.missing = Some(ticket);
                        received.answer = Some(write(&ToHost::Missing(ticket)));
                    }
                }
            }
            ToWorker::Cancel(ticket) => {
                if let Some(cancelled) = self.running.get_mut(&ticket) {
                    *cancelled = true;
                    received.commands.push(Command::Cancel(ticket));
                } else if self.missing.is_some() {
                    self.cancelled.insert(ticket);
                }
            }
            ToWorker::Release(sequence) => {
                self.sequences.remove(&sequence);
                received.commands.push(Command::Release(sequence));
            }
        }
        Ok(())
    }

    /// Returns a job with all its tokens and features; `None` if they are not held here.
    fn job(&mut self, message: JobMessage<'_>) -> Result<Option<Job>, WireError> {
        let JobMessage { sequence, tokens, prompt_len, work, .. } = message;
        self.received += 1;
        let entry = self.sequences.entry(sequence).or_default();
        if let Work::Draft { features, .. } = &work
            && !entry.held.has_features(features)
        {
            return Ok(None);
        }
        let Some((sampling, tokens)) = entry.held.receive_tokens(&tokens) else { return Ok(None) };
        if tokens.is_empty() {
            return Err(WireError::Invalid("a job has no tokens"));
        }
        let job = match work {
            Work::Draft { shape, features, last_draft } => {
                let features = entry.held.receive_features(features)?;
                let last_draft = last_draft.map(|draft| Arc::new(draft.into_owned()));
                let (shape, feedback) =
                    (shape.into_owned(), TargetFeedback { features, last_draft });
                Job::Draft { sequence, tokens, prompt_len, sampling, shape, feedback }
            }
            Work::Score { tree, logprobs, features_from } => {
                let tree = tree.into_owned();
                Job::Score(ScoreJob {
                    sequence,
                    tokens,
                    prompt_len,
                    tree,
                    sampling,
                    logprobs,
                    features_from,
                })
            }
        };
        (entry.bytes, entry.used) = (entry.held.bytes(), self.received);
        self.keep_within_budget();
        Ok(Some(job))
    }

    /// Forgets the sequences that were not used for the longest time, until the others fit.
    fn keep_within_budget(&mut self) {
        let mut bytes = self.held_bytes();
        while bytes > self.budget && self.sequences.len() > 1 {
            let oldest = self.sequences.iter().min_by_key(|(_, entry)| entry.used);
            let Some((&oldest, entry)) = oldest else { return };
            bytes -= entry.bytes;
            self.sequences.remove(&oldest);
        }
    }
}
