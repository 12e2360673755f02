//! Ranges and slices.

use super::arguments::{integer, integer_or, items};
use super::failure;
use super::text::type_name;
use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// The maximum length of a range, which is jinja2's.
const MAX_RANGE: u64 = 100_000;

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_function("range", |arguments: Rest<Value>| Range::of(&arguments));
}

/// What `range` returns.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
}

impl Range {
    fn of(arguments: &[Value]) -> Result<Value, Error> {
        let numbers = arguments.iter().map(|argument| integer("range", argument));
        let (start, stop, step) = match numbers.collect::<Result<Vec<_>, Error>>()?[..] {
            [stop] => (0, stop, 1),
            [start, stop] => (start, stop, 1),
            [start, stop, step] => (start, stop, step),
            _ => return Err(failure("range takes one to three integers")),
        };
        if step == 0 {
            return Err(failure("the step of a range cannot be zero"));
        }
        let range = Self { start, stop, step };
        if range.length() > MAX_RANGE {
            return Err(failure(format!("the range has too many elements: more than {MAX_RANGE}")));
        }
        Ok(Value::from_object(range))
    }

    fn length(&self) -> u64 {
        let (first, last) = match self.step > 0 {
            true => (self.start, self.stop),
            false => (self.stop, self.start),
        };
        let distance = if first < last { first.abs_diff(last) } else { 0 };
        distance.div_ceil(self.step.unsigned_abs())
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_i64().filter(|&index| (index as u64) < self.length())?;
        Some(Value::from(self.start + index * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length() as usize)
    }

    fn render(self: &Arc<Self>, out: &mut Formatter<'_>) -> fmt::Result {
        self.fmt(out)
    }
}

impl Display for Range {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(out, "range({}, {})", self.start, self.stop),
            step => write!(out, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

/// Returns `value[start:stop:step]`.
pub(super) fn slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let step = integer_or("a slice", Some(step), 1)?;
    if step == 0 {
        return Err(failure("the step of a slice cannot be zero"));
    }
    let chosen = |items: Vec<Value>| -> Result<Vec<Value>, Error> {
        let indexes = indexes(items.len(), start, stop, step)?;
        Ok(indexes.into_iter().filter_map(|index| items.get(index).cloned()).collect())
    };
    match value.kind() {
        ValueKind::String => {
            let characters: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            let indexes = indexes(characters.len(), start, stop, step)?;
            Ok(Value::from(indexes.into_iter().map(|index| characters[index]).collect::<String>()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let part = chosen(items(value)?)?;
            Ok(if value.is_tuple() { Tuple::new(part).into() } else { Value::from(part) })
        }
        _ => Err(failure(format!("{} has no slices", type_name(value)))),
    }
}

/// Returns the indexes of a slice of a sequence.
fn indexes(length: usize, start: &Value, stop: &Value, step: i64) -> Result<Vec<usize>, Error> {
    let length = length as i64;
    let bound = |value: &Value, default: i64| -> Result<i64, Error> {
        if value.is_none() {
            return Ok(default);
        }
        let index = integer("a slice", value)?;
        let index = if index < 0 { index.saturating_add(length) } else { index };
        // Backwards, a slice begins at the last item, and ends before the first.
        Ok(if step > 0 { index.clamp(0, length) } else { index.clamp(-1, length - 1) })
    };
    let (start, stop) = match step > 0 {
        true => (bound(start, 0)?, bound(stop, length)?),
        false => (bound(start, length - 1)?, bound(stop, -1)?),
    };
    let range = Range { start, stop, step };
    let count = range.length() as i64;
    Ok((0..count).map(|number| (start + number * step) as usize).collect())
}
