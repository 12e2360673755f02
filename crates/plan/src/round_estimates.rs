//! What draft-then-verify knows of its rounds: their times and their acceptance.

use crate::acceptance::Acceptance;
use crate::cost_curve::CostCurve;
use crate::decaying::DecayingMean;
use crate::estimates::{BatchCosts, OneRowTime};
use crate::interruptions::Interruptions;
use crate::knowledge::{Knowledge, READ_TOKENS, READING_SHARE};
use crate::ranked_tree::DraftSize;
use crate::round::Round;

/// Estimates of times and acceptance. Times are without the rows of neighbours.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundEstimates {
    /// Whether the drafter makes all positions in one forward, so that longer drafts take no
    /// longer.
    pub(crate) in_one_forward: bool,
    /// The time of a forward of the drafter in passes of the target that the sizes of the models
    /// suggest, if that is slow.
    pub(crate) slow_pass: Option<f64>,
    draft_costs: BatchCosts,
    score_costs: BatchCosts,
    /// The time of a round without a draft, and whether it has settled.
    plain: OneRowTime,
    settling: Settling,
    /// The time that further rows add to a target forward, by their number.
    pub(crate) rows: CostCurve,
    /// The time of a draft by its number of forwards: one for each depth, or, if a tree is drafted
    /// whole, each node.
    pub(crate) draft: CostCurve,
    /// The least time of a forward in a draft that had to read a few tokens first. It shows what
    /// reading costs as long as each draft follows a pause, and the usual time is not known.
    pass_ns_after_reading: Option<f64>,
    /// The time that a further row adds to a forward of the drafter.
    draft_row_ns: DecayingMean,
    /// The time in which a drafter reads one token that it missed during a pause.
    pub(crate) catch_up_ns: DecayingMean,
    /// The number of nodes of a draft that is not a chain.
    nodes: DecayingMean,
    /// The time in which nothing was computed, in rounds without a draft and with one.
    waited_ns: [DecayingMean; 2],
    pub(crate) acceptance: Acceptance,
    /// Those of drafts and of score jobs.
    interruptions: [Interruptions; 2],
}

impl RoundEstimates {
    /// Learns from a round. Returns whether it shows the usual costs.
    pub(crate) fn learn(&mut self, round: &Round, caught_up: usize, waited_ns: f64) -> bool {
        match &round.ranked {
            _ if round.looked_up => self.acceptance.skip(round.accepted + 1),
            Some(ranked) => self.acceptance.observe_ranked(&ranked.tested),
            None if round.drafted > 0 => {
                self.acceptance.observe(0, round.accepted, round.rejected);
            }
            None => {}
        }
        if !round.rejected && !round.looked_up {
            self.acceptance.skip(1);
        }
        let draft_ns = self.draft_costs.learn(&round.draft);
        let score_ns = self.score_costs.learn(&round.score);
        let (Some(draft_ns), Some(score_ns)) = (draft_ns, score_ns) else { return false };
        self.waited_ns[usize::from(round.drafted > 0 && !round.looked_up)].add(waited_ns);
        if round.drafted == 0 {
            match self.settling.observe(self.plain_ns(), score_ns) {
                true => self.plain.add(&round.score),
                false => _ = self.plain.replace(score_ns, &self.score_costs),
            }
            self.expect_slow_draft();
            // Nearly all of an empty draft after a pause was the reading of what the drafter had
            // missed.
            if round.requested && caught_up > 0 {
                self.catch_up_ns.add(draft_ns / caught_up as f64);
            }
            return true;
        }
        if let Some(plain_ns) = self.plain_ns() {
            // A pass over fewer rows takes no longer. The first one may have been cold.
            if score_ns < plain_ns {
                self.plain.add(&round.score);
            }
            self.rows.add(round.drafted, (score_ns - plain_ns).max(0.0));
        }
        if round.looked_up {
            return true;
        }
        self.learn_draft(round.size(), draft_ns, caught_up);
        self.nodes.add(round.drafted as f64);
        true
    }

