//! Which fields of which API the server obeys, ignores or refuses.
//!
//! Requests are checked with the same table that the guide's page shows
//! (`docs/guide/src/server-fields.md`).

mod table;

#[cfg(test)]
mod page;
#[cfg(test)]
pub(crate) mod tests;

use super::error::ApiError;
use axum::body::Bytes;
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use table::TABLE;

/// An API with requests for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Completions,
    Chat,
    Responses,
    /// Anthropic's, with the counting of tokens.
    Messages,
    OllamaChat,
    OllamaGenerate,
}

/// A field of a request, or `object.member` for a member of a field.
struct Field {
    name: &'static str,
    apis: &'static [Api],
    decision: Decision,
    /// What the field does, or why it is ignored or refused: the end of a sentence.
    note: &'static str,
}

/// What the server does with a field. Every field may be null, which means that it is absent.
enum Decision {
    Obeyed,
    /// It changes nothing about the text.
    Ignored,
    /// Its values are errors, apart from these, which ask for nothing. They are JSON. What is
    /// empty, or a list of them, also asks for nothing.
    Refused(&'static [&'static str]),
}

impl Api {
    fn field(self, name: &str) -> Option<&'static Field> {
        let mut fields = TABLE.iter().flat_map(|(_, fields)| *fields);
        fields.find(|field| field.name == name && field.apis.contains(&self))
    }

    #[cfg(test)]
    pub(crate) fn obeys(self, name: &str) -> bool {
        self.field(name).is_some_and(|field| matches!(field.decision, Decision::Obeyed))
    }

    /// Returns whether the table has members of a field.
    fn has_members(self, name: &str) -> bool {
        let member = |field: &Field| {
            let rest = field.name.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('.')) && field.apis.contains(&self)
        };
        TABLE.iter().flat_map(|(_, fields)| *fields).any(member)
    }

    /// Refuses a request with a field that the server cannot obey, and warns of fields that it does
    /// not know. `body` is the JSON of a request.
    ///
    /// # Errors
    /// Names the first field that is refused.
    pub(crate) fn check(self, body: &Bytes) -> Result<(), ApiError> {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let checked = deserializer.deserialize_map(Fields { api: self, refused: Ok(()) });
        // A body that is no object is an error elsewhere.
        checked.unwrap_or(Ok(()))
    }
}

impl Field {
    fn check(&self, value: &Value) -> Result<(), ApiError> {
        let Decision::Refused(neutral) = self.decision else { return Ok(()) };
        if is_neutral(value, neutral) {
            return Ok(());
        }
        let Self { name, note, .. } = self;
        let instead = match neutral {
            [] => String::new(),
            neutral => format!(", or set it to {}", neutral.join(" or ")),
        };
        let message =
            format!("{name} is not supported by this server: {note}. Leave it out{instead}");
        Err(ApiError::field(*name, message).with_own_name())
    }
}

/// Returns whether a value asks for nothing.
fn is_neutral(value: &Value, neutral: &[&str]) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) if text.is_empty() => true,
        Value::Object(members) if members.is_empty() => true,
        Value::Array(list) => list.iter().all(|one| is_neutral(one, neutral)),
        // 1 and 1.0 are the same number.
        Value::Number(number) => neutral.iter().any(|text| text.parse().ok() == number.as_f64()),
        value => neutral.contains(&&*value.to_string()),
    }
}

/// Reads the names of a request's fields, and the values of those that may be refused.
struct Fields {
    api: Api,
    /// The first refusal.
    refused: Result<(), ApiError>,
}

impl<'de> Visitor<'de> for Fields {
    type Value = Result<(), ApiError>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let field = self.api.field(&name);
            let may_be_refused =
                field.is_some_and(|field| matches!(field.decision, Decision::Refused(_)));
            if !may_be_refused && !self.api.has_members(&name) {
                map.next_value::<IgnoredAny>()?;
                self.check(&name, field, &Value::Null);
                continue;
            }
            let value: Value = map.next_value()?;
            self.check(&name, field, &value);
            if self.api.has_members(&name) {
                for (member, value) in value.as_object().into_iter().flatten() {
                    let name = format!("{name}.{member}");
                    self.check(&name, self.api.field(&name), value);
                }
            }
        }
        Ok(self.refused)
    }
}

impl Fields {
    fn check(&mut self, name: &str, field: Option<&Field>, value: &Value) {
        match field {
            None => warn_once(self.api, name),
            Some(field) if self.refused.is_ok() => self.refused = field.check(value),
            Some(_) => {}
        }
    }
}

/// The most unknown fields that are remembered, so that clients cannot fill the memory.
const MOST_WARNINGS: usize = 1000;

/// Writes to the log that an unknown field is ignored, once for each field.
fn warn_once(api: Api, name: &str) {
    static WARNED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    let warned = warned.get_or_insert_default();
    let name: String = name.chars().take(100).collect();
    if warned.len() < MOST_WARNINGS && warned.insert(name.clone()) {
        tracing::warn!(?api, field = ?name, "an unknown field of a request is ignored");
    }
}
