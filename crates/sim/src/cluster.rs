//! Devices whose time is counted, not spent.

use crate::oracle::Player;
use crate::{Cost, Oracle};
use forerun_core::trace::{Span, Trace};
use forerun_core::{
    Cluster, ClusterError, Completion, DraftShape, Job, JobError, Outcome, Role, SequenceId, Ticket,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What becomes of a job that is cancelled while it runs. One that waits is dropped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cancellation {
    /// It ends, and the device is free.
    Immediate,
    /// It ends with the layer that it is in.
    Layer,
    /// It runs to its end and answers.
    RunToEnd,
}

/// A device group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its lane in the trace.
    pub name: String,
    /// What it plays; jobs of all roles wait in one queue.
    pub roles: Vec<Role>,
    /// What its passes take.
    pub cost: Cost,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The device does nothing any more; its jobs fail.
    Die,
    /// The device stands still for a while.
    Stall {
        /// Nanoseconds.
        ns: u64,
    },
}

/// Something that goes wrong at a known moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Index of the device.
    pub device: usize,
    /// When.
    pub at_ns: u64,
    /// What.
    pub kind: FaultKind,
}

/// A simulation that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// Two devices of one role.
    #[error("both {first} and {second} play {role:?}: give each role one device")]
    RoleTwice {
        /// The role.
        role: Role,
        /// A device.
        first: String,
        /// Another one.
        second: String,
    },
    /// A fault of a device that there is not.
    #[error("a fault names device {device}, but there are only {devices}, counted from 0")]
    NoSuchDevice {
        /// The index.
        device: usize,
        /// Number of devices.
        devices: usize,
    },
    /// An option out of range.
    #[error("{option} cannot be {found}")]
    Range {
        /// What it is.
        option: &'static str,
        /// What it was to be.
        found: String,
    },
    /// Decoding ended early.
    #[error("the simulated answer ended early: {0}")]
    Decode(String),
    /// Passes without layers.
    #[error("{device} has passes of 0 layers: give it at least one")]
    NoLayers {
        /// The device.
        device: String,
    },
}

/// A job in a queue.
struct Waiting {
    ticket: Ticket,
    role: Role,
    job: Job,
    /// When it is there.
    arrives_ns: u64,
}

/// A job on a device.
struct Running {
    waiting: Waiting,
    started_ns: u64,
    ends_ns: u64,
    /// What one layer takes.
    layer_ns: f64,
    /// How it ends; `None` with an answer.
    failure: Option<JobError>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    queue: VecDeque<Waiting>,
    /// Sequences whose first pass is done.
    begun: BTreeSet<(Role, SequenceId)>,
}

/// A cluster in virtual time. Its clock stands at the latest completion that was delivered: a decoder
/// takes no time of its own.
pub struct SimCluster {
    devices: Vec<(Device, State)>,
    player: Player,
    cancellation: Cancellation,
    faults: Vec<Fault>,
    now_ns: u64,
    submitted: u64,
    /// Completions by the moment in which they arrive.
    deliveries: BTreeMap<(u64, Ticket), Completion>,
    trace: Trace,
}

impl SimCluster {
    /// Devices at time 0.
    ///
    /// # Errors
    /// See [`SimError`].
    pub fn new(
        devices: Vec<Device>,
        oracle: Oracle,
        cancellation: Cancellation,
        mut faults: Vec<Fault>,
    ) -> Result<Self, SimError> {
        let mut roles: BTreeMap<Role, &str> = BTreeMap::new();
        for device in &devices {
            if device.cost.layers == 0 {
                return Err(SimError::NoLayers { device: device.name.clone() });
            }
            for &role in &device.roles {
                if let Some(first) = roles.insert(role, &device.name) {
                    let (first, second) = (first.to_owned(), device.name.clone());
                    return Err(SimError::RoleTwice { role, first, second });
                }
            }
        }
        if let Some(fault) = faults.iter().find(|fault| fault.device >= devices.len()) {
            let (device, devices) = (fault.device, devices.len());
            return Err(SimError::NoSuchDevice { device, devices });
        }
        faults.sort_by_key(|fault| fault.at_ns);
        let trace = Trace::new(devices.iter().map(|device| device.name.clone()).collect());
        let devices = devices.into_iter().map(|device| (device, State::default())).collect();
        Ok(Self {
            devices,
            player: Player::new(oracle),
            cancellation,
            faults,
            now_ns: 0,
            submitted: 0,
            deliveries: BTreeMap::new(),
            trace,
        })
    }

