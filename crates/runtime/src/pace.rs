//! Paced devices: real models compute the tokens, and each pass takes the time of another device.

use forerun_core::{Role, SequenceId};
use forerun_lm::{BatchEntry, ModelError};
use std::collections::HashSet;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// How long the passes of target and drafter take on the devices of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The name of the profile, as a placement gives it.
    pub name: String,
    /// The passes of each target replica.
    pub target: PassTimes,
    /// The passes of each drafter, if the profile has one.
    pub drafter: Option<PassTimes>,
}

impl Pace {
    /// Returns the pass times of a role's device, if the profile has them.
    #[must_use]
    pub fn times_of(&self, role: Role) -> Option<&PassTimes> {
        match role {
            Role::Target(_) => Some(&self.target),
            Role::Drafter(_) => self.drafter.as_ref(),
        }
    }
}

/// How long the passes of a device take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassTimes {
    /// Pairs of rows and nanoseconds, in ascending order of rows ([`ns_of_rows`]).
    pub rows_ns: Vec<(usize, u64)>,
    /// The nanoseconds to read a sequence's prompt of any length. `None`: they follow from its rows.
    pub first_ns: Option<u64>,
}

/// Returns the time of a pass over `rows` rows in nanoseconds. The times at the given numbers of
/// rows are interpolated linearly, and the last segment is extrapolated.
#[must_use]
pub fn ns_of_rows(points: &[(usize, u64)], rows: usize) -> u64 {
    let above = points.iter().position(|&(at, _)| at >= rows);
    let (low, high) = match (above, points) {
        (_, []) => return 0,
        (_, [(_, ns)]) | (Some(0), [(_, ns), ..]) => return *ns,
        (Some(above), points) => (points[above - 1], points[above]),
        (None, points) => (points[points.len() - 2], points[points.len() - 1]),
    };
    let slope = (high.1 as f64 - low.1 as f64) / (high.0 as f64 - low.0 as f64);
    (low.1 as f64 + slope * (rows as f64 - low.0 as f64)).max(0.0).round() as u64
}

/// What a pass computes for one sequence.
#[derive(Clone, Copy, Debug)]
struct PassPart {
    sequence: SequenceId,
    rows: usize,
    /// The tokens of the whole request, in the cache or not.
    of_tokens: usize,
    is_complete: bool,
}

/// A pass ends late if it takes longer than its time by more than this part of it.
const TOLERATED_PART: u32 = 20;

/// The passes of a model on a paced device.
pub(crate) struct PacedPasses {
    times: PassTimes,
    /// The sequences whose prompts are in the model's cache.
    read: HashSet<SequenceId>,
}

impl PacedPasses {
    /// Creates the passes of a model on the calling thread.
    pub(crate) fn new(times: PassTimes) -> Self {
        // By default, a sleep may end 50 microseconds late. A pass overruns all the same if this
        // fails.
        #[cfg(target_os = "linux")]
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        Self { times, read: HashSet::new() }
    }

    /// Sleeps until the pass that began at `started` has taken its time. Returns whether it ends
    /// late, because computing took longer or because the thread woke late.
    ///
    /// `took_part`: whether each request was waiting for the pass, and the tokens that the pass
    /// computed for it. A pass that a cancellation ends within the model takes its time, too: GPUs
    /// finish what was launched, so this is the rule that flatters no method.
    pub(crate) fn pad(
        &mut self,
        started: Instant,
        batch: &[BatchEntry<'_>],
        took_part: impl Iterator<Item = Option<usize>>,
    ) -> bool {
        let parts = batch.iter().zip(took_part);
        let parts: Vec<_> = parts.filter_map(|(entry, tokens)| part(entry, tokens?)).collect();
        let time = Duration::from_nanos(self.pass_ns(&parts));
        std::thread::sleep(time.saturating_sub(started.elapsed()));
        is_late(started.elapsed(), time)
    }

    /// Returns the time of a pass. Parts of a prompt take their share of the time in which a prompt
    /// is read, and the rows of all other sequences the time of a pass over so many rows.
    fn pass_ns(&mut self, parts: &[PassPart]) -> u64 {
        if parts.is_empty() {
            return 0;
        }
        let (mut rows, mut prompts_ns) = (0, 0);
        for part in parts {
            // The branches of a sequence continue its prompt.
            let sequence = part.sequence.base();
            match self.times.first_ns.filter(|_| !self.read.contains(&sequence)) {
                Some(first_ns) => {
                    let share = part.rows.min(part.of_tokens) as f64 / part.of_tokens as f64;
                    prompts_ns += (first_ns as f64 * share) as u64;
                }
                None => rows += part.rows,
            }
            if part.is_complete {
                self.read.insert(sequence);
            }
        }
        let ns_of_rows = |rows| ns_of_rows(&self.times.rows_ns, rows);
        let rows_ns = if rows > 0 { ns_of_rows(rows) } else { 0 };
        (prompts_ns + rows_ns).max(ns_of_rows(1))
    }

    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.read.remove(&sequence);
    }
}

