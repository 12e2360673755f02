//! Numbers: what the schemas of a conjunction say about them.

use super::compiler::Compiler;
use super::decimal::{Bound, Decimal, range};
use super::document::{Kind, Part, at};
use super::multiples::Multiples;
use super::rules::{Rule, Rules, Terminal};
use super::strings;
use serde_json::{Map, Value};

impl Compiler<'_> {
    /// Allows the numbers of a conjunction.
    pub(super) fn numbers(
        &mut self,
        all: &[Part],
        integer: bool,
        rule: Rule,
    ) -> Result<(), String> {
        let mut bounds = Bounds::default();
        for &part in all {
            match self.document.kind(part) {
                Kind::Schema(schema) => {
                    let added = bounds.add(schema);
                    added.map_err(|reason| at(self.document.place(part), &reason))?;
                }
                Kind::Const(Value::Number(number)) => bounds.require(&Decimal::new(number)),
                _ => {}
            }
        }
        let place = self.first_place(all, "multipleOf").to_owned();
        let allowed = bounds.allow(integer, &mut self.rules, rule);
        allowed.map_err(|reason| at(&place, &reason))
    }
}

/// What schemas say about numbers.
#[derive(Default)]
struct Bounds {
    lower: Option<Bound>,
    upper: Option<Bound>,
    multiples: Vec<Decimal>,
}

impl Bounds {
    fn add(&mut self, schema: &Map<String, Value>) -> Result<(), String> {
        let number = |keyword: &str| match schema.get(keyword) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(Decimal::new(number))),
            // In draft 4, it says whether the bound itself is excluded.
            Some(Value::Bool(_)) if keyword.starts_with("exclusive") => Ok(None),
            Some(other) => Err(format!("`{keyword}` must be a number, not {other}")),
        };
        let is_true = |keyword: &str| schema.get(keyword) == Some(&Value::Bool(true));
        let bound = |value: Option<Decimal>, inclusive| Some(Bound { value: value?, inclusive });
        let lower = [
            bound(number("minimum")?, !is_true("exclusiveMinimum")),
            bound(number("exclusiveMinimum")?, false),
        ];
        let upper = [
            bound(number("maximum")?, !is_true("exclusiveMaximum")),
            bound(number("exclusiveMaximum")?, false),
        ];
        lower.into_iter().flatten().for_each(|bound| self.add_lower(bound));
        upper.into_iter().flatten().for_each(|bound| self.add_upper(bound));
        if let Some(multiple) = number("multipleOf")? {
            self.multiples.push(multiple);
        }
        Ok(())
    }

    fn require(&mut self, value: &Decimal) {
        self.add_lower(Bound { value: value.clone(), inclusive: true });
        self.add_upper(Bound { value: value.clone(), inclusive: true });
    }

    fn add_lower(&mut self, bound: Bound) {
        if self.lower.as_ref().is_none_or(|lower| bound.is_above(lower)) {
            self.lower = Some(bound);
        }
    }

    fn add_upper(&mut self, bound: Bound) {
        if self.upper.as_ref().is_none_or(|upper| bound.is_below(upper)) {
            self.upper = Some(bound);
        }
    }

    /// Allows the numbers as texts of `rule`.
    fn allow(&self, integer: bool, rules: &mut Rules, rule: Rule) -> Result<(), String> {
        let round = |bound: &Option<Bound>, lower| match integer {
            true => bound.as_ref().map(|bound| bound.to_integer(lower)),
            false => bound.clone(),
        };
        let (lower, upper) = (round(&self.lower, true), round(&self.upper, false));
        let multiple = self.multiple(integer)?;
        let step_digits = multiple.map_or(0, |(step, _)| step.to_string().len());
        let all = range(lower.as_ref(), upper.as_ref(), integer, step_digits);
        let Some(mut all) = all else { return Ok(()) };
        if let Some((step, places)) = multiple {
            let zeros = step_digits - 1;
            if step != 10_i128.pow(zeros as u32) || (places == 0) != integer {
                let multiples = self.multiples(step, places, lower.as_ref(), upper.as_ref())?;
                return multiples.allow(rules, rule);
            }
            all.push(match places {
                0 => format!("0|-?[1-9][0-9]*0{{{zeros}}}"),
                _ => format!(r"-?[0-9]+(?:\.[0-9]{{1,{places}}})?"),
            });
            if strings::is_empty(&all, &[])? {
                return Ok(());
            }
        }
        let terminal = rules.terminal(Terminal::Regex(all, Vec::new()));
        rules.allow(rule, vec![terminal]);
        Ok(())
    }

    /// Returns the multiples of a number within bounds.
    fn multiples(
        &self,
        step: i128,
        places: usize,
        lower: Option<&Bound>,
        upper: Option<&Bound>,
    ) -> Result<Multiples, String> {
        let bounds = lower.into_iter().chain(upper);
        let finest = bounds.map(|bound| bound.value.places()).max().unwrap_or(0).max(places);
        let fine_step = step * 10_i128.pow((finest - places) as u32);
        let steps = |bound: Option<&Bound>, sign: i128| match bound {
            None => Ok(None),
            Some(bound) => {
                let value = bound.value.scaled(finest);
                let value =
                    value.ok_or("bounds next to `multipleOf` may have at most 18 digits")?;
                let value = sign * value + i128::from(!bound.inclusive);
                Ok::<_, String>(Some(sign * -(-value).div_euclid(fine_step)))
            }
        };
        Ok(Multiples { step, places, first: steps(lower, 1)?, last: steps(upper, -1)? })
    }

    /// Returns the number that all numbers are multiples of, and the place of its last digit.
    fn multiple(&self, integer: bool) -> Result<Option<(i128, usize)>, String> {
        let mut places = self.multiples.iter().map(Decimal::places).max().unwrap_or(0);
        let mut common = 1;
        if self.multiples.is_empty() {
            return Ok(None);
        }
        if places > 6 {
            return Err("`multipleOf` may have at most 6 digits after the point".into());
        }
        if integer {
            common = 10_i128.pow(places as u32);
        }
        for multiple in &self.multiples {
            let scaled = multiple.scaled(places).map(i128::abs);
            let scaled = scaled.filter(|value| *value > 0);
            let scaled =
                scaled.ok_or("`multipleOf` must be a positive number of at most 18 digits")?;
            let (mut a, mut b) = (common, scaled);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            common = (common / a)
                .checked_mul(scaled)
                .ok_or("its `multipleOf` are too large together")?;
        }
        while places > 0 && common % 10 == 0 {
            (common, places) = (common / 10, places - 1);
        }
        let is_any = integer && places == 0 && common == 1;
        Ok((!is_any).then_some((common, places)))
    }
}