    /// The virtual time, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// All that was done so far.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// All that was done, at the end.
    #[must_use]
    pub fn into_trace(self) -> Trace {
        self.trace
    }

    /// Puts the next job of a device's queue on it, if it is free.
    fn start_next(&mut self, index: usize, at_ns: u64) {
        let (device, state) = &mut self.devices[index];
        if state.running.is_some() {
            return;
        }
        let Some(waiting) = state.queue.pop_front() else { return };
        let first = state.begun.insert((waiting.role, waiting.job.sequence()));
        let (pass_ns, total_ns) = duration(&device.cost, &waiting.job, first);
        let mut started_ns = at_ns.max(waiting.arrives_ns);
        let faults = self.faults.iter().filter(|fault| fault.device == index);
        let mut dies_ns = u64::MAX;
        let mut ends_ns = None;
        for fault in faults {
            match fault.kind {
                FaultKind::Die => dies_ns = dies_ns.min(fault.at_ns),
                FaultKind::Stall { ns } => {
                    let until_ns = fault.at_ns.saturating_add(ns);
                    if fault.at_ns <= started_ns {
                        started_ns = started_ns.max(until_ns);
                    } else if fault.at_ns < ends_ns.unwrap_or(started_ns + total_ns) {
                        ends_ns = Some(ends_ns.unwrap_or(started_ns + total_ns) + ns);
                    }
                }
            }
        }
        let mut ends_ns = ends_ns.unwrap_or(started_ns + total_ns);
        let mut failure = None;
        if dies_ns < ends_ns {
            started_ns = started_ns.min(dies_ns.max(waiting.arrives_ns));
            ends_ns = dies_ns.max(started_ns);
            let message = format!("died at {dies_ns} ns");
            failure = Some(JobError::Failed { worker: device.name.clone(), message });
        }
        let layer_ns = pass_ns as f64 / device.cost.layers as f64;
        state.running = Some(Running { waiting, started_ns, ends_ns, layer_ns, failure });
    }

    /// Ends the job of a device and sends what came of it on its way.
    fn finish(&mut self, index: usize) {
        let (device, state) = &mut self.devices[index];
        let Some(running) = state.running.take() else { return };
        let Running { waiting, started_ns, ends_ns, failure, .. } = running;
        let drafter = match waiting.role {
            Role::Drafter(drafter) => drafter,
            Role::Target(_) => 0,
        };
        let output = match failure {
            Some(failure) => Err(failure),
            None => self.player.answer(drafter, &waiting.job).ok_or_else(|| JobError::Failed {
                worker: device.name.clone(),
                message: "simulated drafters draft chains only".into(),
            }),
        };
        let (ticket, finished_ns) = (waiting.ticket, ends_ns);
        let completion = Completion { ticket, output, started_ns, finished_ns };
        self.trace.spans.push(Span::of(index, &waiting.job, &completion));
        self.deliveries.insert((ends_ns + device.cost.link_ns, ticket), completion);
        self.start_next(index, ends_ns);
    }

    /// The device whose job ends next, and when that is.
    fn next_end(&self) -> Option<(u64, usize)> {
        let ends = self.devices.iter().enumerate().filter_map(|(index, (_, state))| {
            state.running.as_ref().map(|running| (running.ends_ns, index))
        });
        ends.min()
    }

