//! The trace of a running cluster.

use forerun_core::trace::{DeviceUse, Span, Trace};
use forerun_core::{Completion, Job, Outcome};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest number of spans to keep. When it is reached, the older half is dropped, so that memory
/// use stays bounded.
const MAX_SPANS: usize = 1 << 18;

/// The timings of one job, in nanoseconds on the cluster's clock.
#[derive(Debug, Default)]
pub(crate) struct JobTimings {
    /// The starts and ends of its forward passes.
    pub(crate) forwards_ns: Vec<[u64; 2]>,
    /// Number of tokens that the forward passes computed.
    pub(crate) computed_tokens: usize,
    /// Number of passes on a paced device that took longer than their time.
    pub(crate) overruns: usize,
    /// The uses of shared devices, with their starts and ends.
    pub(crate) device_uses_ns: Vec<(Arc<str>, [u64; 2])>,
}

/// Records the completed jobs of a cluster.
pub(crate) struct Recorder {
    trace: Mutex<Trace>,
}

impl Recorder {
    pub(crate) fn new(lanes: Vec<String>) -> Self {
        Self { trace: Mutex::new(Trace::new(lanes)) }
    }

    /// Adds a completed job with its timings.
    pub(crate) fn record(
        &self,
        lane: usize,
        job: &Job,
        completion: &Completion,
        timings: JobTimings,
    ) {
        let mut trace = self.lock();
        if trace.spans.len() >= MAX_SPANS {
            trace.spans.drain(..MAX_SPANS / 2);
        }
        let uses = timings.device_uses_ns.iter();
        let uses = uses.map(|(name, [start_ns, end_ns])| DeviceUse {
            device: device_index(&mut trace.devices, name),
            start_ns: *start_ns,
            end_ns: *end_ns,
        });
        let device_uses = uses.collect();
        trace.spans.push(Span {
            forwards_ns: timings.forwards_ns,
            computed_tokens: timings.computed_tokens,
            overruns: timings.overruns,
            device_uses,
            ..Span::of(lane, job, completion)
        });
    }

    pub(crate) fn record_outcome(&self, outcome: &Outcome) {
        self.lock().record_outcome(outcome);
    }

    /// Removes and returns the recorded spans that `filter` selects.
    pub(crate) fn take(&self, filter: impl Fn(&Span) -> bool) -> Trace {
        let mut trace = self.lock();
        let spans = trace.spans.extract_if(.., |span| filter(span)).collect();
        Trace { devices: trace.devices.clone(), spans, ..Trace::new(trace.lanes.clone()) }
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of a device, after adding it if it is new.
fn device_index(devices: &mut Vec<String>, name: &str) -> usize {
    devices.iter().position(|known| known == name).unwrap_or_else(|| {
        devices.push(name.to_owned());
        devices.len() - 1
    })
}
