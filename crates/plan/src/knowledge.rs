//! What one method learns of devices and text, for the use of another.

use crate::DraftLength;
use crate::acceptance::Acceptance;
use crate::cost_curve::CostCurve;
use crate::estimates::BatchCosts;

/// What a method has learned of the devices and of the text. Another method can predict its own
/// speed from it, and start with it.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    /// The acceptance of the drafter's tokens; `None` if it is not known.
    pub(crate) acceptance: Option<Acceptance>,
    pub(crate) score_costs: BatchCosts,
    /// The time of a pass over one row while nothing is drafted, in nanoseconds.
    pub(crate) plain_ns: Option<f64>,
    /// The time of such a pass while the drafter works, in times of a pass while it does not. It is
    /// above 1 if idle cores of the drafter help the target.
    pub(crate) slowdown: Option<f64>,
    /// The time between passes over one row in which nothing is computed, in nanoseconds.
    pub(crate) waited_ns: Option<f64>,
    /// The time that further rows add to such a pass, by their number.
    pub(crate) rows: CostCurve,
    pub(crate) draft_costs: BatchCosts,
    /// The time of one forward of the drafter, in nanoseconds.
    pub(crate) forward_ns: Option<f64>,
    /// The time in which the drafter reads a token that it missed, in nanoseconds.
    pub(crate) catch_up_ns: Option<f64>,
    /// The number of committed tokens that the drafter has not read.
    pub(crate) unread_tokens: usize,
}

impl Knowledge {
    /// Returns what a method with another drafter can use of it: what it says of the target.
    /// `unread_tokens`: the number of committed tokens that the other drafter has not read.
    /// `forgets_acceptance`: whether that method also forgets its own acceptance, which is about
    /// text that is long past.
    #[must_use]
    pub fn for_other_drafter(&self, unread_tokens: usize, forgets_acceptance: bool) -> Self {
        Self {
            acceptance: forgets_acceptance.then(Acceptance::default),
            slowdown: None,
            draft_costs: BatchCosts::default(),
            forward_ns: None,
            catch_up_ns: None,
            unread_tokens,
            ..self.clone()
        }
    }

    /// Returns what a method can use of it that has the same drafter on another device, where the
    /// drafter has not read `unread_tokens` committed tokens. Times of drafts are estimates there
    /// until they are measured.
    #[must_use]
    pub fn for_other_device(&self, unread_tokens: usize) -> Self {
        Self { unread_tokens, ..self.clone() }
    }

    /// Returns the nanoseconds in which a drafter that was never measured is expected to read so
    /// many tokens, if its forward takes so many passes of the target; 0 if nothing is known of the
    /// target.
    #[must_use]
    pub fn reading_ns(&self, tokens: usize, passes: f64) -> f64 {
        tokens as f64 * READING_SHARE * passes * self.plain_ns.unwrap_or(0.0)
    }

    /// Returns the number of committed tokens that the drafter has not read.
    #[must_use]
    pub fn unread_tokens(&self) -> usize {
        self.unread_tokens
    }
}

/// What a method expects of its next tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The time of a token, in nanoseconds.
    pub token_ns: f64,
    /// Whether drafts are expected to be faster than the target alone. If not, the method would
    /// decode with the target alone, as the others do while they pause, and `token_ns` is the
    /// target's.
    pub drafts: bool,
    /// The time of a token of the target alone, in nanoseconds.
    pub alone_ns: f64,
    /// The time to read what other methods have committed, in nanoseconds, before it works at its
    /// usual speed.
    pub start_ns: f64,
    /// The time of a token meanwhile; infinite if the target waits.
    pub starting_ns: f64,
    /// Whether it pauses by itself while drafts are not faster than the target alone. With a fixed
    /// number of draft tokens, it does not.
    pub can_pause: bool,
}

impl Forecast {
    /// Creates a forecast with drafts if they are faster than the target alone or, with a length
    /// that is not automatic, in any case. `speed`: the tokens per nanosecond with drafts.
    pub(crate) fn new(length: DraftLength, speed: f64, alone_ns: f64, start_ns: f64) -> Self {
        let can_pause = length == DraftLength::Auto;
        let drafts = !can_pause || speed * alone_ns > LEAST_GAIN;
        let token_ns = if drafts { 1.0 / speed } else { alone_ns };
        Self { token_ns, drafts, alone_ns, start_ns, starting_ns: f64::INFINITY, can_pause }
    }

