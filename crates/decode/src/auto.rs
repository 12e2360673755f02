//! Chooses between decoding methods while it decodes.
//!
//! Speculative decoding, PEARL and DSI decode the same text, so a sequence can go from one to another after any
//! step. This measures the speed of each on the text at hand, in tokens per nanosecond on the cluster's
//! clock, and uses the fastest. Each of them pauses by itself while drafting does not pay, so none is much
//! slower than the target alone.

use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, Sequence, dsi,
    pearl, speculative,
};
use forerun_core::{
    Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket, trace::SpanOutcome,
};
use forerun_plan::Speed;
use std::collections::BTreeSet;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "auto",
    help: "Measure plain and speculative decoding, PEARL and DSI, and use the fastest",
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
    choice: Choice,
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
        let choice = Choice::new(decoders.len());
        Self { decoders, choice, jobs: JobsInFlight::default() }
    }

    /// Returns the index of the decoder that makes the next step.
    #[must_use]
    pub fn current(&self) -> usize {
        self.choice.current
    }
}

impl Decoder for Auto {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let mut cluster = WatchedCluster { cluster, jobs: &mut self.jobs };
        let (before, current) = (sequence.tokens().len(), self.choice.current);
        self.decoders[current].step(sequence, &mut cluster)?;
        let tokens = sequence.tokens().len() - before;
        let now_ns = cluster.jobs.now_ns;
        self.choice.observe(tokens, now_ns);
        if self.choice.current != current {
            self.decoders[current].stop(&mut cluster);
            cluster.wait_for_cancelled();
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.decoders[self.choice.current].stop(cluster);
    }
}

impl AnswerDecoder for Auto {
    fn for_next_answer(&self, options: &DecoderOptions, prompt: usize) -> Box<dyn AnswerDecoder> {
        let decoders = self.decoders.iter();
        Box::new(Self {
            decoders: decoders.map(|decoder| decoder.for_next_answer(options, prompt)).collect(),
            choice: self.choice.for_next_answer(),
            jobs: JobsInFlight::default(),
        })
    }
}

/// Which decoder to use next.
///
/// The others are tried now and then, in turn, while all trials together lose at most 1 % of the time.
#[derive(Clone, Debug)]
struct Choice {
    candidates: Vec<Candidate>,
    current: usize,
    /// Whether the current candidate is tried, and not yet chosen.
    is_trial: bool,
    /// The number of steps since the current candidate's turn began.
    steps: u32,
    /// The time that the current trial has lost, compared with the best candidate.
    trial_ns: f64,
    /// The time that all trials have lost.
    lost_ns: f64,
    elapsed_ns: f64,
    /// The end of the answer's last step, if it has had one.
    last_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    speed: Speed,
    /// The time that its last trial lost.
    trial_ns: f64,
    /// The number of its trials.
    trials: u32,
}

impl Default for Candidate {
    fn default() -> Self {
        Self { speed: Speed::with_decay(SPEED_DECAY), trial_ns: 0.0, trials: 0 }
    }
}

/// The weight of a step's speed compared with the one after it. A change costs the drafts in flight, so chance must not
/// cause it.
const SPEED_DECAY: f64 = 0.985;
/// Steps at the beginning of a turn that do not show a candidate's speed.
const SETTLING_STEPS: u32 = 3;
/// Steps at the beginning of its first turn that do not, because it measures whether to draft at all.
const FIRST_SETTLING_STEPS: u32 = 20;
/// The number of steps of a trial.
const TRIAL_STEPS: u32 = 32;
/// A trial ends early if it has lost the time of so many tokens once its candidate has settled.
const TRIAL_LOSS: f64 = 8.0;
/// A trial also ends if it has lost the time of so many tokens before its candidate has settled.
const SETTLING_LOSS: f64 = 24.0;
/// The share of the time that trials may lose.
const TRIAL_SHARE: f64 = 0.01;
/// The factor by which another candidate must be faster to be used instead.
const MIN_GAIN: f64 = 1.04;

impl Choice {
    fn new(candidates: usize) -> Self {
        let mut candidates = vec![Candidate::default(); candidates];
        candidates[0].trials = 1;
        Self {
            candidates,
            current: 0,
            is_trial: false,
            steps: 0,
            trial_ns: 0.0,
            lost_ns: 0.0,
            elapsed_ns: 0.0,
            last_ns: None,
        }
    }

    /// Returns a copy for the next answer, which keeps what it has learned.
    fn for_next_answer(&self) -> Self {
        let mut next = Self { last_ns: None, ..self.clone() };
        next.use_best();
        next
    }