/// Returns what a pass computed for a request, if anything. What is not known of a pass that was
/// cancelled counts as the requested rows.
fn part(entry: &BatchEntry<'_>, tokens: usize) -> Option<PassPart> {
    let request = &entry.request;
    let rows = match &entry.progress.result {
        Some(Err(ModelError::Cancelled)) => tokens.max(request.rows()),
        _ => tokens,
    };
    let part = PassPart {
        sequence: request.sequence,
        rows,
        of_tokens: request.tokens.len() + request.tree.len(),
        is_complete: matches!(entry.progress.result, Some(Ok(_))),
    };
    (rows > 0).then_some(part)
}

fn is_late(elapsed: Duration, time: Duration) -> bool {
    elapsed > time + time / TOLERATED_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_the_given_rows_are_interpolated_linearly() {
        let points = [(1, 100), (4, 130), (8, 250)];
        let ns = [0, 1, 2, 4, 6, 8, 10].map(|rows| ns_of_rows(&points, rows));
        assert_eq!(ns, [100, 100, 110, 130, 190, 250, 310]);
        assert_eq!((ns_of_rows(&[(3, 7)], 9), ns_of_rows(&[], 9)), (7, 0));
    }

    #[test]
    fn a_pass_takes_the_time_of_its_rows_and_a_prompt_its_own() {
        let part = |sequence, rows, of_tokens, is_complete| PassPart {
            sequence: SequenceId(sequence),
            rows,
            of_tokens,
            is_complete,
        };
        let rows_ns = vec![(1, 100), (11, 200)];
        let mut device = PacedPasses::new(PassTimes { rows_ns, first_ns: Some(1_000) });
        assert_eq!(device.pass_ns(&[]), 0);
        // Two passes read a prompt, in the time of one.
        assert_eq!(device.pass_ns(&[part(1, 30, 40, false)]), 750);
        assert_eq!(device.pass_ns(&[part(1, 10, 40, true)]), 250);
        assert_eq!(device.pass_ns(&[part(1, 1, 41, true)]), 100);
        // A prompt that joins the rows of another sequence, and one that is in the cache already.
        assert_eq!(device.pass_ns(&[part(1, 6, 46, true), part(2, 20, 20, true)]), 1_150);
        assert_eq!(device.pass_ns(&[part(3, 1, 100, true)]), 100);
        // A branch continues the sequence, and a released sequence is read again.
        let branch = PassPart { sequence: SequenceId(1).branch(4), ..part(1, 11, 51, true) };
        assert_eq!(device.pass_ns(&[branch]), 200);
        device.release(SequenceId(1).branch(4));
        assert_eq!(device.pass_ns(&[part(1, 1, 52, true)]), 100);
        device.release(SequenceId(1));
        assert_eq!(device.pass_ns(&[part(1, 52, 52, true)]), 1_000);
        let mut by_rows = PacedPasses::new(PassTimes { first_ns: None, ..device.times });
        assert_eq!(by_rows.pass_ns(&[part(1, 21, 21, true)]), 300);
    }

    #[test]
    fn a_pass_is_late_if_it_takes_a_twentieth_longer() {
        let late =
            |elapsed, time| is_late(Duration::from_micros(elapsed), Duration::from_micros(time));
        assert!(!late(1_000, 1_000) && !late(1_050, 1_000) && late(1_051, 1_000));
    }
}
