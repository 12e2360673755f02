//! Estimates from recent rounds. Older rounds count less.

/// The weight of a round relative to the round after it.
const DECAY: f64 = 0.95;

/// An exponentially weighted mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecayingMean {
    sum: f64,
    weight: f64,
}

impl DecayingMean {
    pub(crate) fn add(&mut self, value: f64) {
        self.sum = self.sum * DECAY + value;
        self.weight = self.weight * DECAY + 1.0;
    }

    pub(crate) fn is_known(&self) -> bool {
        self.weight > 0.0
    }

    pub(crate) fn value_or(&self, default: f64) -> f64 {
        if self.is_known() { self.sum / self.weight } else { default }
    }
}

/// An estimate of the acceptance rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptanceEstimate {
    accepted: f64,
    tested: f64,
}

impl AcceptanceEstimate {
    /// Counts a verdict.
    pub(crate) fn add(&mut self, accepted: usize, rejected: bool) {
        self.accepted = self.accepted * DECAY + accepted as f64;
        self.tested = self.tested * DECAY + (accepted + usize::from(rejected)) as f64;
    }

    /// Returns the acceptance rate as if `prior` more tokens had been accepted; 1 if nothing is
    /// known.
    pub(crate) fn rate(&self, prior: f64) -> f64 {
        let tested = self.tested + prior;
        if tested > 0.0 { (self.accepted + prior) / tested } else { 1.0 }
    }

    /// Reduces the weight of all rounds so far, so that the next ones dominate.
    pub(crate) fn forget_most(&mut self) {
        self.accepted *= 0.1;
        self.tested *= 0.1;
    }
}

/// An estimate of the time that drafting takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftTime {
    /// The time of one forward.
    forward_ns: DecayingMean,
    /// The number of tokens that the drafter makes in one forward.
    tokens_per_forward: usize,
    /// Whether the answer's first draft, which computes the prompt, has been observed.
    begun: bool,
}

impl Default for DraftTime {
    fn default() -> Self {
        Self { forward_ns: DecayingMean::default(), tokens_per_forward: 1, begun: false }
    }
}

/// The duration of a draft job, in nanoseconds, for which the cost of messages is negligible.
const MIN_JOB_NS: f64 = 100_000.0;

impl DraftTime {
    /// Returns a copy for a new answer.
    pub(crate) fn for_new_answer(self) -> Self {
        Self { begun: false, ..self }
    }

    /// Returns a copy configured for a drafter that makes `tokens` tokens in one forward.
    pub(crate) fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { tokens_per_forward: tokens.max(1), ..self }
    }

    /// Learns how long a draft job of `tokens` tokens took.
    pub(crate) fn add(&mut self, tokens: usize, ns: u64) {
        if tokens > 0 && std::mem::replace(&mut self.begun, true) {
            self.forward_ns.add(ns as f64 / tokens.div_ceil(self.tokens_per_forward) as f64);
        }
    }

    /// Returns the estimated nanoseconds for drafting `tokens` tokens in one job; 0 if nothing is
    /// known.
    pub(crate) fn estimate_ns(&self, tokens: usize) -> f64 {
        tokens.div_ceil(self.tokens_per_forward) as f64 * self.forward_ns.value_or(0.0)
    }

    /// Returns the number of tokens that `forwards` forwards make.
    pub(crate) fn tokens_in_forwards(&self, forwards: usize) -> usize {
        forwards.saturating_mul(self.tokens_per_forward)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.forward_ns.is_known()
    }

    pub(crate) fn forward_ns_or(&self, default: f64) -> f64 {
        self.forward_ns.value_or(default)
    }

    /// Returns how many tokens one draft job should make, up to `max`: few enough to arrive early,
    /// but enough to justify the messages of a job, and whole forwards.
    pub(crate) fn tokens_per_job(&self, max: usize) -> usize {
        let forwards = MIN_JOB_NS / self.forward_ns.value_or(MIN_JOB_NS).max(1.0);
        self.tokens_in_forwards((forwards as usize).max(1)).clamp(1, max.max(1))
    }
}
