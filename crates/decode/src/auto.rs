//! Chooses between decoding methods, and between drafters, while it decodes.
//!
//! Speculative decoding, PEARL and DSI decode the same text with any drafter, so a sequence can go
//! from one to another after any step. The current one passes on what it learns of times and
//! acceptance. From that, each predicts its speed on the text at hand, and the fastest is used
//! ([`MethodChoice`]). Each of them pauses by itself while drafting does not pay, so none is much
//! slower than the target alone.
//!
//! If the drafters are also on the target's devices, methods that draft before they verify use them
//! there: all cores compute the draft, and nothing is handed over between workers.
//!
//! What is known of one drafter says nothing about another. So each is tried, and tried again after
//! 512 tokens of other drafters, as far as the account of lost time allows.

use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::{DecodeError, Decoder, Sequence, dsi, jobs::wasted, pearl, speculative};
use forerun_core::{
    Cluster, ClusterError, Completion, Job, Need, Outcome, Role, SequenceId, Ticket,
};
use forerun_plan::{Forecast, Knowledge, MethodChoice, StepKind};
use std::collections::{BTreeMap, BTreeSet};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "auto",
    help: "Predict and measure speculative decoding, PEARL and DSI, and use the fastest",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::SeveralDrafters],
    combines_drafters: true,
    decoder: |options| fastest(&CHOICES, options),
};

/// `auto` for checks of the text: its methods and drafters take turns, so that all of them work,
/// and are changed, in any answer. It has the name of `auto`, and so its placement.
pub static AUTO_IN_TURNS: MethodEntry = MethodEntry {
    decoder: |options| match options.reproducible {
        true => fastest(&CHOICES, options),
        false => {
            let mut auto = Auto::with_methods(&CHOICES, options);
            auto.choice = auto.choice.taking_turns(TURN_STEPS);
            Box::new(auto)
        }
    },
    ..METHOD
};

/// The methods that `auto` chooses from.
static CHOICES: [&MethodEntry; 3] = [&speculative::METHOD, &pearl::METHOD, &dsi::METHOD];

/// The number of steps of a turn: PEARL and DSI verify drafts that they made during verification
/// from the second one on.
const TURN_STEPS: u32 = 4;

/// Returns a decoder that uses the fastest of the methods with the fastest drafter. If the text of
/// a seed depends on drafts, it must not follow the clock, so it is that of the first method and
/// drafter.
pub(crate) fn fastest(
    methods: &[&MethodEntry],
    options: &DecoderOptions,
) -> Box<dyn AnswerDecoder> {
    let is_single = methods.len() == 1 && options.drafters() == 1;
    if options.reproducible || is_single && !uses_repeated(methods[0], options) {
        return (methods[0].decoder)(&options.of_drafter(options.drafter));
    }
    Box::new(Auto::with_methods(methods, options))
}

/// Returns whether a method uses the drafters that are on the target's devices: if its rounds wait
/// for the draft.
fn uses_repeated(method: &MethodEntry, options: &DecoderOptions) -> bool {
    options.repeats_drafters && method.drafting == Drafting::BeforeVerification
}

/// Decodes with the fastest of several decoders. They may use several drafters, each of which may
/// be on two devices.
pub struct Auto {
    candidates: Vec<Candidate>,
    choice: MethodChoice,
    drafters: Vec<UsedDrafter>,
    /// What the drafters have read, by place; nothing where there is none.
    readings: BTreeMap<usize, Reading>,
    /// What each candidate expected when that was last computed.
    forecasts: Vec<Option<Forecast>>,
    jobs: JobsInFlight,
}

/// A decoder to choose.
struct Candidate {
    /// The index of its drafter.
    drafter: usize,
    /// What is added to a drafter's index in its jobs: 0, or the number of drafters if it uses
    /// those on the target's devices.
    offset: usize,
    decoder: Box<dyn AnswerDecoder>,
    /// The number of tokens of the text when it last worked.
    worked_until: usize,
    /// The nanoseconds in which others have worked since then, also in other answers. They count in
    /// its own account of what it may lose; the account of changes limits what all candidates lose
    /// together.
    others_ns: u64,
}

impl Candidate {
    fn new(drafter: usize, decoder: Box<dyn AnswerDecoder>) -> Self {
        Self { drafter, offset: 0, decoder, worked_until: 0, others_ns: 0 }
    }

