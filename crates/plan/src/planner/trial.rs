//! Trials: what might be faster than the estimates say, if the ledger affords it.

use super::State;
use super::decide::{MIN_GAIN_OF_CHANGE, STEPS_AHEAD};
use super::plan::{Plan, Reason};
use crate::costs::READ_TOKENS;
use crate::schedule::{Assumption, Candidate};

/// A drafter that cannot pay however right it is is tried as if a trial cost so many times as much:
/// only its costs may be wrong.
pub(super) const HOPELESS: f64 = 3.0;
/// The speedup that the ledger expects of a trial at least: estimates may be out of date. An eighth
/// allows an eighth of the reading of a trial that might double the speed.
const LEAST_SPEEDUP: f64 = 1.125;
/// Drafters are tried in the order of the time for which they were not tested, in so many tokens:
/// about a stretch of text or two (`STAYS`).
const UNTESTED_TOKENS: usize = 64;

/// What is done without a trial.
#[derive(Clone, Copy)]
pub(super) struct Rival {
    /// The schedule that drafts, if one does.
    pub(super) drafting: Option<usize>,
    /// The time of a token, and that of one of the target alone.
    pub(super) token_ns: f64,
    pub(super) plain_ns: f64,
}

impl State {
    /// Returns a trial of what would be faster at best, if the ledger affords it.
    pub(super) fn trial(&self, rival: Rival) -> Option<Plan> {
        let drafter = rival.drafting.map(|entry| self.entries[entry].drafter);
        let candidates = self.entries().filter_map(|entry| {
            // What is drafted shows the text.
            let shows_text = drafter == Some(self.entries[entry].drafter);
            let assume = if shows_text { Assumption::Cheap } else { Assumption::Easy };
            let best = self.best(entry, assume);
            let is_faster =
                rival.drafting.is_none() || best.speed() * rival.token_ns > MIN_GAIN_OF_CHANGE;
            (is_faster && self.affords(entry, &best, rival)).then_some((entry, best))
        });
        // A drafter that was not tested for long comes first, and of equal ones the first.
        let untested = |entry: usize| self.facts(entry).drafter.untested / UNTESTED_TOKENS;
        let candidates: Vec<(usize, Candidate)> = candidates.collect();
        let (entry, best) = candidates.into_iter().rev().max_by(|(at, a), (other, b)| {
            untested(*at).cmp(&untested(*other)).then(a.speed().total_cmp(&b.speed()))
        })?;
        let steps = match self.is_in_rounds(entry) {
            // A first draft that reads what it has missed does not show the usual time.
            true if !self.facts(entry).drafter.costs.is_known() => 2,
            true => 1,
            false => STEPS_AHEAD,
        };
        Some(Plan {
            reason: Reason::Trial,
            steps: steps - 1,
            rival_ns: rival.token_ns,
            lost_ns: -self.waiting_ns(entry, rival),
            ..Plan::draft(entry, best)
        })
    }

    /// Returns whether the ledger affords what a trial is expected to lose.
    fn affords(&self, entry: usize, trial: &Candidate, rival: Rival) -> bool {
        let Rival { drafting, token_ns, plain_ns } = rival;
        let certain = self.best(entry, Assumption::Certain).speed() * plain_ns;
        let is_hopeless = certain <= 1.0;
        if drafting.is_none() && !is_hopeless && self.measures_reading(entry) {
            return true;
        }
        let drafts_anyway = drafting == Some(entry);
        // To measure what reading costs is worth it if there is no other drafter.
        let guess = is_hopeless || drafting.is_some();
        let start_ns = match drafts_anyway {
            true => 0.0,
            false => self.start_ns(entry, guess) + self.waiting_ns(entry, rival),
        };
        // What it might gain, compared with what would be done otherwise. What the estimates say
        // may be wrong or out of date, so that it may read, too, but rarely.
        let speedup = if drafting.is_none() { certain } else { trial.speed() * token_ns };
        if !self.ledger.may_catch_up(start_ns, speedup.max(LEAST_SPEEDUP), plain_ns) {
            return false;
        }
        let of_entry = &self.entries[entry];
        let usual = self.paced(entry, of_entry.schedule.of(self.facts(entry), &trial.draft));
        let loss_ns = match drafts_anyway {
            true => (usual.ns - trial.ns).max(0.0),
            false => (usual.ns - usual.tokens * token_ns).max(of_entry.trial_ns),
        };
        let loss_ns = if is_hopeless { HOPELESS * loss_ns } else { loss_ns };
        self.ledger.may_try(loss_ns, plain_ns)
    }

    /// Returns whether a trial now would measure what reading costs, while there is little to read,
    /// but enough.
    fn measures_reading(&self, entry: usize) -> bool {
        let costs = &self.facts(entry).drafter.costs;
        self.is_in_rounds(entry)
            && costs.is_known()
            && !costs.knows_reading()
            && (READ_TOKENS..4 * READ_TOKENS).contains(&costs.lag)
    }

    /// Returns what a trial that drafts ahead loses while the drafter reads and the target works
    /// alone.
    fn waiting_ns(&self, entry: usize, rival: Rival) -> f64 {
        match self.is_in_rounds(entry) {
            true => 0.0,
            false => {
                let lag_ns = self.facts(entry).drafter.costs.lag_ns();
                lag_ns * (1.0 - rival.token_ns / rival.plain_ns).max(0.0)
            }
        }
    }
}
