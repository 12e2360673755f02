//! Macros whose parameters are bound as jinja2 binds them: with defaults that may read the
//! parameters before them, with undefined arguments that no default replaces, and with `varargs`
//! and `kwargs`.

use super::arguments::pairs;
use super::failure;
use minijinja::machinery::Instruction;
use minijinja::value::{Kwargs, Object, ObjectRepr, Tuple, Value};
use minijinja::{Environment, Error, State};
use std::collections::HashMap;
use std::sync::Arc;

/// The filter that makes a macro of minijinja's: `macro | =macro(parameters)`. No template can name
/// it.
const MACRO: &str = "=macro";
/// The filter that tells whether an argument is missing.
const MISSING: &str = "=missing";

const VARARGS: &str = "varargs";
const KWARGS: &str = "kwargs";

/// A filter that is not cached in a local of the virtual machine.
const NOT_CACHED: u8 = u8::MAX;

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter(MACRO, |inner: &Value, parameters: &Value| -> Result<Value, Error> {
        let parameter = |parameter: Value| -> Result<_, Error> {
            let name = parameter.get_item_by_index(0)?;
            Ok((name, parameter.get_item_by_index(1)?.is_true()))
        };
        let parameters = parameters.try_iter()?.map(parameter).collect::<Result<Vec<_>, _>>()?;
        Ok(Value::from_object(Macro { inner: inner.clone(), parameters }))
    });
    environment
        .add_filter(MISSING, |value: &Value| value.downcast_object_ref::<Missing>().is_some());
}

/// What the instructions of a template become.
pub(in super::super) struct Bound<'source> {
    /// As many instructions as before.
    pub(in super::super) instructions: Vec<Instruction<'source>>,
    /// Instructions before others, by index.
    pub(in super::super) before: HashMap<usize, Vec<Instruction<'source>>>,
    /// Instructions after others, by index.
    pub(in super::super) after: HashMap<usize, Vec<Instruction<'source>>>,
}

