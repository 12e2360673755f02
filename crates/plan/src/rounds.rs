//! Closed forms: the expected tokens and times of rounds.
//!
//! `survival[n]` is the probability that the first `n` tokens of a draft are accepted. Times are in
//! nanoseconds.

/// Returns the tokens that a round of draft-then-verify commits on average with a draft of `length`
/// tokens, including the target's own (Leviathan et al. 2023, arXiv 2211.17192, equation 1, for any
/// acceptance).
pub(crate) fn tokens_of_round(survival: &[f64], length: usize) -> f64 {
    survival.iter().take(length + 1).sum()
}

/// The rounds of PEARL from a rejection to the next one.
///
/// If `first` tokens were drafted before the first pass, it verifies them and the first token that
/// is drafted during it (none: pre-verify). If all are accepted, `new` tokens drafted during a pass
/// leave `new - 1` for the next pass (post-verify), and so on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParallelRounds<'a> {
    /// The acceptance of the drafts after the rejection.
    pub(crate) survival: &'a [f64],
    /// The number of tokens that are drafted before the first pass.
    pub(crate) first: usize,
    /// The number of tokens that are drafted during a pass. It may be a mean.
    pub(crate) new: f64,
    /// The time of drafting `first` tokens alone.
    pub(crate) first_ns: f64,
    /// The shortest time of a pass, because it waits for the drafter.
    pub(crate) min_ns: f64,
}

impl ParallelRounds<'_> {
    /// Returns the expected tokens and nanoseconds. `score_ns(rows)` is the time of a pass.
    pub(crate) fn cycle(&self, score_ns: impl Fn(f64) -> f64) -> (f64, f64) {
        let survival = |tokens: f64| interpolated(self.survival, tokens);
        let (mut tokens, mut ns) = (0.0, self.first_ns);
        // The tokens accepted so far, and those that the next pass verifies in addition to the
        // first new one.
        let (mut accepted, mut unverified) = (0.0, self.first as f64);
        let end = self.survival.len().saturating_sub(1) as f64;
        loop {
            let reached = survival(accepted);
            ns += reached * score_ns(unverified + 1.0).max(self.min_ns);
            tokens += reached + sum(self.survival, accepted, accepted + unverified);
            accepted += unverified + 1.0;
            unverified = (self.new - 1.0).max(0.0);
            if accepted + unverified >= end || survival(accepted) < 1e-3 {
                return (tokens, ns);
            }
        }
    }

    /// Returns the nanoseconds if so many tokens are accepted.
    pub(crate) fn ns_of(&self, accepted: usize, score_ns: impl Fn(f64) -> f64) -> f64 {
        let (mut ns, mut tested, mut unverified) = (self.first_ns, 0.0, self.first as f64);
        loop {
            ns += score_ns(unverified + 1.0).max(self.min_ns);
            tested += unverified + 1.0;
            unverified = (self.new - 1.0).max(0.0);
            if tested > accepted as f64 {
                return ns;
            }
        }
    }
}

/// Returns the value of `survival` after so many tokens, between two of them by a straight line.
fn interpolated(survival: &[f64], tokens: f64) -> f64 {
    let (low, part) = (tokens as usize, tokens.fract());
    let at = |index: usize| survival.get(index).or(survival.last()).copied().unwrap_or(0.0);
    at(low) + part * (at(low + 1) - at(low))
}

/// Returns the sum of `survival` over the tokens after `from` up to `to`.
fn sum(survival: &[f64], from: f64, to: f64) -> f64 {
    let (mut sum, mut at) = (0.0, from);
    while at < to {
        let step = (to - at).min(1.0);
        sum += step * interpolated(survival, at + 1.0);
        at += 1.0;
    }
    sum
}

/// DSI's pipeline from a rejection to the next one.
///
/// The row after the rejection takes a pass. Meanwhile the drafter makes tokens, and a job verifies
/// every `rows` of them on a free replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline<'a> {
    /// The acceptance of the drafts after the rejection.
    pub(crate) survival: &'a [f64],
    /// The number of target replicas.
    pub(crate) replicas: usize,
    /// The number of rows of a job: DSI's lookahead.
    pub(crate) rows: usize,
    /// The time of drafting so many tokens.
    pub(crate) draft_ns: f64,
}

