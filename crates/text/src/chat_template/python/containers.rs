//! Methods of Python's lists, dictionaries and numbers, and objects that jinja2 has.

use super::arguments::{bind, integer_or, items, pairs, required};
use super::strings::METHODS as STRING_METHODS;
use super::text::{as_float, type_name};
use super::{failure, operators};
use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
const LIST_METHODS: [&str; 11] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse",
    "sort",
];

/// Methods that change a value, which the sandbox of `transformers` does not allow.
const CHANGES: [&str; 11] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];

/// Returns whether a name is that of a method of the value's type.
pub(super) fn is_method(value: &Value, name: &str) -> bool {
    match type_name(value) {
        "str" => STRING_METHODS.contains(&name),
        "dict" => DICT_METHODS.contains(&name),
        "list" => LIST_METHODS.contains(&name),
        "tuple" => ["count", "index"].contains(&name),
        _ => false,
    }
}

/// Returns whether any type has a method of this name.
pub(in super::super) fn names_method(name: &str) -> bool {
    STRING_METHODS.contains(&name) || DICT_METHODS.contains(&name) || LIST_METHODS.contains(&name)
}

/// A method of a value, such as `text.upper` without a call.
#[derive(Debug)]
pub(super) struct Method {
    value: Value,
    name: String,
}

impl Method {
    /// Returns the method of this name, or else the attribute.
    pub(super) fn of(value: &Value, name: &Value) -> Result<Value, Error> {
        match name.as_str() {
            Some(name) if is_method(value, name) => {
                Ok(Value::from_object(Self { value: value.clone(), name: name.to_owned() }))
            }
            Some(name) => value.get_attr(name),
            None => Ok(Value::UNDEFINED),
        }
    }
}

/// Checks that a value has a text: a method without a call has none.
pub(in super::super) fn check_text(value: &Value) -> Result<(), Error> {
    match value.downcast_object_ref::<Method>() {
        Some(method) => Err(failure(format!("{} is a method: call it", method.name))),
        None => Ok(()),
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    // The budget sees what the method holds.
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(vec![self.value.clone()])
    }

    fn call(self: &Arc<Self>, state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
        self.value.call_method(state, &self.name, arguments)
    }
}

/// The keys, values or items of a dictionary.
#[derive(Debug)]
pub(super) struct View {
    /// The name of its type.
    pub(super) name: &'static str,
    values: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.values.len())
    }
}

/// A group of `groupby`: a tuple of the value that its items share, and the items.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) grouper: Value,
    pub(super) list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_i64()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// Calls a method of a list, tuple, dictionary or number. Returns `None` if there is none.
pub(super) fn method(
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let kind = type_name(value);
    if matches!(kind, "list" | "dict") && is_method(value, name) && CHANGES.contains(&name) {
        return Err(failure(format!("a template cannot change values: {kind}.{name}")));
    }
    match kind {
        "dict" => dict_method(value, name, arguments),
        "list" | "tuple" => list_method(value, name, arguments),
        "int" | "bool" if name == "bit_length" => {
            let [] = bind(name, [], arguments)?;
            let number = operators::integer_of(value).unwrap_or_default();
            Ok(Some(Value::from(i128::BITS - number.unsigned_abs().leading_zeros())))
        }
        "float" if name == "is_integer" => {
            let [] = bind(name, [], arguments)?;
            let number = as_float(value).unwrap_or_default();
            Ok(Some(Value::from(number.is_finite() && number.fract() == 0.0)))
        }
        _ => Ok(None),
    }
}

fn dict_method(value: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let view = |name, pick: fn((Value, Value)) -> Value| -> Result<Option<Value>, Error> {
        let [] = bind(name, [], arguments)?;
        let values = pairs(value).into_iter().map(pick).collect();
        Ok(Some(Value::from_object(View { name, values })))
    };
    match name {
        "keys" => view("dict_keys", |(key, _)| key),
        "values" => view("dict_values", |(_, value)| value),
        "items" => view("dict_items", |(key, value)| Tuple::from([key, value]).into()),
        "get" => {
            let [key, default] = bind(name, ["key", "default"], arguments)?;
            let key = required(name, "key", key)?;
            let found = value.as_object().and_then(|object| object.get_value(&key));
            Ok(Some(found.or(default).unwrap_or_else(|| Value::from(()))))
        }
        "copy" => {
            let [] = bind(name, [], arguments)?;
            Ok(Some(Value::from_pairs(pairs(value))))
        }
        "fromkeys" => from_keys(arguments).map(Some),
        _ => Ok(None),
    }
}