    /// Lets devices work until this moment.
    fn advance(&mut self, until_ns: u64) {
        while let Some((ends_ns, index)) = self.next_end()
            && ends_ns <= until_ns
        {
            self.finish(index);
        }
    }
}

/// Nanoseconds of one pass of a job, and of all its passes.
fn duration(cost: &Cost, job: &Job, first: bool) -> (u64, u64) {
    let (passes, rows) = match job {
        Job::Draft { shape: DraftShape::Chain { length }, .. } => (*length, 1),
        Job::Draft { shape, .. } => (shape.depth(), 1),
        Job::Score { tree, .. } => (1, tree.len() + 1),
    };
    let pass_ns = cost.forward.of(rows);
    let first_ns = if first { cost.first_ns.unwrap_or(pass_ns) } else { pass_ns };
    let total_ns = if passes == 0 { 0 } else { first_ns + (passes as u64 - 1) * pass_ns };
    (pass_ns, total_ns)
}

impl Cluster for SimCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let plays = |(device, _): &(Device, State)| device.roles.contains(&on);
        let Some(index) = self.devices.iter().position(plays) else {
            return Err(ClusterError::NoSuchRole(on));
        };
        self.advance(self.now_ns);
        let is_dead = |fault: &Fault| {
            fault.device == index && fault.kind == FaultKind::Die && fault.at_ns <= self.now_ns
        };
        if self.faults.iter().any(is_dead) {
            return Err(ClusterError::WorkerGone(on));
        }
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        let (device, state) = &mut self.devices[index];
        let arrives_ns = self.now_ns + device.cost.link_ns;
        state.queue.push_back(Waiting { ticket, role: on, job, arrives_ns });
        self.start_next(index, self.now_ns);
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.advance(self.now_ns);
        let now_ns = self.now_ns;
        for (index, (device, state)) in self.devices.iter_mut().enumerate() {
            if let Some(place) = state.queue.iter().position(|waiting| waiting.ticket == ticket)
                && let Some(waiting) = state.queue.remove(place)
            {
                let completion = Completion {
                    ticket,
                    output: Err(JobError::Cancelled),
                    started_ns: now_ns,
                    finished_ns: now_ns,
                };
                self.trace.spans.push(Span::of(index, &waiting.job, &completion));
                self.deliveries.insert((now_ns, ticket), completion);
            }
            let Some(running) = &mut state.running else { continue };
            if running.waiting.ticket != ticket || self.cancellation == Cancellation::RunToEnd {
                continue;
            }
            let reached_ns = now_ns + device.cost.link_ns;
            let done_ns = reached_ns.saturating_sub(running.started_ns) as f64;
            let ends_ns = match self.cancellation {
                Cancellation::Layer if running.layer_ns > 0.0 => {
                    let layers = (done_ns / running.layer_ns).ceil();
                    running.started_ns + (layers * running.layer_ns).round() as u64
                }
                _ => reached_ns,
            };
            if ends_ns < running.ends_ns {
                running.started_ns = running.started_ns.min(ends_ns);
                running.ends_ns = ends_ns;
                running.failure = Some(JobError::Cancelled);
            }
        }
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        loop {
            let arrives = self.deliveries.first_key_value().map(|(&(at_ns, _), _)| at_ns);
            match (arrives, self.next_end()) {
                (None, None) => return Err(ClusterError::Idle),
                (Some(at_ns), ends) if ends.is_none_or(|(ends_ns, _)| at_ns < ends_ns) => {
                    self.now_ns = self.now_ns.max(at_ns);
                    return self
                        .deliveries
                        .pop_first()
                        .map(|entry| entry.1)
                        .ok_or(ClusterError::Idle);
                }
                (_, Some((_, index))) => self.finish(index),
                (Some(_), None) => {}
            }
        }
    }

    fn observe(&mut self, outcome: Outcome) {
        self.trace.mark(&outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        for (_, state) in &mut self.devices {
            state.begun.retain(|(_, begun)| *begun != sequence);
        }
    }
}
