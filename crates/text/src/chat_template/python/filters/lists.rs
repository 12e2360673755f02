//! Filters of lists and dictionaries.

use super::super::arguments::{bind, flag, items, pairs, required, string};
use super::super::containers::Group;
use super::super::failure;
use super::super::operators::{add, compare, integer_of};
use super::super::text::{as_float, float, str, type_name};
use super::only;
use minijinja::value::{Rest, Tuple, Value, ValueOrKwargs};
use minijinja::{Error, State};
use std::cmp::Ordering;

/// Sorts stably, and returns the first error of a comparison.
pub(in super::super) fn sorted<T>(
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

pub(super) fn dictsort(name: &str, values: &[Value]) -> Result<Value, Error> {
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

pub(super) fn groupby(name: &str, values: &[Value]) -> Result<Value, Error> {
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

pub(super) fn map_items(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    match type_name(&value) {
        "Undefined" => Ok(Value::from(Vec::<Value>::new())),
        "dict" => {
            Ok(pairs(&value).into_iter().map(|(key, value)| Tuple::from([key, value])).collect())
        }
        other => Err(failure(format!("items needs a dictionary, not {other}"))),
    }
}

pub(super) fn join(name: &str, values: &[Value]) -> Result<Value, Error> {
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

pub(super) fn first(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    match value.is_none() {
        true => Err(failure("None is not iterable")),
        false => Ok(value.try_iter()?.next().unwrap_or_default()),
    }
}

pub(super) fn last(name: &str, values: &[Value]) -> Result<Value, Error> {
    Ok(items(&only(name, values)?)?.pop().unwrap_or_default())
}

pub(super) fn length(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    let length = if value.is_undefined() { Some(0) } else { value.len() };
    length.map(Value::from).ok_or_else(|| failure(format!("{} has no length", type_name(&value))))
}

pub(super) fn map(state: &mut State, values: Rest<ValueOrKwargs>) -> Result<Value, Error> {
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

pub(super) fn extreme(name: &str, values: &[Value]) -> Result<Value, Error> {
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

pub(super) fn reverse(name: &str, values: &[Value]) -> Result<Value, Error> {
    let value = only(name, values)?;
    let mut items = items(&value)?;
    items.reverse();
    Ok(match value.as_str() {
        Some(_) => Value::from(items.iter().map(str).collect::<String>()),
        None => Value::from(items),
    })
}

pub(super) fn sort(name: &str, values: &[Value]) -> Result<Value, Error> {
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

pub(super) fn sum(name: &str, values: &[Value]) -> Result<Value, Error> {
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

pub(super) fn unique(name: &str, values: &[Value]) -> Result<Value, Error> {
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
