//! The schemas within a schema, and what they refer to.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// A schema, or a value that is required as it is. A conjunction is a set of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Part(usize);

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    Schema(&'a Map<String, Value>),
    Const(&'a Value),
    /// A string that is required as it is: the name of a property.
    Name(usize),
    /// No value.
    Never,
}

/// Returns whether a keyword's value forbids nothing in its schema.
type ForbidsNothing = fn(&Value, &Map<String, Value>) -> bool;

/// Keywords that forbid something and are not supported, with the values that forbid nothing.
const UNSUPPORTED: [(&str, ForbidsNothing); 12] = [
    ("not", |value, _| *value == Value::Bool(false)),
    ("if", |_, schema| !schema.contains_key("then") && !schema.contains_key("else")),
    ("contains", |_, schema| {
        schema.get("minContains") == Some(&Value::from(0)) && !schema.contains_key("maxContains")
    }),
    ("uniqueItems", |value, schema| {
        *value == Value::Bool(false)
            || schema.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most < 2)
    }),
    ("dependentRequired", |value, _| is_empty(value)),
    ("dependentSchemas", |value, _| is_empty(value)),
    ("dependencies", |value, _| is_empty(value)),
    ("unevaluatedProperties", |value, _| allows_all(value)),
    ("unevaluatedItems", |value, _| allows_all(value)),
    ("$dynamicRef", |_, _| false),
    ("$recursiveRef", |_, _| false),
    ("disallow", |_, _| false),
];

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

fn allows_all(value: &Value) -> bool {
    *value == Value::Bool(true) || is_empty(value)
}

/// All parts of a schema that were asked for.
pub(super) struct Document<'a> {
    root: &'a Value,
    kinds: Vec<Kind<'a>>,
    /// Where each part stands, as a JSON pointer.
    places: Vec<String>,
    by_address: HashMap<(usize, bool), Part>,
    names: Vec<String>,
    by_name: HashMap<String, Part>,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let (kinds, places) = (vec![Kind::Never], vec![String::new()]);
        let (by_address, by_name) = (HashMap::new(), HashMap::new());
        Self { root, kinds, places, by_address, names: Vec::new(), by_name }
    }

    /// The part that no value satisfies.
    pub(super) const NEVER: Part = Part(0);

    pub(super) fn kind(&self, part: Part) -> Kind<'a> {
        self.kinds[part.0]
    }

    pub(super) fn place(&self, part: Part) -> &str {
        &self.places[part.0]
    }

    pub(super) fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    fn add(&mut self, kind: Kind<'a>, place: String) -> Part {
        self.kinds.push(kind);
        self.places.push(place);
        Part(self.kinds.len() - 1)
    }

    /// Returns the part of a schema at a place, or `None` if it allows all values.
    ///
    /// # Errors
    /// If it is no schema, or needs something that is not supported.
    pub(super) fn schema(&mut self, value: &'a Value, place: &str) -> Result<Option<Part>, String> {
        let schema = match value {
            Value::Bool(true) => return Ok(None),
            Value::Bool(false) => return Ok(Some(Self::NEVER)),
            Value::Object(schema) => schema,
            _ => return Err(at(place, "a schema is an object, true or false")),
        };
        let address = (std::ptr::from_ref(value).addr(), false);
        if let Some(&part) = self.by_address.get(&address) {
            return Ok(Some(part));
        }
        for (keyword, forbids_nothing) in UNSUPPORTED {
            if schema.get(keyword).is_some_and(|value| !forbids_nothing(value, schema)) {
                return Err(at(place, &format!("`{keyword}` is not supported")));
            }
        }
        let part = self.add(Kind::Schema(schema), place.to_owned());
        self.by_address.insert(address, part);
        Ok(Some(part))
    }

    /// Returns the part of a value that is required as it is.
    pub(super) fn constant(&mut self, value: &'a Value, place: &str) -> Part {
        let address = (std::ptr::from_ref(value).addr(), true);
        if let Some(&part) = self.by_address.get(&address) {
            return part;
        }
        let part = self.add(Kind::Const(value), place.to_owned());
        self.by_address.insert(address, part);
        part
    }

    /// Returns the part of a string that is required as it is.
    pub(super) fn named(&mut self, name: &str) -> Part {
        if let Some(&part) = self.by_name.get(name) {
            return part;
        }
        self.names.push(name.to_owned());
        let part = self.add(Kind::Name(self.names.len() - 1), String::new());
        self.by_name.insert(name.to_owned(), part);
        part
    }

    /// Returns what a reference refers to.
    ///
    /// # Errors
    /// If there is no such schema within the document.
    pub(super) fn target(
        &mut self,
        reference: &Value,
        place: &str,
    ) -> Result<Option<Part>, String> {
        let text = reference.as_str().ok_or_else(|| at(place, "`$ref` must be a text"))?;
        let id = self.root.get("$id").and_then(Value::as_str).unwrap_or_default();
        let id = id.split('#').next().unwrap_or_default();
        let local = if id.is_empty() { text } else { text.strip_prefix(id).unwrap_or(text) };
        let not_here = || {
            let reason =
                "is not within the schema: only references such as \"#/$defs/name\" are supported";
            at(place, &format!("the reference {text:?} {reason}"))
        };
        let missing = || at(place, &format!("the reference {text:?} refers to nothing"));
        let fragment = match local.strip_prefix('#') {
            Some(fragment) => fragment,
            None if local.is_empty() => "",
            None => return Err(not_here()),
        };
        let fragment = percent_decoded(fragment).ok_or_else(missing)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            // A pointer, whose `~0` and `~1` are read by `pointer`.
            let found = self.root.pointer(&fragment).ok_or_else(missing)?;
            return self.schema(found, &fragment);
        }
        let found = anchored(self.root, &fragment, "").ok_or_else(missing)?;
        self.schema(found.0, &found.1)
    }
}

/// Finds the schema with an anchor.
fn anchored<'a>(value: &'a Value, anchor: &str, place: &str) -> Option<(&'a Value, String)> {
    match value {
        Value::Object(fields) => {
            let text = |key: &str| fields.get(key).and_then(Value::as_str);
            let is_here = text("$anchor") == Some(anchor)
                || ["$id", "id"]
                    .iter()
                    .any(|key| text(key).and_then(|id| id.strip_prefix('#')) == Some(anchor));
            if is_here {
                return Some((value, place.to_owned()));
            }
            fields.iter().find_map(|(key, value)| anchored(value, anchor, &below(place, key)))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, value)| anchored(value, anchor, &format!("{place}/{index}")))
        }
        _ => None,
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Returns the place of a member.
pub(super) fn below(place: &str, key: &str) -> String {
    format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Returns a message about a place.
pub(super) fn at(place: &str, message: &str) -> String {
    match place {
        "" => message.to_owned(),
        place => format!("at {place}: {message}"),
    }
}
