//! How much to draft: as asked, or as measured times and acceptance advise.

use forerun_core::DraftShape;

/// How many tokens are drafted a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLength {
    /// Always the whole shape.
    Fixed,
    /// As many as pay (for a chain, up to its length), none where drafting does not pay.
    Auto,
}

/// Decides the shape of the next draft.
///
/// The automatic mode keeps three estimates, in which old rounds fade: the acceptance rate, the
/// time of a draft as a line over its length, and the time of a target forward as a line over its
/// rows. It asks for the length of the most tokens a second; where that is none, it drafts again
/// for a few rounds now and then, with growing pauses, in case the text has become easier.
#[derive(Clone, Debug)]
pub struct Controller {
    shape: DraftShape,
    length: DraftLength,
    rounds: u64,
    accepted: Faded,
    tested: Faded,
    draft_ns: Line,
    score_ns: Line,
    /// Rounds left of the present phase, and of how many the next pause is.
    phase: Phase,
    pause: u32,
}

/// What one round measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Tokens drafted.
    pub(crate) drafted: usize,
    /// Tokens of the draft that were committed.
    pub(crate) accepted: usize,
    pub(crate) rejected: bool,
    pub(crate) draft_ns: u64,
    pub(crate) score_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Drafting to learn, this many rounds more.
    Trial(u32),
    /// Drafting because it pays.
    Drafting,
    /// Not drafting, this many rounds more.
    Pause(u32),
}

/// Rounds of drafting before a first judgement.
const TRIAL_ROUNDS: u32 = 6;
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 512;
/// Length of a trial's chain while nothing is known.
const TRIAL_LENGTH: usize = 3;

impl Controller {
    /// A controller that drafts in `shape`.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        Self {
            shape,
            length,
            rounds: 0,
            accepted: Faded::default(),
            tested: Faded::default(),
            draft_ns: Line::default(),
            score_ns: Line::default(),
            phase: Phase::Trial(TRIAL_ROUNDS),
            pause: FIRST_PAUSE,
        }
    }

    /// The shape of the next round's draft; its depth is 0 if none should be made.
    #[must_use]
    pub fn next_shape(&self) -> DraftShape {
        match (self.length, self.phase) {
            (DraftLength::Fixed, _) => self.shape.clone(),
            // Plain rounds at the start show what a draft has to beat.
            (DraftLength::Auto, _) if self.rounds < 2 => self.shape.at_most(0),
            (DraftLength::Auto, Phase::Pause(_)) => self.shape.at_most(0),
            (DraftLength::Auto, Phase::Trial(_)) => match self.shape {
                DraftShape::Chain { .. } => {
                    self.shape.at_most(self.best_length().max(TRIAL_LENGTH))
                }
                _ => self.shape.clone(),
            },
            (DraftLength::Auto, Phase::Drafting) => self.shape.at_most(self.best_length()),
        }
    }

    /// Learns from a round.
    pub(crate) fn observe(&mut self, round: &Round) {
        self.rounds += 1;
        // The first round computes the whole prompt, and a drafter's first draft does too.
        let first_draft = round.drafted > 0 && self.draft_ns.is_empty();
        if self.rounds > 1 {
            self.score_ns.add(round.drafted as f64 + 1.0, round.score_ns as f64);
        }
        if round.drafted > 0 {
            let ns = if first_draft { 0.0 } else { round.draft_ns as f64 };
            self.draft_ns.add(round.drafted as f64, ns);
            self.accepted.add(round.accepted as f64);
            self.tested.add((round.accepted + usize::from(round.rejected)) as f64);
        }
        if self.rounds > 2 {
            self.turn();
        }
    }

    /// Goes on to the next phase where the present one is over.
    fn turn(&mut self) {
        self.phase = match self.phase {
            Phase::Trial(left) if left > 1 => Phase::Trial(left - 1),
            Phase::Pause(left) if left > 1 => Phase::Pause(left - 1),
            Phase::Pause(_) => Phase::Trial(TRIAL_ROUNDS),
            Phase::Trial(_) | Phase::Drafting if self.best_length() > 0 => {
                self.pause = FIRST_PAUSE;
                Phase::Drafting
            }
            Phase::Trial(_) | Phase::Drafting => {
                let pause = self.pause;
                self.pause = (pause * 2).min(LONGEST_PAUSE);
                Phase::Pause(pause)
            }
        };
    }

    /// The depth of the most tokens a second by the present estimates; 0 is plain decoding.
    fn best_length(&self) -> usize {
        let depth = self.shape.depth();
        let lengths = match self.shape {
            DraftShape::Chain { .. } => 1..=depth,
            // Of a tree there is all or nothing.
            _ => depth..=depth,
        };
        let plain = 1.0 / self.score_ns.at(1.0);
        let speeds = lengths.map(|length| (length, self.speed(length)));
        speeds.fold((0, plain), |best, next| if next.1 > best.1 { next } else { best }).0
    }

    /// Expected tokens a nanosecond with drafts of this depth (Leviathan 2023, eq. 1).
    fn speed(&self, depth: usize) -> f64 {
        let acceptance = if self.tested.value > 0.0 {
            (self.accepted.value / self.tested.value).min(0.999)
        } else {
            0.5
        };
        let tokens = (1.0 - acceptance.powi(depth as i32 + 1)) / (1.0 - acceptance);
        let nodes = self.shape.at_most(depth).max_nodes() as f64;
        tokens / (self.draft_ns.at(nodes) + self.score_ns.at(nodes + 1.0))
    }
}