    /// Returns the same of a method whose target goes on while its drafter and its replicas read,
    /// in `token_ns` nanoseconds for a token.
    pub(crate) fn starting_at(self, token_ns: f64) -> Self {
        Self { starting_ns: token_ns, ..self }
    }
}

/// What remains of a slowdown beyond 1 after a forecast while another method is used.
const KEPT_SLOWDOWN: f64 = 0.997;

/// Returns a slowdown after a forecast while another method is used. It was measured in few passes,
/// and other load may have been its cause, so it fades, and is measured again after a long time.
pub(crate) fn faded(slowdown: f64) -> f64 {
    1.0 + KEPT_SLOWDOWN * (slowdown - 1.0)
}

/// The factor by which drafts must be faster.
const LEAST_GAIN: f64 = 1.005;
/// The time in which a drafter or a target reads a token, as a share of a pass over one row, if it
/// was not measured.
pub(crate) const READING_SHARE: f64 = 0.03;
/// The number of tokens, at least, that a drafter reads after a pause if that shows the time of
/// each. With fewer, the first draft after a round without one takes longer for other reasons, such
/// as cold caches.
pub(crate) const READ_TOKENS: usize = 8;

#[cfg(test)]
impl Knowledge {
    /// Returns knowledge of a target that takes `plain_ns` for a pass, and of a drafter that takes
    /// a tenth of it for a token and has not read 40 tokens.
    pub(crate) fn of_target(plain_ns: f64) -> Self {
        let mut rows = CostCurve::default();
        rows.adopt([(1, 0.01 * plain_ns), (8, 0.08 * plain_ns)].into_iter());
        Self {
            acceptance: Some(Acceptance::default()),
            score_costs: BatchCosts::default(),
            plain_ns: Some(plain_ns),
            slowdown: None,
            waited_ns: Some(0.02 * plain_ns),
            rows,
            draft_costs: BatchCosts::default(),
            forward_ns: Some(0.1 * plain_ns),
            catch_up_ns: Some(0.001 * plain_ns),
            unread_tokens: 40,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::estimates::JobTime;
    use crate::{DsiLookahead, JobObserver, PearlDraftLength, Policy, SpeculativeDraftLength};
    use forerun_core::DraftShape;

    /// Returns policies that have adopted the knowledge of targets with these times, one after
    /// another.
    fn adopted(times: &[f64]) -> (SpeculativeDraftLength, PearlDraftLength, DsiLookahead) {
        let shape = DraftShape::Chain { length: 8 };
        let mut speculative = SpeculativeDraftLength::new(shape, DraftLength::Auto);
        let mut pearl = PearlDraftLength::new(8, DraftLength::Auto, true);
        let mut dsi = DsiLookahead::new(8, DraftLength::Auto, 1);
        for &ns in times {
            let known = Knowledge::of_target(ns);
            speculative.adopt(&known);
            pearl.adopt(&known);
            dsi.adopt(&known);
        }
        (speculative, pearl, dsi)
    }

    fn forecasts(times: &[f64]) -> [Forecast; 3] {
        let (speculative, pearl, dsi) = adopted(times);
        [speculative.forecast(0), pearl.forecast(0), dsi.forecast(0)].map(Option::unwrap)
    }

    #[test]
    fn forecasts_follow_times_that_drift_after_the_first_sample() {
        assert_eq!(forecasts(&[9e6, 1e6]), forecasts(&[1e6]), "the first pass was cold");
        let slower = forecasts(&[1e6, 2e6]).map(|forecast| forecast.token_ns);
        let before = forecasts(&[1e6]).map(|forecast| forecast.token_ns);
        for (slower, before) in slower.iter().zip(before) {
            assert!((slower / before - 2.0).abs() < 0.01, "{slower} {before}");
        }
    }

    /// With a fixed length, what is drafted does not follow the estimates, and drafts go on while
    /// they are slower.
    #[test]
    fn forecasts_of_fixed_lengths_are_about_these_lengths() {
        let forecasts = |length, mode, rejects: bool| {
            let shape = DraftShape::Chain { length };
            let forward_ns = Some(if rejects { 3e6 } else { 1e5 });
            let mut known = Knowledge { forward_ns, ..Knowledge::of_target(1e6) };
            let mut acceptance = Acceptance::default();
            (0..50).for_each(|_| acceptance.observe(0, usize::from(!rejects), true));
            known.acceptance = Some(acceptance);
            let mut speculative = SpeculativeDraftLength::new(shape, mode);
            let mut pearl = PearlDraftLength::new(length, mode, true);
            let mut dsi = DsiLookahead::new(length, mode, 1);
            speculative.adopt(&known);
            pearl.adopt(&known);
            dsi.adopt(&known);
            [speculative.forecast(0), pearl.forecast(0), dsi.forecast(0)].map(Option::unwrap)
        };
        let drafts = |forecasts: [Forecast; 3]| forecasts.map(|forecast| forecast.drafts);
        assert_eq!(drafts(forecasts(16, DraftLength::Auto, true)), [false; 3]);
        assert_eq!(drafts(forecasts(16, DraftLength::Fixed, true)), [true; 3]);
        for forecast in forecasts(16, DraftLength::Fixed, true) {
            assert!(forecast.token_ns > forecast.alone_ns, "{forecast:?}");
        }
        // The first token is always right, the second one never.
        let [one, many] = [1, 16].map(|length| forecasts(length, DraftLength::Fixed, false)[0]);
        assert!(one.token_ns < many.token_ns, "{one:?} {many:?}");
    }

    #[test]
    fn the_latest_time_of_the_target_alone_counts() {
        let (_, mut pearl, mut dsi) = adopted(&[1e6]);
        for _ in 0..50 {
            pearl.observe_score(1, &JobTime::alone(1_000_000), false);
            dsi.observe_score(1, &JobTime::alone(1_000_000), false);
        }
        // Meanwhile other programs have taken cores.
        pearl.adopt(&Knowledge::of_target(9e6));
        dsi.adopt(&Knowledge::of_target(9e6));
        assert_eq!(
            [pearl.knowledge(), dsi.knowledge()].map(|known| known.plain_ns),
            [Some(9e6); 2]
        );
    }

    /// Idle cores of the drafter help the target, so passes take twice as long while it drafts.
    #[test]
    fn what_drafting_costs_the_target_is_measured_once_for_all() {
        let (_, mut pearl, mut dsi) = adopted(&[1e6]);
        let (ideal_pearl, ideal_dsi) = (pearl.forecast(0).unwrap(), dsi.forecast(0).unwrap());
        let known = Knowledge::of_target(1e6);
        pearl.start(&known, 0.0);
        (0..2).for_each(|_| pearl.observe_score(1, &JobTime::alone(2_000_000), true));
        let known = pearl.knowledge();
        assert_eq!(known.slowdown.map(|slowdown| (10.0 * slowdown).round()), Some(20.0));
        dsi.adopt(&known);
        let (pearl_ns, dsi_ns) =
            (pearl.forecast(0).unwrap().token_ns, dsi.forecast(0).unwrap().token_ns);
        assert!(pearl_ns > 1.4 * ideal_pearl.token_ns, "{pearl_ns} {ideal_pearl:?}");
        assert!(dsi_ns > 1.4 * ideal_dsi.token_ns, "{dsi_ns} {ideal_dsi:?}");
        // Others know nothing of it, and take other rows for granted. It fades slowly.
        for _ in 0..10 {
            pearl.adopt(&Knowledge::of_target(1e6));
            dsi.adopt(&Knowledge::of_target(1e6));
        }
        assert!((pearl.forecast(0).unwrap().token_ns / pearl_ns - 1.0).abs() < 0.02);
        assert!((dsi.forecast(0).unwrap().token_ns / dsi_ns - 1.0).abs() < 0.02);
        // If the machine becomes twice as fast, it does so for both kinds of passes.
        pearl.adopt(&Knowledge::of_target(0.5e6));
        let faster_ns = pearl.forecast(0).unwrap().token_ns;
        assert!((1.5..2.05).contains(&(pearl_ns / faster_ns)), "{pearl_ns} {faster_ns}");
        // After 1,000 forecasts, in 4,000 steps of a long turn, it is worth another trial.
        (0..1_000).for_each(|_| pearl.adopt(&Knowledge::of_target(1e6)));
        assert!(pearl.forecast(0).unwrap().token_ns < 1.1 * ideal_pearl.token_ns);
    }

    #[test]
    fn a_cold_first_pass_is_corrected_by_passes_that_cost_more() {
        let (_, mut pearl, mut dsi) = adopted(&[9e6]);
        pearl.start(&Knowledge::of_target(9e6), 0.0);
        dsi.start(&Knowledge::of_target(9e6), 0.0);
        for _ in 0..20 {
            pearl.observe_score(1, &JobTime::alone(1_000_000), true);
            dsi.observe_score(2, &JobTime::alone(1_000_000), true);
        }
        for known in [pearl.knowledge(), dsi.knowledge()] {
            assert!(known.plain_ns.unwrap() < 1.8e6, "{:?}", known.plain_ns);
        }
    }

    /// A job of DSI shows more rows than one, and the times of others must not hide what it has
    /// measured.
    #[test]
    fn adopted_rows_cost_more_while_drafting_too() {
        let (_, _, mut dsi) = adopted(&[1e6]);
        dsi.start(&Knowledge::of_target(1e6), 0.0);
        (0..3).for_each(|_| dsi.observe_score(1, &JobTime::alone(2_000_000), true));
        let known = dsi.knowledge();
        assert_eq!(known.slowdown.map(f64::round), Some(2.0));
        let rows: Vec<_> = known.rows.times().collect();
        assert_eq!(rows, Knowledge::of_target(1e6).rows.times().collect::<Vec<_>>(), "of others");
        let before = dsi.forecast(0).unwrap().token_ns;
        dsi.adopt(&Knowledge::of_target(1e6));
        let after = dsi.forecast(0).unwrap().token_ns;
        assert!(after >= 0.98 * before, "{before} {after}");
    }

    #[test]
    fn the_time_between_passes_is_passed_on() {
        let (speculative, pearl, dsi) = adopted(&[1e6]);
        for known in [speculative.knowledge(), pearl.knowledge(), dsi.knowledge()] {
            assert_eq!((known.plain_ns, known.waited_ns), (Some(1e6), Some(2e4)));
        }
        // Without drafts that pay, all expect the same of the target.
        let slow = Knowledge { forward_ns: Some(9e6), ..Knowledge::of_target(1e6) };
        let (mut speculative, mut pearl, mut dsi) = adopted(&[1e6]);
        speculative.adopt(&slow);
        pearl.adopt(&slow);
        dsi.adopt(&slow);
        for forecast in [speculative.forecast(0), pearl.forecast(0), dsi.forecast(0)] {
            let forecast = forecast.unwrap();
            assert_eq!((forecast.drafts, forecast.token_ns), (false, 1.02e6));
        }
    }

    #[test]
    fn a_drafter_that_has_not_begun_has_not_read_the_prompt() {
        let (speculative, pearl, dsi) = adopted(&[1e6]);
        let (mut pearl, mut dsi) = (pearl.for_new_answer(500), dsi.for_new_answer(500));
        pearl.observe_round(1, 0, true);
        dsi.observe_round(1, 0, true);
        let speculative = speculative.for_new_answer(500).knowledge().unread_tokens;
        let (pearl, dsi) = (pearl.knowledge().unread_tokens, dsi.knowledge().unread_tokens);
        assert_eq!((speculative, pearl, dsi), (500, 501, 501));
    }

    #[test]
    fn a_method_starts_with_what_another_one_knew() {
        let (_, mut pearl, mut dsi) = adopted(&[1e6]);
        assert_eq!((pearl.next_length(), dsi.drafts()), (3, false), "before the prompt");
        pearl.start(&Knowledge::of_target(1e6), 0.0);
        dsi.start(&Knowledge::of_target(1e6), 0.0);
        assert!(pearl.next_length() > 0 && dsi.drafts());
        assert_eq!(dsi.knowledge().unread_tokens, 40);
        pearl.observe_draft(3, &JobTime::alone(400_000));
        assert_eq!(pearl.knowledge().unread_tokens, 0);
    }
}