    /// Returns the index of the drafter to which its jobs go.
    fn place(&self) -> usize {
        self.drafter + self.offset
    }
}

/// What a drafter has read of the text.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// The number of tokens of the text when it last worked, and how many of them it has not read.
    worked_until: usize,
    unread_tokens: usize,
}

impl Reading {
    /// Returns how many of `tokens` committed tokens it has not read.
    fn unread_tokens(&self, tokens: usize) -> usize {
        self.unread_tokens + tokens.saturating_sub(self.worked_until)
    }
}

/// A drafter that candidates use.
#[derive(Clone, Copy, Debug)]
struct UsedDrafter {
    index: usize,
    /// The time of a forward in passes of the target that the sizes of the models suggest. One that
    /// would have to read text for long is tried later.
    expected_passes: Option<f64>,
    /// The number of tokens since it last worked that others have committed, also in other answers;
    /// `None` before its first turn.
    idle_tokens: Option<usize>,
}

/// After so many tokens without a drafter, what is known of its acceptance is about other text.
const FORGETTING_TOKENS: usize = 512;

impl UsedDrafter {
    fn new(index: usize) -> Self {
        Self { index, expected_passes: None, idle_tokens: None }
    }

    /// Returns whether nothing is known of its acceptance on the text at hand.
    fn is_unknown(&self) -> bool {
        self.idle_tokens.is_none_or(|tokens| tokens >= FORGETTING_TOKENS)
    }
}

impl Auto {
    /// Creates a decoder that begins with the first of `decoders`, which have the same drafter.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(decoders: Vec<Box<dyn AnswerDecoder>>) -> Self {
        Self::of_candidates(
            decoders.into_iter().map(|decoder| Candidate::new(0, decoder)).collect(),
        )
    }

    /// Creates a decoder that chooses between these methods, each with each of the drafters.
    fn with_methods(methods: &[&MethodEntry], options: &DecoderOptions) -> Self {
        let drafters = options.drafter..options.drafter + options.drafters();
        let candidates = methods.iter().flat_map(|method| {
            let offset = if uses_repeated(method, options) { options.drafters() } else { 0 };
            drafters.clone().map(move |drafter| {
                let decoder = (method.decoder)(&options.of_drafter(drafter));
                Candidate { offset, ..Candidate::new(drafter, decoder) }
            })
        });
        let mut auto = Self::of_candidates(candidates.collect());
        for drafter in &mut auto.drafters {
            drafter.expected_passes = options.of_drafter(drafter.index).expected_passes;
        }
        auto
    }

    /// Creates a decoder that begins with the first of `candidates`. The first candidate of a
    /// drafter should be the one that learns with the least effort whether drafts pay.
    fn of_candidates(candidates: Vec<Candidate>) -> Self {
        assert!(!candidates.is_empty(), "there must be a decoder to choose");
        let of_candidates: Vec<usize> =
            candidates.iter().map(|candidate| candidate.drafter).collect();
        let indices = BTreeSet::from_iter(of_candidates.iter().copied());
        Self {
            forecasts: vec![None; candidates.len()],
            choice: MethodChoice::new(&of_candidates),
            readings: BTreeMap::new(),
            candidates,
            drafters: indices.into_iter().map(UsedDrafter::new).collect(),
            jobs: JobsInFlight::default(),
        }
    }

    /// Returns the index of the candidate that makes the next step.
    #[must_use]
    pub fn current(&self) -> usize {
        self.choice.current()
    }
}

impl Auto {
    /// Takes note that the current candidate has committed `new` tokens in `ns` nanoseconds, of a
    /// text that has `tokens` tokens now.
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

    /// Passes on what a candidate has learned from a text of `tokens` tokens, and returns it.
    fn share_knowledge(&mut self, from: usize, tokens: usize) -> Option<Knowledge> {
        let place = self.candidates[from].place();
        let known = self.candidates[from].decoder.policy()?.knowledge();
        let reading = Reading { worked_until: tokens, unread_tokens: known.unread_tokens() };
        self.readings.insert(place, reading);
        for index in (0..self.candidates.len()).filter(|&index| index != from) {
            let known = self.knowledge_for(index, from, tokens, &known);
            if let Some(policy) = self.candidates[index].decoder.policy_mut() {
                policy.adopt(&known);
            }
        }
        Some(known)
    }

