//! Workers in other processes, which are reached through connections.

use crate::recorder::{JobTimings, Recorder};
use crate::thread_cluster::Canceller;
use crate::workers::{ClusterHandle, Workers};
use forerun_core::trace::Trace;
use forerun_core::{Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket};
use forerun_wire::Connection;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A process with workers, and the connection to it.
pub struct RemoteProcess {
    /// The connection. Something else passes the process's messages to it.
    pub connection: Arc<Connection>,
    /// The names and roles of the process's workers.
    pub workers: Vec<(String, Vec<Role>)>,
    /// Converts a time of the process's completions, in nanoseconds, to the clock of this process.
    pub to_own_clock: Arc<dyn Fn(u64) -> u64 + Send + Sync>,
}

/// Workers in other processes. Jobs reach them as messages, whatever carries these.
///
/// A connection that is lost fails its jobs with an error that names the process.
pub struct RemoteWorkers {
    shared: Arc<Shared>,
}

struct Shared {
    processes: Vec<RemoteProcess>,
    /// The process and the lane of each role.
    roles: HashMap<Role, (usize, usize)>,
    tickets: AtomicU64,
    recorder: Arc<Recorder>,
    /// What carries the messages.
    _transport: Box<dyn Any + Send + Sync>,
}

impl RemoteWorkers {
    /// Creates the workers of these processes. `transport` is dropped after the connections have
    /// been closed, with the last handle.
    #[must_use]
    pub fn new(processes: Vec<RemoteProcess>, transport: impl Any + Send + Sync) -> Self {
        let (mut roles, mut lanes) = (HashMap::new(), Vec::new());
        for (process, RemoteProcess { workers, .. }) in processes.iter().enumerate() {
            for (name, of_worker) in workers {
                roles.extend(of_worker.iter().map(|&role| (role, (process, lanes.len()))));
                lanes.push(name.clone());
            }
        }
        let (tickets, recorder) = (AtomicU64::new(0), Arc::new(Recorder::new(lanes)));
        let _transport = Box::new(transport);
        Self { shared: Arc::new(Shared { processes, roles, tickets, recorder, _transport }) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for process in &self.processes {
            process.connection.close("the engine was closed");
        }
    }
}

impl Workers for RemoteWorkers {
    fn cluster(&self, canceller: &Canceller) -> Box<dyn ClusterHandle> {
        let (reply, completions) = mpsc::channel();
        let in_flight = Arc::new(InFlight::default());
        let on_cancel: Arc<dyn Fn() + Send + Sync> = Arc::new({
            let in_flight = Arc::clone(&in_flight);
            move || in_flight.cancel()
        });
        canceller.on_cancel(&on_cancel);
        Box::new(RemoteHandle {
            shared: Arc::clone(&self.shared),
            reply,
            completions,
            in_flight,
            canceller: canceller.clone(),
            _on_cancel: on_cancel,
        })
    }

    fn take_trace_of(&self, sequence: SequenceId) -> Trace {
        self.shared.recorder.take(|span| span.sequence.base() == sequence)
    }
}

/// The jobs of a handle that have no completion yet.
#[derive(Default)]
struct InFlight {
    jobs: Mutex<HashMap<Ticket, Arc<Connection>>>,
}

impl InFlight {
    fn cancel(&self) {
        for (&ticket, connection) in &*self.lock() {
            connection.cancel(ticket);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ticket, Arc<Connection>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct RemoteHandle {
    shared: Arc<Shared>,
    reply: Sender<Completion>,
    completions: Receiver<Completion>,
    in_flight: Arc<InFlight>,
    canceller: Canceller,
    /// The canceller holds it weakly.
    _on_cancel: Arc<dyn Fn() + Send + Sync>,
}

impl Cluster for RemoteHandle {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let &(process, lane) = self.shared.roles.get(&on).ok_or(ClusterError::NoSuchRole(on))?;
        let RemoteProcess { connection, to_own_clock, .. } = &self.shared.processes[process];
        let ticket = Ticket(self.shared.tickets.fetch_add(1, Ordering::Relaxed));
        self.in_flight.lock().insert(ticket, Arc::clone(connection));
        let (reply, recorder) = (self.reply.clone(), Arc::clone(&self.shared.recorder));
        let (recorded, to_own_clock) = (job.clone(), Arc::clone(to_own_clock));
        connection.submit(ticket, on, job, move |mut completion| {
            // A job that failed with its connection has no times.
            if completion.finished_ns > 0 {
                completion.started_ns = to_own_clock(completion.started_ns);
                completion.finished_ns = to_own_clock(completion.finished_ns);
            }
            recorder.record(lane, &recorded, &completion, JobTimings::default());
            // If the handle no longer exists, the completion is discarded.
            drop(reply.send(completion));
        });
        // The canceller may have cancelled before the job was in flight.
        if self.canceller.is_cancelled() {
            connection.cancel(ticket);
        }
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(connection) = self.in_flight.lock().get(&ticket) {
            connection.cancel(ticket);
        }
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        if self.in_flight.lock().is_empty() {
            return Err(ClusterError::Idle);
        }
        // The channel cannot close, because this handle owns a sender.
        let completion = self.completions.recv().map_err(|_| ClusterError::Idle)?;
        self.in_flight.lock().remove(&completion.ticket);
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.shared.recorder.record_outcome(&outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        for process in &self.shared.processes {
            process.connection.release(sequence);
        }
    }
}

impl ClusterHandle for RemoteHandle {
    fn cancel_all(&mut self) {
        self.in_flight.cancel();
    }
}

impl Drop for RemoteHandle {
    fn drop(&mut self) {
        self.in_flight.cancel();
    }
}
