//! When drafting during verification pauses: while it makes decoding slower than the target alone.
//!
//! Drafts that are wrong cost nothing if the drafter's devices have no other use. But cores can
//! help the target instead, and rows of wrong drafts make its passes longer. So this compares
//! measured speeds, in tokens per nanosecond of the answer, and needs no model of the devices.

use crate::decaying::{DecayingMean, Speed};
use crate::interruptions::Interruptions;
use crate::ledger::Ledger;

/// Decides whether to draft, from the measured speeds with drafts and without.
///
/// It measures the speed without drafts first, and then tries to draft. It goes on while that is
/// faster, or while estimates of acceptance and times say so and it has not lost much: the speed of
/// a few rounds is mostly luck. For the same reason, a trial that has lost is soon repeated if the
/// estimates see a gain. Otherwise drafting pauses, and is tried again in case the text has become
/// easier, as far as the [`Ledger`] allows. A trial ends as soon as it cannot win, and at once if
/// the drafter has nothing to propose.
///
/// While drafting is faster, the target works alone now and then, because its speed changes: at
/// first, its threads may still have to wake up. Measuring it again may cost 0.3 % of the time. So
/// it is soon measured again if drafting is hardly faster, and rarely if it is much faster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    phase: Phase,
    without_drafts: Speed,
    /// Whether the speed without drafts was measured, and not only estimated.
    is_measured_alone: bool,
    with_drafts: Speed,
    ledger: Ledger,
    /// The time lost by the last trial and, while drafting goes on after it, since drafting last
    /// was as fast as the target alone.
    trial_ns: f64,
    /// The time in which the drafter reads what it missed, until the step in which it does.
    catch_up_ns: f64,
    /// The number of tokens that were drafted since the last step, if drafts were requested.
    /// Lookups often find none.
    drafted: Option<usize>,
    /// The times of steps with drafts and without.
    step_ns: [DecayingMean; 2],
    interruptions: Interruptions,
    /// The number of steps of the present pause.
    paused_steps: u32,
    /// The end of the answer's last step, if it has had one.
    last_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The target works alone for this many more steps, to measure its speed.
    Alone(u32),
    /// Drafting to measure, for this many more steps.
    Trial(u32),
    /// Drafting because it is faster, with the tokens and the nanoseconds since the target worked
    /// alone.
    Drafting(usize, f64),
    /// Not drafting because it would be slower.
    Paused,
}

impl Default for Phase {
    fn default() -> Self {
        Self::Alone(ALONE_STEPS)
    }
}

/// What estimates say about the next trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrialOutlook {
    /// The speed compared with the target alone if every draft token was right.
    pub(crate) speedup_at_best: f64,
    /// The speed compared with the target alone by the present estimates of acceptance and times; 0
    /// if they are not known.
    pub(crate) expected_speedup: f64,
    /// The time in which the drafter reads what it missed.
    pub(crate) catch_up_ns: f64,
    /// The time of the shortest draft.
    pub(crate) draft_ns: f64,
    /// The time of the longest job that verifies drafts.
    pub(crate) longest_ns: f64,
}

impl Default for TrialOutlook {
    fn default() -> Self {
        Self {
            speedup_at_best: f64::INFINITY,
            expected_speedup: 0.0,
            catch_up_ns: 0.0,
            draft_ns: 0.0,
            longest_ns: 0.0,
        }
    }
}

impl TrialOutlook {
    /// Returns whether the estimates see a gain.
    fn is_faster(&self) -> bool {
        self.expected_speedup > GAIN_TO_GO_ON
    }
}

/// Steps of the target alone that measure its speed.
const ALONE_STEPS: u32 = 6;
/// The number of steps of a trial.
const TRIAL_STEPS: u32 = 12;
/// A trial ends early if it has lost the time of so many steps of the target alone.
const TRIAL_LOSS: f64 = 4.0;
/// The number of steps of a pause for each with an outlook.
const OUTLOOK_EVERY: u32 = 8;
/// The number of tokens with drafts, at least, after which the target works alone again.
const ALONE_EVERY: usize = 32;
/// The share of the time that measuring the target alone may lose.
const ALONE_SHARE: f64 = 0.003;
/// The speed, compared with the target alone, with which estimates see a gain.
const GAIN_TO_GO_ON: f64 = 1.03;
/// A hopeless drafter is tried as if a trial cost so many times as much, and may read as if it
/// gained so many times less than one that doubles the speed.
const HOPELESS: f64 = 8.0;

impl Pauses {
    /// Returns a copy for a new answer, which keeps what it has learned.
    pub(crate) fn for_new_answer(&self) -> Self {
        Self { last_ns: None, ..self.clone() }
    }

