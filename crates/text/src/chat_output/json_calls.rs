//! Calls that are JSON objects with a name and arguments:
//! `{"name": "get_weather", "arguments": {"city": "Paris"}}`.

use super::{CallParser, Parts};

/// Reads objects one after another, or a list of them.
pub(super) struct JsonCalls {
    /// The only names that a call may have, if other objects are text.
    names: Option<Vec<String>>,
    /// The opening tag, which is written if this turns out to be text.
    tag: &'static str,
    /// The text since the last complete call, until the name of the next one is known.
    raw: String,
    place: Place,
    object: Object,
    is_text: bool,
    has_calls: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Between,
    Inside,
}

/// What is known of the current object.
#[derive(Default)]
struct Object {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The text of the current string at depth 1.
    string: String,
    key: Option<String>,
    name: Option<String>,
    /// The arguments that were not reported yet.
    arguments: String,
    has_arguments: bool,
    /// Whether the arguments are a string that contains JSON.
    quoted: bool,
}

impl Object {
    fn is_in_arguments(&self) -> bool {
        matches!(self.key.as_deref(), Some("arguments" | "parameters"))
    }
}

impl JsonCalls {
    pub(super) fn new(tag: &'static str, names: Option<Vec<String>>) -> Self {
        Self {
            names,
            tag,
            raw: String::new(),
            place: Place::Between,
            object: Object::default(),
            is_text: false,
            has_calls: false,
        }
    }

    fn give_up(&mut self, parts: &mut Parts) {
        self.is_text = true;
        if !self.has_calls {
            parts.text(self.tag);
        }
        parts.text(&std::mem::take(&mut self.raw));
    }

    fn character(&mut self, character: char, parts: &mut Parts) {
        self.raw.push(character);
        match (self.place, character) {
            (Place::Between, '{') => {
                self.place = Place::Inside;
                self.object = Object { depth: 1, ..Object::default() };
            }
            (Place::Between, '[' | ']' | ',' | ';') => {}
            (Place::Between, space) if space.is_whitespace() => {}
            (Place::Between, _) => self.give_up(parts),
            (Place::Inside, _) => self.inside(character, parts),
        }
    }

    fn inside(&mut self, character: char, parts: &mut Parts) {
        let object = &mut self.object;
        let (was_string, was_arguments) = (object.in_string, object.is_in_arguments());
        if object.in_string {
            match character {
                _ if object.escaped => object.escaped = false,
                '\\' => object.escaped = true,
                '"' => object.in_string = false,
                _ => {}
            }
        } else {
            match character {
                '"' => object.in_string = true,
                '{' | '[' => object.depth += 1,
                '}' | ']' => object.depth -= 1,
                _ => {}
            }
        }
        let ends_value =
            !was_string && (object.depth == 0 || object.depth == 1 && character == ',');
        if object.key.is_some() && !ends_value {
            if was_arguments {
                self.argument(character, parts);
            } else if object.depth == 1 && (object.in_string || was_string) {
                object.string.push(character);
            }
        } else if object.depth == 1 && (object.in_string || was_string) {
            object.string.push(character);
        } else if object.depth == 1 && character == ':' && object.key.is_none() {
            object.key = serde_json::from_str(&std::mem::take(&mut object.string)).ok();
        } else if ends_value {
            self.end_value(parts);
        }
        if self.object.depth == 0 && !self.is_text {
            self.end_object(parts);
        }
    }

    /// Reads a character of the arguments.
    fn argument(&mut self, character: char, parts: &mut Parts) {
        let object = &mut self.object;
        if !object.has_arguments {
            if character.is_whitespace() {
                return;
            }
            object.has_arguments = true;
            object.quoted = character == '"';
        }
        object.arguments.push(character);
        if object.name.is_some() && !object.quoted {
            parts.arguments(&std::mem::take(&mut object.arguments));
        }
    }

    fn end_value(&mut self, parts: &mut Parts) {
        let object = &mut self.object;
        let string = std::mem::take(&mut object.string);
        match object.key.take().as_deref() {
            Some("name") if object.name.is_none() => {
                let name: Option<String> = serde_json::from_str(&string).ok();
                let known =
                    |name: &String| self.names.as_ref().is_none_or(|names| names.contains(name));
                let Some(name) = name.filter(known) else { return self.give_up(parts) };
                parts.call(&name);
                self.has_calls = true;
                self.raw.clear();
                if !object.quoted {
                    parts.arguments(std::mem::take(&mut object.arguments).trim_end());
                }
                object.name = Some(name);
            }
            Some("arguments" | "parameters") if object.quoted => {
                let json: Option<String> = serde_json::from_str(&object.arguments).ok();
                object.arguments = json.unwrap_or_default();
                object.quoted = false;
                if object.name.is_some() {
                    parts.arguments(&std::mem::take(&mut object.arguments));
                }
            }
            _ => {}
        }
    }

    fn end_object(&mut self, parts: &mut Parts) {
        self.place = Place::Between;
        if self.object.name.is_none() {
            return self.give_up(parts);
        }
        if !self.object.has_arguments {
            parts.arguments("{}");
        }
        self.raw.clear();
    }
}

impl CallParser for JsonCalls {
    fn push(&mut self, text: &str, parts: &mut Parts) {
        for (at, character) in text.char_indices() {
            if self.is_text {
                return parts.text(&text[at..]);
            }
            self.character(character, parts);
            if self.object.name.is_some() {
                self.raw.clear();
            }
        }
    }

    fn finish(&mut self, parts: &mut Parts) {
        let is_empty = self.raw.trim().is_empty();
        if !self.is_text && self.place == Place::Inside && self.object.name.is_none()
            || !self.has_calls && is_empty && !self.is_text
        {
            self.give_up(parts);
        }
    }

    fn cut(&mut self, parts: &mut Parts) {
        // Without a tag, the object may be an answer.
        if self.tag.is_empty() && !self.has_calls {
            self.finish(parts);
        }
    }

    fn is_text(&self) -> bool {
        self.is_text
    }
}
