//! The fields of a request about tools.

use crate::api::error::ApiError;
use forerun::text::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

/// The type of tools that are functions.
pub(crate) const FUNCTION: &str = "function";
/// The longest name of a tool, in characters.
const LONGEST_NAME: usize = 64;

/// The tools that the model may call, and whether it must.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ToolFields {
    pub(crate) tools: Option<Vec<ToolField>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    pub(crate) parallel_tool_calls: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ToolField {
    pub(crate) r#type: String,
    #[serde(default)]
    pub(crate) function: Option<Function>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: Option<String>,
    #[serde(default)]
    pub(crate) parameters: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", or an object with the name of a function"
)]
pub(crate) enum ToolChoice {
    Mode(ToolMode),
    Named {
        function: FunctionName,
    },
    /// Something else than a function.
    Other {
        r#type: String,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolMode {
    None,
    Auto,
    Required,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FunctionName {
    pub(crate) name: String,
}

/// What a request says about tools.
#[derive(Debug, Default)]
pub(crate) struct ChosenTools {
    /// The tools that may be called.
    pub(crate) tools: Vec<Tool>,
    /// Whether the answer must be a call.
    pub(crate) required: bool,
    /// Whether several calls are allowed.
    pub(crate) parallel: bool,
}

impl ToolFields {
    /// Returns the tools that may be called. Those that are no functions are left out, with a
    /// warning.
    pub(crate) fn choice(&self) -> Result<ChosenTools, ApiError> {
        let all = || self.tools.iter().flatten().enumerate();
        let left_out = || all().filter(|(_, tool)| !tool.is_function());
        for (index, tool) in left_out() {
            tracing::warn!("tools[{index}] is left out: {}", tool.unsupported());
        }
        let functions = all().filter(|(_, tool)| tool.is_function());
        let mut tools: Vec<Tool> =
            functions.map(|(index, tool)| tool.tool(index)).collect::<Result<_, _>>()?;
        let mut parallel = self.parallel_tool_calls.unwrap_or(true);
        let wrong = |message: String| Err(ApiError::field("tool_choice", message));
        let required = match &self.tool_choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => false,
            Some(ToolChoice::Mode(ToolMode::None)) => {
                tools.clear();
                false
            }
            Some(ToolChoice::Mode(ToolMode::Required)) => true,
            Some(ToolChoice::Named { function: FunctionName { name } }) => {
                tools.retain(|tool| tool.name == *name);
                if tools.is_empty() {
                    return match left_out().find(|(_, tool)| tool.name() == Some(name)) {
                        Some((index, tool)) => {
                            let reason = tool.unsupported();
                            wrong(format!("tool_choice names tools[{index}], {name:?}: {reason}"))
                        }
                        None => wrong(format!("tool_choice: there is no tool {name:?}")),
                    };
                }
                parallel = false;
                true
            }
            Some(ToolChoice::Other { r#type }) => {
                return wrong(format!(
                    "tool_choice of type {type:?} is not supported: give \"none\", \"auto\", \"required\", or an \
                     object with the name of a function"
                ));
            }
        };
        if required && tools.is_empty() {
            return match left_out().next() {
                Some((index, tool)) => wrong(format!(
                    "tool_choice requires a tool, but tools has no function; tools[{index}]: {}",
                    tool.unsupported()
                )),
                None => wrong("tool_choice requires a tool, but tools is empty".to_owned()),
            };
        }
        Ok(ChosenTools { tools, required, parallel })
    }
}

impl ToolField {
    fn is_function(&self) -> bool {
        self.r#type == FUNCTION
    }

    fn name(&self) -> Option<&String> {
        self.function.as_ref().map(|function| &function.name)
    }

    /// Returns why a tool that is no function is left out.
    fn unsupported(&self) -> String {
        format!("tools of type {:?} are not supported by this server, only functions", self.r#type)
    }

    fn tool(&self, index: usize) -> Result<Tool, ApiError> {
        let Some(function) = &self.function else {
            let field = format!("tools[{index}].function");
            return Err(ApiError::field(&*field, format!("{field} is required")));
        };
        let Function { name, description, parameters } = function;
        let allowed = |one: char| one.is_ascii_alphanumeric() || "_-.".contains(one);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
            let field = format!("tools[{index}].function.name");
            let message = format!(
                "{field} is {name:?}, but it must have 1 to {LONGEST_NAME} letters, digits, dots, dashes and \
                 underscores"
            );
            return Err(ApiError::field(field, message));
        }
        let empty = || json!({"type": "object", "properties": {}});
        let parameters = match parameters {
            None | Some(Value::Null) => empty(),
            Some(Value::Object(object)) if object.is_empty() => empty(),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => {
                let field = format!("tools[{index}].function.parameters");
                return Err(ApiError::field(&*field, format!("{field} must be a JSON schema")));
            }
        };
        Ok(Tool { name: name.clone(), description: description.clone(), parameters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fields::Api;
    use crate::api::fields::tests::{fields_are_known, nulls_are_absent};

    #[test]
    fn every_field_but_types_and_names_may_be_null() {
        fields_are_known::<ToolFields>(&[Api::Chat]);
        let function = json!({"name": "a", "description": "b", "parameters": {}});
        let tool = json!({"type": "function", "function": function});
        let fields = json!({"tools": [tool], "tool_choice": "auto", "parallel_tool_calls": true});
        nulls_are_absent::<ToolFields>(&fields, &[]);
        nulls_are_absent::<ToolField>(&tool, &["type"]);
        nulls_are_absent::<Function>(&function, &["name"]);
    }
}
