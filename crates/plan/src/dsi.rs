//! DSI's schedule: drafting all the time, on a pipeline of target replicas.

use crate::costs::{Drafts, Passes};
use crate::planner::{Planned, Policy};
use crate::schedule::{
    ABOUT_AS_FAST, Assumption, Candidate, Drafting, FIRST_LENGTH, Facts, HORIZON, Schedule,
};
use crate::{DraftLength, rounds};

/// The closed form of DSI (arXiv 2405.14105).
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    longest: usize,
    mode: DraftLength,
    /// The number of replicas that have not failed.
    replicas: usize,
}

impl Pipeline {
    pub(crate) fn adapts(&self) -> bool {
        self.mode == DraftLength::Auto
    }

    pub(crate) fn has_replicas(&self) -> bool {
        self.replicas > 1
    }

    pub(crate) fn best(&self, facts: Facts<'_>, assume: Assumption) -> Candidate {
        let terms = Terms::new(self, facts, assume);
        if !self.adapts() {
            return terms.candidate(self.longest);
        }
        let reach = facts.drafter.costs.whole_forwards(facts.target.reach(FIRST_LENGTH));
        let reach = reach.min(self.longest).max(1);
        let all: Vec<Candidate> = (1..=reach).map(|rows| terms.candidate(rows)).collect();
        let fastest = all.iter().map(Candidate::speed).fold(0.0, f64::max);
        // Of those that are about as fast, the one with which the replicas just keep up.
        let enough = (1..=reach).find(|&rows| terms.keeps_up(rows)).unwrap_or(reach);
        let enough = facts.drafter.costs.whole_forwards(enough);
        let fast = (1..=reach).filter(|&rows| all[rows - 1].speed() >= fastest / ABOUT_AS_FAST);
        let rows = fast.min_by_key(|rows| rows.abs_diff(enough)).unwrap_or(1);
        let mut best = all[rows - 1].clone();
        if let Drafting::Pipeline { ahead, .. } = &mut best.draft
            && assume == Assumption::Usual
        {
            *ahead = terms.tokens_that_pay(1.0 / best.ns * best.tokens);
        }
        best
    }

    pub(crate) fn cycle_ns(&self, facts: Facts<'_>, rows: usize, accepted: usize) -> f64 {
        let terms = Terms::new(self, facts, Assumption::Usual);
        terms.pipeline(rows).ns_of(accepted, |rows| terms.pass_ns(rows))
    }

    pub(crate) fn of(&self, facts: Facts<'_>, rows: usize) -> Candidate {
        Terms::new(self, facts, Assumption::Usual).candidate(rows)
    }
}

/// What the speed of all lookaheads follows from.
struct Terms<'a> {
    schedule: &'a Pipeline,
    facts: Facts<'a>,
    survival: Vec<f64>,
    passes: Passes<'a>,
    drafts: Drafts<'a>,
    per_job: usize,
}

impl<'a> Terms<'a> {
    fn new(schedule: &'a Pipeline, facts: Facts<'a>, assume: Assumption) -> Self {
        let per_job = facts.tokens_per_job(schedule.longest);
        let horizon = HORIZON.max(4 * schedule.longest);
        let survival = facts.outlook(assume, horizon, per_job).survival(horizon);
        let passes = facts.target.passes(schedule.longest, true, assume != Assumption::Usual);
        let drafts = facts.drafter.costs.drafts_ahead(schedule.longest);
        Self { schedule, facts, survival, passes, drafts, per_job }
    }

    fn draft_ns(&self, tokens: usize) -> f64 {
        self.drafts.in_jobs_ns(tokens, self.per_job.min(tokens))
    }

    fn pass_ns(&self, rows: usize) -> f64 {
        self.passes.ns(rows.saturating_sub(1) as f64)
    }

    fn candidate(&self, rows: usize) -> Candidate {
        let (tokens, ns) = self.pipeline(rows).cycle(|rows| self.pass_ns(rows));
        Candidate { draft: Drafting::Pipeline { rows, ahead: usize::MAX }, tokens, ns }
    }