    /// Expects a slow drafter to be as slow as the sizes of the models suggest, until that is
    /// measured.
    fn expect_slow_draft(&mut self) {
        if let Some((passes, plain_ns)) = self.slow_pass.zip(self.plain_ns())
            && !self.draft.is_measured()
        {
            self.draft.adopt(std::iter::once((1, passes * plain_ns)));
        }
    }

    /// Returns a round without the interruptions of its jobs. `caught_up`: the number of tokens
    /// that the drafter had to read first.
    pub(crate) fn without_interruptions(&mut self, round: &Round, caught_up: usize) -> Round {
        // The times of more forwards or rows than were tried are not known.
        let is_usual_draft = caught_up == 0 && !round.looked_up;
        let tried = 1..=self.draft.largest();
        let draft_ns = (is_usual_draft && tried.contains(&self.passes_of(round.size()).0))
            .then(|| self.usual_draft_ns(round.size()));
        let rows_ns = (round.drafted <= self.rows.largest())
            .then(|| self.rows.up_to(round.drafted)[round.drafted]);
        let score_ns = self.plain_ns().zip(rows_ns).map(|(plain_ns, rows_ns)| plain_ns + rows_ns);
        let [drafts, scores] = &mut self.interruptions;
        let draft = drafts.filter_job(&round.draft, draft_ns);
        let score = scores.filter_job(&round.score, score_ns);
        Round { draft, score, ..round.clone() }
    }

    /// Learns from the time of a draft. `caught_up`: the number of tokens that the drafter had to
    /// read first.
    fn learn_draft(&mut self, size: DraftSize, ns: f64, caught_up: usize) {
        let (passes, further_rows) = self.passes_of(size);
        if caught_up > 0 {
            if caught_up < READ_TOKENS {
                // The first one may have been cold.
                let pass_ns = ns / passes as f64;
                self.pass_ns_after_reading =
                    Some(self.pass_ns_after_reading.map_or(pass_ns, |least| least.min(pass_ns)));
            }
            let usual_ns = match self.draft.is_known() {
                true => Some(self.usual_draft_ns(size)),
                false => self.pass_ns_after_reading.map(|ns| ns * passes as f64),
            };
            match usual_ns {
                Some(usual_ns) if caught_up >= READ_TOKENS => {
                    self.catch_up_ns.add((ns - usual_ns).max(0.0) / caught_up as f64);
                }
                _ => {}
            }
            return;
        }
        if self.draft.is_known() && further_rows > 0 {
            let passes_ns = self.draft.up_to(passes)[passes];
            // A further row takes no longer than a pass.
            let row_ns = (ns - passes_ns) / further_rows as f64;
            self.draft_row_ns.add(row_ns.clamp(0.0, passes_ns / passes as f64));
        }
        self.draft.add(passes, (ns - self.draft_rows_ns(further_rows)).max(0.0));
    }

    /// Returns the usual time of a draft; 0 if nothing is known.
    fn usual_draft_ns(&self, size: DraftSize) -> f64 {
        let (passes, further_rows) = self.passes_of(size);
        self.draft.up_to(passes)[passes] + self.draft_rows_ns(further_rows)
    }

    /// Returns what other methods can use.
    pub(crate) fn knowledge(&self, unread_tokens: usize) -> Knowledge {
        Knowledge {
            acceptance: Some(self.acceptance.clone()),
            score_costs: self.score_costs,
            slowdown: None,
            plain_ns: self.plain_ns(),
            waited_ns: self.waited_ns[0].value(),
            rows: self.rows.clone(),
            draft_costs: self.draft_costs,
            forward_ns: self.draft.is_known().then(|| self.draft.up_to(1)[1]),
            catch_up_ns: self.catch_up_ns.value(),
            unread_tokens,
        }
    }

