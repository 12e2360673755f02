//! The fields of a request that say what an answer's text must look like.

use crate::api::error::ApiError;
use forerun::{Forerun, Grammar};
use serde::Deserialize;
use serde_json::Value;

/// The fields of OpenAI's API, llama-server and vLLM. A request may have one of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StructureFields {
    pub(crate) response_format: Option<ResponseFormat>,
    json_schema: Option<Value>,
    grammar: Option<String>,
    structured_outputs: Option<StructuredOutputs>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    guided_grammar: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

/// A schema of OpenAI's API. Answers always follow it, whatever `strict` says.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedSchema {
    pub(crate) schema: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StructuredOutputs {
    json: Option<Value>,
    json_object: Option<bool>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
}

impl StructureFields {
    /// Returns the grammar of the answers, checked for the model.
    pub(crate) fn grammar(&self, forerun: &Forerun) -> Result<Option<Grammar>, ApiError> {
        let mut given = self.given().into_iter().filter_map(|(field, grammar)| {
            let grammar = grammar?;
            Some((field, grammar))
        });
        let Some((field, grammar)) = given.next() else { return Ok(None) };
        if let Some((other, _)) = given.next() {
            let message = format!("{other} and {field} cannot be combined: give one of them");
            return Err(ApiError::field(other, message));
        }
        match forerun.check_grammar(&grammar) {
            Ok(()) => Ok(Some(grammar)),
            Err(error) => Err(ApiError::field(field, format!("{field}: {}", error.reason()))),
        }
    }

    fn given(&self) -> [(&'static str, Option<Grammar>); 13] {
        let (format, schema) = match &self.response_format {
            None | Some(ResponseFormat::Text) => (None, None),
            Some(ResponseFormat::JsonObject) => (Some(Grammar::json_object()), None),
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                (None, Some(Grammar::json_schema(&json_schema.schema)))
            }
        };
        let json = |value: &Option<Value>| value.as_ref().map(json_schema);
        let choice = |texts: &Option<Vec<String>>| texts.as_deref().map(Grammar::choice);
        let regex = |text: &Option<String>| text.as_deref().map(Grammar::regex);
        let grammar = |text: &Option<String>| text.as_deref().map(Grammar::guess);
        let default = StructuredOutputs::default();
        let outputs = self.structured_outputs.as_ref().unwrap_or(&default);
        let json_object = outputs.json_object.unwrap_or(false).then(Grammar::json_object);
        [
            ("response_format", format),
            ("response_format.json_schema.schema", schema),
            ("json_schema", json(&self.json_schema)),
            ("grammar", grammar(&self.grammar)),
            ("structured_outputs.json", json(&outputs.json)),
            ("structured_outputs.json_object", json_object),
            ("structured_outputs.regex", regex(&outputs.regex)),
            ("structured_outputs.choice", choice(&outputs.choice)),
            ("structured_outputs.grammar", grammar(&outputs.grammar)),
            ("guided_json", json(&self.guided_json)),
            ("guided_regex", regex(&self.guided_regex)),
            ("guided_choice", choice(&self.guided_choice)),
            ("guided_grammar", grammar(&self.guided_grammar)),
        ]
    }
}

/// Returns the grammar of a schema, which vLLM also reads from a text.
fn json_schema(schema: &Value) -> Grammar {
    match schema {
        Value::String(text) => Grammar::new(forerun::GrammarKind::JsonSchema, text),
        schema => Grammar::json_schema(schema),
    }
}