    /// Returns what a candidate can use of the knowledge of another one.
    fn knowledge_for(
        &self,
        candidate: usize,
        from: usize,
        tokens: usize,
        known: &Knowledge,
    ) -> Knowledge {
        let (own, from) = (&self.candidates[candidate], &self.candidates[from]);
        if own.place() == from.place() {
            return known.clone();
        }
        let unread_tokens = self.unread_tokens(own, tokens);
        if own.drafter == from.drafter {
            return known.for_other_device(unread_tokens);
        }
        let is_unknown = self.unknown_drafter(own).is_some();
        known.for_other_drafter(unread_tokens, is_unknown)
    }

    /// Returns how many of `tokens` committed tokens a candidate's drafter has not read.
    fn unread_tokens(&self, candidate: &Candidate, tokens: usize) -> usize {
        self.readings.get(&candidate.place()).copied().unwrap_or_default().unread_tokens(tokens)
    }

    /// Returns a candidate's drafter if nothing is known of its acceptance.
    fn unknown_drafter(&self, candidate: &Candidate) -> Option<&UsedDrafter> {
        let mut drafters = self.drafters.iter();
        drafters.find(|drafter| drafter.index == candidate.drafter && drafter.is_unknown())
    }

    /// Computes what each candidate expects of a text of `tokens` tokens. Of one with an unknown
    /// drafter, that is only the time in which the drafter reads the text.
    fn forecast(&mut self, tokens: usize) {
        let known = self.share_knowledge(self.current(), tokens);
        for index in 0..self.candidates.len() {
            let candidate = &self.candidates[index];
            let missed = tokens.saturating_sub(candidate.worked_until);
            let forecast = candidate.decoder.policy().and_then(|policy| policy.forecast(missed));
            let Some(unknown) = self.unknown_drafter(candidate) else {
                self.forecasts[index] = forecast;
                continue;
            };
            let reading_ns = || {
                let unread_tokens = self.unread_tokens(candidate, tokens);
                Some(known.as_ref()?.reading_ns(unread_tokens, unknown.expected_passes?))
            };
            let (start_ns, starting_ns) = match forecast {
                Some(forecast) => (forecast.start_ns, forecast.starting_ns),
                None => (reading_ns().unwrap_or(0.0), f64::INFINITY),
            };
            self.forecasts[index] = None;
            self.choice.expect_start(index, start_ns, starting_ns);
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
        let offset = self.candidates[current].offset;
        let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs, offset };
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
            let place = self.candidates[current].place();
            for (index, _) in
                self.candidates.iter().enumerate().filter(|(_, it)| it.place() == place)
            {
                self.choice.exclude(index);
            }
        }
        self.choice.observe(tokens - before, self.jobs.now_ns, kind, &self.forecasts);
        let next = self.current();
        if next != current {
            let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs, offset };
            self.candidates[current].decoder.stop(&mut watched);
            watched.wait_for_cancelled();
            if !is_fresh {
                self.share_knowledge(current, tokens);
            }
            if let Some(policy) = self.candidates[current].decoder.policy() {
                let known = self.knowledge_for(next, current, tokens, &policy.knowledge());
                let Candidate { decoder, others_ns, .. } = &mut self.candidates[next];
                if let Some(policy) = decoder.policy_mut() {
                    policy.start(&known, std::mem::take(others_ns) as f64);
                }
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
        let candidate = |&Candidate { drafter, offset, ref decoder, others_ns, .. }: &Candidate| {
            let decoder = decoder.for_next_answer(&options.of_drafter(drafter), prompt);
            Candidate { offset, others_ns, ..Candidate::new(drafter, decoder) }
        };
        let candidates: Vec<Candidate> = self.candidates.iter().map(candidate).collect();
        Box::new(Self {
            readings: BTreeMap::new(),
            candidates,
            choice: self.choice.for_next_answer(),
            drafters: self.drafters.clone(),
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
    /// What is added to a drafter's index.
    offset: usize,
}

impl WatchedCluster<'_> {
    /// Waits for the jobs of a decoder that has stopped, so that the next one does not get them.
    fn wait_for_cancelled(&mut self) {
        while !self.jobs.tickets.is_empty()
            && let Ok(completion) = self.next_completion()
        {
            self.cluster.observe(wasted(completion.ticket));
        }
    }
}

impl Cluster for WatchedCluster<'_> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let on = match on {
            Role::Drafter(index) => Role::Drafter(index + self.offset),
            Role::Target(_) => on,
        };
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
