//! A cluster of simulated devices in virtual time.

use crate::device::{CacheState, Passes, Work};
use crate::oracle::CachedOracle;
use crate::pipeline::{DeviceSchedule, SharedDevices};
use crate::{Cost, Device, Fault, FaultKind, Oracle, SimError};
use forerun_core::trace::{Span, Trace};
use forerun_core::{
    ActiveSequences, Batcher, Cluster, ClusterError, Completion, Job, JobCost, JobError, Outcome,
    QueuedJob, Role, SequenceId, Ticket,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;

/// When a running job stops after its cancellation. A job that still waits is dropped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cancellation {
    /// The job stops at once, and the device is free.
    Immediate,
    /// The job stops at the end of the current layer.
    Layer,
    /// The job runs to its end and returns its output.
    RunToEnd,
}

impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Immediate => "immediate",
            Self::Layer => "layer",
            Self::RunToEnd => "run-to-end",
        })
    }
}

/// The work of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Number of jobs that ended, including cancelled and failed ones.
    pub jobs: u64,
    /// Time in which the device was busy, in nanoseconds.
    pub busy_ns: u64,
    /// Time spent on jobs that were cancelled or failed, in nanoseconds. Jobs that run together
    /// share the time equally.
    pub wasted_ns: u64,
}

impl Usage {
    /// Adds the work of another device.
    pub fn add(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.busy_ns += other.busy_ns;
        self.wasted_ns += other.wasted_ns;
    }
}

/// A job in a queue.
struct Waiting {
    ticket: Ticket,
    role: Role,
    job: Job,
    /// When the job reaches the device.
    arrives_ns: u64,
}

impl QueuedJob for Waiting {
    fn role(&self) -> Role {
        self.role
    }

    fn sequence(&self) -> SequenceId {
        self.job.sequence()
    }

    fn has_started(&self) -> bool {
        false
    }
}

/// A job that a device executes.
struct Running {
    waiting: Waiting,
    started_ns: u64,
    ends_ns: u64,
    passes: Passes,
    /// The factor by which it takes longer at present, because another device needs its cores
    /// itself.
    slowdown: f64,
    /// The error with which the job ends; `None` if it succeeds.
    failure: Option<JobError>,
}

impl QueuedJob for Running {
    fn role(&self) -> Role {
        self.waiting.role
    }

    fn sequence(&self) -> SequenceId {
        self.waiting.job.sequence()
    }