    /// Learns that a step of the current candidate has committed `tokens` tokens at `now_ns`, and chooses
    /// the candidate of the next step. An answer's first step, which computes the prompt, only starts
    /// the clock.
    fn observe(&mut self, tokens: usize, now_ns: u64) {
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return };
        let ns = now_ns.saturating_sub(last_ns) as f64;
        self.elapsed_ns += ns;
        self.steps += 1;
        let is_first = self.candidates[self.current].trials <= 1;
        let has_settled = self.steps > if is_first { FIRST_SETTLING_STEPS } else { SETTLING_STEPS };
        if has_settled {
            self.candidates[self.current].speed.add(tokens, ns);
        }
        if !self.is_trial {
            return self.choose();
        }
        let best_ns = self.fastest_other().map_or(0.0, |(_, token_ns)| token_ns);
        let lost_ns = ns - tokens as f64 * best_ns;
        self.trial_ns += lost_ns;
        self.lost_ns = (self.lost_ns + lost_ns).max(0.0);
        let may_lose = if has_settled { TRIAL_LOSS } else { SETTLING_LOSS };
        let is_too_slow = self.trial_ns > may_lose * best_ns;
        if self.steps >= TRIAL_STEPS || is_too_slow {
            self.candidates[self.current].trial_ns = self.trial_ns.max(0.0);
            self.use_best();
        }
    }

    /// Goes on with the current candidate, or with one that is faster, or begins a trial.
    fn choose(&mut self) {
        let current_ns = self.candidates[self.current].speed.token_ns();
        let faster = self.fastest_other().filter(|&(_, token_ns)| {
            current_ns.is_some_and(|current_ns| token_ns * MIN_GAIN < current_ns)
        });
        if let Some((faster, _)) = faster {
            return self.begin(faster, false);
        }
        let others = (0..self.candidates.len()).filter(|&other| other != self.current);
        let Some(next) = others.min_by_key(|&other| self.candidates[other].trials) else { return };
        let lost_ns = self.lost_ns + self.candidates[next].trial_ns;
        if self.steps >= TRIAL_STEPS && lost_ns <= TRIAL_SHARE * self.elapsed_ns {
            self.candidates[next].speed = Speed::with_decay(SPEED_DECAY);
            self.candidates[next].trials += 1;
            self.begin(next, true);
        }
    }

    fn begin(&mut self, candidate: usize, is_trial: bool) {
        (self.current, self.is_trial, self.steps, self.trial_ns) = (candidate, is_trial, 0, 0.0);
    }

    /// Ends a trial, and uses the fastest candidate.
    fn use_best(&mut self) {
        let own_ns = self.candidates[self.current].speed.token_ns();
        let other = self
            .fastest_other()
            .filter(|&(_, token_ns)| own_ns.is_none_or(|own_ns| token_ns < own_ns));
        self.begin(other.map_or(self.current, |(other, _)| other), false);
    }

    /// Returns the fastest other candidate whose speed is known, and the nanoseconds of a token.
    fn fastest_other(&self) -> Option<(usize, f64)> {
        let others = self.candidates.iter().enumerate().filter(|&(at, _)| at != self.current);
        let known = others.filter_map(|(at, other)| Some((at, other.speed.token_ns()?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// The jobs of the current decoder.
#[derive(Debug, Default)]
struct JobsInFlight {
    tickets: BTreeSet<Ticket>,
    /// The end of the last completed job, on the cluster's clock.
    now_ns: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `tokens` tokens. `token_ns(candidate, position)` is the time of a token. Returns the time, and
    /// the number of tokens of each candidate.
    fn decode(
        choice: &mut Choice,
        tokens: usize,
        token_ns: impl Fn(usize, usize) -> u64,
    ) -> (u64, Vec<usize>) {
        let (mut now, mut position, mut by) = (0, 0, vec![0; choice.candidates.len()]);
        choice.observe(1, now);
        while position < tokens {
            let (current, count) = (choice.current, 1 + position % 3);
            now += count as u64 * token_ns(current, position);
            by[current] += count;
            position += count;
            choice.observe(count, now);
        }
        (now, by)
    }

    #[test]
    fn the_fastest_is_used() {
        for fastest in 0..3 {
            let token_ns = |candidate, _| if candidate == fastest { 500 } else { 1_000 };
            let (ns, by) = decode(&mut Choice::new(3), 10_000, token_ns);
            assert!(ns < 5_400_000, "{fastest}: {ns} ns, {by:?}");
        }
    }

    #[test]
    fn slow_ones_cost_little() {
        for slow in [1_100, 2_000, 20_000] {
            let token_ns = |candidate, _| if candidate == 0 { 1_000 } else { slow };
            let (ns, by) = decode(&mut Choice::new(3), 20_000, token_ns);
            assert!(ns < 20_400_000, "{slow}: {ns} ns, {by:?}");
            assert!(by[1] > 0 && by[2] > 0, "they are tried: {by:?}");
        }
    }

    #[test]
    fn the_choice_follows_the_text() {
        // Every 4,000 tokens another one is the fastest.
        let token_ns = |candidate: usize, position: usize| {
            if position / 4_000 % 2 == candidate { 500 } else { 1_000 }
        };
        let (ns, by) = decode(&mut Choice::new(2), 40_000, token_ns);
        // The best choice takes 20 ms, a constant one 30 ms.
        assert!(ns < 22_500_000, "{ns} ns, {by:?}");
    }

    #[test]
    fn the_next_answer_begins_with_the_best() {
        let mut choice = Choice::new(3);
        decode(&mut choice, 3_000, |candidate, _| if candidate == 2 { 500 } else { 1_000 });
        let next = choice.for_next_answer();
        assert_eq!((next.current, next.last_ns, next.is_trial), (2, None, false));
    }
}