    /// Learns the acceptance, the time of the target alone, and the times that were not measured
    /// here, from another method.
    pub(crate) fn adopt(&mut self, known: &Knowledge) {
        if let Some(acceptance) = &known.acceptance {
            self.acceptance = acceptance.clone();
        }
        if let Some(ns) = known.plain_ns {
            if !self.plain.is_measured() {
                self.score_costs = known.score_costs;
            }
            self.plain.replace(ns, &self.score_costs);
            self.settling = Settling::Over;
        }
        if let Some(ns) = known.waited_ns {
            self.waited_ns[0].adopt(ns);
        }
        self.rows.adopt(known.rows.times());
        if let Some(ns) = known.forward_ns.filter(|_| !self.draft.is_measured()) {
            self.draft.adopt(std::iter::once((1, ns)));
            self.draft_costs = known.draft_costs;
        }
        if let Some(ns) = known.catch_up_ns {
            self.catch_up_ns.adopt(ns);
        }
    }

    /// Returns the time in which the drafter reads a token that it missed.
    pub(crate) fn reading_ns(&self) -> f64 {
        self.catch_up_ns.value_or(READING_SHARE * self.draft.up_to(1)[1])
    }

    /// Returns the number of the drafter's forwards, and of their rows after the first of each.
    fn passes_of(&self, size: DraftSize) -> (usize, usize) {
        match self.in_one_forward {
            true => (size.depth.min(1), 0),
            false => (size.depth, size.parents.saturating_sub(size.depth)),
        }
    }

    fn draft_rows_ns(&self, further_rows: usize) -> f64 {
        further_rows as f64 * self.draft_row_ns.value_or(0.0)
    }

    /// Returns the sequence's share of the time that it and its neighbours spent on a round.
    pub(crate) fn share_of(&self, round: &Round) -> f64 {
        self.draft_share_of(round) + self.score_costs.share_of(&round.score)
    }

    /// Returns the sequence's share of the time that it and its neighbours spent on the draft of a
    /// round.
    pub(crate) fn draft_share_of(&self, round: &Round) -> f64 {
        self.draft_costs.share_of(&round.draft)
    }

    /// Returns the share of a round without a draft at the present load; `None` if nothing is
    /// known.
    pub(crate) fn plain_share(&self) -> Option<f64> {
        let ns = self.plain_ns()?;
        Some(self.score_costs.share_at_load(ns, 1.0) + self.waited_ns[0].value_or(0.0))
    }

    /// Returns whether the time of a round without a draft is known well enough to compare drafts
    /// with it.
    pub(crate) fn knows_plain(&self) -> bool {
        self.settling == Settling::Over
    }

    /// Returns the time of a round without a draft; `None` if nothing is known.
    fn plain_ns(&self) -> Option<f64> {
        self.plain.is_known().then(|| self.plain.without_neighbours_or(0.0, &self.score_costs))
    }

    /// Returns, for 0 to `longest` draft tokens that took no time, the share of the pass that
    /// verifies them at the present load; `None` if nothing is known.
    pub(crate) fn pass_shares(&self, longest: usize) -> Option<Vec<f64>> {
        let (plain_ns, waited_ns) = (self.plain_ns()?, self.waited_ns[0].value_or(0.0));
        let rows = self.rows.up_to(longest).into_iter().enumerate();
        let share = |(rows, ns)| {
            self.score_costs.share_at_load(plain_ns + ns, rows as f64 + 1.0) + waited_ns
        };
        Some(rows.map(share).collect())
    }

    /// Returns the mean number of nodes of drafts; `default` if nothing is known.
    pub(crate) fn nodes_or(&self, default: usize) -> usize {
        self.nodes.value_or(default as f64).round() as usize
    }

