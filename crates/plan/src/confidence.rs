//! What a drafter's confidence says about its tokens, and where a chain should stop because of it.

use crate::decaying::{CHAIN_DECAY, Share, TEST_DECAY};
use forerun_core::{CONFIDENCE_CLASSES, StopRule, class_of};

/// Learns how often tokens are accepted by the drafter's confidence, and how often chains go on.
#[derive(Clone, Debug)]
pub(crate) struct Confidence {
    /// Whether the drafter has ever said how sure it is, and the number of drafts in which it has
    /// not.
    is_known: bool,
    silent_drafts: u32,
    /// How often a token is accepted after accepted ones: by class, and of all classes.
    accepted: [Share; CONFIDENCE_CLASSES],
    accepted_of_all: Share,
    /// How often the first token of a chain is of a class.
    first: [Share; CONFIDENCE_CLASSES],
    /// The last rule.
    rule: StopRule,
    /// By the number of tokens: how often a chain goes on after them, and how often if all of them
    /// are accepted.
    goes_on: Vec<[Share; 2]>,
}

/// The number of drafts without confidences after which a drafter counts as one that does not know
/// how sure it is. A few may be those of a grammar that leaves no choice.
const SILENT_DRAFTS: u32 = 4;
/// The weight of the acceptance of all classes, in tokens of one class: a token of each.
const PRIOR_TOKENS: f64 = CONFIDENCE_CLASSES as f64;
/// The weight of what the rule says after one token, in chains of a length. Small, since lengths
/// that occur are soon known, and it is the only guess of others.
const PRIOR_CHAINS: f64 = 2.0;

impl Default for Confidence {
    fn default() -> Self {
        Self {
            is_known: false,
            silent_drafts: 0,
            accepted: [Share::new(TEST_DECAY); CONFIDENCE_CLASSES],
            accepted_of_all: Share::new(TEST_DECAY),
            first: [Share::new(TEST_DECAY); CONFIDENCE_CLASSES],
            rule: StopRule::NEVER,
            goes_on: Vec::new(),
        }
    }
}

impl Confidence {
    /// Returns whether chains can stop by the drafter's confidence, as far as is known.
    pub(crate) fn is_useful(&self) -> bool {
        self.is_known || self.silent_drafts < SILENT_DRAFTS
    }

    /// Learns from a verdict on a chain of up to `requested` tokens with these confidences. `rule`:
    /// that by which it could stop; `None` for trials, which never stop.
    pub(crate) fn observe(
        &mut self,
        (requested, rule): (usize, Option<StopRule>),
        confidences: &[f32],
        accepted: usize,
        rejected: bool,
    ) {
        let drafted = confidences.len();
        if drafted == 0 {
            self.silent_drafts = self.silent_drafts.saturating_add(1);
            return;
        }
        self.is_known = true;
        let tested = drafted.min(accepted + usize::from(rejected));
        for (position, &confidence) in confidences[..tested].iter().enumerate() {
            let part = f64::from(u8::from(position < accepted));
            self.accepted[class_of(confidence)].add(part, 1.0);
            self.accepted_of_all.add(part, 1.0);
        }
        if let Some(&confidence) = confidences.first() {
            let class = class_of(confidence);
            let shares = self.first.iter_mut().enumerate();
            shares.for_each(|(other, share)| share.add(f64::from(u8::from(other == class)), 1.0));
        }
        let Some(rule) = rule else { return };
        self.rule = rule;
        self.goes_on.resize(self.goes_on.len().max(requested), [Share::new(CHAIN_DECAY); 2]);
        // A chain may also end for other reasons: at the requested length, or at the end of the
        // answer.
        let known = if rule.goes_on(confidences) { drafted - 1 } else { drafted };
        for tokens in 1..=known.min(requested.saturating_sub(1)) {
            let part = f64::from(u8::from(tokens < drafted));
            let all_accepted = accepted >= tokens;
            let kinds = if all_accepted { 2 } else { 1 };
            self.goes_on[tokens].iter_mut().take(kinds).for_each(|share| share.add(part, 1.0));
        }
    }

