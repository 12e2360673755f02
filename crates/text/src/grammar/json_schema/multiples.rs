//! Multiples of a number, written digit by digit: a rule knows the remainder of the digits before
//! it.

use super::decimal::Decimal;
use super::rules::{Rule, Rules, Symbol};
use std::cmp::Ordering;
use std::collections::HashMap;

/// So many multiples between two bounds are written one by one.
const MOST_LISTED: i128 = 1_000;

/// The most rules for the digits of a number.
const MOST_STATES: usize = 5_000;

/// The multiples of `step` · 10^−`places`.
#[derive(Clone, Copy)]
pub(super) struct Multiples {
    pub(super) step: i128,
    pub(super) places: usize,
    /// The least and the most, in steps.
    pub(super) first: Option<i128>,
    pub(super) last: Option<i128>,
}

impl Multiples {
    /// Allows the multiples as texts of `rule`.
    ///
    /// # Errors
    /// If there are too many different remainders.
    pub(super) fn allow(self, rules: &mut Rules, rule: Rule) -> Result<(), String> {
        let Self { step, places, first, last } = self;
        if let (Some(first), Some(last)) = (first, last)
            && last - first < MOST_LISTED
        {
            for number in first..=last {
                let text = Decimal::from_scaled(number * step, places).to_string();
                let text = rules.text(&text);
                rules.allow(rule, vec![text]);
            }
            return Ok(());
        }
        // Numbers without a sign, and then those with one.
        if last.is_none_or(|last| last >= 0) {
            let start = Digits::new(self, first.unwrap_or(0).max(0), last).start(rules)?;
            rules.allow(rule, vec![Symbol::Rule(start), Symbol::Space]);
        }
        if first.is_none_or(|first| first < 0) {
            let least = last.map_or(1, |last| (-last).max(1));
            let start = Digits::new(self, least, first.map(|first| -first)).start(rules)?;
            let sign = rules.character("-");
            rules.allow(rule, vec![sign, Symbol::Rule(start), Symbol::Space]);
        }
        Ok(())
    }
}

/// Writes multiples of at least and at most so much.
struct Digits {
    step: i128,
    places: usize,
    least: Option<Digited>,
    most: Option<Digited>,
    known: HashMap<State, Rule>,
    waiting: Vec<State>,
}

/// The digits of a bound, of which the last `places` stand after the point.
struct Digited {
    digits: Vec<u8>,
    whole: usize,
}

/// What the digits so far mean for those that follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// The number of digits before the point. Above what bounds have, it is not counted.
    whole: usize,
    /// The number of digits after the point, if there is one.
    fraction: Option<usize>,
    remainder: i128,
    /// How the digits compare with as many of each bound.
    least: Ordering,
    most: Ordering,
    is_zero: bool,
}

impl Digits {
    fn new(Multiples { step, places, .. }: Multiples, least: i128, most: Option<i128>) -> Self {
        let digited = |steps: i128| {
            let digits = format!("{:0>width$}", steps * step, width = places + 1).into_bytes();
            let whole = digits.len() - places;
            Digited { digits, whole }
        };
        let least = (least > 0).then(|| digited(least));
        let (known, waiting) = (HashMap::new(), Vec::new());
        Self { step, places, least, most: most.map(digited), known, waiting }
    }

    fn start(&mut self, rules: &mut Rules) -> Result<Rule, String> {
        let (least, most) = (Ordering::Equal, Ordering::Equal);
        let start = State { whole: 0, fraction: None, remainder: 0, least, most, is_zero: false };
        let rule = self.rule(start, rules)?;
        while let Some(state) = self.waiting.pop() {
            let rule = self.rule(state, rules)?;
            self.expand(state, rule, rules)?;
        }
        Ok(rule)
    }

    fn rule(&mut self, state: State, rules: &mut Rules) -> Result<Rule, String> {
        if let Some(&rule) = self.known.get(&state) {
            return Ok(rule);
        }
        if self.known.len() == MOST_STATES {
            return Err("its `multipleOf` has too many remainders: use a smaller number, or bounds with at most \
                        1000 multiples between them"
                .into());
        }
        let rule = rules.add()?;
        self.known.insert(state, rule);
        self.waiting.push(state);
        Ok(rule)
    }

    fn expand(&mut self, state: State, rule: Rule, rules: &mut Rules) -> Result<(), String> {
        if self.may_end(state) {
            rules.allow(rule, Vec::new());
        }
        if state.whole > 0 && state.fraction.is_none() && self.places > 0 {
            let next = self.rule(State { fraction: Some(0), ..state }, rules)?;
            let point = rules.character(".");
            rules.allow(rule, vec![point, Symbol::Rule(next)]);
        }
        let is_full = match state.fraction {
            Some(digits) => digits == self.places,
            None => state.is_zero,
        };
        for digit in (0..10).filter(|_| !is_full) {
            let Some(next) = self.next(state, digit) else { continue };
            let next = self.rule(next, rules)?;
            let digit = rules.character(&digit.to_string());
            rules.allow(rule, vec![digit, Symbol::Rule(next)]);
        }
        Ok(())
    }

    fn next(&self, state: State, digit: u8) -> Option<State> {
        let mut next = state;
        next.remainder = (state.remainder * 10 + i128::from(digit)) % self.step;
        next.is_zero = state.whole == 0 && digit == 0;
        let at = match state.fraction {
            None => state.whole,
            Some(digits) => state.whole + digits,
        };
        for (bound, order) in [(&self.least, &mut next.least), (&self.most, &mut next.most)] {
            let Some(bound) = bound else { continue };
            let is_aligned = state.fraction.is_none() || state.whole == bound.whole;
            if order.is_eq() && is_aligned {
                *order = match bound.digits.get(at) {
                    Some(other) => (digit + b'0').cmp(other),
                    None => Ordering::Greater,
                };
            }
        }
        if state.fraction.is_some() {
            next.fraction = state.fraction.map(|digits| digits + 1);
            return Some(next);
        }
        let longest =
            self.least.iter().chain(&self.most).map(|bound| bound.whole).max().unwrap_or(0);
        next.whole = (state.whole + 1).min(longest + 1);
        if next.whole > longest {
            (next.least, next.most) = (Ordering::Greater, Ordering::Greater);
        }
        let is_too_long = self.most.as_ref().is_some_and(|most| next.whole > most.whole);
        (!is_too_long).then_some(next)
    }

    /// Returns whether the number may be complete: the digits that are missing are zeros.
    fn may_end(&self, state: State) -> bool {
        let missing = match state.fraction {
            _ if state.whole == 0 => return false,
            Some(0) => return false,
            Some(digits) => self.places - digits,
            None => self.places,
        };
        let compare = |bound: &Digited, order: Ordering| {
            let lengths = state.whole.cmp(&bound.whole);
            let rest = &bound.digits[bound.digits.len() - missing.min(bound.digits.len())..];
            let zeros = match rest.iter().all(|digit| *digit == b'0') {
                true => Ordering::Equal,
                false => Ordering::Less,
            };
            lengths.then(order).then(zeros)
        };
        let is_enough = self.least.as_ref().is_none_or(|least| compare(least, state.least).is_ge());
        let is_too_much = self.most.as_ref().is_some_and(|most| compare(most, state.most).is_gt());
        let remainder =
            (0..missing).fold(state.remainder, |remainder, _| remainder * 10 % self.step);
        is_enough && !is_too_much && remainder == 0
    }
}
