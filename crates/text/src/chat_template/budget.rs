//! What a template may build and read, in bytes. A template is an untrusted program.
//!
//! Every operation is paid before it runs, by an upper bound of what it reads and builds (constant
//! factors aside). So neither memory nor time depends on what a template does.

use super::{Message, TemplateArguments, python};
use minijinja::value::{DynObject, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

/// The filter that pays for an operation: `operands… | =pay(operation)`. It returns the operands
/// from last to first. No template can name it.
pub(super) const PAY: &str = "=pay";

/// The filter that checks a new value, and turns a lazy sequence into a list.
pub(super) const SETTLE: &str = "=settle";

/// The filter that calls with lists of arguments: `lists… | =call(name)`. It pays for the call.
pub(super) const CALL: &str = "=call";

/// The budget without messages, in bytes.
const BASE: usize = 32 << 20;

/// The budget for each byte of messages and tools.
const PER_BYTE: usize = 64;

/// The maximum depth of nested values.
const MAX_DEPTH: usize = 64;

/// The maximum number of namespaces. A chain of them can have any depth.
const MAX_NAMESPACES: usize = 1000;

/// The memory of an item of a list, in bytes.
const ITEM: usize = 32;

/// The text of a number, or of another value without items, in bytes.
const SCALAR: usize = 8;

/// What is left of a rendering's budget.
struct Budget {
    bytes: usize,
    namespaces: usize,
}

/// The budget of one rendering.
#[derive(Clone, Copy)]
pub(super) struct Limit(usize);

impl Limit {
    pub(super) fn new(messages: &[Message], arguments: &TemplateArguments) -> Self {
        let mut bytes = 0;
        arguments.each_text(messages, |text| bytes += text.len());
        Self(BASE.saturating_add(bytes.saturating_mul(PER_BYTE)))
    }

    /// Adds the filters that templates pay with, and replaces the function `namespace` by one that
    /// counts.
    pub(super) fn install(self, environment: &mut Environment<'_>) {
        // It prints all variables.
        environment.remove_global("debug");
        let mut globals = environment.globals();
        let namespace = globals.find(|(name, _)| *name == "namespace").map(|(_, value)| value);
        drop(globals);
        if let Some(namespace) = namespace {
            environment.add_function(
                "namespace",
                move |state: &mut State, args: Rest<ValueOrKwargs>| {
                    let left = &mut self.budget(state).namespaces;
                    *left = left.checked_sub(1).ok_or_else(|| {
                        failure(format!("it creates more than {MAX_NAMESPACES} namespaces"))
                    })?;
                    namespace.call(state, &[python::namespace(&args.into_values())?])
                },
            );
        }
        environment.add_filter(PAY, move |state: &mut State, operands: Rest<ValueOrKwargs>| {
            let mut operands = operands.into_values();
            let operation = operands.pop().unwrap_or_default();
            let operation = operation.as_str().unwrap_or_default();
            let left = self.budget(state);
            left.pay(cost(operation, &operands, left.bytes)?, self)?;
            python::check(operation, &mut operands)?;
            operands.reverse();
            Ok::<_, Error>(Value::from(operands))
        });
        environment.add_filter(CALL, move |state: &mut State, lists: Rest<ValueOrKwargs>| {
            let mut lists = lists.into_values();
            let call = lists.pop().unwrap_or_default();
            let mut arguments = Vec::new();
            for list in &lists {
                let left = self.budget(state);
                left.pay(items(list), self)?;
                arguments.extend(python::items(list)?);
            }
            let call = call.as_str().unwrap_or_default();
            let left = self.budget(state);
            left.pay(cost(call, &arguments, left.bytes)?, self)?;
            python::call(state, call, &arguments)
        });
        environment.add_filter(SETTLE, move |state: &mut State, value: Value| {
            if value.as_object().is_none() {
                return Ok(value);
            }
            let value = match value.kind() {
                ValueKind::Iterable => {
                    let mut items = Vec::new();
                    for item in value.try_iter()?.checked() {
                        self.budget(state).pay(ITEM, self)?;
                        items.push(item?);
                    }
                    Value::from(items)
                }
                _ => value,
            };
            let left = self.budget(state);
            let Size { nodes, .. } = Size::of(&value, left.bytes)?;
            left.pay(nodes.saturating_mul(SCALAR), self)?;
            Ok::<_, Error>(value)
        });
    }

    /// Pays for the text of a value.
    pub(super) fn pay_text(self, state: &mut State, value: &Value) -> Result<(), Error> {
        let left = self.budget(state);
        let cost = text(value, left.bytes)?;
        left.pay(cost, self)
    }

    fn budget<'a>(self, state: &'a mut State<'_, '_>) -> &'a mut Budget {
        state.get_or_insert_extension(Budget { bytes: self.0, namespaces: MAX_NAMESPACES })
    }
}