    /// Returns the times of rounds with drafts of up to `longest` nodes and as many forwards.
    pub(crate) fn times(&self, longest: usize) -> RoundTimes<'_> {
        RoundTimes {
            estimates: self,
            rows: self.rows.up_to(longest),
            drafts: self.draft.up_to(longest),
        }
    }

    /// Returns the same if numbers of rows that were not tried cost no more than fewer rows, and if
    /// `draft_is_flat`, further forwards of the drafter nothing.
    pub(crate) fn times_at_best(&self, longest: usize, draft_is_flat: bool) -> RoundTimes<'_> {
        let drafts = match draft_is_flat {
            true => self.draft.at_best_up_to(longest),
            false => self.draft.up_to(longest),
        };
        RoundTimes { estimates: self, rows: self.rows.at_best_up_to(longest), drafts }
    }
}

/// The first rounds without a draft. They may be slower than later ones, because caches and threads
/// are cold. Compared with them, drafting would seem to pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    /// The number of rounds so far, each faster than the one before it.
    Rounds(u32),
    Over,
}

/// Cold rounds take more than so many times as long as later ones.
const COLD: f64 = 1.1;
/// The largest number of rounds that count as cold.
const COLD_ROUNDS: u32 = 8;

impl Default for Settling {
    fn default() -> Self {
        Self::Rounds(0)
    }
}

impl Settling {
    /// Learns the time of a round, after those that took `before_ns`. Returns whether these still
    /// count.
    fn observe(&mut self, before_ns: Option<f64>, ns: f64) -> bool {
        let Self::Rounds(rounds) = *self else { return true };
        let was_cold = before_ns.is_none_or(|before_ns| before_ns > COLD * ns);
        *self =
            if was_cold && rounds < COLD_ROUNDS { Self::Rounds(rounds + 1) } else { Self::Over };
        !was_cold
    }
}

/// The expected times of rounds by the size of their drafts.
pub(crate) struct RoundTimes<'a> {
    estimates: &'a RoundEstimates,
    /// The time that rows add to a pass of the target, by their number.
    rows: Vec<f64>,
    /// The time of a draft by its number of forwards.
    drafts: Vec<f64>,
}

impl RoundTimes<'_> {
    /// Returns the share of a round at the present load.
    pub(crate) fn ns(&self, size: DraftSize) -> f64 {
        let estimates = self.estimates;
        let (passes, further_rows) = estimates.passes_of(size);
        let draft_ns = self.drafts[passes] + estimates.draft_rows_ns(further_rows);
        let draft_ns = estimates.draft_costs.share_at_load(draft_ns, size.parents as f64);
        let score_ns = estimates.plain_ns().unwrap_or(0.0) + self.rows[size.nodes];
        let score_ns = estimates.score_costs.share_at_load(score_ns, size.nodes as f64 + 1.0);
        let [without, with] = estimates.waited_ns;
        draft_ns + score_ns + with.value_or(without.value_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimates::JobTime;

    fn plain_after(times: &[u64]) -> (Option<f64>, bool) {
        let mut estimates = RoundEstimates::default();
        for &ns in times {
            let round = Round { score: JobTime::alone(ns), ..Round::default() };
            estimates.learn(&round, 0, 0.0);
        }
        (estimates.plain_ns(), estimates.knows_plain())
    }

    #[test]
    fn cold_rounds_do_not_count() {
        assert_eq!(plain_after(&[1_000]), (Some(1_000.0), false));
        assert_eq!(plain_after(&[1_000, 1_000]), (Some(1_000.0), true));
        assert_eq!(plain_after(&[5_000, 2_000, 1_000]), (Some(1_000.0), false));
        assert_eq!(plain_after(&[5_000, 2_000, 1_000, 1_000]), (Some(1_000.0), true));
        // Later, a fast round is one of many.
        let (plain_ns, knows) = plain_after(&[1_000, 1_000, 1_000, 500]);
        assert!(knows && plain_ns.is_some_and(|ns| ns > 700.0), "{plain_ns:?}");
        // Rounds that always become faster are no longer cold at some point.
        let times: Vec<u64> = (0..=COLD_ROUNDS).map(|round| 1_000_000 >> round).collect();
        assert!(plain_after(&times).1);
    }
}
