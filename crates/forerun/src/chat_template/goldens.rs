//! Published templates render as `transformers` renders them. `scripts/goldens` wrote the texts.

use super::files::Source;
use super::jinja::Jinja;
use super::{ChatTemplate, ChatTemplateError, Message, TemplateArguments};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn text(value: &Value) -> String {
    value.as_str().map(str::to_owned).unwrap_or_default()
}

/// Loads a template with its tokens, and with the clock at the day when the goldens were written.
fn template(name: &str, header: &Value) -> Result<ChatTemplate, Box<dyn std::error::Error>> {
    let file = format!("tests/chat_templates/{name}.jinja");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let tokens = header["tokens"][name].as_object().ok_or("no tokens")?;
    let tokens = tokens.iter().filter(|(_, token)| token.is_string());
    let today: jiff::civil::DateTime = text(&header["today"]).parse()?;
    let source = Source { text: std::fs::read_to_string(file)?, origin: name.into() };
    Ok(ChatTemplate {
        jinja: Jinja::at(source, move || today)?,
        special_tokens: tokens.map(|(name, token)| (name.clone(), text(token))).collect(),
        plain: false,
    })
}

#[test]
fn templates_render_as_transformers_renders_them() -> Outcome {
    let goldens: Value =
        serde_json::from_str(include_str!("../../tests/goldens/chat_templates.json"))?;
    let header = &goldens["header"];
    let conversations = header["conversations"].as_object().ok_or("no conversations")?;
    let messages = |conversation: &Value| -> Vec<Message> {
        let messages = conversation.as_array().into_iter().flatten();
        let message = |fields: &Value| {
            let mut fields = fields.as_object().cloned().unwrap_or_default();
            let mut take = |name| fields.remove(name).as_ref().map(text).unwrap_or_default();
            let (role, content) = (take("role"), take("content"));
            Message { role, content, fields }
        };
        messages.map(message).collect()
    };
    let conversations: HashMap<&String, Vec<Message>> =
        conversations.iter().map(|(name, conversation)| (name, messages(conversation))).collect();
    let mut templates = BTreeMap::new();
    let (mut texts, mut refusals) = (HashMap::<String, usize>::new(), 0);
    for record in goldens["records"].as_array().ok_or("no records")? {
        let (name, conversation) = (text(&record["template"]), text(&record["conversation"]));
        if !templates.contains_key(&name) {
            templates.insert(name.clone(), template(&name, header)?);
        }
        let answer = record["answer"] == true;
        let tools = header["tools"][&conversation].as_array().cloned().unwrap_or_default();
        let arguments = TemplateArguments { tools, ..TemplateArguments::default() };
        let messages = &conversations[&conversation];
        let rendered = templates[&name].render_with(messages, &arguments, answer);
        let place = format!("{name}, {conversation}, answer: {answer}");
        match rendered {
            Ok(rendered) => {
                assert_eq!(rendered, text(&record["text"]), "{place}: {record}");
                *texts.entry(name).or_default() += 1;
            }
            Err(ChatTemplateError::Refused(message)) => {
                assert_eq!(message, text(&record["refused"]), "{place}");
                refusals += 1;
            }
            Err(error) => assert!(record["failed"].is_string(), "{place}: {error}"),
        }
    }
    // At least three conversations for each template, and no template is left out.
    assert_eq!(texts.len(), templates.len());
    assert!(texts.values().all(|&count| count >= 6), "{texts:?}");
    assert!(templates.len() >= 12 && refusals > 20, "{} {refusals}", templates.len());
    Ok(())
}
