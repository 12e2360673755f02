//! The fields of a request about tools.

use crate::api::error::ApiError;
use forerun::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest name of a tool, in characters.
const LONGEST_NAME: usize = 64;

/// The tools that the model may call, and whether it must.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ToolFields {
    pub(crate) tools: Vec<ToolField>,
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
    Named { function: FunctionName },
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
    /// Returns the tools that may be called.
    pub(crate) fn choice(&self) -> Result<ChosenTools, ApiError> {
        let tool = |(index, tool): (usize, &ToolField)| tool.tool(index);
        let mut tools: Vec<Tool> =
            self.tools.iter().enumerate().map(tool).collect::<Result<_, _>>()?;
        let mut parallel = self.parallel_tool_calls.unwrap_or(true);
        let required = match &self.tool_choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => false,
            Some(ToolChoice::Mode(ToolMode::None)) => {
                tools.clear();
                false
            }
            Some(ToolChoice::Mode(ToolMode::Required)) => true,
            Some(ToolChoice::Named { function }) => {
                tools.retain(|tool| tool.name == function.name);
                if tools.is_empty() {
                    let message = format!("tool_choice: there is no tool {:?}", function.name);
                    return Err(ApiError::field("tool_choice", message));
                }
                parallel = false;
                true
            }
        };
        if required && tools.is_empty() {
            let message = "tool_choice requires a tool, but tools is empty";
            return Err(ApiError::field("tool_choice", message));
        }
        Ok(ChosenTools { tools, required, parallel })
    }
}

impl ToolField {
    fn tool(&self, index: usize) -> Result<Tool, ApiError> {
        let (kind, function) = match (&*self.r#type, &self.function) {
            ("function", Some(function)) => ("function", function),
            ("function", None) => {
                let field = format!("tools[{index}].function");
                return Err(ApiError::field(&*field, format!("{field} is required")));
            }
            (kind, _) => {
                let field = format!("tools[{index}].type");
                let message = format!("{field}: tools of type {kind:?} are not supported");
                return Err(ApiError::field(field, message));
            }
        };
        let Function { name, description, parameters } = function;
        let allowed = |one: char| one.is_ascii_alphanumeric() || "_-.".contains(one);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
            let field = format!("tools[{index}].{kind}.name");
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
                let field = format!("tools[{index}].{kind}.parameters");
                return Err(ApiError::field(&*field, format!("{field} must be a JSON schema")));
            }
        };
        Ok(Tool { name: name.clone(), description: description.clone(), parameters })
    }
}