    fn pipeline(&self, rows: usize) -> rounds::Pipeline<'_> {
        let (replicas, draft_ns) = (self.schedule.replicas, self.draft_ns(rows));
        rounds::Pipeline { survival: &self.survival, replicas, rows, draft_ns }
    }

    /// Returns whether the replicas keep up with the drafter (DSI's equation 1).
    fn keeps_up(&self, rows: usize) -> bool {
        let draft_ns = self.draft_ns(rows) * self.schedule.replicas as f64;
        draft_ns >= self.pass_ns(rows) * (1.0 - 1e-6)
    }

    /// Returns how many tokens after the committed ones pay for the time that drafting them takes
    /// from the target, whose passes are slower meanwhile: those that are likely enough to be
    /// committed. `speed`: the committed tokens per nanosecond.
    fn tokens_that_pay(&self, speed: f64) -> usize {
        let costs = &self.facts.drafter.costs;
        let per_forward = costs.whole_forwards(1);
        let slowdown = self.facts.target.slowdown();
        let token_ns = self.draft_ns(per_forward.min(self.schedule.longest)) / per_forward as f64;
        let lost_ns = (1.0 - 1.0 / slowdown) * token_ns;
        if lost_ns <= 0.0 {
            return usize::MAX;
        }
        let pays = |&probability: &f64| probability > lost_ns * speed;
        // Of tokens after the last of these, nothing is known.
        let first = self.survival.iter().skip(1).position(|probability| !pays(probability));
        first.map_or(usize::MAX, |count| costs.whole_forwards(count.max(1)))
    }
}

/// Decides how many draft tokens one verification job of DSI has.
///
/// If a target forward takes t₂ and a draft token takes t₁, then `⌈t₂ / (lookahead · t₁)⌉` replicas
/// keep up with the drafter (DSI, arXiv 2405.14105, equation 1). If rows cost nothing, the best
/// lookahead is the smallest that needs no more replicas than there are. The automatic mode uses
/// the one with the most expected tokens a second. For a drafter that makes several tokens in one
/// forward (ParallelSpec, PARD), t₁ is the time of a forward, and the lookahead is a multiple of
/// its tokens. The automatic mode also pauses drafting while the target alone is faster.
#[derive(Clone, Debug)]
pub struct DsiLookahead {
    planned: Planned,
    schedule: Pipeline,
}

impl DsiLookahead {
    /// Creates a policy for `replicas` target replicas: always `length` tokens (`Fixed`), or up to
    /// `length` tokens (`Auto`).
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, replicas: usize) -> Self {
        let (longest, replicas) = (length.max(1), replicas.max(1));
        let schedule = Pipeline { longest, mode, replicas };
        Self { planned: Planned::alone(Schedule::Pipeline(schedule.clone())), schedule }
    }

    fn current(&self) -> (usize, usize) {
        match self.planned.draft() {
            Some(Drafting::Pipeline { rows, ahead }) => (rows, ahead),
            // Those, and the row of the target's token.
            _ => ((FIRST_LENGTH + 1).min(self.schedule.longest), usize::MAX),
        }
    }

    /// Returns whether to draft now. Otherwise the target is faster alone.
    #[must_use]
    pub fn drafts(&self) -> bool {
        !self.schedule.adapts() || self.planned.draft().is_some()
    }

    /// Returns the number of draft tokens in a verification job.
    #[must_use]
    pub fn length(&self) -> usize {
        if self.schedule.adapts() { self.current().0 } else { self.schedule.longest }
    }

    /// Returns the largest number of rows of a job that takes drafts that have accumulated.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        if self.schedule.adapts() { self.length().max(2) } else { self.max_ahead() }
    }

    /// Sets the number of target replicas that have not failed, if the lookahead follows measured
    /// times.
    pub fn set_replicas(&mut self, count: usize) {
        if self.schedule.adapts() && self.schedule.replicas != count.max(1) {
            self.schedule.replicas = count.max(1);
            let schedule = Schedule::Pipeline(self.schedule.clone());
            self.planned.with_schedule(|of_planned| *of_planned = schedule);
        }
    }

    /// Returns how many tokens the drafter may be ahead of the rows that were submitted: those of
    /// the next job, or of two if several replicas work. More would only take cores from the
    /// target.
    #[must_use]
    pub fn max_waiting(&self) -> usize {
        match self.schedule.adapts() {
            true => self.schedule.replicas.min(2) * self.max_rows(),
            false => usize::MAX,
        }
    }

    /// Returns how many tokens the drafter may be ahead of the committed ones: the tokens that all
    /// replicas verify, and those of two more jobs, which are drafted in the meantime. The
    /// automatic mode drafts fewer if drafting takes cores from the target.
    #[must_use]
    pub fn max_ahead(&self) -> usize {
        let ahead = if self.schedule.adapts() { self.current().1 } else { usize::MAX };
        (self.length() * (self.schedule.replicas + 2)).min(ahead)
    }

    /// Returns how many tokens one draft job should make.
    #[must_use]
    pub fn tokens_per_job(&self) -> usize {
        let length = self.length();
        self.planned.with_facts(|facts| match self.schedule.adapts() {
            true => facts.tokens_per_job(length),
            false => facts.drafter.costs.tokens_per_job(length),
        })
    }

    /// Returns how many committed tokens a replica may have missed to get a job: what it reads in
    /// the time of a pass, or what the others commit while each has a job. More would hold up the
    /// job.
    #[must_use]
    pub fn max_lag(&self) -> usize {
        if !self.schedule.adapts() {
            return usize::MAX;
        }
        let in_a_pass = self.planned.with_facts(|facts| {
            let token_ns = facts.target.reading_ns().max(facts.target.row_ns());
            (token_ns > 0.0).then(|| (facts.target.plain_ns() / token_ns) as usize)
        });
        let in_turn = self.schedule.replicas * self.length();
        in_a_pass.map_or(usize::MAX, |tokens| tokens.max(in_turn))
    }
}

