//! What rounds have shown, old ones faded.

/// How much an earlier round counts against the next.
const FADE: f64 = 0.95;

/// A mean in which old values fade.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    pub(crate) fn add(&mut self, value: f64) {
        self.sum = self.sum * FADE + value;
        self.weight = self.weight * FADE + 1.0;
    }

    pub(crate) fn is_known(&self) -> bool {
        self.weight > 0.0
    }

    pub(crate) fn or(&self, unknown: f64) -> f64 {
        if self.is_known() { self.sum / self.weight } else { unknown }
    }
}

/// Draft tokens accepted and tested.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptanceEstimate {
    accepted: f64,
    tested: f64,
}

impl AcceptanceEstimate {
    /// Counts a verdict.
    pub(crate) fn add(&mut self, accepted: usize, rejected: bool) {
        self.accepted = self.accepted * FADE + accepted as f64;
        self.tested = self.tested * FADE + (accepted + usize::from(rejected)) as f64;
    }

    /// The acceptance rate, as if `doubt` tokens more had been accepted; 1 while nothing is known.
    pub(crate) fn rate(&self, doubt: f64) -> f64 {
        let tested = self.tested + doubt;
        if tested > 0.0 { (self.accepted + doubt) / tested } else { 1.0 }
    }

    /// Lets what comes next count for more than what was.
    pub(crate) fn forget_most(&mut self) {
        self.accepted *= 0.1;
        self.tested *= 0.1;
    }
}

/// What drafting takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenTime {
    /// Of one forward.
    ns: Mean,
    /// Tokens that the drafter makes in one forward.
    per_forward: usize,
    /// The present answer's first draft, which computes the prompt, was seen.
    begun: bool,
}

impl Default for TokenTime {
    fn default() -> Self {
        Self { ns: Mean::default(), per_forward: 1, begun: false }
    }
}

/// A draft job should last so long, in nanoseconds, that messages count for little.
const JOB_NS: f64 = 100_000.0;

impl TokenTime {
    /// The same for a new answer.
    pub(crate) fn for_new_answer(self) -> Self {
        Self { begun: false, ..self }
    }

    /// The same for a drafter that makes so many tokens in one forward.
    pub(crate) fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { per_forward: tokens.max(1), ..self }
    }

    /// Learns what so many draft tokens took.
    pub(crate) fn add(&mut self, tokens: usize, ns: u64) {
        if tokens > 0 && std::mem::replace(&mut self.begun, true) {
            self.ns.add(ns as f64 / tokens.div_ceil(self.per_forward) as f64);
        }
    }

    /// Nanoseconds of drafting so many tokens in one go; 0 while nothing is known.
    pub(crate) fn of(&self, tokens: usize) -> f64 {
        tokens.div_ceil(self.per_forward) as f64 * self.ns.or(0.0)
    }

    /// Tokens that so many forwards make.
    pub(crate) fn in_forwards(&self, forwards: usize) -> usize {
        forwards.saturating_mul(self.per_forward)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.ns.is_known()
    }

    pub(crate) fn or(&self, unknown: f64) -> f64 {
        self.ns.or(unknown)
    }

    /// Tokens that one draft job should make of up to `most`: few, so that they come in time, but a job
    /// must be worth its messages, and a forward gives what it has.
    pub(crate) fn at_once(&self, most: usize) -> usize {
        let worth = JOB_NS / self.ns.or(JOB_NS).max(1.0);
        self.in_forwards((worth as usize).max(1)).clamp(1, most.max(1))
    }
}
