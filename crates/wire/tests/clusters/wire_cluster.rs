//! A cluster behind two byte channels.

use crate::common::Choices;
use forerun_core::{Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket};
use forerun_runtime::InlineCluster;
use forerun_wire::{Command, HostEnd, Reply, WorkerEnd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// A message of the test's channel.
enum Packet {
    Wire(Vec<u8>),
    /// Run a job. With it the host decides when jobs run, so that runs can be compared.
    Step,
}

/// What the worker did.
#[derive(Default)]
pub(crate) struct WorkerLog {
    pub(crate) jobs: Vec<(Role, Job)>,
    pub(crate) released: usize,
    /// The number of jobs that were asked for again.
    pub(crate) missed: usize,
}

/// How the worker's end uses its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) budget: usize,
    /// The end forgets everything before every message with probability one in this number; 0 for
    /// never.
    pub(crate) forgets_one_in: usize,
    pub(crate) seed: u64,
}

/// The host's side: every job and completion passes through bytes.
pub(crate) struct WireCluster {
    end: HostEnd,
    worker: Option<(Sender<Packet>, JoinHandle<WorkerLog>)>,
    replies: Receiver<Vec<u8>>,
    submitted: u64,
}

impl WireCluster {
    /// Starts a worker thread that runs jobs on `cluster`.
    pub(crate) fn start(
        cluster: impl FnOnce() -> InlineCluster + Send + 'static,
        memory: Memory,
    ) -> Self {
        let ((to_worker, inbox), (outbox, replies)) = (channel(), channel());
        let thread = thread::spawn(move || serve(cluster(), memory, &inbox, &outbox));
        Self { end: HostEnd::new(), worker: Some((to_worker, thread)), replies, submitted: 0 }
    }

    pub(crate) fn finish(mut self) -> WorkerLog {
        let (to_worker, thread) = self.worker.take().unwrap();
        drop(to_worker);
        thread.join().unwrap()
    }

    fn send(&self, packet: Packet) {
        self.worker.as_ref().unwrap().0.send(packet).unwrap();
    }
}

impl Cluster for WireCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        let bytes = self.end.submit(ticket, on, job);
        self.send(Packet::Wire(bytes));
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.send(Packet::Wire(self.end.cancel(ticket)));
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        if self.end.in_flight().next().is_none() {
            return Err(ClusterError::Idle);
        }
        self.send(Packet::Step);
        loop {
            match self.end.receive(&self.replies.recv().unwrap()).unwrap() {
                Reply::Completed(completion) => return Ok(completion),
                Reply::Resend(bytes) => self.send(Packet::Wire(bytes)),
            }
        }
    }

    fn observe(&mut self, _outcome: Outcome) {}

    fn release(&mut self, sequence: SequenceId) {
        let bytes = self.end.release(sequence);
        self.send(Packet::Wire(bytes));
    }
}

/// The worker's side.
fn serve(
    mut cluster: InlineCluster,
    memory: Memory,
    inbox: &Receiver<Packet>,
    outbox: &Sender<Vec<u8>>,
) -> WorkerLog {
    let (mut end, mut steps) = (WorkerEnd::new(memory.budget), 0);
    let (mut log, mut choices) = (WorkerLog::default(), Choices::new(memory.seed));
    for packet in inbox {
        match packet {
            Packet::Step => steps += 1,
            Packet::Wire(bytes) => {
                if memory.forgets_one_in > 0 && choices.below(memory.forgets_one_in) == 0 {
                    end.forget();
                }
                let received = end.receive(&bytes).unwrap();
                for command in received.commands {
                    match command {
                        Command::Run { ticket, role, job } => {
                            log.jobs.push((role, job.clone()));
                            assert_eq!(cluster.submit(role, job), Ok(ticket));
                        }
                        Command::Cancel(ticket) => cluster.cancel(ticket),
                        Command::Release(sequence) => {
                            log.released += 1;
                            cluster.release(sequence);
                        }
                    }
                }
                log.missed += usize::from(received.answer.is_some());
                received.answer.into_iter().for_each(|answer| outbox.send(answer).unwrap());
            }
        }
        while steps > 0 && !end.is_waiting() {
            let completion = cluster.next_completion().unwrap();
            outbox.send(end.complete(completion)).unwrap();
            steps -= 1;
        }
    }
    log
}