impl Policy for DsiLookahead {
    fn planned(&mut self) -> &mut Planned {
        &mut self.planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobTime;

    /// Returns the lookahead after steps with passes of a time by rows, and drafts of one by tokens.
    fn learned(
        mut lookahead: DsiLookahead,
        pass_ns: impl Fn(usize) -> u64,
        tokens: usize,
        draft_ns: u64,
    ) -> DsiLookahead {
        let mut now_ns = 0;
        for step in 0..60 {
            let drafts = lookahead.drafts();
            let rows = if drafts { lookahead.length() } else { 1 };
            if drafts {
                lookahead.planned().observe_draft(tokens, &JobTime::alone(draft_ns));
            }
            lookahead.planned().observe_score(rows, &JobTime::alone(pass_ns(rows)), drafts);
            let tested: Vec<usize> = (0..rows).filter(|_| drafts).collect();
            lookahead.planned().observe_verdict(
                &tested,
                false,
                usize::from(!drafts || step % 8 == 0),
            );
            now_ns += pass_ns(1);
            lookahead.planned().observe_step(if drafts { rows } else { 1 }, now_ns, !drafts);
        }
        lookahead
    }

    #[test]
    fn the_lookahead_is_the_smallest_that_the_replicas_keep_up_with() {
        let learned = |replicas, pass_ns, token_ns| {
            let lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
            learned(lookahead, |_| pass_ns, 1, token_ns).length()
        };
        // The paper's example: a drafter ten times as fast needs 5 replicas at lookahead 2.
        assert_eq!(learned(5, 1_000_000, 100_000), 2);
        assert_eq!(learned(10, 1_000_000, 100_000), 1);
        assert_eq!(learned(1, 1_000_000, 100_000), 10);
        assert_eq!(learned(4, 1_000_000, 100_000), 3);
    }

    #[test]
    fn drafters_with_several_tokens_per_forward_make_whole_forwards() {
        let learned = |per_forward: usize, replicas| {
            let lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
            let lookahead = lookahead.with_tokens_per_forward(per_forward);
            let draft_ns = 4_u64.div_ceil(per_forward as u64) * 1_000_000;
            let lookahead = learned(lookahead, |_| 10_000_000, 4, draft_ns);
            (lookahead.length(), lookahead.tokens_per_job())
        };
        // A target forward takes as long as ten drafter forwards, which the replicas share.
        assert_eq!((learned(1, 5), learned(4, 5), learned(4, 10)), ((2, 1), (8, 4), (4, 4)));
    }

    #[test]
    fn a_fixed_lookahead_is_constant_and_bounds_the_drafts() {
        let mut lookahead = DsiLookahead::new(5, DraftLength::Fixed, 3);
        lookahead.planned().observe_score(1, &JobTime::alone(1_000), true);
        assert_eq!((lookahead.length(), lookahead.max_ahead()), (5, 25));
    }
}
