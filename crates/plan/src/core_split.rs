//! How to divide cores between a drafter and a target that work at the same time.

use crate::rounds::ParallelRounds;

/// The speed of a pass grows with the number of cores to this power, because cores share the
/// memory. Measured on up to 16 cores (docs/experiments/cores-and-threads.md).
const SCALING: f64 = 0.7;

/// Returns how many of `cores` a drafter should have, so that drafting and verification at the same
/// time commit the most tokens per second. Both have at least one core.
///
/// `ratio`: how many times the bytes of a draft step a pass of the target reads. More cores for the
/// drafter mean more drafts for each pass, and longer passes. So drafting as many tokens as are
/// worth their time takes about as long as a pass.
#[must_use]
pub fn drafter_cores(cores: usize, ratio: f64) -> usize {
    // Three of four tokens are accepted, and up to 16 drafted during a pass, or 4 before it.
    let survival: Vec<f64> = (0..48).map(|n| 0.75_f64.powi(n)).collect();
    let speed = |drafter: usize| {
        let pass_ns = ratio / ((cores - drafter) as f64).powf(SCALING);
        let token_ns = (drafter as f64).powf(-SCALING);
        let new = (pass_ns / token_ns).clamp(1.0, 16.0);
        let firsts = (0..=4).map(|first| {
            let first_ns = first as f64 * token_ns;
            let rounds =
                ParallelRounds { survival: &survival, first, new, first_ns, min_ns: token_ns };
            let (tokens, ns) = rounds.cycle(|_| pass_ns);
            tokens / ns
        });
        firsts.fold(0.0, f64::max)
    };
    let splits = (1..cores).map(|drafter| (drafter, speed(drafter)));
    // Of equal ones, the one with more cores for the target.
    splits.rev().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(1, |(drafter, _)| drafter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_drafters_have_few_cores() {
        let ratios = [2.0, 4.0, 8.0, 16.0, 30.0];
        let table =
            [2, 4, 8, 16, 32, 64].map(|cores| ratios.map(|ratio| drafter_cores(cores, ratio)));
        let expected = [
            [1, 1, 1, 1, 1],
            [2, 2, 1, 1, 1],
            [4, 3, 2, 2, 2],
            [8, 6, 5, 4, 3],
            [16, 13, 10, 8, 6],
            [32, 25, 19, 15, 13],
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn each_has_a_core_for_any_ratio() {
        for cores in 2..=64 {
            for ratio in [0.0, 0.3, 1.0, 2.0, 10.0, 30.0, 1e6, f64::INFINITY] {
                let drafter = drafter_cores(cores, ratio);
                assert!((1..cores).contains(&drafter), "{cores} {ratio}: {drafter}");
            }
        }
        assert_eq!([0, 1].map(|cores| drafter_cores(cores, 8.0)), [1, 1]);
    }
}
