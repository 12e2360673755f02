//! Numbers of a schema, exactly, and the regular expressions of their ranges.

use serde_json::Number;
use std::cmp::Ordering;

/// Bounds are compared digit by digit up to this many digits. Numbers that agree with a bound in
/// all of them are left out, so that what is allowed is always within the bound.
const COMPARED: usize = 40;

/// The most digits before the point, and the most after it, where no bound needs more: those of
/// llama.cpp. A model could write digits for ever, and readers keep about so many.
const DIGITS: usize = 16;

/// A decimal number of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    /// Never for zero.
    negative: bool,
    /// The digits before the point, without leading zeros, but at least one.
    whole: String,
    /// The digits after the point, without trailing zeros.
    fraction: String,
}

/// A bound of a range.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) value: Decimal,
    pub(super) inclusive: bool,
}

impl Decimal {
    /// Reads a number as it is written: `1e2` is 100.
    pub(super) fn new(number: &Number) -> Self {
        let text = number.to_string();
        let (negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, &*text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: isize = exponent.trim_start_matches('+').parse().unwrap_or(0);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = format!("{whole}{fraction}");
        let mut point = whole.len() as isize + exponent;
        if point < 1 {
            digits.insert_str(0, &"0".repeat((1 - point) as usize));
            point = 1;
        }
        let point = point as usize;
        if digits.len() < point {
            digits.push_str(&"0".repeat(point - digits.len()));
        }
        let (whole, fraction) = digits.split_at(point);
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole };
        let fraction = fraction.trim_end_matches('0');
        let negative = negative && !(whole == "0" && fraction.is_empty());
        Self { negative, whole: whole.to_owned(), fraction: fraction.to_owned() }
    }

    pub(super) fn is_integer(&self) -> bool {
        self.fraction.is_empty()
    }

    /// Returns the number as an integer after moving the point `places` to the right, if it is one
    /// of at most 18 digits.
    pub(super) fn scaled(&self, places: usize) -> Option<i128> {
        if self.fraction.len() > places || self.whole.len() + places > 18 {
            return None;
        }
        let digits = format!("{}{:0<places$}", self.whole, self.fraction);
        let number: i128 = digits.parse().ok()?;
        Some(if self.negative { -number } else { number })
    }

    /// Returns the number with this many digits after the point.
    pub(super) fn from_scaled(number: i128, places: usize) -> Self {
        let digits = format!("{:0>width$}", number.unsigned_abs(), width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let fraction = fraction.trim_end_matches('0').to_owned();
        Self { negative: number < 0, whole: whole.to_owned(), fraction }
    }

    /// Returns how many digits there are after the point.
    pub(super) fn places(&self) -> usize {
        self.fraction.len()
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        let lengths = self.whole.len().cmp(&other.whole.len());
        let wholes = lengths.then_with(|| self.whole.cmp(&other.whole));
        // Without trailing zeros, fractions are in the order of their texts.
        wholes.then_with(|| self.fraction.cmp(&other.fraction))
    }

    /// Returns the nearest integer in the direction of `up`, or the number itself.
    fn rounded(&self, up: bool) -> Self {
        if self.is_integer() {
            return self.clone();
        }
        let mut whole = self.whole.clone();
        if self.negative != up {
            whole = incremented(&whole);
        }
        let negative = self.negative && whole != "0";
        Self { negative, whole, fraction: String::new() }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.compare_magnitude(other),
            (true, true) => other.compare_magnitude(self),
        }
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, point) =
            (if self.negative { "-" } else { "" }, if self.is_integer() { "" } else { "." });
        write!(formatter, "{sign}{}{point}{}", self.whole, self.fraction)
    }
}

