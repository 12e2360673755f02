//! Tests of the table of fields, for every type of request.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::table::TABLE;
use super::{Api, Decision};
use axum::body::Bytes;
use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};
use serde_json::{Value, json};
use std::fmt;

/// All APIs but ollama's.
pub(crate) const ALL: [Api; 4] = [Api::Completions, Api::Chat, Api::Responses, Api::Messages];
const OLLAMA: [Api; 2] = [Api::OllamaChat, Api::OllamaGenerate];

/// Returns the names of a type's fields.
pub(crate) fn names<T: DeserializeOwned>() -> &'static [&'static str] {
    T::deserialize(Names).err().unwrap().0
}

/// Checks that the table has the fields of a type as obeyed ones, so that the page shows them.
pub(crate) fn fields_are_known<T: DeserializeOwned>(apis: &[Api]) {
    for name in names::<T>() {
        for api in apis {
            // Some fields are of one API only. Others refuse them before they are read.
            assert!(api.field(name).is_some(), "the table has no field {name} of {api:?}");
        }
    }
}

/// Checks that every field of a type may be null, apart from the required ones. `whole` has all
/// fields.
pub(crate) fn nulls_are_absent<T: DeserializeOwned>(whole: &Value, required: &[&str]) {
    let names = names::<T>();
    let accepts = |value: &Value| serde_json::from_value::<T>(value.clone()).is_ok();
    assert!(!names.is_empty() && accepts(whole), "{whole}");
    assert_eq!(whole.as_object().unwrap().len(), names.len(), "not all of {names:?} are given");
    for name in names {
        let mut value = whole.clone();
        value[name] = Value::Null;
        assert_eq!(accepts(&value), !required.contains(name), "{name} is null");
        value.as_object_mut().unwrap().remove(*name).unwrap();
        assert_eq!(accepts(&value), !required.contains(name), "{name} is absent");
    }
}

/// Returns the names of a type's fields as an error.
struct Names;

#[derive(Debug)]
struct Found(&'static [&'static str]);

impl<'de> Deserializer<'de> for Names {
    type Error = Found;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Found> {
        Err(Found(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Found> {
        Err(Found(fields))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.0)
    }
}

impl std::error::Error for Found {}

impl de::Error for Found {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

fn check(api: Api, body: &Value) -> Result<(), String> {
    let body = Bytes::from(body.to_string());
    api.check(&body).map_err(|error| error.message().to_owned())
}

#[test]
fn a_field_has_one_decision_in_each_api() {
    for api in ALL.into_iter().chain(OLLAMA) {
        let fields = TABLE.iter().flat_map(|(_, fields)| *fields);
        let mut names: Vec<&str> =
            fields.filter(|field| field.apis.contains(&api)).map(|field| field.name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|two| two[0] == two[1]);
        assert_eq!(twice, None, "{api:?}");
    }
}

#[test]
fn refused_fields_pass_with_values_that_ask_for_nothing() {
    for field in TABLE.iter().flat_map(|(_, fields)| *fields) {
        let Decision::Refused(neutral) = field.decision else { continue };
        let body = |value: Value| match field.name.split_once('.') {
            Some((object, member)) => json!({object: {member: value}}),
            None => json!({field.name: value}),
        };
        let given = neutral.iter().map(|text| serde_json::from_str(text).unwrap());
        let empty = [Value::Null, json!(""), json!([]), json!({})];
        for &api in field.apis {
            for value in given.clone().chain(empty.clone()) {
                assert_eq!(check(api, &body(value.clone())), Ok(()), "{} {value}", field.name);
                assert_eq!(check(api, &body(json!([value]))), Ok(()), "{} [{value}]", field.name);
            }
            for value in [json!(17.25), json!("something"), json!([1, 2]), json!({"a": 1})] {
                let error = check(api, &body(value)).unwrap_err();
                assert!(error.starts_with(field.name), "{error}");
            }
        }
    }
}

#[test]
fn numbers_are_compared_by_their_values() {
    for text in ["1", "1.0", "1e0"] {
        let body = format!("{{\"tfs_z\": {text}}}");
        assert!(Api::Chat.check(&body.into()).is_ok(), "{text}");
    }
    assert!(check(Api::Chat, &json!({"tfs_z": 0.9})).is_err());
    assert!(check(Api::Chat, &json!({"tfs_z": true})).is_err());
}

#[test]
fn errors_say_what_is_refused_why_and_what_to_do() {
    let error = |api, body| check(api, &body).unwrap_err();
    assert_eq!(
        error(Api::Chat, json!({"mirostat": 2})),
        "mirostat is not supported by this server: its state depends on the rows of all earlier tokens: use `top_p` or `min_p`. Leave it out, or set it to 0"
    );
    assert_eq!(
        error(Api::Chat, json!({"suffix": "}"})),
        "suffix is not supported by this server: it is for `/v1/completions`. Leave it out"
    );
    let body = json!({"model": "x", "structured_outputs": {"regex": "a", "structural_tag": "b"}});
    assert!(error(Api::Chat, body).starts_with("structured_outputs.structural_tag is not"));
}

#[test]
fn unknown_fields_and_bodies_that_are_no_objects_pass() {
    assert_eq!(check(Api::Chat, &json!({"tempratur": 1, "text": {"tone": "kind"}})), Ok(()));
    for text in ["", "{", "[]", "null", "7", "\"mirostat\""] {
        assert!(Api::Chat.check(&text.into()).is_ok(), "{text}");
    }
    // Every one of equal keys counts.
    let twice = "{\"mirostat\": 2, \"mirostat\": 0}";
    assert!(Api::Chat.check(&twice.into()).is_err());
}
