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

fn message(fields: &Value) -> Message {
    let mut fields = fields.as_object().cloned().unwrap_or_default();
    let mut take = |name| fields.remove(name).as_ref().map(text).unwrap_or_default();
    let (role, content) = (take("role"), take("content"));
    Message { role, content, fields }
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

/// What is an error here and not in jinja2, and why.
const UNSUPPORTED: [(&str, &str); 28] = [
    ("{{ 1,2 }}", "minijinja needs parentheses around a tuple"),
    ("{{ text, 1 }}", "minijinja needs parentheses around a tuple"),
    ("{{ +1 }}", "minijinja has no sign +"),
    ("{{ 2 ** 200 }}", "integers have 127 bits"),
    ("{{ huge * huge", "integers have 127 bits"),
    ("maketrans", "it is of use for nothing but translate"),
    (".to_bytes(", "bytes are of no use in a text"),
    (".hex()", "no template writes hexadecimal floats"),
    ("people | pprint", "only short values are printed in one line"),
    ("| striptags", "HTML"),
    ("| urlize", "HTML"),
    ("| xmlattr", "HTML"),
    ("{% autoescape", "HTML"),
    ("| wordwrap", "a text for a terminal"),
    ("{:5%}", "percentages have no width"),
    ("{:=10}", "a fill between sign and digits"),
    ("'%.3d' %", "integers have no precision"),
    ("'%5.3d' %", "integers have no precision"),
    ("'abc'[1:'2']", "jinja2 takes a wrong slice for something undefined"),
    ("'abc'[1.0:]", "jinja2 takes a wrong slice for something undefined"),
    ("batch(0)", "a group of no items"),
    ("{{ -true }}", "minijinja negates only numbers"),
    ("(-8) ** 0.5", "complex numbers"),
    ("in 1, 2 %}", "minijinja needs parentheses around a tuple"),
    ("with a=2, b=a", "minijinja computes the values of a `with` one after the other"),
    ("strftime_now('%s')", "the clock has no time zone"),
    ("strftime_now('%E')", "no such field"),
    ("\\N{", "the names of characters"),
];
/// What depends on chance.
const RANDOM: [&str; 2] = ["| random", "lipsum()"];

#[test]
fn idioms_render_as_jinja2_renders_them() -> Outcome {
    let goldens: Value = serde_json::from_str(include_str!("../../tests/goldens/jinja.json"))?;
    let header = &goldens["header"];
    let today: jiff::civil::DateTime = text(&header["today"]).parse()?;
    let messages: Vec<Message> =
        header["messages"].as_array().into_iter().flatten().map(message).collect();
    let tools = header["tools"].as_array().cloned().unwrap_or_default();
    let variables = header["variables"].as_object().cloned().unwrap_or_default();
    let arguments = TemplateArguments { tools, variables };
    let (mut differences, mut count) = (Vec::new(), 0);
    for record in goldens["records"].as_array().ok_or("no records")? {
        count += 1;
        let template = text(&record["template"]);
        let source = Source { text: template.clone(), origin: "a golden".into() };
        let rendered = Jinja::at(source, move || today)
            .and_then(|jinja| jinja.render(&messages, &arguments, true, &BTreeMap::new()));
        let expected = record["text"].as_str();
        let unsupported = UNSUPPORTED.iter().map(|(part, _)| part).chain(&RANDOM);
        let unsupported = unsupported.clone().any(|part| template.contains(part));
        match rendered {
            Ok(text) if !unsupported && expected == Some(&text) => {}
            Err(_) if unsupported || expected.is_none() => {}
            Ok(text) => differences.push(format!("{template}\n  is {text:?}, not {record}")),
            Err(error) => differences.push(format!("{template}\n  fails: {error}, not {record}")),
        }
    }
    assert!(differences.is_empty(), "{}\n{}", differences.join("\n"), differences.len());
    assert!(count > 2000, "{count}");
    Ok(())
}
