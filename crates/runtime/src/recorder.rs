//! The trace of a running cluster.

use forerun_core::trace::{DeviceUse, Span, Trace};
use forerun_core::{Completion, Job, Outcome};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Spans that are kept; the older half goes when there are more, so that memory stays bounded.
const MAX_SPANS: usize = 1 << 18;

/// The forward passes of a job.
#[derive(Debug, Default)]
pub(crate) struct JobTimings {
    /// Starts and ends on the cluster's clock.
    pub(crate) times_ns: Vec<[u64; 2]>,
    /// Tokens that they computed.
    pub(crate) computed_tokens: usize,
    /// Devices that were had in turn, with starts and ends.
    pub(crate) visits_ns: Vec<(Arc<str>, [u64; 2])>,
}

/// Records what workers report.
pub(crate) struct Recorder {
    trace: Mutex<Trace>,
}

impl Recorder {
    pub(crate) fn new(lanes: Vec<String>) -> Self {
        Self { trace: Mutex::new(Trace::new(lanes)) }
    }

    /// Adds a completed job with its forward passes.
    pub(crate) fn record(
        &self,
        lane: usize,
        job: &Job,
        completion: &Completion,
        forwards: JobTimings,
    ) {
        let mut trace = self.lock();
        if trace.spans.len() >= MAX_SPANS {
            trace.spans.drain(..MAX_SPANS / 2);
        }
        let visits = forwards.visits_ns.iter();
        let visits = visits.map(|(name, [start_ns, end_ns])| DeviceUse {
            device: device(&mut trace.devices, name),
            start_ns: *start_ns,
            end_ns: *end_ns,
        });
        let visits = visits.collect();
        trace.spans.push(Span {
            forwards_ns: forwards.times_ns,
            computed_tokens: forwards.computed_tokens,
            visits,
            ..Span::of(lane, job, completion)
        });
    }

    pub(crate) fn record_outcome(&self, outcome: &Outcome) {
        self.lock().record_outcome(outcome);
    }

    /// Takes the recorded spans that are `wanted` out.
    pub(crate) fn take(&self, wanted: impl Fn(&Span) -> bool) -> Trace {
        let mut trace = self.lock();
        let spans = trace.spans.extract_if(.., |span| wanted(span)).collect();
        Trace { lanes: trace.lanes.clone(), devices: trace.devices.clone(), spans }
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of a device, which is added if it is new.
fn device(devices: &mut Vec<String>, name: &str) -> usize {
    devices.iter().position(|known| known == name).unwrap_or_else(|| {
        devices.push(name.to_owned());
        devices.len() - 1
    })
}
