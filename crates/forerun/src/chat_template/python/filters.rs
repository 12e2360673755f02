//! Jinja's filters and tests, where minijinja's differ.

use super::arguments::{bind, flag, integer, integer_or, items, pairs, required, string};
use super::characters::decimal;
use super::containers::{Group, Method};
use super::operators::{add, compare, integer_of, integer_value};
use super::strings::{lines, replaced, stripped};
use super::text::{as_float, float, repr, str, type_name};
use super::{failure, format};
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};
use std::cmp::Ordering;

type Filter = fn(&str, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 35] = [
    ("abs", abs),
    ("attr", attr),
    ("capitalize", |_, values| cased(values, "capitalize")),
    ("center", center),
    ("count", length),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", |name, values| escaped(name, values, false)),
    ("escape", |name, values| escaped(name, values, false)),
    ("filesizeformat", file_size),
    ("first", first),
    ("float", to_float),
    ("forceescape", |name, values| escaped(name, values, true)),
    ("format", |name, values| printf(name, values)),
    ("groupby", groupby),
    ("indent", indent),
    ("int", to_int),
    ("items", |name, values| map_items(name, values)),
    ("join", join),
    ("last", last),
    ("length", length),
    ("list", |name, values| Ok(Value::from(items(&only(name, values)?)?))),
    ("lower", |_, values| cased(values, "lower")),
    ("max", extreme),
    ("min", extreme),
    ("pprint", pretty),
    ("replace", replace),
    ("reverse", reverse),
    ("round", round),
    ("sort", sort),
    ("string", |name, values| {
        let value = only(name, values)?;
        Ok(if value.as_str().is_some() { value } else { Value::from(str(&value)) })
    }),
    ("sum", sum),
    ("trim", trim),
    ("truncate", truncate),
];
const MORE_FILTERS: [(&str, Filter); 4] = [
    ("unique", unique),
    ("upper", |_, values| cased(values, "upper")),
    ("urlencode", urlencode),
    ("wordcount", |name, values| {
        let text = str(&only(name, values)?);
        let words = text.split(|one: char| !(one.is_alphanumeric() || one == '_'));
        Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
    }),
];

/// What minijinja has and jinja2 does not.
const NOT_IN_JINJA: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];

pub(super) fn install(environment: &mut Environment<'_>) {
    for (name, filter) in FILTERS.into_iter().chain(MORE_FILTERS) {
        environment.add_filter(name, move |values: Rest<ValueOrKwargs>| {
            filter(name, &values.into_values())
        });
    }
    environment.add_filter("map", map);
    for name in NOT_IN_JINJA {
        environment.remove_filter(name);
    }
    environment.remove_test("startingwith");
    environment.remove_test("endingwith");
    let orders: [(&[&str], fn(Ordering) -> bool); 4] = [
        (&["lt", "lessthan", "<"], Ordering::is_lt),
        (&["le", "<="], Ordering::is_le),
        (&["gt", "greaterthan", ">"], Ordering::is_gt),
        (&["ge", ">="], Ordering::is_ge),
    ];
    for (names, test) in orders {
        for name in names {
            environment.add_test(*name, move |value: &Value, other: &Value| {
                compare(value, other).map(test)
            });
        }
    }
    environment.add_test("divisibleby", |value: &Value, other: &Value| {
        let (value, other) = (integer("divisibleby", value)?, integer("divisibleby", other)?);
        value.checked_rem(other).map(|rest| rest == 0).ok_or_else(|| failure("division by zero"))
    });
    environment.add_test("callable", |value: &Value| {
        matches!(type_name(value), "function" | "method" | "Macro")
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("mapping", |value: &Value| type_name(value) == "dict");
    environment.add_test("sequence", |value: &Value| {
        matches!(type_name(value), "list" | "tuple" | "str" | "dict" | "range" | "Undefined")
    });
}

/// Returns the value of a filter without arguments.
fn only(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value] = bind(name, ["value"], values)?;
    required(name, "value", value)
}

fn defined(name: &str, value: Option<Value>) -> Result<Value, Error> {
    let value = required(name, "value", value)?;
    match value.is_undefined() {
        true => Err(failure(format!("{name} needs a value that is defined"))),
        false => Ok(value),
    }
}

/// Sorts stably, and returns the first error of a comparison.
pub(super) fn sorted<T>(
    mut items: Vec<T>,
    compare: &impl Fn(&T, &T) -> Result<Ordering, Error>,
) -> Result<Vec<T>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let second = items.split_off(items.len() / 2);
    let mut first = sorted(items, compare)?.into_iter().peekable();
    let mut second = sorted(second, compare)?.into_iter().peekable();
    let mut merged = Vec::with_capacity(first.len() + second.len());
    while let (Some(a), Some(b)) = (first.peek(), second.peek()) {
        let next = if compare(b, a)?.is_lt() { second.next() } else { first.next() };
        merged.extend(next);
    }
    Ok(merged.into_iter().chain(first).chain(second).collect())
}