fn list_method(value: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match name {
        "count" => {
            let [wanted] = bind(name, ["value"], arguments)?;
            let wanted = required(name, "value", wanted)?;
            Ok(Some(Value::from(items(value)?.iter().filter(|item| **item == wanted).count())))
        }
        "index" => {
            let [wanted, start, stop] = bind(name, ["value", "start", "stop"], arguments)?;
            let wanted = required(name, "value", wanted)?;
            let all = items(value)?;
            let bound = |bound: i64| match usize::try_from(bound) {
                Ok(bound) => bound.min(all.len()),
                Err(_) => all.len().saturating_sub(bound.unsigned_abs() as usize),
            };
            let start = bound(integer_or(name, start.as_ref(), 0)?);
            let stop = bound(integer_or(name, stop.as_ref(), i64::MAX)?);
            let found = (start..stop).find(|&index| all[index] == wanted);
            found.map(|index| Some(Value::from(index))).ok_or_else(|| {
                failure(format!(
                    "the value that index looks for is not in the {}",
                    type_name(value)
                ))
            })
        }
        "copy" if !value.is_tuple() => {
            let [] = bind(name, [], arguments)?;
            Ok(Some(Value::from(items(value)?)))
        }
        _ => Ok(None),
    }
}

fn from_keys(arguments: &[Value]) -> Result<Value, Error> {
    let [keys, value] = bind("fromkeys", ["iterable", "value"], arguments)?;
    let value = value.unwrap_or_else(|| Value::from(()));
    let keys = items(&required("fromkeys", "iterable", keys)?)?;
    Ok(Value::from_pairs(keys.into_iter().map(|key| (key, value.clone()))))
}

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_global("dict", Value::from_object(Dict));
    environment.add_function("cycler", |items: Rest<Value>| match items.is_empty() {
        true => Err(failure("cycler needs at least one item")),
        false => Ok(Value::from_object(Cycler { items: items.0, position: AtomicUsize::new(0) })),
    });
    environment.add_function("joiner", |separator: Option<Value>| {
        let separator = separator.unwrap_or_else(|| Value::from(", "));
        Value::from_object(Joiner { separator, calls: AtomicUsize::new(0) })
    });
}

/// The function `dict`, which has a method.
#[derive(Debug)]
struct Dict;

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State, arguments: &[Value]) -> Result<Value, Error> {
        entries("dict", arguments).map(Value::from_pairs)
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State,
        name: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        match name {
            "fromkeys" => from_keys(arguments),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// Returns the entries of a new dictionary.
fn entries(call: &str, arguments: &[Value]) -> Result<Vec<(Value, Value)>, Error> {
    let (positional, named) = match arguments.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, pairs(last)),
        _ => (arguments, Vec::new()),
    };
    let mut entries = match positional {
        [] => Vec::new(),
        [map] if map.kind() == ValueKind::Map => pairs(map),
        [list] => {
            let pair = |pair: Value| match &items(&pair)?[..] {
                [key, value] => Ok((key.clone(), value.clone())),
                other => Err(failure(format!("{call} needs pairs, not {} items", other.len()))),
            };
            items(list)?.into_iter().map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Err(failure(format!("{call} takes at most one argument without a name"))),
    };
    entries.extend(named);
    Ok(entries)
}

/// Returns the attributes of a new namespace.
pub(in super::super) fn namespace(arguments: &[Value]) -> Result<Value, Error> {
    let entries = entries("namespace", arguments)?;
    let hidden =
        entries.iter().find(|(name, _)| name.as_str().is_some_and(|name| name.starts_with('_')));
    match hidden {
        Some((name, _)) => Err(failure(format!("a namespace cannot have the attribute {name}"))),
        None => Ok(Value::from_pairs(entries)),
    }
}

/// What `cycler` returns.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    position: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        let position = self.position.load(Ordering::Relaxed);
        self.items[position % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State,
        name: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        let [] = bind(name, [], arguments)?;
        let current = self.current();
        match name {
            "next" => self.position.fetch_add(1, Ordering::Relaxed),
            "reset" => self.position.swap(0, Ordering::Relaxed),
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        };
        Ok(current)
    }
}

/// What `joiner` returns.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(vec![self.separator.clone()])
    }

    fn call(self: &Arc<Self>, _: &mut State, arguments: &[Value]) -> Result<Value, Error> {
        let [] = bind("joiner", [], arguments)?;
        Ok(match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Value::from(""),
            _ => self.separator.clone(),
        })
    }
}
