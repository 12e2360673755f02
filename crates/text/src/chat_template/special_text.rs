//! Special tokens in the text of messages, which must not act as special tokens.

use super::{Message, TemplateArguments};
use serde_json::{Map, Value};

/// Splits the special tokens in texts, by a mark after their first character.
pub(super) struct SpecialText {
    /// The texts of the special tokens.
    pub(super) tokens: Vec<String>,
    pub(super) mark: char,
}

impl SpecialText {
    pub(super) fn split_message(&self, message: &Message) -> Message {
        Message {
            role: message.role.clone(),
            content: self.split(&message.content),
            fields: self.split_object(&message.fields),
        }
    }

    pub(super) fn split_arguments(&self, arguments: &TemplateArguments) -> TemplateArguments {
        TemplateArguments {
            tools: arguments.tools.iter().map(|tool| self.split_value(tool)).collect(),
            variables: self.split_object(&arguments.variables),
        }
    }

    /// Inserts the mark after the first character of every special token in `text`, so that no
    /// special token is left when the text is split at the marks. A tokenizer that prepends a space
    /// to every text also prepends one after each mark.
    fn split(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        for (at, character) in text.char_indices() {
            marked.push(character);
            let begins =
                |token: &String| token.chars().count() > 1 && text[at..].starts_with(token);
            if self.tokens.iter().any(begins) {
                marked.push(self.mark);
            }
        }
        marked
    }

    fn split_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.split(text)),
            Value::Array(values) => values.iter().map(|value| self.split_value(value)).collect(),
            Value::Object(object) => Value::Object(self.split_object(object)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn split_object(&self, object: &Map<String, Value>) -> Map<String, Value> {
        object.iter().map(|(name, value)| (self.split(name), self.split_value(value))).collect()
    }
}

/// Returns a Unicode noncharacter that is in none of the texts.
pub(super) fn unused_character(messages: &[Message], arguments: &TemplateArguments) -> char {
    let mut used = Vec::new();
    arguments.each_text(messages, |text| {
        used.extend(text.chars().filter(|character| MARKS.contains(character)));
    });
    // A conversation with all 32 of them is also split at the first one, and loses that character.
    MARKS.clone().find(|mark| !used.contains(mark)).unwrap_or(*MARKS.start())
}

const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn special_tokens_within_a_message_are_split() {
        let tokens = ["<s>", "</s>", "<<s>", "|"].map(str::to_owned).to_vec();
        let special = SpecialText { tokens, mark: '*' };
        let split = |text: &str| special.split(text);
        assert_eq!(split("plain"), "plain");
        assert_eq!(split("a <s> b</s>"), "a <*s> b<*/s>");
        // All of several overlapping tokens are split.
        assert_eq!(split("<<s>"), "<*<*s>");
        // A single character cannot be split.
        assert_eq!(split("a|b"), "a|b");
        let message = Message::new("tool", "<s>").with("name", json!({"</s>": ["<s>", 3]}));
        let expected = Message::new("tool", "<*s>").with("name", json!({"<*/s>": ["<*s>", 3]}));
        assert_eq!(special.split_message(&message), expected);
    }

    #[test]
    fn the_mark_is_a_character_that_no_message_contains() {
        let none = TemplateArguments::default();
        assert_eq!(unused_character(&[Message::user("hello")], &none), '\u{FDD0}');
        let first = [Message::user("\u{FDD0}"), Message::assistant("\u{FDD1}")];
        assert_eq!(unused_character(&first, &none), '\u{FDD2}');
        let tools = TemplateArguments { tools: vec![json!({"\u{FDD2}": 1})], ..none };
        assert_eq!(unused_character(&first, &tools), '\u{FDD3}');
    }
}