/// Returns the attribute of a value by a path such as `function.name`, or a default.
fn attribute(value: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let mut value = value.clone();
    let parts = match path.as_str() {
        Some(path) => path.split('.').map(str::to_owned).collect(),
        None => vec![str(path)],
    };
    for part in parts {
        let number = part.parse::<u32>().ok();
        let key = number.map_or_else(|| Value::from(part), Value::from);
        value = value.get_item(&key)?;
        if let Some(default) = default.filter(|_| value.is_undefined()) {
            value = default.clone();
        }
    }
    Ok(value)
}

/// Returns a string in lower case unless cases differ.
fn folded(value: Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    }
}

/// Returns what a filter such as `sort` compares of an item.
fn sort_key(item: &Value, path: Option<&Value>, case_sensitive: bool) -> Result<Vec<Value>, Error> {
    let Some(path) = path.filter(|path| !path.is_none()) else {
        return Ok(vec![folded(item.clone(), case_sensitive)]);
    };
    let paths = match path.as_str() {
        Some(paths) => paths.split(',').map(Value::from).collect(),
        None => vec![path.clone()],
    };
    let key = |path| attribute(item, &path, None).map(|value| folded(value, case_sensitive));
    paths.into_iter().map(key).collect()
}

fn compare_keys(left: &[Value], right: &[Value]) -> Result<Ordering, Error> {
    for (a, b) in left.iter().zip(right) {
        // Equal values need no order.
        if a != b {
            return compare(a, b);
        }
    }
    Ok(Ordering::Equal)
}

fn abs(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    match (as_float(&value), integer_of(&value)) {
        (Some(number), _) => Ok(Value::from(number.abs())),
        (_, Some(number)) => Ok(integer_value(number.saturating_abs())),
        _ => Err(failure(format!("abs needs a number, not {}", type_name(&value)))),
    }
}

/// Returns an attribute, which is no item of a dictionary.
fn attr(call: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, name] = bind(call, ["value", "name"], values)?;
    let (value, name) = (defined(call, value)?, required(call, "name", name)?);
    match Method::of(&value, &name)? {
        _ if type_name(&value) == "dict" && !super::is_method(&value, &str(&name)) => {
            Ok(Value::UNDEFINED)
        }
        attribute => Ok(attribute),
    }
}

fn cased(values: &[Value], name: &str) -> Result<Value, Error> {
    let value = only(name, values)?;
    let text = super::strings::cased(&str(&value), name);
    Ok(if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) })
}

fn center(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind(name, ["value", "width"], values)?;
    let text = str(&required(name, "value", value)?);
    let width = width.unwrap_or_else(|| Value::from(80));
    let centered = super::strings::method(&text, name, &[width])?;
    Ok(centered.unwrap_or_default())
}

fn default(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, default, boolean] = bind(name, ["value", "default_value", "boolean"], values)?;
    let value = required(name, "value", value)?;
    let missing = value.is_undefined() || (flag(boolean.as_ref()) && !value.is_true());
    Ok(if missing { default.unwrap_or_else(|| Value::from("")) } else { value })
}

fn dictsort(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, by, reverse] =
        bind(name, ["value", "case_sensitive", "by", "reverse"], values)?;
    let value = required(name, "value", value)?;
    if type_name(&value) != "dict" {
        return Err(failure(format!("dictsort needs a dictionary, not {}", type_name(&value))));
    }
    let by_value = match by.as_ref().map(|by| string(name, by)).transpose()? {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(failure("dictsort sorts by \"key\" or \"value\"")),
    };
    let case_sensitive = flag(case_sensitive.as_ref());
    let keyed = pairs(&value).into_iter().map(|(key, value)| {
        let by = if by_value { value.clone() } else { key.clone() };
        (folded(by, case_sensitive), (key, value))
    });
    let keyed = sorted(keyed.collect(), &|(a, _), (b, _)| {
        let ordering = compare(a, b);
        if flag(reverse.as_ref()) { ordering.map(Ordering::reverse) } else { ordering }
    })?;
    Ok(keyed.into_iter().map(|(_, (key, value))| Tuple::from([key, value])).collect())
}