impl Pipeline<'_> {
    /// Returns the times of the row after the rejection, of the first job after it, and of each
    /// further one.
    fn jobs_ns(&self, score_ns: impl Fn(usize) -> f64) -> [f64; 3] {
        let (one_ns, job_ns) = (score_ns(1), score_ns(self.rows));
        let start_ns = if self.replicas > 1 { self.draft_ns } else { self.draft_ns.max(one_ns) };
        let further_ns = self.draft_ns.max(job_ns / self.replicas.max(1) as f64);
        [one_ns, (start_ns + job_ns - one_ns).max(0.0), further_ns]
    }

    /// Returns the expected tokens and nanoseconds. `score_ns(rows)` is the time of a pass.
    pub(crate) fn cycle(&self, score_ns: impl Fn(usize) -> f64) -> (f64, f64) {
        let [one_ns, first_ns, further_ns] = self.jobs_ns(score_ns);
        // The first token is tested by the row after the rejection, the others by jobs.
        let mut reached = self.survival.iter().skip(1).step_by(self.rows.max(1));
        let first_ns = reached.next().map_or(0.0, |all| all * first_ns);
        let ns = one_ns + first_ns + reached.map(|all| all * further_ns).sum::<f64>();
        (self.survival.iter().sum::<f64>(), ns)
    }

    /// Returns the nanoseconds if so many tokens are accepted.
    pub(crate) fn ns_of(&self, accepted: usize, score_ns: impl Fn(usize) -> f64) -> f64 {
        let [one_ns, first_ns, further_ns] = self.jobs_ns(score_ns);
        match accepted.checked_sub(1) {
            None => one_ns,
            Some(more) => one_ns + first_ns + (more / self.rows.max(1)) as f64 * further_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed_of((tokens, ns): (f64, f64)) -> f64 {
        tokens / ns
    }

    fn powers(rate: f64) -> Vec<f64> {
        (0..200).map(|n| f64::powi(rate, n)).collect()
    }

    #[test]
    fn a_round_commits_what_leviathans_equation_says() {
        for (rate, length) in [(0.5, 3), (0.8, 8), (0.95, 1)] {
            let expected = (1.0 - f64::powi(rate, length + 1)) / (1.0 - rate);
            assert!((tokens_of_round(&powers(rate), length as usize) - expected).abs() < 1e-12);
        }
    }

    /// The stationary form for independent tokens: a share of the rounds is post-verify.
    #[test]
    fn pearls_cycle_is_the_chain_of_its_two_kinds_of_rounds() {
        for (rate, new) in [(0.3, 4.0), (0.8, 4.0), (0.9, 9.0)] {
            let survival = powers(rate);
            let rounds =
                ParallelRounds { survival: &survival, first: 0, new, first_ns: 0.0, min_ns: 0.0 };
            let all = rate.powf(new);
            let post = rate / (rate + 1.0 - all);
            let tokens = (1.0 - post) + post * (1.0 - all) / (1.0 - rate);
            let ns = 1_000.0 + post * 50.0 * (new - 1.0);
            let speed = speed_of(rounds.cycle(|rows| 1_000.0 + 50.0 * (rows - 1.0)));
            assert!((speed / (tokens / ns) - 1.0).abs() < 0.01, "{rate} {new}");
        }
    }

    #[test]
    fn drafting_first_pays_if_the_drafter_is_fast_and_often_wrong() {
        let speed = |rate, first: usize| {
            let survival = powers(rate);
            let first_ns = first as f64 * 100.0;
            let rounds =
                ParallelRounds { survival: &survival, first, new: 10.0, first_ns, min_ns: 0.0 };
            speed_of(rounds.cycle(|_| 1_000.0))
        };
        assert!(speed(0.4, 2) > 1.1 * speed(0.4, 0));
        assert!(speed(0.98, 2) < 1.1 * speed(0.98, 0));
    }

    #[test]
    fn a_pipeline_with_replicas_hides_verification() {
        let survival = powers(0.9);
        let speed = |replicas, rows| {
            let draft_ns = 100.0 * rows as f64;
            let pipeline = Pipeline { survival: &survival, replicas, rows, draft_ns };
            speed_of(pipeline.cycle(|_| 1_000.0))
        };
        assert!(speed(10, 1) > 1.2 * speed(1, 10));
        // Fewer rows than one replica keeps up with are slower, and more are late.
        assert!(speed(1, 10) > speed(1, 2) && speed(1, 10) > speed(1, 30));
    }
}