    /// Starts in the middle of an answer, because drafts are expected to be faster than the target
    /// alone, which takes `alone_ns` nanoseconds for a token if that was not measured here, or to
    /// learn whether they are. `others_ns`: the time since it last worked, in nanoseconds.
    pub(crate) fn start(&mut self, alone_ns: Option<f64>, others_ns: f64) {
        self.last_ns = None;
        self.ledger.add_alone(others_ns);
        if let Some(alone_ns) = alone_ns {
            if !self.is_measured_alone {
                self.without_drafts = Speed::default().starting_at(alone_ns);
            }
            self.with_drafts = Speed::default();
            (self.trial_ns, self.catch_up_ns) = (0.0, 0.0);
            self.phase = Phase::Trial(TRIAL_STEPS);
        }
    }

    /// Returns whether to draft now.
    pub(crate) fn drafts(&self) -> bool {
        matches!(self.phase, Phase::Trial(_) | Phase::Drafting(..))
    }

    /// Returns whether it drafts to learn whether that is faster.
    pub(crate) fn is_trial(&self) -> bool {
        matches!(self.phase, Phase::Trial(_))
    }

    /// Returns whether drafting is known to be slower than the target alone.
    pub(crate) fn is_paused(&self) -> bool {
        self.phase == Phase::Paused
    }

    /// Returns the time that drafting has gained, less what it has lost since.
    pub(crate) fn gained_ns(&self) -> f64 {
        self.ledger.gained_ns()
    }

    /// Learns how many tokens a draft of the present step has.
    pub(crate) fn observe_draft(&mut self, tokens: usize) {
        *self.drafted.get_or_insert(0) += tokens;
    }

    /// Returns whether the next step needs to know what estimates say about a trial. While drafting
    /// pauses, that is only now and then the case: estimates take time, in which a small target
    /// could go on.
    pub(crate) fn needs_outlook(&self) -> bool {
        self.phase != Phase::Paused || self.paused_steps.is_multiple_of(OUTLOOK_EVERY)
    }