/// Escapes characters that HTML gives a meaning.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

fn escaped(name: &str, values: &[Value], again: bool) -> Result<Value, Error> {
    let value = only(name, values)?;
    match value.is_safe() && !again {
        true => Ok(value),
        false => Ok(Value::from_safe_string(escape(&str(&value)))),
    }
}

fn file_size(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, binary] = bind(name, ["value", "binary"], values)?;
    let value = required(name, "value", value)?;
    let bytes = number_of(&value)
        .ok_or_else(|| failure(format!("{name} needs a number, not {}", type_name(&value))))?;
    let (base, infix) = if flag(binary.as_ref()) { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{bytes:.0} Bytes")));
    }
    let kilo = if infix.is_empty() { "k" } else { "K" };
    let (mut size, mut prefix) = (bytes, "");
    for next in [kilo, "M", "G", "T", "P", "E", "Z", "Y"] {
        if size < base {
            break;
        }
        (size, prefix) = (size / base, next);
    }
    Ok(Value::from(format!("{size:.1} {prefix}{infix}B")))
}

/// Returns the number of a value, as Python's `float` reads it.
fn number_of(value: &Value) -> Option<f64> {
    let Some(text) = value.as_str() else {
        return as_float(value).or(integer_of(value).map(|number| number as f64));
    };
    let text = digits(text)?;
    // Rust reads further spellings.
    let plain = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let name = matches!(plain.as_str(), "inf" | "infinity" | "nan");
    (name || plain.starts_with(|one: char| one.is_ascii_digit() || one == '.'))
        .then(|| text.parse().ok())
        .flatten()
}

/// Returns a number's text with ASCII digits, and without spaces around it and `_` between digits.
fn digits(text: &str) -> Option<String> {
    let text = stripped(text, None, true, true);
    let ascii = |one| decimal(one).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(one);
    let text: String = text.chars().map(ascii).collect();
    let between = |part: &str| !part.is_empty();
    let grouped = text.contains('_');
    (!grouped || text.split('_').all(between)).then(|| text.replace('_', ""))
}

fn to_float(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind(name, ["value", "default"], values)?;
    let number = number_of(&defined(name, value)?);
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

fn to_int(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind(name, ["value", "default", "base"], values)?;
    let value = defined(name, value)?;
    let base = integer_or(name, base.as_ref(), 10)?;
    let read = value.as_str().and_then(|text| parse_integer(text, u32::try_from(base).ok()?));
    let whole = || {
        let number = number_of(&value).filter(|number| number.abs() < 1.7e38);
        number.map(|number| number as i128)
    };
    let number = read.or_else(|| integer_of(&value)).or_else(whole);
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0)), integer_value))
}

fn parse_integer(text: &str, base: u32) -> Option<i128> {
    let text = digits(text)?.to_ascii_lowercase();
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => ("-", text),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixes = [("0b", 2), ("0o", 8), ("0x", 16)];
    let prefix = prefixes.into_iter().find(|(prefix, _)| text.starts_with(prefix));
    let (text, base) = match prefix {
        Some((prefix, own)) if base == own || base == 0 => (&text[prefix.len()..], own),
        None if base == 0 => (text, 10),
        _ => (text, base),
    };
    if !(2..=36).contains(&base) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{text}"), base)
        .ok()
        .filter(|_| !text.starts_with(['-', '+']))
}

fn printf(name: &str, values: &[Value]) -> Result<Value, Error> {
    let (text, rest) = values.split_first().ok_or_else(|| failure("format needs a text"))?;
    let text = if text.as_str().is_some() { text.clone() } else { Value::from(str(text)) };
    match rest {
        [map] if map.is_kwargs() => format::percent_of(&text, &[], Some(map)),
        [.., last] if last.is_kwargs() => {
            Err(failure(format!("{name} takes values with or without names, not both")))
        }
        [map] if map.kind() == ValueKind::Map => format::percent_of(&text, rest, Some(map)),
        _ => format::percent_of(&text, rest, None),
    }
}