    /// Returns how often chains go on.
    pub(crate) fn stops(&self) -> Stops<'_> {
        // By the last rule, after one token.
        let shares = self.first.iter().zip(&self.rule.acceptance).map(|(share, &accepted)| {
            let goes_on = f64::from(u8::from(accepted >= self.rule.least));
            let (share, accepted) = (share.value(0.0, 1e-6), f64::from(accepted) / 1_000.0);
            [share * goes_on, share * accepted * goes_on, share * accepted]
        });
        let [goes_on, both, accepted] =
            shares.fold([0.0; 3], |sum, add| std::array::from_fn(|index| sum[index] + add[index]));
        let is_first = self.rule == StopRule::NEVER;
        let after_one = match accepted > 0.0 && !is_first {
            true => [goes_on, both / accepted],
            false => [1.0; 2],
        };
        Stops { confidence: self, after_one }
    }
}

/// How often chains go on, for the closed form of a round, and where they should stop.
pub(crate) struct Stops<'a> {
    confidence: &'a Confidence,
    /// How often a chain should go on after one token, and how often if that is accepted.
    after_one: [f64; 2],
}

impl Stops<'_> {
    /// Returns how often a chain goes on after so many tokens (`kind` 0), or if all of them are
    /// accepted (1). As often as after one token, if it has not occurred.
    fn after(&self, tokens: usize, kind: usize) -> f64 {
        let known = self.confidence.goes_on.get(tokens);
        known.map_or(self.after_one[kind], |shares| {
            shares[kind].value(self.after_one[kind], PRIOR_CHAINS)
        })
    }

    /// Returns, for `n` from 0, the probability that the first `n` tokens are drafted and accepted,
    /// given the probability that they are accepted if they are drafted.
    pub(crate) fn survival(&self, survival: &[f64]) -> Vec<f64> {
        let mut drafted = 1.0;
        let with_stops = survival.iter().enumerate().map(|(tokens, accepted)| {
            if tokens > 1 {
                drafted *= self.after(tokens - 1, 1);
            }
            accepted * drafted
        });
        with_stops.collect()
    }

    /// Returns the rule by which a chain stops where a further token costs more than it is worth.
    /// `cost`: the tokens that are committed in the time of a further token elsewhere. `first`: the
    /// probability that the first token of the draft is accepted.
    pub(crate) fn rule(&self, cost: f64, first: f64) -> StopRule {
        let Confidence { accepted, accepted_of_all, .. } = self.confidence;
        let of_all = accepted_of_all.value(first, PRIOR_TOKENS);
        // The text at hand may be easier or harder than the text so far.
        let shift = odds(first) / odds(of_all);
        let now = |share: &Share| {
            let odds = odds(share.value(of_all, PRIOR_TOKENS)) * shift;
            odds / (1.0 + odds)
        };
        let acceptance = accepted.each_ref().map(|share| per_mille(now(share)));
        // The next token is worth the probability that all are accepted, times that of its own.
        StopRule { acceptance, least: per_mille(cost / first.max(0.05)) }
    }

    /// Returns the mean number of tokens of a chain of up to `longest` tokens.
    pub(crate) fn mean_length(&self, longest: usize) -> f64 {
        let mut drafted = 1.0;
        let further = (1..longest).map(|tokens| {
            drafted *= self.after(tokens, 0);
            drafted
        });
        1.0 + further.sum::<f64>()
    }

    /// Returns, for `length` from 1 to `longest`, the mean time of a round with a chain of up to
    /// `length` tokens, given the times of rounds with exactly so many.
    pub(crate) fn mean_ns(&self, longest: usize, ns: impl Fn(usize) -> f64) -> Vec<f64> {
        let (mut drafted, mut mean_ns) = (1.0, 0.0);
        let lengths = (1..=longest).map(|length| {
            if length > 1 {
                drafted *= self.after(length - 1, 0);
                mean_ns += drafted * (ns(length) - ns(length - 1));
            } else {
                mean_ns = ns(length);
            }
            mean_ns
        });
        lengths.collect()
    }
}

fn odds(probability: f64) -> f64 {
    let probability = probability.clamp(0.001, 0.999);
    probability / (1.0 - probability)
}

