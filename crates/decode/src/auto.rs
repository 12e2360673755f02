//! Chooses between decoding methods, and between drafters, while it decodes.
//!
//! Speculative decoding, PEARL and DSI decode the same text with any drafter, so a sequence can go from one to another after any
//! step. The current one passes on what it learns of times and acceptance. From that, each predicts its speed on the
//! text at hand, and the fastest is used ([`MethodChoice`]). Each of them pauses by itself while drafting does not pay,
//! so none is much slower than the target alone.
//!
//! What is known of one drafter says nothing about another. So each is tried, and tried again after 512 tokens of other drafters, as far
//! as the account of lost time allows.

use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, Sequence, dsi,
    pearl, speculative,
};
use forerun_core::{
    Cluster, ClusterError, Completion, Job, Need, Outcome, Role, SequenceId, Ticket,
    trace::SpanOutcome,
};
use forerun_plan::{Forecast, Knowledge, MethodChoice, StepKind};
use std::collections::BTreeSet;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "auto",
    help: "Predict and measure speculative decoding, PEARL and DSI, and use the fastest",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::SeveralDrafters],
    decoder: |options| {
        let methods = [speculative::with_one_drafter, pearl::with_one_drafter, dsi::METHOD.decoder];
        fastest(&methods, options)
    },
};

/// Builds a decoder with one drafter.
type MakeDecoder = fn(&DecoderOptions) -> Box<dyn AnswerDecoder>;

/// Returns a decoder that uses the fastest of the methods with the fastest drafter. If the text of a seed depends on drafts, it must
/// not follow the clock, so it is that of the first method and drafter.
pub(crate) fn fastest(methods: &[MakeDecoder], options: &DecoderOptions) -> Box<dyn AnswerDecoder> {
    if options.reproducible || (methods.len() == 1 && options.drafters() == 1) {
        return methods[0](&options.of_drafter(options.drafter));
    }
    let drafters = options.drafter..options.drafter + options.drafters();
    let passes = drafters.clone().map(|drafter| options.of_drafter(drafter).expected_passes);
    let passes: Vec<_> = drafters.clone().zip(passes).collect();
    let candidates = methods.iter().flat_map(|method| {
        drafters.clone().map(move |drafter| (drafter, method(&options.of_drafter(drafter))))
    });
    Box::new(Auto::of_drafters(candidates.collect()).with_expected_passes(&passes))
}

/// Decodes with the fastest of several decoders.
pub struct Auto {
    candidates: Vec<Candidate>,
    choice: MethodChoice,
    drafters: Vec<UsedDrafter>,
    /// What each candidate expected when that was last computed.
    forecasts: Vec<Option<Forecast>>,
    jobs: JobsInFlight,
}

/// A decoder to choose.
struct Candidate {
    /// The index of its drafter.
    drafter: usize,
    decoder: Box<dyn AnswerDecoder>,
    /// The number of tokens of the text when it last worked.
    worked_until: usize,
    /// The nanoseconds in which others have worked since then, also in other answers.
    others_ns: u64,
}

/// A drafter that candidates use.
#[derive(Clone, Copy, Debug)]
struct UsedDrafter {
    index: usize,
    /// The time of a forward in passes of the target that the sizes of the models suggest.
    expected_passes: Option<f64>,
    /// The number of tokens of the text when it last worked, and how many of them it has not read.
    worked_until: usize,
    unread_tokens: usize,
    /// The number of tokens since then that others have committed, also in other answers; `None` before its first turn.
    idle_tokens: Option<usize>,
}

/// After so many tokens without a drafter, what is known of its acceptance is about other text.
const FORGETTING_TOKENS: usize = 512;

impl UsedDrafter {
    fn new(index: usize) -> Self {
        Self { index, expected_passes: None, worked_until: 0, unread_tokens: 0, idle_tokens: None }
    }

