//! The loop that runs a worker's jobs, in batches.

use crate::engine::{Engine, job_error};
use crate::pending_job::{PendingAnswer, PendingJob};
use crate::recorder::{JobTimings, Recorder};
use crate::shared_device::DeviceUseLog;
use crate::timed::ForwardLog;
use crate::worker::{Message, panic_message};
use forerun_core::{
    ActiveSequences, Batcher, Completion, Job, JobCost, JobError, JobOutput, QueuedJob, Role,
};
use forerun_cpu::Team;
use forerun_lm::{ModelError, Progress};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Runs a worker's jobs, in batches of several sequences ([`Batcher`]).
pub(crate) struct WorkerLoop {
    engine: Engine,
    answers: Answers,
}

impl WorkerLoop {
    pub(crate) fn new(
        engine: Engine,
        lane: usize,
        name: String,
        clock: Instant,
        recorder: Arc<Recorder>,
    ) -> Self {
        let (forwards, device_uses) = engine.logs();
        // What models compute while they are built belongs to no job.
        drop(device_uses.take());
        let active = ActiveSequences::default();
        let batcher = Batcher::default();
        let answers =
            Answers { lane, name, clock, recorder, forwards, device_uses, active, batcher };
        Self { engine, answers }
    }

    /// Runs jobs until the cluster is dropped. A score job that needs several passes moves to the
    /// end of the queue after each, so a long prompt does not hold up other jobs. While there are
    /// none, the team's cores are lent to others.
    pub(crate) fn serve(mut self, messages: &Receiver<Message>, team: &Team) {
        let mut queue = VecDeque::new();
        let mut at_work = team.start_work();
        loop {
            if queue.is_empty() {
                drop(at_work);
                let Ok(message) = messages.recv() else { return };
                at_work = team.start_work();
                self.receive(message, &mut queue);
            }
            for message in messages.try_iter() {
                self.receive(message, &mut queue);
            }
            let now_ns = self.answers.to_ns(Instant::now());
            let batch = match self.answers.batcher.next(&mut queue, now_ns) {
                Ok(batch) => batch,
                Err(until_ns) => {
                    let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    if let Ok(message) = messages.recv_timeout(wait) {
                        self.receive(message, &mut queue);
                    }
                    continue;
                }
            };
            queue.extend(self.run(batch));
            let ended_ns = self.answers.to_ns(Instant::now());
            self.answers.batcher.end(ended_ns);
        }
    }

    fn receive(&mut self, message: Message, queue: &mut VecDeque<PendingJob>) {
        match message {
            Message::Release(sequence) => {
                // Jobs that were submitted before the release are answered first.
                while let Some(at) = queue.iter().position(|job| job.job.sequence() == sequence) {
                    let unfinished = self.run(queue.remove(at).into_iter().collect());
                    unfinished.into_iter().for_each(|job| queue.push_front(job));
                }
                self.engine.release(sequence);
                self.answers.active.release(sequence);
                self.answers.batcher.release(sequence);
            }
            Message::Run(job) => {
                let submitted_ns = self.answers.to_ns(job.answer.submitted);
                self.answers.batcher.arrive(job.sequence(), submitted_ns);
                queue.push_back(*job);
            }
        }
    }