impl Budget {
    fn pay(&mut self, bytes: usize, limit: Limit) -> Result<(), Error> {
        let left = self.bytes.checked_sub(bytes).ok_or_else(|| {
            failure(format!("it builds or reads more than {} MiB", limit.0 >> 20))
        })?;
        self.bytes = left;
        Ok(())
    }
}

fn failure(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// The size of a value with everything within it.
#[derive(Default)]
struct Size {
    /// The length of all strings in bytes.
    strings: usize,
    /// The number of values, with keys and items as often as they are written.
    nodes: usize,
}

impl Size {
    /// Returns the length of the text in bytes.
    fn text(&self) -> usize {
        self.strings.saturating_add(self.nodes.saturating_mul(SCALAR))
    }

    /// Returns the size of a value, or a part of it that is larger than `limit`.
    fn of(value: &Value, limit: usize) -> Result<Self, Error> {
        let mut size = Self::default();
        size.add(value, 0, limit)?;
        Ok(size)
    }

    fn add(&mut self, value: &Value, depth: usize, limit: usize) -> Result<(), Error> {
        self.nodes += 1;
        if let Some(string) = value.as_str() {
            self.strings += string.len();
            return Ok(());
        }
        let Some(object) = value.as_object() else { return Ok(()) };
        if depth == MAX_DEPTH {
            return Err(failure(format!("it nests values more than {MAX_DEPTH} levels deep")));
        }
        // Returns whether to go on.
        let mut add = |value: &Value| {
            if self.text() <= limit {
                self.add(value, depth + 1, limit)?;
            }
            Ok::<_, Error>(self.text() <= limit)
        };
        match object.repr() {
            ObjectRepr::Map => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    if !(add(&key)? && add(&value)?) {
                        break;
                    }
                }
            }
            _ => {
                for item in object.try_iter().into_iter().flatten() {
                    if !add(&item)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the length of a value's text.
fn text(value: &Value, limit: usize) -> Result<usize, Error> {
    Ok(Size::of(value, limit)?.text())
}

/// Returns the length of a string. Other values are read without their items.
fn own(value: &Value) -> usize {
    value.as_str().map_or(SCALAR, str::len)
}

/// Returns the memory of a list of the items. A string's items are its characters.
fn items(value: &Value) -> usize {
    let length = value.as_str().map(str::len);
    let length = length.or_else(|| value.as_object().and_then(DynObject::enumerator_len));
    length.map_or(SCALAR, |length| length.saturating_mul(ITEM))
}

/// Returns the memory of a copy: a string's length, or the list of the items.
fn copy(value: &Value) -> usize {
    if value.as_object().is_some() { items(value) } else { own(value) }
}

/// Returns an upper bound of the bytes that an operation reads and builds.
fn cost(operation: &str, operands: &[Value], limit: usize) -> Result<usize, Error> {
    let [first, rest @ ..] = operands else { return Ok(0) };
    let second = rest.first();
    let all_text = || {
        let texts = operands.iter().map(|operand| text(operand, limit));
        texts.sum::<Result<usize, Error>>()
    };
    let each = |cost: fn(&Value) -> usize| operands.iter().map(cost).fold(0, usize::saturating_add);
    let count = |value: Option<&Value>| value.and_then(Value::as_usize).unwrap_or(1);
    // An argument by position or by name.
    let argument = |index: usize, name: &str| {
        let named = rest.iter().filter(|value| value.is_kwargs());
        let named = named.filter_map(|options| options.get_attr(name).ok()).next();
        named.filter(|value| !value.is_undefined()).or_else(|| rest.get(index).cloned())
    };
    Ok(match operation {
        "+" => each(copy),
        "*" => {
            let times = operands.iter().filter_map(Value::as_usize).max().unwrap_or(1);
            match operands
                .iter()
                .find(|value| value.as_str().is_some() || value.as_object().is_some())
            {
                Some(repeated) => copy(repeated).saturating_mul(times.max(1)),
                None => SCALAR,
            }
        }
        // Different strings are compared until one ends.
        "compare" | "<" | "is eq" | "is equalto" | "is ==" | "is ne" | "is !=" => {
            match operands.iter().all(|value| value.as_object().is_some()) {
                true => all_text()?,
                false => operands.iter().map(own).min().unwrap_or(0),
            }
        }
        "in" | "is in" => match second {
            Some(container) if container.as_object().is_some() => {
                let wanted = text(first, limit)?;
                let compared = items(container) / ITEM;
                items(container).saturating_add(compared.saturating_mul(wanted))
            }
            _ => all_text()?,
        },
        "[]" => each(own),
        "[:]" => items(first),
        "for" => match first.kind() {
            ValueKind::String | ValueKind::Map => copy(first),
            _ => 0,
        },
        // The length, and single items of containers.
        "|length" | "|count" | "|first" | "|default" | "|d" | "|safe" | "|attr" | ".get" => {
            each(own)
        }
        ".split" | ".rsplit" => {
            let text = first.as_str().unwrap_or_default();
            let pieces = match argument(0, "sep").as_ref().and_then(Value::as_str) {
                Some(separator) => text.matches(separator).count(),
                None => text.split(python::is_space).count(),
            };
            each(own).saturating_add((pieces + 1).saturating_mul(ITEM))
        }
        ".splitlines" => own(first).saturating_add(lines(first).saturating_mul(ITEM)),
        "|replace" | ".replace" => {
            let new = argument(1, "new").map_or(Ok(0), |new| text(&new, limit))?;
            let replaced =
                match (first.as_str(), argument(0, "old").as_ref().and_then(Value::as_str)) {
                    (Some(text), Some(old)) => text.matches(old).count(),
                    _ => text(first, limit)?,
                };
            all_text()?.saturating_add(replaced.saturating_mul(new))
        }
        "|join" | ".join" => {
            let (separator, list) = match operation {
                ".join" => (Some(first.clone()), second),
                _ => (argument(0, "d"), Some(first)),
            };
            let list = list.map_or(0, items);
            let separator = separator.map_or(Ok(0), |separator| text(&separator, limit))?;
            let separators = (list / ITEM).saturating_mul(separator);
            all_text()?.saturating_add(list).saturating_add(separators)
        }
        "%" if first.as_str().is_none() => SCALAR,
        "%" | "|format" | ".format" | ".format_map" => {
            // A width is a number in the text, or a value.
            let pattern = first.as_str().unwrap_or_default();
            let numbers = pattern.split(|character: char| !character.is_ascii_digit());
            let in_pattern = numbers.filter(|digits| !digits.is_empty());
            let in_pattern = in_pattern.map(|digits| digits.parse().unwrap_or(usize::MAX)).max();
            let values = rest.iter().flat_map(scalars).filter(|_| has_variable_width(pattern));
            let width = in_pattern.max(values.max()).unwrap_or(0);
            let fields = pattern.matches(['%', '{']).count();
            let field = width.saturating_add(all_text()?);
            fields.max(1).saturating_mul(field)
        }
        ".center" | ".ljust" | ".rjust" | ".zfill" | "|center" => {
            let width = count(argument(0, "width").as_ref());
            all_text()?.saturating_add(width.saturating_mul(size_of::<char>()))
        }
        ".expandtabs" => {
            let tabs = first.as_str().unwrap_or_default().matches('\t').count();
            let width = argument(0, "tabsize").map_or(SCALAR, |width| count(Some(&width)));
            own(first).saturating_add(tabs.saturating_mul(width))
        }
        ".translate" => {
            own(first).saturating_mul(second.map_or(Ok(1), |table| text(table, limit))?)
        }
        "|indent" => {
            let width = argument(0, "width");
            let width = width.map_or(SCALAR, |width| count(Some(&width)).max(own(&width)));
            text(first, limit)?.saturating_add(lines(first).saturating_mul(width))
        }
        "|tojson" | "|pprint" => {
            let Size { nodes, .. } = Size::of(first, limit)?;
            let width =
                argument(1, "indent").map_or(1, |width| count(Some(&width)).max(own(&width)));
            let separators = argument(2, "separators").map_or(Ok(0), |one| text(&one, limit))?;
            let node = width.saturating_mul(MAX_DEPTH / 16).saturating_add(separators);
            all_text()?.saturating_add(nodes.saturating_mul(node))
        }
        "|batch" | "|slice" => {
            let groups = count(second).saturating_mul(2 * ITEM);
            items(first).saturating_add(groups)
        }
        "|sum" => (items(first) / ITEM).saturating_mul(all_text()?),
        // A filter for each item.
        "|map" => match second.and_then(Value::as_str) {
            Some(filter) => {
                let mut all = items(first);
                for item in first.try_iter()?.checked() {
                    let operands = [&[item?][..], &rest[1..]].concat();
                    all = all.saturating_add(cost(&format!("|{filter}"), &operands, limit)?);
                    if all > limit {
                        break;
                    }
                }
                all
            }
            None => each(copy),
        },
        "|select" | "|reject" | "|selectattr" | "|rejectattr" => {
            let each_item = rest.iter().map(copy).fold(SCALAR, usize::saturating_add);
            items(first).saturating_add((items(first) / ITEM).saturating_mul(each_item))
        }
        "|list" | "|items" | "|last" | "|reverse" => each(items),
        // Each item is read when it is compared.
        "|dictsort" | "|unique" | "|sort" | "|min" | "|max" | "|groupby" => {
            let rounds = usize::BITS - (items(first) / ITEM).leading_zeros() + 1;
            each(items).saturating_add(all_text()?.saturating_mul(rounds as usize))
        }
        ".count" | ".index" if first.as_object().is_some() => {
            let wanted = second.map_or(Ok(0), |wanted| text(wanted, limit))?;
            items(first).saturating_add((items(first) / ITEM).saturating_mul(wanted))
        }
        ".items" | ".keys" | ".values" | "dict()" | "namespace()" => each(copy),
        // A method of a container, or a call of a macro.
        _ if operation.ends_with("()") => each(own),
        _ if operation.starts_with('.') && first.as_object().is_some() => each(copy),
        _ => all_text()?,
    })
}

/// Returns the number of a text's lines.
fn lines(value: &Value) -> usize {
    value.as_str().unwrap_or_default().matches(python::ends_line).count() + 1
}

/// Returns the integers among a value and its items.
fn scalars(value: &Value) -> Vec<usize> {
    let items = value.as_object().is_some().then(|| value.try_iter().ok()).flatten();
    let is_map = value.kind() == ValueKind::Map;
    let item = |item: Value| if is_map { value.get_item(&item).unwrap_or(item) } else { item };
    let inner = items.into_iter().flatten().map(item);
    inner.chain([value.clone()]).filter_map(|value| value.as_usize()).collect()
}

/// Returns whether a format takes a width from its values.
fn has_variable_width(pattern: &str) -> bool {
    let fields = pattern.replace("{{", "");
    let nested = fields.split('{').skip(1).any(|field| !field.contains('}'));
    pattern.contains('*') || nested
}