    /// Returns whether nothing is known of its acceptance on the text at hand.
    fn is_unknown(&self) -> bool {
        self.idle_tokens.is_none_or(|tokens| tokens >= FORGETTING_TOKENS)
    }

    /// Returns how many of `tokens` committed tokens it has not read.
    fn unread_tokens(&self, tokens: usize) -> usize {
        self.unread_tokens + tokens.saturating_sub(self.worked_until)
    }
}

impl Auto {
    /// Creates a decoder that begins with the first of `decoders`, which have the same drafter.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(decoders: Vec<Box<dyn AnswerDecoder>>) -> Self {
        Self::of_drafters(decoders.into_iter().map(|decoder| (0, decoder)).collect())
    }

    /// Creates a decoder that begins with the first of `candidates`: the indices of their drafters, and decoders that use these.
    /// The first candidate of a drafter should be the one that learns with the least effort whether drafts pay.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn of_drafters(candidates: Vec<(usize, Box<dyn AnswerDecoder>)>) -> Self {
        assert!(!candidates.is_empty(), "there must be a decoder to choose");
        let of_candidates: Vec<usize> = candidates.iter().map(|&(drafter, _)| drafter).collect();
        let indices = BTreeSet::from_iter(of_candidates.iter().copied());
        let candidate =
            |(drafter, decoder)| Candidate { drafter, decoder, worked_until: 0, others_ns: 0 };
        Self {
            forecasts: vec![None; candidates.len()],
            choice: MethodChoice::new(&of_candidates),
            candidates: candidates.into_iter().map(candidate).collect(),
            drafters: indices.into_iter().map(UsedDrafter::new).collect(),
            jobs: JobsInFlight::default(),
        }
    }

    /// Returns the decoder with the time of a forward of each drafter in passes of the target that the sizes of the models suggest. One
    /// that would have to read much text for long is tried later.
    #[must_use]
    pub fn with_expected_passes(mut self, of_drafters: &[(usize, Option<f64>)]) -> Self {
        for drafter in &mut self.drafters {
            let found = of_drafters.iter().find(|(index, _)| *index == drafter.index);
            drafter.expected_passes = found.and_then(|&(_, passes)| passes);
        }
        self
    }

    /// Returns the index of the candidate that makes the next step.
    #[must_use]
    pub fn current(&self) -> usize {
        self.choice.current()
    }
}

impl Auto {
    /// Takes note that the current candidate has committed `new` tokens in `ns` nanoseconds, of a text that has `tokens` tokens now.
    fn count(&mut self, new: usize, ns: u64, tokens: usize) {
        let at = self.choice.current();
        for (index, other) in self.candidates.iter_mut().enumerate() {
            other.others_ns += if index == at { 0 } else { ns };
        }
        let current = &mut self.candidates[at];
        current.worked_until = tokens;
        for drafter in &mut self.drafters {
            match drafter.index == current.drafter {
                true => drafter.idle_tokens = Some(0),
                false => drafter.idle_tokens = drafter.idle_tokens.map(|idle| idle + new),
            }
        }
    }

    /// Passes on what a candidate has learned from a text of `tokens` tokens.
    fn share_knowledge(&mut self, from: usize, tokens: usize) {
        let Candidate { drafter, decoder, .. } = &self.candidates[from];
        let (of_drafter, Some(known)) = (*drafter, decoder.knowledge()) else { return };
        if let Some(drafter) = self.drafters.iter_mut().find(|other| other.index == of_drafter) {
            (drafter.worked_until, drafter.unread_tokens) = (tokens, known.unread_tokens());
        }
        for index in (0..self.candidates.len()).filter(|&index| index != from) {
            let known = self.of_candidate(index, of_drafter, tokens, &known);
            self.candidates[index].decoder.adopt(&known);
        }
    }