/// Adds one to the digits of an integer.
fn incremented(whole: &str) -> String {
    let kept = whole.trim_end_matches('9');
    let zeros = "0".repeat(whole.len() - kept.len());
    match kept.split_at_checked(kept.len().wrapping_sub(1)) {
        Some((head, last)) if !last.is_empty() => {
            let next = char::from(last.as_bytes()[0] + 1);
            format!("{head}{next}{zeros}")
        }
        _ => format!("1{zeros}"),
    }
}

impl Bound {
    /// Returns whether `self` is the stricter lower bound.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self.value.cmp(&other.value).then(other.inclusive.cmp(&self.inclusive)).is_gt()
    }

    /// Returns whether `self` is the stricter upper bound.
    pub(super) fn is_below(&self, other: &Self) -> bool {
        self.value.cmp(&other.value).then(self.inclusive.cmp(&other.inclusive)).is_lt()
    }

    /// Returns the same bound for integers. `lower`: it is a lower bound.
    pub(super) fn to_integer(&self, lower: bool) -> Self {
        let inclusive = self.inclusive || !self.value.is_integer();
        Self { value: self.value.rounded(lower), inclusive }
    }
}

/// Returns the regular expressions of the numbers in a range: a number matches all of them. `None`:
/// there is no number. In a direction without a bound, numbers end after [`DIGITS`], or after as
/// many as a multiple of a number with `step_digits` needs.
pub(super) fn range(
    lower: Option<&Bound>,
    upper: Option<&Bound>,
    integer: bool,
    step_digits: usize,
) -> Option<Vec<String>> {
    if let (Some(lower), Some(upper)) = (lower, upper) {
        match lower.value.cmp(&upper.value) {
            Ordering::Greater => return None,
            Ordering::Equal if !(lower.inclusive && upper.inclusive) => return None,
            Ordering::Equal => return Some(vec![literal(&lower.value)]),
            Ordering::Less => {}
        }
        if integer && !has_integer_between(lower, upper) {
            return None;
        }
    }
    let above = most_digits(upper, lower.filter(|bound| !bound.value.negative), step_digits);
    let below = most_digits(lower, upper.filter(|bound| bound.value.negative), step_digits);
    let mut all = match (integer, lower.is_some() || upper.is_some()) {
        (true, _) => {
            vec![format!("0|[1-9][0-9]{{0,{}}}|-[1-9][0-9]{{0,{}}}", above - 1, below - 1)]
        }
        (false, false) => vec![format!(
            r"-?(?:0|[1-9][0-9]{{0,{}}})(?:\.[0-9]{{1,{DIGITS}}})?(?:[eE][+\-]?[0-9]{{1,2}})?",
            above - 1
        )],
        // Without exponents, which cannot be compared with a bound digit by digit, and without -0.
        (false, true) => {
            let bounds = lower.into_iter().chain(upper);
            let places = bounds.map(|bound| bound.value.places() + 1).fold(DIGITS, usize::max);
            let fraction = format!(r"(?:\.[0-9]{{1,{places}}})?");
            vec![
                r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|-(?:[1-9][0-9]*(?:\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)"
                    .to_owned(),
                format!("(?:[0-9]{{1,{above}}}|-[0-9]{{1,{below}}}){fraction}"),
            ]
        }
    };
    if let Some(Bound { value, inclusive }) = lower {
        all.push(match value.negative {
            true => either(&["[0-9.]+".into(), signed(&at_most(value, *inclusive, integer)?)]),
            false => at_least(value, *inclusive, integer),
        });
    }
    if let Some(Bound { value, inclusive }) = upper {
        all.push(match value.negative {
            true => signed(&at_least(value, *inclusive, integer)),
            false => match at_most(value, *inclusive, integer) {
                Some(positive) => either(&[signed("[0-9.]+"), positive]),
                None => signed("[0-9.]+"),
            },
        });
    }
    Some(all)
}

/// Returns the most digits before the point that numbers of one sign may have. `end` is the bound
/// in their direction, and `start` the one that they begin at, if it has the same sign.
fn most_digits(end: Option<&Bound>, start: Option<&Bound>, step_digits: usize) -> usize {
    match end {
        Some(end) => end.value.whole.len(),
        None => {
            let digits = start.map_or(0, |start| start.value.whole.len()).max(step_digits);
            // The next number, or the next multiple, has at most one digit more.
            DIGITS.max(digits + 1)
        }
    }
}

/// Returns whether two different bounds have an integer between them.
fn has_integer_between(lower: &Bound, upper: &Bound) -> bool {
    let (lower, upper) = (lower.to_integer(true), upper.to_integer(false));
    let above = match lower.inclusive {
        true => lower.value.clone(),
        false => next(&lower.value),
    };
    match above.cmp(&upper.value) {
        Ordering::Less => true,
        Ordering::Equal => upper.inclusive,
        Ordering::Greater => false,
    }
}

/// Returns the integer after an integer.
fn next(value: &Decimal) -> Decimal {
    if !value.negative {
        return Decimal { whole: incremented(&value.whole), ..value.clone() };
    }
    let kept = value.whole.trim_end_matches('0');
    let nines = "9".repeat(value.whole.len() - kept.len());
    let (head, last) = kept.split_at(kept.len() - 1);
    let whole = format!("{head}{}{nines}", char::from(last.as_bytes()[0] - 1));
    let whole = whole.trim_start_matches('0');
    match whole {
        "" => Decimal { negative: false, whole: "0".into(), fraction: String::new() },
        whole => Decimal { whole: whole.to_owned(), ..value.clone() },
    }
}

/// Returns the regular expression of a number itself.
pub(super) fn literal(value: &Decimal) -> String {
    value.to_string().replace('.', r"\.")
}

fn signed(magnitude: &str) -> String {
    format!("-(?:{magnitude})")
}

fn either(options: &[String]) -> String {
    options.join("|")
}

const FRACTION: &str = r"(?:\.[0-9]+)?";

/// Returns the regular expression of the numbers without a sign that are at least the magnitude of
/// `bound`.
fn at_least(bound: &Decimal, inclusive: bool, integer: bool) -> String {
    let Decimal { whole, fraction, .. } = bound;
    let any_fraction = if integer { "" } else { FRACTION };
    let digits = whole.as_bytes();
    let mut options = vec![format!("[1-9][0-9]{{{},}}{any_fraction}", digits.len())];
    for (index, &digit) in
        digits.iter().enumerate().take(COMPARED).filter(|(_, digit)| **digit < b'9')
    {
        let (above, rest) = (char::from(digit + 1), digits.len() - index - 1);
        options.push(format!("{}[{above}-9][0-9]{{{rest}}}{any_fraction}", &whole[..index]));
    }
    if digits.len() <= COMPARED {
        match (integer, inclusive) {
            (true, true) => options.push(whole.clone()),
            (true, false) => {}
            (false, true) if fraction.is_empty() => options.push(format!("{whole}{FRACTION}")),
            (false, _) => {
                options.push(format!(r"{whole}\.{}", fraction_above(fraction, inclusive)));
            }
        }
    }
    either(&options)
}

/// Returns the regular expression of the digits after a point that are at least `fraction`.
fn fraction_above(fraction: &str, inclusive: bool) -> String {
    let mut options = Vec::new();
    let digits = fraction.as_bytes();
    for (index, &digit) in
        digits.iter().enumerate().take(COMPARED).filter(|(_, digit)| **digit < b'9')
    {
        options.push(format!("{}[{}-9][0-9]*", &fraction[..index], char::from(digit + 1)));
    }
    if digits.len() <= COMPARED {
        let rest = if inclusive { "[0-9]*" } else { "[0-9]*[1-9][0-9]*" };
        options.push(format!("{fraction}{rest}"));
    }
    format!("(?:{})", either(&options))
}

/// Returns the regular expression of the numbers without a sign that are at most the magnitude of
/// `bound`, if there are any.
fn at_most(bound: &Decimal, inclusive: bool, integer: bool) -> Option<String> {
    let Decimal { whole, fraction, .. } = bound;
    let any_fraction = if integer { "" } else { FRACTION };
    let digits = whole.as_bytes();
    let mut options = Vec::new();
    if digits.len() > 1 {
        options.push(format!("(?:0|[1-9][0-9]{{0,{}}}){any_fraction}", digits.len() - 2));
    }
    for (index, &digit) in digits.iter().enumerate().take(COMPARED) {
        let least = if index == 0 && digits.len() > 1 { b'1' } else { b'0' };
        if digit > least {
            let (least, below) = (char::from(least), char::from(digit - 1));
            let rest = digits.len() - index - 1;
            options
                .push(format!("{}[{least}-{below}][0-9]{{{rest}}}{any_fraction}", &whole[..index]));
        }
    }
    if digits.len() <= COMPARED {
        match (integer, inclusive) {
            (true, true) => options.push(whole.clone()),
            (true, false) => {}
            (false, true) if fraction.is_empty() => options.push(format!(r"{whole}(?:\.0+)?")),
            (false, false) if fraction.is_empty() => {}
            (false, _) => {
                options.push(format!(r"{whole}(?:\.{})?", fraction_below(fraction, inclusive)));
            }
        }
    }
    (!options.is_empty()).then(|| either(&options))
}

/// Returns the regular expression of the digits after a point that are at most `fraction`, which is
/// not empty.
fn fraction_below(fraction: &str, inclusive: bool) -> String {
    let mut options = Vec::new();
    let digits = fraction.as_bytes();
    for (index, &digit) in digits.iter().enumerate().take(COMPARED) {
        if index > 0 {
            options.push(fraction[..index].to_owned());
        }
        if digit > b'0' {
            options.push(format!("{}[0-{}][0-9]*", &fraction[..index], char::from(digit - 1)));
        }
    }
    if inclusive && digits.len() <= COMPARED {
        options.push(format!("{fraction}0*"));
    }
    format!("(?:{})", either(&options))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use llguidance::derivre::Regex;

    fn decimal(text: &str) -> Decimal {
        Decimal::new(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, expected) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("100", "100"),
            ("-1.50", "-1.5"),
            ("1e3", "1000"),
            ("1.25e1", "12.5"),
            ("5e-3", "0.005"),
            ("9223372036854775807", "9223372036854775807"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
        ] {
            assert_eq!(decimal(text).to_string(), expected);
        }
        assert_eq!(decimal("1.7976931348623157e308").whole.len(), 309);
        assert_eq!(decimal("5e-324").places(), 324);
        assert_eq!(decimal("12.5").scaled(2), Some(1250));
        assert_eq!(decimal("-0.05").scaled(2), Some(-5));
        assert_eq!(decimal("0.125").scaled(2), None);
    }

    #[test]
    fn integers_follow_one_another() {
        for (value, expected) in
            [("0", "1"), ("9", "10"), ("199", "200"), ("-1", "0"), ("-10", "-9"), ("-200", "-199")]
        {
            assert_eq!(next(&decimal(value)).to_string(), expected);
        }
        for (value, up, down) in
            [("1.5", "2", "1"), ("-1.5", "-1", "-2"), ("-0.5", "0", "-1"), ("9.9", "10", "9")]
        {
            assert_eq!(decimal(value).rounded(true).to_string(), up);
            assert_eq!(decimal(value).rounded(false).to_string(), down);
        }
    }

    /// Compares the regular expressions with the numbers themselves.
    #[test]
    fn a_range_matches_exactly_its_numbers() {
        let bounds = [
            "-1000", "-10.25", "-10", "-9", "-1.5", "-1", "-0.05", "0", "0.05", "0.5", "1", "1.25",
            "9", "9.99", "10", "10.5", "99", "100", "105", "1000",
        ];
        let mut numbers: Vec<String> = (-120..=1200).map(|number| number.to_string()).collect();
        for whole in ["0", "1", "9", "10", "11", "99", "1000"] {
            for fraction in [
                "0", "00", "04", "05", "050", "051", "2", "25", "250", "251", "49", "5", "50", "9",
                "99", "990", "991",
            ] {
                numbers.push(format!("{whole}.{fraction}"));
                numbers.push(format!("-{whole}.{fraction}"));
            }
        }
        let values: Vec<Decimal> = numbers.iter().map(|text| decimal(text)).collect();
        let bound = |text: &&str, inclusive| Bound { value: decimal(text), inclusive };
        let mut ranges = vec![(None, None)];
        for (at, first) in bounds.iter().enumerate() {
            for inclusive in [false, true] {
                ranges.push((Some(bound(first, inclusive)), None));
                ranges.push((None, Some(bound(first, inclusive))));
                for second in &bounds[at..] {
                    for other in [false, true] {
                        ranges.push((Some(bound(first, inclusive)), Some(bound(second, other))));
                    }
                }
            }
        }
        for (lower, upper) in &ranges {
            for integer in [false, true] {
                let (lower, upper) = match integer {
                    true => (
                        lower.as_ref().map(|bound| bound.to_integer(true)),
                        upper.as_ref().map(|bound| bound.to_integer(false)),
                    ),
                    false => (lower.clone(), upper.clone()),
                };
                let regexes = range(lower.as_ref(), upper.as_ref(), integer, 0);
                let mut regexes: Option<Vec<Regex>> =
                    regexes.map(|all| all.iter().map(|regex| Regex::new(regex).unwrap()).collect());
                let mut any = false;
                for (text, value) in numbers.iter().zip(&values) {
                    let above = lower.as_ref().is_none_or(|Bound { value: least, inclusive }| {
                        value > least || *inclusive && value == least
                    });
                    let below = upper.as_ref().is_none_or(|Bound { value: most, inclusive }| {
                        value < most || *inclusive && value == most
                    });
                    let is_written = !integer || !text.contains('.');
                    // There is no -0, and a bound on both sides is written in one way.
                    let is_zero = value.to_string() == "0" && text.starts_with('-');
                    let is_only = lower.is_some()
                        && lower.as_ref().map(|bound| &bound.value)
                            == upper.as_ref().map(|bound| &bound.value);
                    if (is_zero && (lower.is_some() || upper.is_some()))
                        || (is_only && value.to_string() != *text)
                    {
                        continue;
                    }
                    let expected = above && below && is_written;
                    any |= expected;
                    let matches = regexes
                        .as_mut()
                        .is_some_and(|all| all.iter_mut().all(|regex| regex.is_match(text)));
                    assert_eq!(
                        matches, expected,
                        "{text} in {lower:?}..{upper:?}, integer: {integer}"
                    );
                }
                assert!(regexes.is_some() || !any);
            }
        }
    }

    #[test]
    fn bounds_of_any_size_are_exact_or_stricter() {
        let bound = |text: &str| Bound { value: decimal(text), inclusive: true };
        let matches = |lower: &str, upper: &str, integer, text: &str| {
            let all = range(Some(&bound(lower)), Some(&bound(upper)), integer, 0).unwrap();
            all.iter().all(|regex| Regex::new(regex).unwrap().is_match(text))
        };
        let (least, most) = ("-9223372036854775808", "9223372036854775807");
        assert!(matches(least, most, true, least) && matches(least, most, true, most));
        assert!(!matches(least, most, true, "-9223372036854775809"));
        assert!(!matches(least, most, true, "9223372036854775808"));
        let (least, most) = ("-1.7976931348623157e308", "1.7976931348623157e308");
        assert!(
            matches(least, most, false, "-12.5") && matches(least, most, false, &"9".repeat(308))
        );
        assert!(!matches(least, most, false, &"9".repeat(309)));
    }
}