fn per_mille(share: f64) -> u16 {
    (share * 1_000.0).clamp(0.0, 1_000.0).round() as u16
}

#[cfg(test)]
mod tests {
    use super::Confidence;
    use crate::batch_costs::JobTime;
    use crate::{DraftLength, Round, SpeculativeDraftLength};
    use forerun_core::{DraftShape, StopRule};

    /// The confidences and acceptance of tokens, each as often as the others.
    type Tokens = [(f32, f64); 4];

    /// Costs in thousandths of a pass: those of a draft token, and of a further row.
    type Costs = (u64, u64);

    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as f64 / (1_u64 << 31) as f64
        }
    }

    const LONGEST: usize = 16;

    /// Returns the speed compared with the target alone. `rule` decides where chains of a fixed
    /// length stop. `of_hard`: the acceptance in hard stretches of the text, compared with that in
    /// easy ones.
    fn speed(
        policy: &mut SpeculativeDraftLength,
        rule: Option<StopRule>,
        tokens: &Tokens,
        (draft_ns, row_ns): Costs,
        (of_hard, seed): (f64, u64),
    ) -> f64 {
        let (mut random, mut ns, mut committed, mut now_ns) = (Random(seed), 0, 0, 0);
        for round in 0..3_000 {
            let shape = policy.next_shape();
            let stop = match (&shape, rule) {
                (DraftShape::ConfidentChain { stop, .. }, None) => *stop,
                (_, rule) => rule.unwrap_or(StopRule::NEVER),
            };
            let (mut confidences, mut accepted, mut rejected) = (Vec::new(), 0, false);
            while confidences.len() < shape.depth() && stop.goes_on(&confidences) {
                let (confidence, acceptance) = tokens[(random.uniform() * 4.0) as usize % 4];
                // Hard stretches of 50 rounds.
                let acceptance =
                    if round / 50 % 2 == 1 { acceptance * of_hard } else { acceptance };
                confidences.push(confidence);
                rejected |= random.uniform() >= acceptance;
                accepted += usize::from(!rejected);
            }
            let drafted = confidences.len();
            let draft = JobTime::alone(1_000 * draft_ns * drafted as u64);
            let score_ns = 1_000 * (1_000 + row_ns * drafted as u64);
            now_ns += draft.duration_ns + score_ns;
            let score = JobTime { finished_ns: now_ns, ..JobTime::alone(score_ns) };
            if !matches!(shape, DraftShape::ConfidentChain { .. }) {
                confidences.clear();
            }
            let requested = shape.depth() > 0;
            policy.observe(&Round {
                requested,
                drafted,
                accepted,
                rejected,
                confidences,
                draft,
                score,
                ..Round::default()
            });
            if round >= 500 {
                ns += draft.duration_ns + score_ns;
                committed += accepted as u64 + 1;
            }
        }
        (committed * 1_000_000) as f64 / ns as f64
    }

    fn automatic() -> SpeculativeDraftLength {
        let shape = DraftShape::Chain { length: LONGEST };
        SpeculativeDraftLength::new(shape, DraftLength::Auto)
    }

    /// Returns the speeds of automatic lengths with and without confidences, and of the best rule
    /// with known acceptance.
    fn speeds(tokens: &Tokens, costs: Costs, seed: u64) -> [f64; 3] {
        let (text, mut stopping) = ((1.0, seed), automatic().stopping_by_confidence());
        let with = speed(&mut stopping, None, tokens, costs, text);
        let without = speed(&mut automatic(), None, tokens, costs, text);
        let mut acceptance = [0; 8];
        for &(confidence, accepted) in tokens {
            acceptance[super::class_of(confidence)] = super::per_mille(accepted);
        }
        let best = (0..19).map(|step| {
            let least = step * 50;
            let shape = DraftShape::Chain { length: LONGEST };
            let mut fixed = SpeculativeDraftLength::new(shape, DraftLength::Fixed);
            speed(&mut fixed, Some(StopRule { acceptance, least }), tokens, costs, text)
        });
        [with, without, best.fold(1.0, f64::max)]
    }

    #[test]
    fn chains_that_end_for_other_reasons_do_not_count_as_stopped() {
        let rule = StopRule { acceptance: [900; 8], least: 100 };
        let mut confidence = Confidence::default();
        let go_on = |confidence: &Confidence, tokens| confidence.stops().after(tokens, 0);
        // At the end of an answer, of the drafter's context, or of what it can draft.
        (0..50).for_each(|_| confidence.observe((16, Some(rule)), &[0.7; 2], 2, false));
        assert!(go_on(&confidence, 1) > 0.95 && go_on(&confidence, 2) > 0.95);
        let strict = StopRule { least: 850, ..rule };
        (0..50).for_each(|_| confidence.observe((16, Some(strict)), &[0.7; 2], 2, false));
        assert!(go_on(&confidence, 1) > 0.95 && go_on(&confidence, 2) < 0.2);
        // A trial says nothing of the rule.
        let before = go_on(&confidence, 2);
        (0..50).for_each(|_| confidence.observe((2, None), &[0.7; 2], 2, false));
        assert!((go_on(&confidence, 2) - before).abs() < 1e-3);
    }

    #[test]
    fn a_drafter_without_confidences_is_known_after_a_few_drafts() {
        let observe = |confidence: &mut Confidence, confidences: &[f32], count| {
            (0..count).for_each(|_| confidence.observe((4, None), confidences, 0, true));
        };
        let mut silent = Confidence::default();
        observe(&mut silent, &[], super::SILENT_DRAFTS - 1);
        assert!(silent.is_useful());
        let mut known = silent.clone();
        observe(&mut silent, &[], 1);
        assert!(!silent.is_useful());
        observe(&mut known, &[0.5], 1);
        observe(&mut known, &[], 100);
        assert!(known.is_useful(), "a grammar may leave no choice in some drafts");
    }

    const PAIRS: [Costs; 4] = [(60, 10), (120, 30), (200, 60), (300, 100)];

    #[test]
    fn confidences_that_say_much_are_nearly_as_good_as_known_acceptance() {
        let sure: Tokens = [(0.99, 0.98), (0.95, 0.9), (0.7, 0.6), (0.3, 0.25)];
        for costs in PAIRS {
            let [with, without, best] = speeds(&sure, costs, 7);
            assert!(with > 0.97 * best, "{costs:?}: {with} of {best}");
            assert!(with > 1.03 * without, "{costs:?}: {with}, {without} without confidences");
        }
    }

    /// Confidences that say something, nothing or the opposite, in even text and in stretches.
    #[test]
    fn confidences_cost_nothing_in_random_pairs() {
        let mut gains = Vec::new();
        for seed in 0..200 {
            let mut random = Random(seed);
            let tokens: Tokens = [0.99, 0.9, 0.6, 0.3].map(|sure| (sure, random.uniform()));
            let costs =
                ((random.uniform().powi(2) * 600.0) as u64, (random.uniform() * 150.0) as u64);
            let text = (if seed % 2 == 0 { 1.0 } else { random.uniform() }, seed);
            let with = speed(&mut automatic().stopping_by_confidence(), None, &tokens, costs, text);
            let without = speed(&mut automatic(), None, &tokens, costs, text);
            let case = format!("{seed}: {with}, {without} without confidences");
            assert!(with > 0.985 && with > 0.93 * without, "{case}");
            gains.push(with / without);
        }
        // Single pairs have luck, in both runs.
        let lost = gains.iter().filter(|&&gain| gain < 0.99).count();
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        eprintln!("mean {mean:.3}, below 0.99: {lost} of {}", gains.len());
        assert!(lost <= 8 && mean > 1.01, "{lost} {mean}");
    }

    #[test]
    fn confidences_that_say_nothing_cost_nothing() {
        let mut gains = Vec::new();
        for acceptance in [0.3, 0.6, 0.8, 0.95] {
            let same: Tokens = [0.99, 0.9, 0.6, 0.3].map(|confidence| (confidence, acceptance));
            for costs in PAIRS {
                let [with, without, _] = speeds(&same, costs, 7);
                let case =
                    format!("{acceptance}, {costs:?}: {with}, {without} without confidences");
                assert!(with > 0.98 * without, "{case}");
                gains.push(with / without);
            }
        }
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        assert!(mean > 0.997, "{mean}");
    }
}