    /// Runs jobs of one role and different sequences: draft jobs to their end, and one pass of
    /// score jobs. Returns the jobs that need another pass.
    fn run(&mut self, batch: Vec<PendingJob>) -> Vec<PendingJob> {
        let (cancelled, mut batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(PendingJob::is_cancelled);
        for PendingJob { job, answer, .. } in cancelled {
            self.answers.complete(&job, answer, Err(JobError::Cancelled));
        }
        let Some(role) = batch.first().map(|job| job.role) else { return batch };
        let now = Instant::now();
        batch.iter_mut().for_each(|job| job.answer.started = job.answer.started.or(Some(now)));
        match role {
            Role::Drafter(index) => {
                self.draft(index, batch);
                Vec::new()
            }
            Role::Target(index) => self.score_pass(index, batch),
        }
    }

    /// Runs draft jobs. Each is answered as soon as its draft is ready.
    fn draft(&mut self, index: usize, batch: Vec<PendingJob>) {
        let (mut jobs, mut pending) = (Vec::new(), Vec::new());
        for PendingJob { job, cancel, answer, .. } in batch {
            jobs.push((job, cancel));
            pending.push(Some(answer));
        }
        let Self { engine, answers, .. } = self;
        let parts: Vec<(&Job, &AtomicBool)> = jobs.iter().map(|(job, c)| (job, &**c)).collect();
        let work = AssertUnwindSafe(|| {
            engine.draft(index, &parts, &mut |number, draft| {
                if let Some(answer) = pending[number].take() {
                    answers.end(parts[number].0, answer, draft.map(JobOutput::Draft));
                }
            });
        });
        if let Err(panic) = catch_unwind(work) {
            let rest = jobs.into_iter().zip(pending).filter_map(|((job, cancel), answer)| {
                let (role, progress) = (Role::Drafter(index), Progress::default());
                Some(PendingJob { role, job, cancel, progress, answer: answer? })
            });
            self.recover(rest.collect(), &panic_message(&*panic));
        }
    }

    /// Runs one pass of score jobs. Returns the jobs that need another pass.
    fn score_pass(&mut self, index: usize, mut batch: Vec<PendingJob>) -> Vec<PendingJob> {
        let engine = &mut self.engine;
        let work = AssertUnwindSafe(|| engine.score_pass(index, &mut batch));
        let outputs = match catch_unwind(work) {
            Ok(outputs) => outputs,
            Err(panic) => {
                self.recover(batch, &panic_message(&*panic));
                return Vec::new();
            }
        };
        let uses = self.answers.device_uses.take();
        let mut unfinished = Vec::new();
        for (mut pending, output) in batch.into_iter().zip(outputs) {
            pending.answer.device_uses.extend(uses.iter().cloned());
            match output {
                Some(output) => self.answers.end(&pending.job, pending.answer, output),
                None => {
                    let forwards = self.answers.forwards.take_of(pending.sequence());
                    pending.answer.forwards.extend(forwards);
                    unfinished.push(pending);
                }
            }
        }
        unfinished
    }

    /// Continues after a panic. Caches may be incomplete, so they are dropped. A single job fails;
    /// several run again, each by itself, so that only the job that panics again fails.
    fn recover(&mut self, jobs: Vec<PendingJob>, message: &str) {
        for job in &jobs {
            self.engine.release(job.job.sequence());
        }
        // Later jobs must not get the uses of devices by this pass.
        let uses = self.answers.device_uses.take();
        let is_single = jobs.len() == 1;
        for mut pending in jobs {
            if is_single {
                pending.answer.device_uses.extend(uses.iter().cloned());
                let (worker, message) = (self.answers.name.clone(), message.to_owned());
                let error = JobError::Panicked { worker, message };
                self.answers.complete(&pending.job, pending.answer, Err(error));
                continue;
            }
            pending.progress = Progress::default();
            let mut batch = vec![pending];
            while !batch.is_empty() {
                batch = self.run(batch);
            }
        }
    }
}

/// Records and sends the answers of jobs.
struct Answers {
    lane: usize,
    name: String,
    clock: Instant,
    recorder: Arc<Recorder>,
    forwards: ForwardLog,
    device_uses: DeviceUseLog,
    active: ActiveSequences,
    batcher: Batcher,
}

impl Answers {
    /// Answers a job that has run.
    fn end(&mut self, job: &Job, mut answer: PendingAnswer, output: Result<JobOutput, ModelError>) {
        answer.device_uses.extend(self.device_uses.take());
        self.complete(job, answer, output.map_err(|error| job_error(&error, job, &self.name)));
    }

    fn complete(&mut self, job: &Job, answer: PendingAnswer, output: Result<JobOutput, JobError>) {
        let PendingAnswer { reply, started, mut forwards, device_uses, .. } = answer;
        let finished_ns = self.to_ns(Instant::now());
        self.batcher.leave(job.sequence(), output.is_ok(), finished_ns);
        let started_ns = started.map_or(finished_ns, |started| self.to_ns(started));
        forwards.extend(self.forwards.take_of(job.sequence()));
        let mut cost =
            JobCost { active_sequences: self.active.complete(job), ..JobCost::default() };
        for forward in &forwards {
            let ns = forward.finished.duration_since(forward.started).as_nanos() as u64;
            cost.add_pass(forward.tokens, forward.batch_tokens, forward.sequences, ns);
        }
        let computed_tokens = forwards.iter().map(|forward| forward.tokens).sum();
        let overruns = forwards.iter().filter(|forward| forward.is_late).count();
        let forwards_ns =
            forwards.iter().map(|f| [self.to_ns(f.started), self.to_ns(f.finished)]).collect();
        let uses = device_uses.into_iter().map(|used| {
            let times_ns = [self.to_ns(used.started), self.to_ns(used.finished)];
            (used.device, times_ns)
        });
        let device_uses_ns = uses.collect();
        let timings = JobTimings { forwards_ns, computed_tokens, overruns, device_uses_ns };
        let completion =
            Completion { ticket: reply.ticket(), output, started_ns, finished_ns, cost };
        self.recorder.record(self.lane, job, &completion, timings);
        reply.send(completion);
    }

    /// Converts a time to nanoseconds on the cluster's clock.
    fn to_ns(&self, moment: Instant) -> u64 {
        moment.duration_since(self.clock).as_nanos() as u64
    }
}
