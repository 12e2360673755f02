//! What drafting has cost so far, compared with the target alone, and what it may still cost.

/// An account of the time that drafting has lost or gained. It keeps the promise that decoding is
/// never much slower than the target alone, even if the estimates are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ledger {
    elapsed_ns: f64,
    /// The time by which drafting was slower than the target alone, minus the time by which it was
    /// faster.
    lost_ns: f64,
    /// The time that trials have lost, less what trials of several steps have gained since.
    trials_ns: f64,
    /// The time that drafters took to read what they had missed, for trials.
    catch_up_ns: f64,
    /// The time that drafting has gained.
    gained_ns: f64,
}

/// The share of the time that trials may lose: one draft that takes a pass in 170 passes.
const TRIAL_SHARE: f64 = 0.006;
/// The share of what drafting has gained that trials may lose as well: where gains are large, other
/// drafts are looked for sooner.
const GAIN_SHARE: f64 = 0.005;
/// The passes that trials may lose at first: about one draft of each of a few lengths.
pub(crate) const TRIAL_PASSES: f64 = 3.0;
/// The share of the time that drafting may lose altogether. More than [`TRIAL_SHARE`], so that
/// trials alone do not use it up.
const LOSS_SHARE: f64 = 0.008;
/// The passes that drafting may lose at first: bad luck of a dozen rounds must not end it.
const LOSS_PASSES: f64 = 14.0;
/// The share of the time that catching up may take for each time that a trial might double the
/// speed. At first it may take as much as a trial may lose.
const CATCH_UP_SHARE: f64 = 0.007;
/// How many times such a gain counts at most: what a draft promises at best is seldom kept.
const CATCH_UP_GAIN: f64 = 3.0;
/// The gains that may be lost again, as a share of the time: without a bound, text that was easy
/// for long would pay for as long a loss.
const KEPT_SHARE: f64 = 0.05;

impl Ledger {
    /// Counts a step of the target alone.
    pub(crate) fn add_alone(&mut self, ns: f64) {
        self.elapsed_ns += ns;
    }

    /// Counts a step with drafts, in which the target alone would have taken `alone_ns` for the
    /// same tokens.
    pub(crate) fn add_drafting(&mut self, ns: f64, alone_ns: f64) {
        let lost_ns = ns - alone_ns;
        self.elapsed_ns += ns;
        self.lost_ns = (self.lost_ns + lost_ns).max(-KEPT_SHARE * self.elapsed_ns);
        self.gained_ns = (self.gained_ns - lost_ns).max(0.0);
    }

    /// Counts what a step of a trial has lost, or gained if it is negative, compared with what would
    /// have been done otherwise. Trials pay for each other.
    pub(crate) fn add_trial(&mut self, lost_ns: f64) {
        self.trials_ns = (self.trials_ns + lost_ns).max(0.0);
    }

    /// Returns the time that drafting has gained, less what it has lost since.
    pub(crate) fn gained_ns(&self) -> f64 {
        self.gained_ns
    }

    /// Counts what a trial took to catch up.
    pub(crate) fn add_catch_up(&mut self, ns: f64) {
        self.catch_up_ns += ns;
    }

    /// Returns whether a trial may take `ns` to catch up. `speedup`: what it might reach at best;
    /// infinite if that is not known, which counts as twice the speed.
    pub(crate) fn may_catch_up(&self, ns: f64, speedup: f64, pass_ns: f64) -> bool {
        let gain = if speedup.is_finite() { speedup - 1.0 } else { 1.0 };
        let gain = gain.clamp(0.0, CATCH_UP_GAIN);
        let share = CATCH_UP_SHARE * gain;
        let budget_ns = share * self.elapsed_ns;
        let first_ns = TRIAL_PASSES * gain.min(1.0) * pass_ns;
        self.catch_up_ns + ns <= budget_ns + first_ns
    }

    /// Returns whether drafting may go on. `pass_ns`: the time of a pass of the target alone.
    pub(crate) fn may_draft(&self, pass_ns: f64) -> bool {
        self.lost_ns <= LOSS_SHARE * self.elapsed_ns + LOSS_PASSES * pass_ns
    }

    /// Returns whether a trial may lose `ns`. `pass_ns`: the time of a pass of the target alone.
    pub(crate) fn may_try(&self, ns: f64, pass_ns: f64) -> bool {
        let budget_ns = TRIAL_SHARE * self.elapsed_ns + GAIN_SHARE * self.gained_ns;
        self.trials_ns + ns <= budget_ns + TRIAL_PASSES * pass_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trials_gain_pays_for_what_they_lose() {
        let mut ledger = Ledger::default();
        ledger.add_drafting(5_000.0, 1_000.0);
        ledger.add_trial(4_000.0);
        assert!(!ledger.may_try(100.0, 1_000.0));
        ledger.add_drafting(1_000.0, 4_000.0);
        ledger.add_trial(-3_000.0);
        assert!(ledger.may_try(2_000.0, 1_000.0) && !ledger.may_try(4_000.0, 1_000.0));
    }

    #[test]
    fn reading_soon_after_a_pause_is_affordable_if_there_is_something_to_gain() {
        let mut ledger = Ledger::default();
        assert!(ledger.may_catch_up(3_000.0, 2.0, 1_000.0));
        assert!(!ledger.may_catch_up(3_000.0, 1.5, 1_000.0));
        assert!(!ledger.may_catch_up(1.0, 1.0, 1_000.0));
        ledger.add_catch_up(3_000.0);
        assert!(!ledger.may_catch_up(1.0, 2.0, 1_000.0));
    }
}
