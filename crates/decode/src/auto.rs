//! Chooses between decoding methods while it decodes.
//!
//! Speculative decoding, PEARL and DSI decode the same text, so a sequence can go from one to another after any
//! step. The current one passes on what it learns of times and acceptance. From that, each predicts its speed on the
//! text at hand, and the fastest is used ([`MethodChoice`]). Each of them pauses by itself while drafting does not pay,
//! so none is much slower than the target alone.

use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, Sequence, dsi,
    pearl, speculative,
};
use forerun_core::{
    Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket, trace::SpanOutcome,
};
use forerun_plan::{Forecast, MethodChoice};
use std::collections::BTreeSet;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "auto",
    help: "Predict and measure speculative decoding, PEARL and DSI, and use the fastest",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[],
    decoder: |options| match options.reproducible {
        // The choice would follow the clock.
        true => (speculative::METHOD.decoder)(options),
        false => Box::new(Auto::new(
            [speculative::METHOD, pearl::METHOD, dsi::METHOD]
                .map(|method| (method.decoder)(options))
                .into(),
        )),
    },
};

/// Decodes with the fastest of several decoders.
pub struct Auto {
    decoders: Vec<Box<dyn AnswerDecoder>>,
    choice: MethodChoice,
    /// What each decoder expected when that was last computed.
    forecasts: Vec<Option<Forecast>>,
    /// The number of tokens of the text when each decoder last worked.
    worked_until: Vec<usize>,
    jobs: JobsInFlight,
}

impl Auto {
    /// Creates a decoder that begins with the first of `decoders`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(decoders: Vec<Box<dyn AnswerDecoder>>) -> Self {
        assert!(!decoders.is_empty(), "there must be a decoder to choose");
        let choice = MethodChoice::new(decoders.len());
        let worked_until = vec![0; decoders.len()];
        let forecasts = vec![None; decoders.len()];
        Self { decoders, choice, forecasts, worked_until, jobs: JobsInFlight::default() }
    }

    /// Returns the index of the decoder that makes the next step.
    #[must_use]
    pub fn current(&self) -> usize {
        self.choice.current()
    }
}

impl Auto {
    /// Passes on what a decoder has learned from a text of `tokens` tokens.
    fn share_knowledge(&mut self, decoder: usize, tokens: usize) {
        self.worked_until[decoder] = tokens;
        if let Some(known) = self.decoders[decoder].knowledge() {
            let others = self.decoders.iter_mut().enumerate();
            let others = others.filter(|&(index, _)| index != decoder);
            others.for_each(|(_, decoder)| decoder.adopt(&known));
        }
    }

    /// Computes what each decoder expects of a text of `tokens` tokens.
    fn forecast(&mut self, tokens: usize) {
        self.share_knowledge(self.current(), tokens);
        let decoders = self.decoders.iter().zip(&self.worked_until);
        let missed = decoders.map(|(decoder, until)| (decoder, tokens.saturating_sub(*until)));
        self.forecasts = missed.map(|(decoder, missed)| decoder.forecast(missed)).collect();
    }
}

impl Decoder for Auto {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (before, current) = (sequence.tokens().len(), self.current());
        let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs };
        self.decoders[current].step(sequence, &mut watched)?;
        let tokens = sequence.tokens().len();
        let is_fresh = self.choice.needs_forecasts();
        if is_fresh {
            self.forecast(tokens);
        }
        let is_alone = !std::mem::take(&mut self.jobs.has_drafted);
        self.choice.observe(tokens - before, self.jobs.now_ns, is_alone, &self.forecasts);
        let next = self.current();
        if next != current {
            let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs };
            self.decoders[current].stop(&mut watched);
            watched.wait_for_cancelled();
            if !is_fresh {
                self.share_knowledge(current, tokens);
            }
            if let Some(known) = self.decoders[current].knowledge() {
                self.decoders[next].start(&known);
            }
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.decoders[self.choice.current()].stop(cluster);
    }
}

impl AnswerDecoder for Auto {
    fn for_next_answer(&self, options: &DecoderOptions, prompt: usize) -> Box<dyn AnswerDecoder> {
        let decoders = self.decoders.iter();
        Box::new(Self {
            decoders: decoders.map(|decoder| decoder.for_next_answer(options, prompt)).collect(),
            choice: self.choice.for_next_answer(),
            forecasts: vec![None; self.decoders.len()],
            worked_until: vec![0; self.decoders.len()],
            jobs: JobsInFlight::default(),
        })
    }
}

/// The jobs of the current decoder.
#[derive(Debug, Default)]
struct JobsInFlight {
    tickets: BTreeSet<Ticket>,
    /// The end of the last completed job, on the cluster's clock.
    now_ns: u64,
    /// Whether drafts were requested since the last step.
    has_drafted: bool,
}

/// A cluster that takes note of the jobs in flight and of the time.
struct WatchedCluster<'a> {
    cluster: &'a mut dyn Cluster,
    jobs: &'a mut JobsInFlight,
}

impl WatchedCluster<'_> {
    /// Waits for the jobs of a decoder that has stopped, so that the next one does not get them.
    fn wait_for_cancelled(&mut self) {
        while !self.jobs.tickets.is_empty()
            && let Ok(completion) = self.next_completion()
        {
            let (ticket, outcome) = (completion.ticket, SpanOutcome::Wasted);
            self.cluster.observe(Outcome { ticket, accepted: 0, outcome });
        }
    }
}

impl Cluster for WatchedCluster<'_> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let ticket = self.cluster.submit(on, job)?;
        self.jobs.tickets.insert(ticket);
        self.jobs.has_drafted |= matches!(on, Role::Drafter(_));
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let completion = self.cluster.next_completion()?;
        self.jobs.tickets.remove(&completion.ticket);
        self.jobs.now_ns = self.jobs.now_ns.max(completion.finished_ns);
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}
