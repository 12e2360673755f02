//! The fields of a request that say what an answer's text must look like.

use crate::api::error::ApiError;
use forerun::{Engine, Grammar};
use serde::Deserialize;
use serde_json::Value;

/// The fields of OpenAI's API, llama-server and vLLM. A request may have one of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StructureFields {
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) json_schema: Option<Value>,
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
    JsonObject {
        #[serde(default)]
        schema: Option<Value>,
    },
    JsonSchema {
        #[serde(default)]
        json_schema: Option<NamedSchema>,
        #[serde(default)]
        schema: Option<Value>,
    },
}

/// A schema of OpenAI's API. Answers always follow it, whatever `strict` says.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedSchema {
    pub(crate) schema: Option<Value>,
}

impl ResponseFormat {
    /// The format of a schema, which is where the Responses API and Anthropic's have it.
    pub(crate) fn of_schema(schema: &Value) -> Self {
        Self::JsonSchema { json_schema: None, schema: Some(schema.clone()) }
    }

    /// Returns the field that says what answers look like, and their grammar, if there is one. A
    /// schema is where OpenAI's API or llama-server has it.
    fn grammar(&self) -> Result<Option<(&'static str, Grammar)>, ApiError> {
        let required = |field| Err(ApiError::field(field, format!("{field} is required")));
        let (field, schema) = match self {
            Self::Text => return Ok(None),
            Self::JsonObject { schema: None } => {
                return Ok(Some(("response_format", Grammar::json_object())));
            }
            Self::JsonObject { schema: Some(schema) }
            | Self::JsonSchema { json_schema: None, schema: Some(schema) } => {
                ("response_format.schema", schema)
            }
            Self::JsonSchema { json_schema: None, schema: None } => {
                return required("response_format.json_schema");
            }
            Self::JsonSchema { json_schema: Some(NamedSchema { schema }), .. } => {
                let field = "response_format.json_schema.schema";
                match schema {
                    Some(schema) => (field, schema),
                    None => return required(field),
                }
            }
        };
        Ok(Some((field, Grammar::json_schema(schema))))
    }
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
    /// The fields of a request whose API has one place for formats.
    pub(crate) fn of_format(response_format: Option<ResponseFormat>) -> Self {
        Self { response_format, ..Self::default() }
    }

    /// Returns the grammar of the answers, checked for the model.
    pub(crate) fn grammar(&self, forerun: &Engine) -> Result<Option<Grammar>, ApiError> {
        let mut grammars = self.grammars()?;
        let Some((field, grammar)) = grammars.next() else { return Ok(None) };
        if let Some((other, _)) = grammars.next() {
            let message = format!("{other} and {field} cannot be combined: give one of them");
            return Err(ApiError::field(other, message));
        }
        match forerun.check_grammar(&grammar) {
            Ok(()) => Ok(Some(grammar)),
            Err(error) => Err(ApiError::field(field, format!("{field}: {}", error.reason()))),
        }
    }

    /// Returns the field that gives the grammar, if there is one.
    pub(crate) fn field(&self) -> Option<&'static str> {
        self.grammars().ok()?.next().map(|(field, _)| field)
    }

    /// Returns every field that gives a grammar, with it.
    fn grammars(&self) -> Result<impl Iterator<Item = (&'static str, Grammar)>, ApiError> {
        let format = self.response_format.as_ref().map(ResponseFormat::grammar).transpose()?;
        let others = self.given().into_iter();
        let others = others.filter_map(|(field, grammar)| Some((field, grammar?)));
        Ok(format.flatten().into_iter().chain(others))
    }

    fn given(&self) -> [(&'static str, Option<Grammar>); 11] {
        let json = |value: &Option<Value>| value.as_ref().map(json_schema);
        let choice = |texts: &Option<Vec<String>>| texts.as_deref().map(Grammar::choice);
        let regex = |text: &Option<String>| text.as_deref().map(Grammar::regex);
        let grammar = |text: &Option<String>| text.as_deref().map(Grammar::guess);
        let default = StructuredOutputs::default();
        let outputs = self.structured_outputs.as_ref().unwrap_or(&default);
        let json_object = outputs.json_object.unwrap_or(false).then(Grammar::json_object);
        [
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
        Value::String(text) => Grammar::new(forerun::text::GrammarKind::JsonSchema, text),
        schema => Grammar::json_schema(schema),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::Api;
    use crate::api::fields::tests::{ALL, fields_are_known, nulls_are_absent};
    use serde_json::json;

    #[test]
    fn every_field_may_be_null() {
        fields_are_known::<StructureFields>(&[Api::Completions, Api::Chat]);
        let fields = json!({
            "response_format": {"type": "json_object"}, "json_schema": {}, "grammar": "a",
            "structured_outputs": {}, "guided_json": {}, "guided_regex": "a",
            "guided_choice": ["a"], "guided_grammar": "a",
        });
        nulls_are_absent::<StructureFields>(&fields, &[]);
        let outputs = json!({
            "json": {}, "json_object": true, "regex": "a", "choice": ["a"], "grammar": "a",
        });
        nulls_are_absent::<StructuredOutputs>(&outputs, &[]);
        nulls_are_absent::<NamedSchema>(&json!({"schema": {}}), &[]);
        for member in crate::api::fields::tests::names::<StructuredOutputs>() {
            for api in ALL {
                assert!(api.obeys(&format!("structured_outputs.{member}")), "{member}");
            }
        }
    }

    #[test]
    fn a_format_has_its_schema_where_openai_or_llama_server_put_it() {
        let field = |format: Value| {
            let format = serde_json::from_value::<ResponseFormat>(format).ok()?;
            Some(
                format
                    .grammar()
                    .map(|grammar| grammar.map(|(field, _)| field))
                    .map_err(|error| error.message().to_owned()),
            )
        };
        let schema = json!({"type": "integer"});
        for (format, name) in [
            (json!({"type": "text", "schema": schema}), None),
            (json!({"type": "json_object"}), Some("response_format")),
            (json!({"type": "json_object", "schema": null}), Some("response_format")),
            (json!({"type": "json_object", "schema": schema}), Some("response_format.schema")),
            (json!({"type": "json_schema", "schema": schema}), Some("response_format.schema")),
            (
                json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}),
                Some("response_format.json_schema.schema"),
            ),
        ] {
            assert_eq!(field(format.clone()), Some(Ok(name)), "{format}");
        }
        for (format, name) in [
            (json!({"type": "json_schema"}), "response_format.json_schema"),
            (
                json!({"type": "json_schema", "json_schema": {"name": "a"}}),
                "response_format.json_schema.schema",
            ),
        ] {
            assert_eq!(field(format), Some(Err(format!("{name} is required"))));
        }
    }
}
