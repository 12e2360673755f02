//! The side of a process that runs jobs for another one, which sends them as messages.

use crate::thread_cluster::{Canceller, Runtime};
use crate::workers::Workers;
use forerun_core::{Completion, JobCost, JobError, Ticket};
use forerun_wire::{Command, WireError, WorkerEnd};
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

/// The memory for tokens and features that the host need not send again, in bytes.
const HELD_BYTES: usize = 256 << 20;

enum Event {
    Message(Vec<u8>),
    Completed(Completion),
    Closed,
}

/// Where the host's messages go.
#[derive(Clone)]
pub struct MessageQueue(Sender<Event>);

impl MessageQueue {
    /// Adds a message. A server that has stopped ignores it.
    pub fn push(&self, message: Vec<u8>) {
        drop(self.0.send(Event::Message(message)));
    }

    /// Stops the server: it cancels the jobs in flight.
    pub fn close(&self) {
        drop(self.0.send(Event::Closed));
    }
}

/// Runs the jobs of messages on the workers of a [`Runtime`], and answers with messages.
pub struct MessageServer {
    queue: Sender<Event>,
    events: Receiver<Event>,
}

impl MessageServer {
    /// Creates a server, and the queue for its messages.
    #[must_use]
    pub fn new() -> (Self, MessageQueue) {
        let (queue, events) = mpsc::channel();
        (Self { queue: queue.clone(), events }, MessageQueue(queue))
    }

    /// Runs jobs until the queue is closed. `send` sends a message to the host. The times in
    /// completions are those since `epoch`, which must be before the start of the runtime.
    ///
    /// # Errors
    /// [`WireError`] if a message cannot be read.
    pub fn serve(
        self,
        runtime: &Runtime,
        epoch: Instant,
        mut send: impl FnMut(Vec<u8>),
    ) -> Result<(), WireError> {
        let Self { queue, events } = self;
        let shift_ns = runtime.clock().saturating_duration_since(epoch).as_nanos() as u64;
        let mut end = WorkerEnd::new(HELD_BYTES);
        let mut running = HashMap::<Ticket, Canceller>::new();
        for event in events {
            let received = match event {
                Event::Closed => break,
                Event::Completed(mut completion) => {
                    running.remove(&completion.ticket);
                    completion.started_ns += shift_ns;
                    completion.finished_ns += shift_ns;
                    send(end.complete(completion));
                    continue;
                }
                Event::Message(bytes) => end.receive(&bytes)?,
            };
            for command in received.commands {
                match command {
                    Command::Run { ticket, role, job } => {
                        let (canceller, completed) = (Canceller::new(), queue.clone());
                        let completed = move |completion| {
                            let completion = Completion { ticket, ..completion };
                            drop(completed.send(Event::Completed(completion)));
                        };
                        match runtime.submit(role, job, &canceller, completed) {
                            Ok(_) => drop(running.insert(ticket, canceller)),
                            Err(error) => {
                                let message = error.to_string();
                                let worker = "this process".into();
                                let output = Err(JobError::Failed { worker, message });
                                let (started_ns, finished_ns) = (0, 0);
                                let cost = JobCost::default();
                                let failed =
                                    Completion { ticket, output, started_ns, finished_ns, cost };
                                send(end.complete(failed));
                            }
                        }
                    }
                    Command::Cancel(ticket) => {
                        if let Some(canceller) = running.get(&ticket) {
                            canceller.cancel();
                        }
                    }
                    Command::Release(sequence) => {
                        runtime.release(sequence);
                        // The host records the trace.
                        drop(runtime.take_trace_of(sequence));
                    }
                }
            }
            received.answer.into_iter().for_each(&mut send);
        }
        running.values().for_each(Canceller::cancel);
        Ok(())
    }
}
