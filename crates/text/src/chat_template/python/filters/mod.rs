//! Jinja's filters and tests, where minijinja's differ.

mod lists;
mod numbers;
mod texts;

pub(super) use lists::sorted;
pub(super) use texts::escape;

use super::arguments::{bind, flag, integer, items, required};
use super::containers::Method;
use super::failure;
use super::operators::compare;
use super::text::{str, type_name};
use lists::{
    dictsort, extreme, first, groupby, join, last, length, map, map_items, reverse, sort, sum,
    unique,
};
use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error};
use numbers::{abs, file_size, round, to_float, to_int};
use std::cmp::Ordering;
use texts::{cased, center, escaped, indent, pretty, printf, replace, trim, truncate, urlencode};

/// Names of a test, and what it says of the order of a value and its argument.
type Order = (&'static [&'static str], fn(Ordering) -> bool);

type Filter = fn(&str, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 39] = [
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
    for (name, filter) in FILTERS {
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
    let orders: [Order; 4] = [
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

fn default(name: &str, values: &[Value]) -> Result<Value, Error> {
    let [value, default, boolean] = bind(name, ["value", "default_value", "boolean"], values)?;
    let value = required(name, "value", value)?;
    let missing = value.is_undefined() || (flag(boolean.as_ref()) && !value.is_true());
    Ok(if missing { default.unwrap_or_else(|| Value::from("")) } else { value })
}
