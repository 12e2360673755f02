//! Tools in the text of messages.

use crate::chat_template::Message;
use serde_json::{Value, json};

/// Writes tools, calls and their results into the text of messages, for chat templates that have no
/// place for them. The syntax is that of Hermes, which most models have seen. `tools` are in the
/// form of OpenAI's API.
#[must_use]
pub fn with_tools_as_text(messages: Vec<Message>, tools: &[Value]) -> Vec<Message> {
    let mut messages: Vec<Message> = messages.into_iter().map(with_calls_as_text).collect();
    if tools.is_empty() {
        return messages;
    }
    let tools: Vec<String> = tools.iter().map(Value::to_string).collect();
    let instructions = format!(
        "You may call functions to help with the request. These are their signatures, within <tools></tools>:\n\
         <tools>\n{}\n</tools>\n\nTo call a function, write a JSON object with its name and arguments within \
         <tool_call></tool_call>:\n<tool_call>\n{{\"name\": <name>, \"arguments\": <object>}}\n</tool_call>",
        tools.join("\n")
    );
    match messages.first_mut() {
        Some(first) if first.role == "system" => {
            first.content = format!("{}\n\n{instructions}", first.content);
        }
        _ => messages.insert(0, Message::system(instructions)),
    }
    messages
}

fn with_calls_as_text(mut message: Message) -> Message {
    if let Some(Value::Array(calls)) = message.fields.remove("tool_calls") {
        for call in calls {
            let function = &call["function"];
            let object = json!({"name": function["name"], "arguments": function["arguments"]});
            let space = if message.content.is_empty() { "" } else { "\n" };
            message.content += &format!("{space}<tool_call>\n{object}\n</tool_call>");
        }
    }
    if message.role == "tool" {
        message.role = "user".to_owned();
        message.content = format!("<tool_response>\n{}\n</tool_response>", message.content);
    }
    message
}
