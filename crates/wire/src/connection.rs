//! The host's side of a connection to a worker process, for several sequences.

use crate::{HostEnd, Reply, WireError};
use forerun_core::{Completion, Job, JobCost, JobError, Role, SequenceId, Ticket};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The host's side of a connection to a worker process. All threads that submit jobs to the process
/// share it.
///
/// It combines a [`HostEnd`] with the function that sends its messages:
///
/// * Messages are sent in the order in which they were made, whichever threads made them.
/// * Each completion reaches whoever submitted the job.
/// * If the connection is lost, all its jobs fail with an error that names the worker, and so do
///   jobs that are submitted later. So every job completes exactly once.
///
/// One thread reads the messages from the worker and passes them to [`Connection::receive`], at all
/// times: the worker may ask for a job again while no completion is awaited. When there are no
/// more, it calls [`Connection::close`].
///
/// ```rust
/// # use forerun_core::{
/// #     Completion, Distribution, Job, JobCost, JobOutput, Role, ScoreJob, Scores, SequenceId,
/// #     Ticket,
/// # };
/// # use forerun_wire::{Command, Connection, WireError, WorkerEnd};
/// # use std::sync::Arc;
/// # use std::sync::mpsc::{Receiver, Sender, channel};
/// # use std::thread;
/// #
/// # fn serve(inbox: Receiver<Vec<u8>>, outbox: Sender<Vec<u8>>) -> Result<(), WireError> {
/// #     let mut end = WorkerEnd::new(64 << 20);
/// #     for bytes in inbox {
/// #         for command in end.receive(&bytes)?.commands {
/// #             if let Command::Run { ticket, .. } = command {
/// #                 let output = Ok(JobOutput::Score(Scores::default()));
/// #                 let (started_ns, finished_ns, cost) = (0, 1, JobCost::default());
/// #                 let completion =
/// #                     Completion { ticket, output, started_ns, finished_ns, cost };
/// #                 outbox.send(end.complete(completion)).ok();
/// #             }
/// #         }
/// #     }
/// #     Ok(())
/// # }
/// # let job = Job::Score(ScoreJob::greedy(SequenceId(0), [1, 2, 3]));
/// let ((to_worker, inbox), (outbox, replies)) = (channel(), channel());
/// // `serve` is the worker process, as in the crate's documentation.
/// let worker = thread::spawn(|| serve(inbox, outbox));
/// let send = move |bytes| drop(to_worker.send(bytes));
/// let connection = Arc::new(Connection::new("target on host 7", send));
///
/// let reader = thread::spawn({
///     let connection = Arc::clone(&connection);
///     move || {
///         for bytes in replies {
///             if connection.receive(&bytes).is_err() {
///                 break;
///             }
///         }
///         connection.close("its process has ended");
///     }
/// });
///
/// // Any number of threads can do this at the same time.
/// let (reply, completions) = channel();
/// connection.submit(Ticket(0), Role::Target(0), job, move |completion| {
///     reply.send(completion).ok();
/// });
/// assert!(completions.recv()?.output.is_ok());
///
/// connection.close("the engine was closed");
/// worker.join().expect("the worker did not panic")?;
/// reader.join().expect("the reader did not panic");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connection {
    worker: String,
    state: Mutex<State>,
}

type OnCompletion = Box<dyn FnOnce(Completion) + Send>;

enum State {
    Open(Open),
    /// With the reason.
    Closed(String),
}

struct Open {
    end: HostEnd,
    send: Box<dyn FnMut(Vec<u8>) + Send>,
    /// Where the completions of the jobs in flight go.
    submitters: HashMap<Ticket, OnCompletion>,
}

impl Connection {
    /// Creates a connection to the process of `worker`, which errors name.
    ///
    /// `send` sends one message to the process. It is called under a lock, so it should queue the
    /// message and not wait, and must not call this connection. If the channel is broken, it drops
    /// the message.
    #[must_use]
    pub fn new(worker: impl Into<String>, send: impl FnMut(Vec<u8>) + Send + 'static) -> Self {
        let (end, send, submitters) = (HostEnd::new(), Box::new(send), HashMap::new());
        Self {
            worker: worker.into(),
            state: Mutex::new(State::Open(Open { end, send, submitters })),
        }
    }

    /// Submits a job. `completed` receives its completion, once, on the thread that reads the
    /// worker's messages or closes the connection; it should not wait. If the connection is closed,
    /// the job has failed when this function returns.
    ///
    /// `ticket` must not be in flight on this connection.
    pub fn submit(
        &self,
        ticket: Ticket,
        role: Role,
        job: Job,
        completed: impl FnOnce(Completion) + Send + 'static,
    ) {
        let mut state = self.lock();
        match &mut *state {
            State::Open(open) => {
                open.submitters.insert(ticket, Box::new(completed));
                (open.send)(open.end.submit(ticket, role, job));
            }
            State::Closed(reason) => {
                let failed = self.failed(ticket, reason);
                drop(state);
                completed(failed);
            }
        }
    }

    /// Requests that a job stops. It still completes. Nothing happens if it has completed already.
    pub fn cancel(&self, ticket: Ticket) {
        if let State::Open(open) = &mut *self.lock()
            && open.submitters.contains_key(&ticket)
        {
            (open.send)(open.end.cancel(ticket));
        }
    }

    /// Frees a sequence's caches on the worker.
    pub fn release(&self, sequence: SequenceId) {
        if let State::Open(open) = &mut *self.lock() {
            (open.send)(open.end.release(sequence));
        }
    }

    /// Handles a message from the worker: passes a completion on, or sends a job again. A closed
    /// connection ignores it.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a valid message about a job in flight. The connection is
    /// closed then.
    pub fn receive(&self, bytes: &[u8]) -> Result<(), WireError> {
        let mut state = self.lock();
        let State::Open(open) = &mut *state else { return Ok(()) };
        match open.end.receive(bytes) {
            Ok(Reply::Completed(completion)) => {
                let completed = open.submitters.remove(&completion.ticket);
                drop(state);
                if let Some(completed) = completed {
                    completed(completion);
                }
                Ok(())
            }
            Ok(Reply::Resend(bytes)) => {
                (open.send)(bytes);
                Ok(())
            }
            Err(error) => {
                drop(state);
                self.close(&error.to_string());
                Err(error)
            }
        }
    }

    /// Closes the connection, and drops the function that sends messages. Jobs in flight and later
    /// ones fail with `reason`, such as `its process has ended`. Only the first reason counts.
    pub fn close(&self, reason: &str) {
        let mut state = self.lock();
        if matches!(*state, State::Closed(_)) {
            return;
        }
        let before = std::mem::replace(&mut *state, State::Closed(reason.into()));
        drop(state);
        if let State::Open(open) = before {
            for (ticket, completed) in open.submitters {
                completed(self.failed(ticket, reason));
            }
        }
    }

    fn failed(&self, ticket: Ticket, reason: &str) -> Completion {
        let message = format!("the connection is closed: {reason}");
        let output = Err(JobError::Failed { worker: self.worker.clone(), message });
        let (started_ns, finished_ns, cost) = (0, 0, JobCost::default());
        Completion { ticket, output, started_ns, finished_ns, cost }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close("it was dropped");
    }
}