fn groupby(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, path, default, case_sensitive] =
        bind(name, ["value", "attribute", "default", "case_sensitive"], values)?;
    let (value, path) = (required(name, "value", value)?, required(name, "attribute", path)?);
    let case_sensitive = flag(case_sensitive.as_ref());
    let default = default.filter(|default| !default.is_none());
    let mut keyed = Vec::new();
    for item in items(&value)? {
        let key = attribute(&item, &path, default.as_ref())?;
        keyed.push((folded(key.clone(), case_sensitive), key, item));
    }
    let keyed = sorted(keyed, &|(a, ..), (b, ..)| compare(a, b))?;
    let groups = keyed.chunk_by(|(a, ..), (b, ..)| a == b).map(|group| {
        let list: Vec<_> = group.iter().map(|(_, _, item)| item.clone()).collect();
        let grouper = group[0].1.clone();
        Value::from_object(Group { grouper, list: Value::from(list) })
    });
    Ok(groups.collect())
}

fn indent(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(name, ["value", "width", "first", "blank"], values)?;
    let value = required(name, "value", value)?;
    let text = string(name, &value)?.to_owned() + "\n";
    let indent = match &width {
        Some(width) if width.as_str().is_some() => str(width),
        width => {
            let width = integer_or(name, width.as_ref(), 4)?;
            " ".repeat(usize::try_from(width).unwrap_or(0))
        }
    };
    let mut indented = String::new();
    for (number, line) in lines(&text, false).into_iter().enumerate() {
        indented += if number > 0 { "\n" } else { "" };
        let wanted = match number {
            0 => flag(first.as_ref()),
            _ => flag(blank.as_ref()) || !line.is_empty(),
        };
        indented += if wanted { &indent } else { "" };
        indented += line;
    }
    Ok(Value::from(indented))
}

fn map_items(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    match type_name(&value) {
        "Undefined" => Ok(Value::from(Vec::<Value>::new())),
        "dict" => {
            Ok(pairs(&value).into_iter().map(|(key, value)| Tuple::from([key, value])).collect())
        }
        other => Err(failure(format!("items needs a dictionary, not {other}"))),
    }
}

fn join(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, separator, path] = bind(name, ["value", "d", "attribute"], values)?;
    let separator = separator.map_or_else(String::new, |separator| str(&separator));
    let path = path.filter(|path| !path.is_none());
    let mut joined = String::new();
    for (number, item) in items(&required(name, "value", value)?)?.iter().enumerate() {
        joined += if number > 0 { &separator } else { "" };
        joined += &match &path {
            Some(path) => str(&attribute(item, path, None)?),
            None => str(item),
        };
    }
    Ok(Value::from(joined))
}

fn first(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    match value.is_none() {
        true => Err(failure("None is not iterable")),
        false => Ok(value.try_iter()?.next().unwrap_or_default()),
    }
}

fn last(name: &str, values: &[Value]) -> Result<Value, Error> {
    Ok(items(&only(name, values)?)?.pop().unwrap_or_default())
}

fn length(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    let length = if value.is_undefined() { Some(0) } else { value.len() };
    length.map(Value::from).ok_or_else(|| failure(format!("{} has no length", type_name(&value))))
}

fn map(state: &mut State, values: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = values.into_values();
    let (value, arguments) = values.split_first().ok_or_else(|| failure("map needs a value"))?;
    let items = items(value)?.into_iter();
    match arguments {
        [names] if names.is_kwargs() => {
            let [path, default] = bind("map", ["attribute", "default"], arguments)?;
            let path = required("map", "attribute", path)?;
            let default = default.filter(|default| !default.is_none());
            items.map(|item| attribute(&item, &path, default.as_ref())).collect()
        }
        [filter, arguments @ ..] => {
            let filter = string("map", filter)?;
            let apply = |item| state.apply_filter(filter, &[&[item], arguments].concat());
            items.map(apply).collect()
        }
        [] => Err(failure("map needs a filter or an attribute")),
    }
}