    /// Learns that a step has committed `tokens` tokens at `now_ns`, on the cluster's clock.
    /// `alone`: whether the target had neither drafts nor a drafter that ran at the same time. The
    /// first step of an answer, which computes the prompt, only starts the clock. Without an
    /// `outlook`, no trial begins.
    pub(crate) fn observe(
        &mut self,
        tokens: usize,
        now_ns: u64,
        alone: bool,
        outlook: Option<TrialOutlook>,
    ) {
        let is_draft_empty = self.drafted.take() == Some(0);
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return };
        let ns = now_ns.saturating_sub(last_ns) as f64;
        // A job with many rows may take much longer than a usual step.
        let longest_ns = outlook.filter(|_| !alone).map_or(0.0, |outlook| outlook.longest_ns);
        let ns =
            self.interruptions.filter_step(ns, &mut self.step_ns[usize::from(alone)], longest_ns);
        if alone {
            self.without_drafts.add(tokens, ns);
            self.is_measured_alone = true;
        } else if self.drafts() {
            self.with_drafts.add(tokens, ns);
        }
        let Some(alone_ns) = self.without_drafts.token_ns() else {
            return self.ledger.add_alone(ns);
        };
        match alone {
            true => self.ledger.add_alone(ns),
            false => {
                let is_trial = matches!(self.phase, Phase::Trial(_));
                let lost_ns = ns - tokens as f64 * alone_ns;
                let catch_up_ns = self.catch_up_ns.min(lost_ns.max(0.0));
                self.catch_up_ns -= catch_up_ns;
                self.ledger.add_catch_up(catch_up_ns);
                let ns = ns - catch_up_ns;
                self.ledger.add_drafting(ns, tokens as f64 * alone_ns, is_trial);
                if is_trial {
                    self.ledger.add_gain_of_trial((tokens as f64 * alone_ns - ns).max(0.0));
                }
                self.trial_ns += lost_ns - catch_up_ns;
                if !is_trial {
                    self.trial_ns = self.trial_ns.max(0.0);
                }
            }
        }
        let has_lost = self.trial_ns > TRIAL_LOSS * alone_ns;
        let is_expected_faster = outlook.is_some_and(|outlook| outlook.is_faster());
        let is_measured_slower =
            || self.with_drafts.token_ns().is_some_and(|drafting| drafting > alone_ns);
        let is_slower = || is_measured_slower() && (has_lost || !is_expected_faster);
        let trial = outlook.filter(|&outlook| alone && self.may_try(alone_ns, outlook));
        let is_hopeless = outlook.is_some_and(|outlook| outlook.speedup_at_best <= 1.0);
        self.phase = match (self.phase, trial) {
            (Phase::Alone(left), _) if alone && left > 1 => Phase::Alone(left - 1),
            (Phase::Alone(_) | Phase::Paused, Some(outlook)) => self.start_trial(outlook),
            (Phase::Alone(_), None) if alone => Phase::Paused,
            (Phase::Trial(TRIAL_STEPS), _) if is_draft_empty => Phase::Paused,
            (Phase::Trial(_), _) if has_lost => Phase::Paused,
            (Phase::Trial(_) | Phase::Drafting(..), _) if is_hopeless => Phase::Paused,
            (Phase::Trial(left), _) if left > 1 => Phase::Trial(left - 1),
            (Phase::Trial(_) | Phase::Drafting(..), _) if is_slower() => Phase::Paused,
            (Phase::Trial(_), _) => Phase::Drafting(0, 0.0),
            (Phase::Drafting(since, since_ns), _) if self.may_measure_alone(since, since_ns) => {
                Phase::Alone(ALONE_STEPS)
            }
            (Phase::Drafting(since, since_ns), _) => Phase::Drafting(since + tokens, since_ns + ns),
            (phase, _) => phase,
        };
        let pauses = self.phase == Phase::Paused;
        self.paused_steps = if pauses { self.paused_steps.wrapping_add(1) } else { 0 };
    }

    /// Learns that a step ended at `now_ns` that says nothing of speeds, because the target read
    /// text in it.
    pub(crate) fn skip(&mut self, now_ns: u64) {
        (self.last_ns, self.drafted) = (Some(now_ns), None);
    }

    fn may_try(&self, alone_ns: f64, outlook: TrialOutlook) -> bool {
        let is_affordable = if outlook.is_faster() {
            // The last trials may have had bad luck.
            self.ledger.may_try_again(alone_ns)
        } else {
            let lost_ns = match outlook.speedup_at_best <= 1.0 {
                // A hopeless trial ends after its first draft.
                true => HOPELESS * self.trial_ns.max(outlook.draft_ns - alone_ns),
                false => self.trial_ns,
            };
            self.ledger.may_try(lost_ns.max(0.0), alone_ns)
        };
        is_affordable && self.may_catch_up(outlook.catch_up_ns, alone_ns, outlook)
    }

    /// Returns whether a trial may take `ns` to read. What the estimates of a hopeless drafter say
    /// may be wrong or out of date, so it may read, too, but rarely.
    fn may_catch_up(&self, ns: f64, alone_ns: f64, outlook: TrialOutlook) -> bool {
        let speedup = outlook.speedup_at_best.max(1.0 + 1.0 / HOPELESS);
        self.ledger.may_catch_up(ns, speedup, alone_ns)
    }

    /// Returns whether to measure the target alone again, after `tokens` tokens with drafts in `ns`
    /// nanoseconds.
    fn may_measure_alone(&self, tokens: usize, ns: f64) -> bool {
        let (alone, drafting) = (self.without_drafts.token_ns(), self.with_drafts.token_ns());
        let lost_ns = alone
            .zip(drafting)
            .map(|(alone, drafting)| f64::from(ALONE_STEPS) * (alone - drafting));
        tokens >= ALONE_EVERY && lost_ns.is_some_and(|lost_ns| lost_ns <= ALONE_SHARE * ns)
    }

    fn start_trial(&mut self, outlook: TrialOutlook) -> Phase {
        self.catch_up_ns = outlook.catch_up_ns;
        // Earlier text may have been easier or harder.
        if self.trial_ns > 0.0 {
            self.with_drafts = Speed::default();
        }
        self.trial_ns = 0.0;
        Phase::Trial(TRIAL_STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `tokens` tokens. `drafting_ns(position)`: the time of a token with drafts. Alone,
    /// the target takes 1,000 ns. Returns the time, and the number of tokens with drafts.
    fn decode(
        pauses: &mut Pauses,
        tokens: usize,
        drafting_ns: impl Fn(usize) -> u64,
    ) -> (u64, usize) {
        let (mut now, mut drafted, mut position) = (0, 0, 0);
        pauses.observe(1, now, false, Some(TrialOutlook::default()));
        while position < tokens {
            let alone = !pauses.drafts();
            let count = if alone { 1 } else { 1 + position % 3 };
            now += if alone { 1_000 } else { count as u64 * drafting_ns(position) };
            position += count;
            drafted += if alone { 0 } else { count };
            pauses.observe(count, now, alone, Some(TrialOutlook::default()));
        }
        (now, drafted)
    }

    #[test]
    fn drafts_that_are_slower_cost_one_percent() {
        for drafting_ns in [1_050, 1_500, 2_000, 10_000] {
            let (ns, drafted) = decode(&mut Pauses::default(), 10_000, |_| drafting_ns);
            assert!(ns < 10_200_000, "{drafting_ns}: {ns} ns, {drafted} drafted");
            assert!(drafted > 4, "it is tried now and then: {drafted}");
        }
    }

    #[test]
    fn drafts_that_are_faster_are_used() {
        for drafting_ns in [300, 700, 950] {
            let (ns, _) = decode(&mut Pauses::default(), 10_000, |_| drafting_ns);
            assert!(ns < 10_000 * drafting_ns * 103 / 100 + 20_000, "{drafting_ns}: {ns} ns");
        }
    }

    /// Lookups find nothing, and the target takes longer while they look.
    #[test]
    fn empty_drafts_end_a_trial_at_once() {
        let mut pauses = Pauses::default();
        let (mut now, mut lookups) = (0, 0);
        pauses.observe(1, now, false, Some(TrialOutlook::default()));
        for _ in 0..10_000 {
            let looks = pauses.drafts();
            now += if looks { 1_200 } else { 1_000 };
            lookups += u32::from(looks);
            if looks {
                pauses.observe_draft(0);
            }
            pauses.observe(1, now, !looks, Some(TrialOutlook::default()));
        }
        assert!((200..400).contains(&lookups), "often, because a look costs little: {lookups}");
        assert!(now < 10_100_000, "{now}");
    }

    #[test]
    fn a_draft_that_ends_early_is_not_empty() {
        let mut pauses = Pauses::default();
        for step in 0..=u64::from(ALONE_STEPS) {
            pauses.observe(1, step * 1_000, true, Some(TrialOutlook::default()));
        }
        pauses.observe_draft(3);
        pauses.observe_draft(0);
        pauses.observe(2, 8_000, false, Some(TrialOutlook::default()));
        assert_eq!(pauses.phase, Phase::Trial(TRIAL_STEPS - 1));
    }

    /// Returns after how many tokens of the target alone a trial begins.
    fn tokens_until_trial(outlook: TrialOutlook) -> Option<u64> {
        let mut pauses = Pauses::default();
        (0..40_000).find(|step| {
            pauses.observe(1, step * 1_000, true, Some(outlook));
            pauses.drafts()
        })
    }

    #[test]
    fn a_long_prompt_delays_the_first_trial() {
        let after = |speedup_at_best, passes| {
            tokens_until_trial(TrialOutlook {
                speedup_at_best,
                catch_up_ns: passes * 1_000.0,
                draft_ns: 100.0,
                ..TrialOutlook::default()
            })
        };
        assert_eq!(after(2.0, 4.0), Some(6));
        assert_eq!(after(2.0, 20.0), Some(2_286));
        assert_eq!(after(0.9, 20.0), Some(22_286), "a hopeless drafter is tried, too, but late");
    }

    /// A trial of a hopeless drafter ends after its first draft, and loses as much as that takes
    /// longer than a pass.
    #[test]
    fn a_slow_drafter_is_first_tried_when_a_draft_of_it_is_affordable() {
        let after = |passes| {
            let outlook = TrialOutlook {
                speedup_at_best: 0.5,
                draft_ns: passes * 1_000.0,
                ..TrialOutlook::default()
            };
            tokens_until_trial(outlook)
        };
        assert_eq!([1.0, 1.4].map(after), [Some(6); 2]);
        assert_eq!([2.0, 8.0].map(after), [Some(667), Some(8_667)]);
    }

    #[test]
    fn skipped_steps_show_no_speed() {
        let mut pauses = Pauses::default();
        pauses.observe(1, 0, true, Some(TrialOutlook::default()));
        for step in 1..=4 {
            pauses.observe(1, step * 10_000 - 9_000, true, Some(TrialOutlook::default()));
            pauses.skip(step * 10_000);
        }
        assert_eq!(pauses.without_drafts.token_ns(), Some(1_000.0));
        assert_eq!(pauses.phase, Phase::Alone(2));
    }

    #[test]
    fn the_choice_follows_the_text() {
        // Every 2,000 tokens the text becomes easier or harder.
        let drafting_ns =
            |position: usize| if (position / 2_000).is_multiple_of(2) { 500 } else { 2_000 };
        let (ns, _) = decode(&mut Pauses::default(), 20_000, drafting_ns);
        // Always the better one takes 15 ms; drafts alone 25 ms.
        assert!(ns < 17_000_000, "{ns} ns");
    }

    #[test]
    fn a_new_answer_keeps_the_speeds_and_skips_its_prompt() {
        let mut pauses = Pauses::default();
        decode(&mut pauses, 1_000, |_| 500);
        assert!(pauses.drafts());
        let mut next = pauses.for_new_answer();
        next.observe(1, 1_000_000_000, false, Some(TrialOutlook::default()));
        assert!(next.drafts());
        assert_eq!(next.ledger, pauses.ledger);
    }
}
