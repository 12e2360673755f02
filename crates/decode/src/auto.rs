//! Chooses between decoding methods, and between drafters, while it decodes.
//!
//! Speculative decoding, PEARL and DSI decode the same text with any drafter, so a sequence can go
//! from one to another after any step. They share a planner ([`Planned`]), which learns times and
//! acceptance once for all, and says which is the fastest on the text at hand.
//!
//! If the drafters are also on the target's devices, methods that draft before they verify use them
//! there: all cores compute the draft, and nothing is handed over between workers.

use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::{DecodeError, Decoder, Sequence, dsi, jobs::wasted, pearl, speculative};
use forerun_core::{
    Cluster, ClusterError, Completion, Job, Need, Outcome, Role, SequenceId, Ticket,
};
use forerun_plan::Planned;
use std::collections::BTreeSet;

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
            auto.take_turns();
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
    current: usize,
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
}

impl Candidate {
    fn planned(&mut self) -> Option<&mut Planned> {
        self.decoder.planned()
    }
}

impl Auto {
    /// Creates a decoder that begins with the first of `decoders`, which have the same drafter.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(decoders: Vec<Box<dyn AnswerDecoder>>) -> Self {
        let candidates =
            decoders.into_iter().map(|decoder| Candidate { drafter: 0, offset: 0, decoder });
        Self::of_candidates(candidates.collect())
    }

    /// Creates a decoder that chooses between these methods, each with each of the drafters.
    fn with_methods(methods: &[&MethodEntry], options: &DecoderOptions) -> Self {
        let drafters = options.drafter..options.drafter + options.drafters();
        let candidates = methods.iter().flat_map(|method| {
            let offset = if uses_repeated(method, options) { options.drafters() } else { 0 };
            drafters.clone().map(move |drafter| {
                let decoder = (method.decoder)(&options.of_drafter(drafter));
                Candidate { drafter, offset, decoder }
            })
        });
        Self::of_candidates(candidates.collect())
    }

    /// Creates a decoder for `candidates`, whose planners become one.
    fn of_candidates(mut candidates: Vec<Candidate>) -> Self {
        let (first, others) =
            candidates.split_first_mut().expect("there must be a decoder to choose");
        let (drafter, offset) = (first.drafter, first.offset);
        let mut current = None;
        if let Some(planned) = first.planned() {
            planned.set_drafter(drafter, drafter + offset);
            for other in others {
                let (drafter, offset) = (other.drafter, other.offset);
                if let Some(other) = other.planned() {
                    other.join(planned, drafter, drafter + offset);
                }
            }
            current = planned.working();
        }
        Self { candidates, current: current.unwrap_or(0), jobs: JobsInFlight::default() }
    }

    fn take_turns(&mut self) {
        if let Some(planned) = self.candidates[0].planned() {
            planned.take_turns(TURN_STEPS);
        }
    }

    /// Returns the index of the candidate that makes the next step.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current
    }

    /// Excludes the candidates whose drafter is that of the current one, which has failed.
    fn exclude_failed(&mut self) {
        let Candidate { drafter, offset, .. } = self.candidates[self.current];
        let same = |it: &&mut Candidate| it.drafter + it.offset == drafter + offset;
        for candidate in self.candidates.iter_mut().filter(same) {
            if let Some(planned) = candidate.planned() {
                planned.exclude();
            }
        }
    }
}

impl Decoder for Auto {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let current = self.current;
        let offset = self.candidates[current].offset;
        let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs, offset };
        self.candidates[current].decoder.step(sequence, &mut watched)?;
        if self.candidates[current].decoder.has_failed_drafter() {
            self.exclude_failed();
        }
        let next = self.candidates[current].planned().and_then(|planned| planned.working());
        if let Some(next) = next.filter(|&next| next != current) {
            let mut watched = WatchedCluster { cluster, jobs: &mut self.jobs, offset };
            self.candidates[current].decoder.stop(&mut watched);
            watched.wait_for_cancelled();
            self.current = next;
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.candidates[self.current].decoder.stop(cluster);
    }
}

impl AnswerDecoder for Auto {
    fn for_next_answer(&self, options: &DecoderOptions, prompt: usize) -> Box<dyn AnswerDecoder> {
        let candidate = |&Candidate { drafter, offset, ref decoder }: &Candidate| {
            let decoder = decoder.for_next_answer(&options.of_drafter(drafter), prompt);
            Candidate { drafter, offset, decoder }
        };
        let mut candidates: Vec<Candidate> = self.candidates.iter().map(candidate).collect();
        let mut current = self.current;
        if let Some((first, others)) = candidates.split_first_mut()
            && let Some(planned) = first.planned()
        {
            for other in others.iter_mut().filter_map(Candidate::planned) {
                other.share(planned);
            }
            current = planned.working().unwrap_or(current);
        }
        Box::new(Self { candidates, current, jobs: JobsInFlight::default() })
    }
}

/// The jobs of the current decoder.
#[derive(Debug, Default)]
struct JobsInFlight {
    tickets: BTreeSet<Ticket>,
}

/// A cluster that takes note of the jobs in flight.
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
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let completion = self.cluster.next_completion()?;
        self.jobs.tickets.remove(&completion.ticket);
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}