    /// Returns what a candidate can use of the knowledge of one with `drafter`.
    fn of_candidate(
        &self,
        candidate: usize,
        drafter: usize,
        tokens: usize,
        known: &Knowledge,
    ) -> Knowledge {
        let own = self.candidates[candidate].drafter;
        match self.drafters.iter().find(|other| other.index == own && own != drafter) {
            Some(own) => known.for_other_drafter(own.unread_tokens(tokens), own.is_unknown()),
            None => known.clone(),
        }
    }

    /// Computes what each candidate expects of a text of `tokens` tokens. Of one with an unknown drafter, that is only the time in
    /// which the drafter reads the text.
    fn forecast(&mut self, tokens: usize) {
        let current = self.current();
        self.share_knowledge(current, tokens);
        let known = self.candidates[current].decoder.knowledge();
        for index in 0..self.candidates.len() {
            let Candidate { drafter, ref decoder, worked_until, .. } = self.candidates[index];
            let forecast = decoder.forecast(tokens.saturating_sub(worked_until));
            let unknown =
                self.drafters.iter().find(|other| other.index == drafter && other.is_unknown());
            self.forecasts[index] = forecast.filter(|_| unknown.is_none());
            let Some(unknown) = unknown else { continue };
            let reading_ns = || {
                let known = known.as_ref()?.for_other_drafter(unknown.unread_tokens(tokens), true);
                Some(known.reading_ns(unknown.expected_passes?))
            };
            let start_ns = forecast.map(|forecast| forecast.start_ns).or_else(reading_ns);
            self.choice.expect_start(index, start_ns.unwrap_or(0.0));
        }
    }
}

impl Decoder for Auto {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (before, current) = (sequence.tokens().len(), self.current());
        let began_ns = self.jobs.now_ns;
        let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs };
        self.candidates[current].decoder.step(sequence, &mut watched)?;
        let tokens = sequence.tokens().len();
        // An answer's first step computes the prompt, and only starts the clock.
        let ns = if began_ns == 0 { 0 } else { self.jobs.now_ns - began_ns };
        self.count(tokens - before, ns, tokens);
        let is_fresh = self.choice.needs_forecasts();
        if is_fresh {
            self.forecast(tokens);
        }
        let kind = match std::mem::take(&mut self.jobs.has_drafted) {
            true => StepKind::Drafted,
            false if self.candidates[current].decoder.has_looked_up() => StepKind::LookedUp,
            false => StepKind::Alone,
        };
        if self.candidates[current].decoder.has_failed_drafter() {
            self.choice.exclude_drafter_of(current);
        }
        self.choice.observe(tokens - before, self.jobs.now_ns, kind, &self.forecasts);
        let next = self.current();
        if next != current {
            let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs };
            self.candidates[current].decoder.stop(&mut watched);
            watched.wait_for_cancelled();
            if !is_fresh {
                self.share_knowledge(current, tokens);
            }
            let Candidate { drafter, decoder, .. } = &self.candidates[current];
            if let Some(known) = decoder.knowledge() {
                let known = self.of_candidate(next, *drafter, tokens, &known);
                let Candidate { decoder, others_ns, .. } = &mut self.candidates[next];
                decoder.start(&known, std::mem::take(others_ns) as f64);
            }
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.candidates[self.choice.current()].decoder.stop(cluster);
    }
}

impl AnswerDecoder for Auto {
    fn for_next_answer(&self, options: &DecoderOptions, prompt: usize) -> Box<dyn AnswerDecoder> {
        let candidate = |&Candidate { drafter, ref decoder, others_ns, .. }: &Candidate| {
            let decoder = decoder.for_next_answer(&options.of_drafter(drafter), prompt);
            Candidate { drafter, decoder, worked_until: 0, others_ns }
        };
        let drafter =
            |drafter: &UsedDrafter| UsedDrafter { worked_until: 0, unread_tokens: 0, ..*drafter };
        Box::new(Self {
            candidates: self.candidates.iter().map(candidate).collect(),
            choice: self.choice.for_next_answer(),
            drafters: self.drafters.iter().map(drafter).collect(),
            forecasts: vec![None; self.candidates.len()],
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