/// Rewrites the macros of a template.
pub(in super::super) fn bind_macros(instructions: Vec<Instruction<'_>>) -> Bound<'_> {
    let mut bound = Bound { instructions, before: HashMap::new(), after: HashMap::new() };
    for index in 1..bound.instructions.len() {
        if let Instruction::BuildMacro(_, start, _) = bound.instructions[index] {
            bind_macro(&mut bound, start as usize, index);
        }
    }
    bound
}

/// Rewrites a macro that begins at `start` and is built at `end`.
fn bind_macro(bound: &mut Bound<'_>, start: usize, end: usize) {
    let Instruction::LoadConst(names) = bound.instructions[end - 1].clone() else { return };
    let names: Vec<Value> = names.try_iter().into_iter().flatten().collect();
    let body = &bound.instructions[start..end];
    let reads = |wanted: &str| {
        body.iter().any(|one| matches!(one, Instruction::Lookup(name) if **name == *wanted))
    };
    let hidden: Vec<_> = [VARARGS, KWARGS]
        .into_iter()
        .filter(|name| reads(name) && !names.contains(&Value::from(*name)))
        .collect();
    let Some(defaults) = order_defaults(&mut bound.instructions, start, names.len()) else {
        return;
    };
    if hidden.is_empty() && !defaults.contains(&true) {
        return;
    }
    let parameters = names.iter().cloned().zip(defaults);
    let parameters = parameters.chain(hidden.iter().map(|name| (Value::from(*name), false)));
    let parameters: Vec<_> =
        parameters.map(|(name, default)| Tuple::from([name, Value::from(default)])).collect();
    let names = names.into_iter().chain(hidden.iter().map(|name| Value::from(*name)));
    bound.instructions[end - 1] = Instruction::LoadConst(names.collect());
    let stores = hidden.iter().rev().map(|name| Instruction::StoreLocal(name));
    bound.before.insert(start, stores.collect());
    let parameters = Instruction::LoadConst(parameters.into_iter().collect());
    let make = Instruction::ApplyFilter(MACRO, Some(2), NOT_CACHED);
    bound.after.insert(end, vec![parameters, make]);
}

/// Makes a macro store all of its arguments before it computes defaults, the first parameter's
/// first. Returns which parameters have defaults, or `None` if the instructions are not those of a
/// macro.
fn order_defaults(
    instructions: &mut [Instruction<'_>],
    start: usize,
    count: usize,
) -> Option<Vec<bool>> {
    // The instructions of each parameter, from the last to the first: of its default, and the one
    // that stores it.
    let mut parameters = Vec::new();
    let mut next = start;
    for _ in 0..count {
        let (default, store) = match instructions.get(next)? {
            Instruction::DupTop => match instructions.get(next + 2)? {
                Instruction::JumpIfFalse(store) => {
                    (Some(next + 4..*store as usize), *store as usize)
                }
                _ => return None,
            },
            _ => (None, next),
        };
        let Instruction::StoreLocal(name) = instructions.get(store)? else { return None };
        parameters.push((*name, default));
        next = store + 1;
    }
    let stores = parameters.iter().map(|(name, _)| Instruction::StoreLocal(name));
    let mut ordered: Vec<_> = stores.collect();
    for (name, default) in parameters.iter().rev() {
        let Some(default) = default.clone() else { continue };
        let begin = start + ordered.len() + 3;
        let end = begin + default.len();
        ordered.push(Instruction::Lookup(name));
        ordered.push(Instruction::ApplyFilter(MISSING, Some(1), NOT_CACHED));
        ordered.push(Instruction::JumpIfFalse(end as u32 + 1));
        for instruction in &instructions[default.clone()] {
            let mut moved = instruction.clone();
            if let Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target) = &mut moved
            {
                *target = *target - default.start as u32 + begin as u32;
            }
            ordered.push(moved);
        }
        ordered.push(Instruction::StoreLocal(name));
    }
    instructions.get_mut(start..next)?.clone_from_slice(&ordered);
    Some(parameters.iter().rev().map(|(_, default)| default.is_some()).collect())
}

/// An argument that a call does not have.
#[derive(Debug)]
struct Missing;

impl Object for Missing {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A macro with defaults, `varargs` or `kwargs`.
#[derive(Debug)]
struct Macro {
    /// minijinja's macro, which gets all arguments.
    inner: Value,
    /// The names of the parameters, and whether they have a default.
    parameters: Vec<(Value, bool)>,
}

impl Macro {
    fn name(&self) -> String {
        self.inner.get_attr("name").map(|name| name.to_string()).unwrap_or_default()
    }
}

impl Object for Macro {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.inner.get_item(key).ok()
    }

    fn call(self: &Arc<Self>, state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
        let (positional, mut named) = match arguments.split_last() {
            Some((last, rest)) if last.is_kwargs() => (rest, pairs(last)),
            _ => (arguments, Vec::new()),
        };
        let mut positional = positional.iter().cloned();
        let mut take = |wanted: &Value| {
            let index = named.iter().position(|(name, _)| name == wanted)?;
            Some(named.remove(index).1)
        };
        let caller = take(&Value::from("caller"));
        let mut bound = Vec::new();
        for (name, default) in &self.parameters {
            let hidden = [VARARGS, KWARGS].map(Value::from).contains(name);
            if hidden {
                break;
            }
            bound.push(match (positional.next(), take(name)) {
                (Some(_), Some(_)) => {
                    let macro_name = self.name();
                    return Err(failure(format!("{macro_name} gets the argument {name} twice")));
                }
                (Some(value), None) | (None, Some(value)) => value,
                (None, None) if *default => Value::from_object(Missing),
                (None, None) => Value::UNDEFINED,
            });
        }
        let hidden = |name: &str| {
            self.parameters[bound.len()..].iter().any(|one| one.0 == Value::from(name))
        };
        let (varargs, kwargs) = (hidden(VARARGS), hidden(KWARGS));
        let rest: Vec<Value> = positional.collect();
        if !rest.is_empty() && !varargs {
            return Err(failure(format!("{} has too many arguments", self.name())));
        }
        if let Some((name, _)) = named.first().filter(|_| !kwargs) {
            return Err(failure(format!("{} has no argument {name}", self.name())));
        }
        bound.extend(varargs.then(|| Tuple::new(rest).into()));
        bound.extend(kwargs.then(|| Value::from_pairs(named)));
        bound.extend(caller.map(|caller| Kwargs::from_iter([("caller", caller)]).into()));
        self.inner.call(state, &bound)
    }
}