fn extreme(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, path] =
        bind(name, ["value", "case_sensitive", "attribute"], values)?;
    let case_sensitive = flag(case_sensitive.as_ref());
    let path = path.filter(|path| !path.is_none());
    let mut best: Option<(Value, Value)> = None;
    for item in items(&required(name, "value", value)?)? {
        let key = match &path {
            Some(path) => attribute(&item, path, None)?,
            None => item.clone(),
        };
        let key = folded(key, case_sensitive);
        let better = match &best {
            None => true,
            Some((best, _)) if name == "min" => compare(&key, best)?.is_lt(),
            Some((best, _)) => compare(&key, best)?.is_gt(),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

/// The longest value that `pprint` writes in one line, in characters.
const PRETTY_WIDTH: usize = 80;

fn pretty(name: &str, values: &[Value]) -> Result<Value, Error> {
    let text = repr(&with_sorted_keys(&only(name, values)?)?);
    match text.chars().count() > PRETTY_WIDTH {
        true => Err(failure(format!("pprint supports only {PRETTY_WIDTH} characters"))),
        false => Ok(Value::from(text)),
    }
}

fn with_sorted_keys(value: &Value) -> Result<Value, Error> {
    match type_name(value) {
        "dict" => {
            let pairs = sorted(pairs(value), &|(a, _), (b, _)| compare(a, b))?.into_iter();
            let inner = pairs.map(|(key, value)| Ok((key, with_sorted_keys(&value)?)));
            Ok(Value::from_pairs(inner.collect::<Result<Vec<_>, Error>>()?))
        }
        "list" => items(value)?.iter().map(with_sorted_keys).collect(),
        _ => Ok(value.clone()),
    }
}

fn replace(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(name, ["value", "old", "new", "count"], values)?;
    let value = str(&required(name, "value", value)?);
    let (old, new) = (required(name, "old", old)?, required(name, "new", new)?);
    let count = integer_or(name, count.as_ref(), -1)?;
    Ok(Value::from(replaced(&value, &str(&old), &str(&new), count)))
}

fn reverse(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    let mut items = items(&value)?;
    items.reverse();
    Ok(match value.as_str() {
        Some(_) => Value::from(items.iter().map(str).collect::<String>()),
        None => Value::from(items),
    })
}

fn round(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind(name, ["value", "precision", "method"], values)?;
    let value = required(name, "value", value)?;
    let precision = integer_or(name, precision.as_ref(), 0)?.clamp(-400, 400) as i32;
    let method = method.unwrap_or_else(|| Value::from("common"));
    let number = as_float(&value).or(integer_of(&value).map(|number| number as f64));
    let number = number
        .ok_or_else(|| failure(format!("round needs a number, not {}", type_name(&value))))?;
    let scale = 10f64.powi(precision);
    let scaled = number * scale;
    let rounded = match (string(name, &method)?, integer_of(&value)) {
        ("common", Some(integer)) if precision >= 0 => return Ok(integer_value(integer)),
        ("common", Some(integer)) => {
            let unit = 10i128.checked_pow(precision.unsigned_abs());
            let rounded = unit.map_or(Some(0), |unit| {
                let (below, rest) = (integer.div_euclid(unit), integer.rem_euclid(unit));
                let up = rest > unit - rest || (rest == unit - rest && below % 2 != 0);
                (below + i128::from(up)).checked_mul(unit)
            });
            let large = || failure("the result of round has more than 127 bits");
            return rounded.map(integer_value).ok_or_else(large);
        }
        // Rust rounds the exact number's digits, as Python does.
        ("common", None) if precision >= 0 && number.is_finite() => {
            format!("{number:.*}", precision as usize).parse().unwrap_or(number)
        }
        ("common", None) if number.is_finite() => scaled.round_ties_even() / scale,
        ("ceil", _) if scaled.is_finite() => scaled.ceil() / scale,
        ("floor", _) if scaled.is_finite() => scaled.floor() / scale,
        ("common" | "ceil" | "floor", _) => number,
        _ => return Err(failure("round's method is common, ceil or floor")),
    };
    Ok(Value::from(if rounded.is_nan() { 0.0 } else { rounded }))
}

fn sort(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, reverse, case_sensitive, path] =
        bind(name, ["value", "reverse", "case_sensitive", "attribute"], values)?;
    let (reverse, case_sensitive) = (flag(reverse.as_ref()), flag(case_sensitive.as_ref()));
    let mut keyed = Vec::new();
    for item in items(&required(name, "value", value)?)? {
        keyed.push((sort_key(&item, path.as_ref(), case_sensitive)?, item));
    }
    let keyed = sorted(keyed, &|(a, _), (b, _)| {
        let ordering = compare_keys(a, b)?;
        Ok(if reverse { ordering.reverse() } else { ordering })
    })?;
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

fn sum(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, path, start] = bind(name, ["value", "attribute", "start"], values)?;
    let path = path.filter(|path| !path.is_none());
    let mut total = start.unwrap_or_else(|| Value::from(0));
    if total.as_str().is_some() {
        return Err(failure("sum cannot add strings: use join"));
    }
    for item in items(&required(name, "value", value)?)? {
        let item = match &path {
            Some(path) => attribute(&item, path, None)?,
            None => item,
        };
        total = add(&total, &item)?;
    }
    Ok(total)
}

fn trim(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, characters] = bind(name, ["value", "chars"], values)?;
    let text = str(&required(name, "value", value)?);
    let characters = characters.filter(|characters| !characters.is_none());
    let characters = characters.as_ref().map(|value| string(name, value)).transpose()?;
    Ok(Value::from(stripped(&text, characters, true, true)))
}

