//! A job on its way through a worker, from the queue to its answer.

use crate::shared_device::DeviceUseTiming;
use crate::timed::ForwardTiming;
use crate::worker::Reply;
use forerun_core::{Job, QueuedJob, Role, SequenceId};
use forerun_lm::Progress;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A job that has no answer yet.
pub(crate) struct PendingJob {
    pub(crate) role: Role,
    pub(crate) job: Job,
    pub(crate) cancel: Arc<AtomicBool>,
    /// How far a score job has got.
    pub(crate) progress: Progress,
    pub(crate) answer: PendingAnswer,
}

/// What a job's answer needs in addition to its output.
pub(crate) struct PendingAnswer {
    pub(crate) reply: Reply,
    /// When the job was submitted.
    pub(crate) submitted: Instant,
    /// When the job's first pass started.
    pub(crate) started: Option<Instant>,
    /// Its parts of earlier passes.
    pub(crate) forwards: Vec<ForwardTiming>,
    /// The uses of shared devices in these passes.
    pub(crate) device_uses: Vec<DeviceUseTiming>,
}

impl PendingJob {
    pub(crate) fn new(role: Role, job: Job, cancel: Arc<AtomicBool>, reply: Reply) -> Self {
        let (forwards, device_uses) = (Vec::new(), Vec::new());
        let submitted = Instant::now();
        let answer = PendingAnswer { reply, submitted, started: None, forwards, device_uses };
        Self { role, job, cancel, progress: Progress::default(), answer }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

impl QueuedJob for PendingJob {
    fn role(&self) -> Role {
        self.role
    }

    fn sequence(&self) -> SequenceId {
        self.job.sequence()
    }

    fn has_started(&self) -> bool {
        self.answer.started.is_some()
    }
}
