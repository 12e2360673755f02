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
pub(crate) struct Acceptance {
    accepted: f64,
    tested: f64,
}

impl Acceptance {
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

/// What drafting a token takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenTime {
    ns: Mean,
    /// The present answer's first draft, which computes the prompt, was seen.
    begun: bool,
}

/// A draft job should last so long, in nanoseconds, that messages count for little.
const JOB_NS: f64 = 100_000.0;

impl TokenTime {
    /// The same for a new answer.
    pub(crate) fn for_new_answer(self) -> Self {
        Self { begun: false, ..self }
    }

    /// Learns what so many draft tokens took.
    pub(crate) fn add(&mut self, tokens: usize, ns: u64) {
        if tokens > 0 && std::mem::replace(&mut self.begun, true) {
            self.ns.add(ns as f64 / tokens as f64);
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.ns.is_known()
    }

    pub(crate) fn or(&self, unknown: f64) -> f64 {
        self.ns.or(unknown)
    }

    /// Tokens that one draft job should make of up to `most`: few, so that they come in time, but a job
    /// must be worth its messages.
    pub(crate) fn at_once(&self, most: usize) -> usize {
        let worth = JOB_NS / self.ns.or(JOB_NS).max(1.0);
        (worth as usize).clamp(1, most.max(1))
    }
}