fn truncate(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, length, kill_words, end, leeway] =
        bind(name, ["value", "length", "killwords", "end", "leeway"], values)?;
    let text = str(&required(name, "value", value)?);
    let length = integer_or(name, length.as_ref(), 255)?;
    let leeway = integer_or(name, leeway.as_ref(), 5)?;
    let end = end.map_or_else(|| "...".to_owned(), |end| str(&end));
    let kept = length.checked_sub(end.chars().count() as i64);
    let kept = kept.and_then(|kept| usize::try_from(kept).ok()).filter(|_| leeway >= 0);
    let kept = kept.ok_or_else(|| failure("truncate needs a length of at least the end's"))?;
    if text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let start: String = text.chars().take(kept).collect();
    let start = match flag(kill_words.as_ref()) {
        true => start.as_str(),
        false => start.rsplit_once(' ').map_or(start.as_str(), |(start, _)| start),
    };
    Ok(Value::from(start.to_owned() + &end))
}

fn unique(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, path] =
        bind(name, ["value", "case_sensitive", "attribute"], values)?;
    let case_sensitive = flag(case_sensitive.as_ref());
    let mut seen = std::collections::HashSet::new();
    let mut unique = Vec::new();
    for item in items(&required(name, "value", value)?)? {
        let key = sort_key(&item, path.as_ref(), case_sensitive)?;
        // Numbers that are equal have the same text.
        let key: Vec<_> = key
            .iter()
            .map(|value| match Numbered::of(value) {
                Some(number) => number,
                None => Numbered::Other(value.clone()),
            })
            .collect();
        if seen.insert(key) {
            unique.push(item);
        }
    }
    Ok(Value::from(unique))
}

/// A value that equals those that Python holds for equal.
#[derive(PartialEq, Eq, Hash)]
enum Numbered {
    Number(String),
    Other(Value),
}

impl Numbered {
    fn of(value: &Value) -> Option<Self> {
        if let Some(number) = as_float(value) {
            let text = float(number);
            return Some(Self::Number(text.strip_suffix(".0").unwrap_or(&text).to_owned()));
        }
        integer_of(value).map(|integer| Self::Number(integer.to_string()))
    }
}

fn urlencode(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    let list = match type_name(&value) {
        "dict" => pairs(&value),
        "list" | "tuple" => {
            let pair = |pair: Value| match &items(&pair)?[..] {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(failure("urlencode needs a text, a dictionary or pairs")),
            };
            items(&value)?.into_iter().map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Ok(Value::from(quoted(&str(&value), false))),
    };
    let quoted = |(key, value): &(Value, Value)| {
        format!("{}={}", quoted(&str(key), true), quoted(&str(value), true))
    };
    Ok(Value::from(list.iter().map(quoted).collect::<Vec<_>>().join("&")))
}

/// Returns a text for a URL, or for the query of one.
fn quoted(text: &str, query: bool) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                quoted.push(char::from(byte));
            }
            b'/' if !query => quoted.push('/'),
            b' ' if query => quoted.push('+'),
            _ => quoted += &format!("%{byte:02X}"),
        }
    }
    quoted
}