/// How much an earlier round counts against the next.
const FADE: f64 = 0.95;

/// A sum in which old terms fade.
#[derive(Clone, Copy, Debug, Default)]
struct Faded {
    value: f64,
}

impl Faded {
    fn add(&mut self, term: f64) {
        self.value = self.value * FADE + term;
    }
}

/// A least-squares line through measurements that fade.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.weight == 0.0
    }

    fn add(&mut self, x: f64, y: f64) {
        for (sum, term) in [
            (&mut self.weight, 1.0),
            (&mut self.x, x),
            (&mut self.y, y),
            (&mut self.xx, x * x),
            (&mut self.xy, x * y),
        ] {
            *sum = *sum * FADE + term;
        }
    }

    /// The line's value, its slope never negative; 1 where nothing was measured.
    fn at(&self, x: f64) -> f64 {
        if self.is_empty() {
            return 1.0;
        }
        let (mean_x, mean_y) = (self.x / self.weight, self.y / self.weight);
        let variance = self.xx / self.weight - mean_x * mean_x;
        let covariance = self.xy / self.weight - mean_x * mean_y;
        // Without variation a proportional line is the careful guess.
        let slope = if variance > 1e-9 { covariance / variance } else { mean_y / mean_x.max(1.0) };
        (mean_y + slope.max(0.0) * (x - mean_x)).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds in which every token is accepted with certainty up to `agreement` in a row.
    fn run(
        controller: &mut Controller,
        rounds: usize,
        agreement: usize,
        draft_ns: u64,
    ) -> Vec<usize> {
        let mut lengths = Vec::new();
        for _ in 0..rounds {
            let drafted = controller.next_shape().depth();
            lengths.push(drafted);
            controller.observe(&Round {
                drafted,
                accepted: agreement.min(drafted),
                rejected: drafted > agreement,
                draft_ns: draft_ns * drafted as u64,
                score_ns: 1_000 + 20 * drafted as u64,
            });
        }
        lengths
    }

    fn chain(length: DraftLength) -> Controller {
        Controller::new(DraftShape::Chain { length: 16 }, length)
    }

    #[test]
    fn a_fixed_length_never_changes() {
        let lengths = run(&mut chain(DraftLength::Fixed), 50, 0, 10_000);
        assert_eq!(lengths, vec![16; 50]);
    }

    #[test]
    fn a_good_drafter_is_given_rope() {
        let lengths = run(&mut chain(DraftLength::Auto), 60, 16, 50);
        assert_eq!(lengths[..2], [0, 0]);
        assert!(lengths[40..].iter().all(|&length| length >= 12), "{lengths:?}");
    }

    #[test]
    fn a_drafter_that_does_not_pay_is_left_alone_but_tried_again() {
        let mut controller = chain(DraftLength::Auto);
        let lengths = run(&mut controller, 400, 0, 400);
        let drafting = lengths.iter().filter(|&&length| length > 0).count();
        assert!((12..60).contains(&drafting), "{drafting} of 400 rounds: {lengths:?}");
        assert!(lengths[200..].contains(&3), "{lengths:?}");
        // The text becomes easy: the next trial finds out.
        let lengths = run(&mut controller, 600, 16, 50);
        assert!(lengths[550..].iter().all(|&length| length >= 8), "{lengths:?}");
    }

    #[test]
    fn a_tree_is_drafted_whole_or_not_at_all() {
        let shape = DraftShape::Top { width: 2, depth: 3 };
        let mut controller = Controller::new(shape, DraftLength::Auto);
        let lengths = run(&mut controller, 200, 0, 2_000);
        assert!(lengths.iter().all(|&length| length == 0 || length == 3), "{lengths:?}");
        assert!(lengths[100..].iter().filter(|&&length| length == 0).count() > 60);
    }
}