    fn has_started(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct State {
    /// The jobs that run together, without those that have ended.
    batch: Vec<Running>,
    /// The number of jobs that the batch had at its start.
    batch_jobs: u64,
    /// The time from which the device could start the batch.
    idle_ns: u64,
    /// The time until which the batch is counted in the usage.
    counted_ns: u64,
    queue: VecDeque<Waiting>,
    batcher: Batcher,
    cache: CacheState,
    active: ActiveSequences,
    usage: Usage,
}

impl State {
    /// Shortens the passes of a batch after one of its jobs was cancelled `done_ns` after its
    /// start. The pass that is running stays as it is.
    fn continue_without_cancelled(&mut self, cost: &Cost, done_ns: u64) {
        let left = self.batch.iter_mut().filter(|running| running.failure.is_none());
        let mut left: Vec<&mut Running> = left.collect();
        let Some(longest) = left.iter().max_by_key(|running| running.passes.count()) else {
            return;
        };
        for pass in longest.passes.done_after(done_ns) + 1..longest.passes.count() {
            let sequences = left.iter().filter(|running| running.passes.count() > pass).count();
            for running in &mut left {
                let before_ns = running.passes.total_ns();
                running.passes.set_sequences(cost, pass, sequences);
                running.ends_ns = running.ends_ns - before_ns + running.passes.total_ns();
            }
        }
    }
}

/// A cluster in virtual time.
///
/// Its clock is the time of the latest completion that was delivered. The decoder itself takes no
/// time.
///
/// Jobs of several sequences run together by the rules of real workers ([`Batcher`]). A batch
/// starts with all jobs that arrive until then. Score jobs share one pass. Draft jobs share their
/// passes as long as each needs. A cancelled job leaves its neighbours after the pass that is
/// running. [`SimCluster::run_together`] runs the decoders of several sequences.
pub struct SimCluster {
    devices: Vec<(Device, State)>,
    oracle: Oracle,
    /// The outputs for each sequence.
    oracles: BTreeMap<SequenceId, CachedOracle>,
    cancellation: Cancellation,
    faults: Vec<Fault>,
    now_ns: u64,
    submitted: u64,
    /// Completions by their time of arrival at the decoder.
    deliveries: BTreeMap<(u64, Ticket), Completion>,
    records_trace: bool,
    trace: Trace,
    /// The schedule of the physical devices if drafter and target share them.
    shared: Option<DeviceSchedule>,
    /// The factor by which passes take longer while another device works.
    slowdown: f64,
    /// Whether one worker runs the jobs of all devices. The first one has its queue.
    in_one_worker: bool,
}

impl SimCluster {
    /// Creates a cluster at time 0.
    ///
    /// # Errors
    /// Returns [`SimError::NoLayers`] if a device has passes without layers,
    /// [`SimError::RoleTwice`] if two devices have the same role, and [`SimError::NoSuchDevice`] if
    /// a fault refers to a missing device.
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
            oracle,
            oracles: BTreeMap::new(),
            cancellation,
            faults,
            now_ns: 0,
            submitted: 0,
            deliveries: BTreeMap::new(),
            records_trace: true,
            trace,
            shared: None,
            slowdown: 1.0,
            in_one_worker: false,
        })
    }

    /// Turns off the trace, which costs memory and time.
    #[must_use]
    pub fn without_trace(mut self) -> Self {
        self.records_trace = false;
        self
    }

    /// Places drafter and target on the same physical devices. If two jobs need a device at the
    /// same time, the second one waits. Such devices run jobs one by one, not in batches.
    #[must_use]
    pub fn on_shared_devices(self, devices: SharedDevices) -> Self {
        Self { shared: Some(DeviceSchedule::new(devices)), ..self }
    }

    /// Lets idle devices lend their cores to others, as core groups of one machine do: the times of
    /// passes are those with all cores, and they are `slowdown` times as long while another device
    /// works. A device works from when its jobs are on their way. The number of passes that a
    /// cancelled job has completed is that of a device with all cores.
    #[must_use]
    pub fn with_lent_cores(self, slowdown: f64) -> Self {
        Self { slowdown, ..self }
    }

    /// Has one worker run the jobs of all devices, one batch after another, as of a drafter and a
    /// target on the same cores.
    #[must_use]
    pub fn in_one_worker(self) -> Self {
        Self { in_one_worker: true, ..self }
    }

    /// Returns the devices that work in turn with this one.
    fn worker_of(&self, index: usize) -> Range<usize> {
        if self.in_one_worker { 0..self.devices.len() } else { index..index + 1 }
    }

    /// Adapts the ends of running jobs after a device has begun or ended its work at `at_ns`.
    fn lend_cores(&mut self, at_ns: u64) {
        if self.slowdown == 1.0 {
            return;
        }
        let busy: Vec<usize> = (0..self.devices.len())
            .filter(|&index| !self.devices[index].1.batch.is_empty())
            .collect();
        for &index in &busy {
            let slowdown = if busy.len() > 1 { self.slowdown } else { 1.0 };
            let batch = self.devices[index].1.batch.iter_mut();
            for running in
                batch.filter(|running| running.failure.is_none() && running.ends_ns > at_ns)
            {
                let from_ns = at_ns.max(running.started_ns);
                let left_ns = running.ends_ns.saturating_sub(from_ns) as f64;
                let change = slowdown / std::mem::replace(&mut running.slowdown, slowdown);
                running.ends_ns = from_ns + (left_ns * change).round() as u64;
            }
        }
    }

    /// Returns the virtual time in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the trace so far.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the trace and drops the cluster.
    #[must_use]
    pub fn into_trace(self) -> Trace {
        self.trace
    }

    /// Returns every device with its work so far.
    pub fn usage(&self) -> impl Iterator<Item = (&Device, Usage)> {
        self.devices.iter().map(|(device, state)| (device, state.usage))
    }

    /// Starts the next jobs in the queue of a device if its worker is idle.
    fn start_next(&mut self, index: usize, at_ns: u64) {
        let worker = self.worker_of(index);
        if self.devices[worker.clone()].iter().any(|(_, state)| !state.batch.is_empty()) {
            return;
        }
        let State { queue, batcher, .. } = &mut self.devices[worker.start].1;
        let Some(oldest) = queue.front() else { return };
        let mut started_ns = at_ns.max(oldest.arrives_ns);
        let jobs: Vec<Waiting> = loop {
            if self.shared.is_some() {
                break queue.pop_front().into_iter().collect();
            }
            let arrived = queue.partition_point(|waiting| waiting.arrives_ns <= started_ns);
            let mut later = queue.split_off(arrived);
            let next = batcher.next(queue, started_ns);
            let arrives_ns = later.front().map_or(u64::MAX, |waiting| waiting.arrives_ns);
            queue.append(&mut later);
            match next {
                Ok(jobs) => break jobs,
                Err(until_ns) => started_ns = until_ns.min(arrives_ns),
            }
        };
        if let Some(index) = self.device_of(jobs[0].role) {
            self.start(index, jobs, started_ns);
            self.devices[index].1.idle_ns = at_ns;
        }
    }

    fn device_of(&self, role: Role) -> Option<usize> {
        self.devices.iter().position(|(device, _)| device.roles.contains(&role))
    }

    /// Puts jobs that have not started when another one arrives back into the queue. Returns since
    /// when their device is idle.
    fn reconsider(&mut self, worker: Range<usize>, arrives_ns: u64) -> Option<u64> {
        let starts_later =
            |running: &Running| running.failure.is_none() && arrives_ns <= running.started_ns;
        let queue_at = worker.start;
        let mut devices = self.devices[worker].iter_mut();
        let (_, state) = devices.find(|(_, state)| !state.batch.is_empty())?;
        if self.shared.is_some() || !state.batch.iter().all(starts_later) {
            return None;
        }
        let (idle_ns, batch) = (state.idle_ns, std::mem::take(&mut state.batch));
        let queue = &mut self.devices[queue_at].1.queue;
        batch.into_iter().rev().for_each(|running| queue.push_front(running.waiting));
        Some(idle_ns)
    }

    /// Starts jobs together on an idle device.
    fn start(&mut self, index: usize, jobs: Vec<Waiting>, at_ns: u64) {
        let (device, state) = &self.devices[index];
        let work = |waiting: &Waiting| state.cache.work(&device.cost, waiting.role, &waiting.job);
        let works: Vec<Work> = jobs.iter().map(work).collect();
        let passes: Vec<Passes> =
            works.iter().map(|work| Passes::new(&device.cost, work.clone(), &works)).collect();
        let arrives_ns = jobs.iter().map(|waiting| waiting.arrives_ns).max().unwrap_or(0);
        let start_ns = at_ns.max(arrives_ns);
        let batch_jobs = jobs.len() as u64;
        let batch: Vec<Running> = jobs
            .into_iter()
            .zip(passes)
            .map(|(waiting, passes)| self.running(index, waiting, passes, start_ns))
            .collect();
        let state = &mut self.devices[index].1;
        state.batch_jobs = batch_jobs;
        state.counted_ns = batch.iter().map(|running| running.started_ns).min().unwrap_or(0);
        state.batch = batch;
        self.lend_cores(start_ns);
    }

    /// Returns a job that starts at `started_ns`, unless a fault of the device delays it.
    fn running(
        &mut self,
        index: usize,
        waiting: Waiting,
        passes: Passes,
        mut started_ns: u64,
    ) -> Running {
        let device = &self.devices[index].0;
        let total_ns = passes.total_ns();
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
        if let Some(shared) = &mut self.shared {
            let stalled_ns = ends_ns - started_ns - total_ns;
            let (ticket, role) = (waiting.ticket, waiting.role);
            ends_ns = shared.reserve(ticket, role, &passes, started_ns) + stalled_ns;
        }
        let mut failure = None;
        if dies_ns < ends_ns {
            started_ns = started_ns.min(dies_ns.max(waiting.arrives_ns));
            ends_ns = dies_ns.max(started_ns);
            let message = format!("died at {dies_ns} ns");
            failure = Some(JobError::Failed { worker: device.name.clone(), message });
        }
        Running { waiting, started_ns, ends_ns, passes, slowdown: 1.0, failure }
    }

    /// Ends the next job of a device's batch and sends its completion to the decoder.
    fn finish(&mut self, index: usize) {
        let (device, state) = &mut self.devices[index];
        let ends = state.batch.iter().enumerate().map(|(at, running)| (running.ends_ns, at));
        let Some((_, next)) = ends.min() else { return };
        let Running { waiting, started_ns, ends_ns, passes, failure, .. } =
            state.batch.remove(next);
        let Waiting { ticket, role, job, .. } = waiting;
        let (Role::Drafter(index_in_role) | Role::Target(index_in_role)) = role;
        let sequence = job.sequence();
        let output = match failure {
            Some(failure) => Err(failure),
            None => {
                let new = || CachedOracle::new(self.oracle.of_sequence(sequence));
                let oracle = self.oracles.entry(sequence).or_insert_with(new);
                oracle.answer(index_in_role, &job).ok_or_else(|| JobError::Failed {
                    worker: device.name.clone(),
                    message: "simulated drafters draft only chains, single depths and trees of ranked candidates".into(),
                })
            }
        };
        let ran_ns = ends_ns - started_ns;
        let is_last = state.batch.is_empty();
        state.usage.jobs += 1;
        state.usage.busy_ns += ends_ns.saturating_sub(state.counted_ns);
        state.counted_ns = state.counted_ns.max(ends_ns);
        state.usage.wasted_ns += if output.is_err() { ran_ns / state.batch_jobs } else { 0 };
        let mut cost = passes.cost_after(ran_ns);
        cost.active_sequences = state.active.complete(&job);
        let completion = Completion { ticket, output, started_ns, finished_ns: ends_ns, cost };
        if self.records_trace {
            self.trace.spans.push(Span::of(index, &job, &completion));
        }
        // A cancelled job whose first pass is complete has computed the prefix.
        let output = completion.output.as_ref().ok();
        let is_answered = output.is_some();
        if is_answered || passes.done_after(ran_ns) > 0 {
            state.cache.record(&device.cost, role, job, output);
        }
        self.deliveries.insert((ends_ns + device.cost.link_ns, ticket), completion);
        let queue_at = self.worker_of(index).start;
        let batcher = &mut self.devices[queue_at].1.batcher;
        batcher.leave(sequence, is_answered, ends_ns);
        if is_last {
            batcher.end(ends_ns);
        }
        self.lend_cores(ends_ns);
        self.start_next(index, ends_ns);
    }

    /// Returns the next end of a running job and its device.
    fn next_end(&self) -> Option<(u64, usize)> {
        let ends = self.devices.iter().enumerate().flat_map(|(index, (_, state))| {
            state.batch.iter().map(move |running| (running.ends_ns, index))
        });
        ends.min()
    }

    /// Finishes every job that ends no later than `until_ns`.
    fn advance(&mut self, until_ns: u64) {
        while let Some((ends_ns, index)) = self.next_end()
            && ends_ns <= until_ns
        {
            self.finish(index);
        }
    }
}

