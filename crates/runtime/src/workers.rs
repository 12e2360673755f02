//! Running workers, wherever they are.

use crate::thread_cluster::Canceller;
use forerun_core::trace::{SpanOutcome, Trace};
use forerun_core::{Cluster, Outcome, SequenceId};

/// Running workers: threads of this process ([`Runtime`](crate::Runtime)), or workers in other
/// processes that are reached through messages.
pub trait Workers: Send + Sync {
    /// Creates a handle for the decoder of one sequence. `canceller` can cancel its jobs: a handle
    /// to other processes learns of that through [`Canceller::on_cancel`].
    fn cluster(&self, canceller: &Canceller) -> Box<dyn ClusterHandle>;

    /// Removes and returns the trace of one sequence. Workers that record no traces return an empty
    /// one.
    fn take_trace_of(&self, sequence: SequenceId) -> Trace;
}

/// A handle to workers, for the decoder of one sequence.
pub trait ClusterHandle: Cluster + Send {
    /// Cancels all jobs in flight.
    fn cancel_all(&mut self);

    /// Cancels all jobs in flight and waits until they have ended. Afterwards no job of this handle
    /// is running.
    fn cancel_and_wait(&mut self) {
        self.cancel_all();
        while let Ok(completion) = self.next_completion() {
            let outcome =
                Outcome { ticket: completion.ticket, accepted: 0, outcome: SpanOutcome::Wasted };
            self.observe(outcome);
        }
    }
}
