//! The trace of a running cluster.

use forerun_core::trace::{Fate, Span, Trace, Work};
use forerun_core::{Completion, Job, JobOutput, Outcome};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Spans that are kept; the older half goes when there are more, so that memory stays bounded.
const MAX_SPANS: usize = 1 << 18;

/// Records what workers report.
pub(crate) struct Recorder {
    trace: Mutex<Trace>,
}

impl Recorder {
    pub(crate) fn new(lanes: Vec<String>) -> Self {
        Self { trace: Mutex::new(Trace::new(lanes)) }
    }

    /// Adds a completed job with the starts and ends of its forward passes.
    pub(crate) fn record(
        &self,
        lane: usize,
        job: &Job,
        completion: &Completion,
        forwards_ns: Vec<[u64; 2]>,
    ) {
        let rows = match &completion.output {
            Ok(JobOutput::Draft(draft)) => draft.tree.len(),
            Ok(JobOutput::Score(scores)) => scores.rows.len(),
            Err(_) => 0,
        };
        let mut trace = self.lock();
        if trace.spans.len() >= MAX_SPANS {
            trace.spans.drain(..MAX_SPANS / 2);
        }
        trace.spans.push(Span {
            lane,
            work: if matches!(job, Job::Draft { .. }) { Work::Draft } else { Work::Score },
            sequence: job.sequence(),
            ticket: completion.ticket,
            rows,
            start_ns: completion.started_ns,
            end_ns: completion.finished_ns,
            forwards_ns,
            accepted: 0,
            fate: if completion.output.is_ok() { Fate::Open } else { Fate::Wasted },
        });
    }

    pub(crate) fn mark(&self, outcome: &Outcome) {
        self.lock().mark(outcome);
    }

    /// Takes the recorded spans that are `wanted` out.
    pub(crate) fn take(&self, wanted: impl Fn(&Span) -> bool) -> Trace {
        let mut trace = self.lock();
        let spans = trace.spans.extract_if(.., |span| wanted(span)).collect();
        Trace { lanes: trace.lanes.clone(), spans }
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