impl Cluster for SimCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let Some(index) = self.device_of(on) else {
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
        let arrives_ns = self.now_ns + self.devices[index].0.cost.link_ns;
        let worker = self.worker_of(index);
        let idle_ns = self.reconsider(worker.clone(), arrives_ns).unwrap_or(self.now_ns);
        let State { queue, batcher, .. } = &mut self.devices[worker.start].1;
        batcher.arrive(job.sequence(), arrives_ns);
        queue.push_back(Waiting { ticket, role: on, job, arrives_ns });
        self.start_next(index, idle_ns);
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.advance(self.now_ns);
        let now_ns = self.now_ns;
        for (index, (device, state)) in self.devices.iter_mut().enumerate() {
            if let Some(position) = state.queue.iter().position(|waiting| waiting.ticket == ticket)
                && let Some(waiting) = state.queue.remove(position)
            {
                state.batcher.leave(waiting.job.sequence(), false, now_ns);
                let completion = Completion {
                    ticket,
                    output: Err(JobError::Cancelled),
                    started_ns: now_ns,
                    finished_ns: now_ns,
                    cost: JobCost::default(),
                };
                if self.records_trace {
                    self.trace.spans.push(Span::of(index, &waiting.job, &completion));
                }
                self.deliveries.insert((now_ns, ticket), completion);
            }
            let own = state.batch.iter_mut().find(|running| running.waiting.ticket == ticket);
            let Some(running) = own.filter(|_| self.cancellation != Cancellation::RunToEnd) else {
                continue;
            };
            let reached_ns = now_ns + device.cost.link_ns;
            let done_ns = reached_ns.saturating_sub(running.started_ns);
            let ends_ns = match self.cancellation {
                Cancellation::Layer => {
                    reached_ns.max(running.started_ns + running.passes.layer_end(done_ns))
                }
                _ => reached_ns,
            };
            if ends_ns < running.ends_ns {
                if let Some(shared) = &mut self.shared {
                    shared.release_after(ticket, ends_ns);
                }
                running.started_ns = running.started_ns.min(ends_ns);
                running.ends_ns = ends_ns;
                running.failure = Some(JobError::Cancelled);
                state.continue_without_cancelled(&device.cost, done_ns);
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
        if self.records_trace {
            self.trace.record_outcome(&outcome);
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        for (_, state) in &mut self.devices {
            state.cache.release(sequence);
            state.batcher.release(sequence);
            state.active.release(sequence);
        }
    }
}
