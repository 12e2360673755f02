//! A Jinja environment with the settings and functions of `transformers`' environment.

use super::budget::Limit;
use super::files::Source;
use super::metered::{Metered, without_constants};
use super::{ChatTemplateError, Message, TemplateArguments, python};
use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of an environment's only template.
const NAME: &str = "chat";

/// The maximum number of steps of a rendering, with those that pay for others. Thousands of
/// messages need far less. A template is an untrusted program.
const MAX_STEPS: u64 = 4_000_000;

/// A template. It is compiled for each rendering, which takes far less time than a token.
pub(super) struct Jinja {
    text: String,
    origin: String,
    clock: Arc<dyn Fn() -> DateTime + Send + Sync>,
}

impl Jinja {
    pub(super) fn new(source: Source) -> Result<Self, ChatTemplateError> {
        Self::at(source, || jiff::Zoned::now().datetime())
    }

    /// Checks a template, and keeps it with a clock for templates that write the date.
    pub(super) fn at(
        source: Source,
        clock: impl Fn() -> DateTime + Send + Sync + 'static,
    ) -> Result<Self, ChatTemplateError> {
        let Source { text, origin } = source;
        let check = || {
            let text = without_constants(&with_known_tags(&text), &syntax()?)?;
            Metered::compile(NAME, &text, syntax()?)?;
            Ok(text)
        };
        match check() {
            Ok(text) => Ok(Self { text, origin, clock: Arc::new(clock) }),
            Err(error) => Err(ChatTemplateError::Syntax { origin, reason: describe(&error) }),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Renders messages. As in `transformers`, `tools` and `documents` are defined, and `None` if
    /// there are none.
    pub(super) fn render(
        &self,
        messages: &[Message],
        arguments: &TemplateArguments,
        answer: bool,
        special_tokens: &BTreeMap<String, String>,
    ) -> Result<String, ChatTemplateError> {
        let message = |message: &Message| {
            let fields = [("role", &message.role), ("content", &message.content)];
            let fields = fields.map(|(name, text)| (name, Value::from(text)));
            let more = message.fields.iter();
            let more = more.map(|(name, value)| (&name[..], Value::from(Serde(value))));
            Value::from_pairs(fields.into_iter().chain(more))
        };
        let tools = match &arguments.tools[..] {
            [] => Value::from(()),
            tools => Value::from(Serde(tools)),
        };
        let tokens = special_tokens.iter().map(|(name, token)| (&name[..], Value::from(token)));
        let variables = [
            ("messages", messages.iter().map(message).collect::<Value>()),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(answer)),
        ];
        let more = arguments.variables.iter();
        let more = more.map(|(name, value)| (&name[..], Value::from(Serde(value))));
        let context = Value::from_pairs(tokens.chain(more).chain(variables));
        let environment = self.environment(Limit::new(messages, arguments));
        let metered = syntax().and_then(|syntax| Metered::compile(NAME, &self.text, syntax));
        let rendered = metered.and_then(|metered| metered.render(&environment, context));
        rendered.map_err(|error| match refusal(&error) {
            Some(message) => ChatTemplateError::Refused(message),
            None => {
                ChatTemplateError::Render { origin: self.origin.clone(), reason: describe(&error) }
            }
        })
    }

    fn environment(&self, limit: Limit) -> Environment<'static> {
        let clock = Arc::clone(&self.clock);
        let mut environment = Environment::new();
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_formatter(move |out, state, value| {
            limit.pay_text(state, value)?;
            python::check_text(value)?;
            Ok(out.write_str(&python::str(value))?)
        });
        python::install(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| {
            let time = jiff::fmt::strtime::format(date_format(format), clock());
            time.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        limit.install(&mut environment);
        environment
    }
}

fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// The reason that a template gives when it refuses messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Refusal(message)))
}

/// Returns the refusal that caused an error, at any depth.
fn refusal(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

fn describe(error: &Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return format!("it does not finish within {MAX_STEPS} steps");
    }
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// Replaces tags that minijinja does not have, or has otherwise.
fn with_known_tags(text: &str) -> String {
    let (mut kept, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        kept += &rest[..start];
        rest = &rest[start..];
        let Some(length) = tag_length(rest) else { break };
        let (tag, name) = (&rest[..length], &rest[2..length - 2]);
        rest = &rest[length..];
        let name = name.trim_matches(['-', '+']).trim();
        match (tag.starts_with("{%"), name) {
            // `generation` marks answers for training. Another block has the tag's effect on
            // variables and on the whitespace around it.
            (true, "generation") => kept += &tag.replace("generation", "with"),
            (true, "endgeneration") => kept += &tag.replace("endgeneration", "endwith"),
            (true, "raw") => {
                // minijinja drops a line end after the tag, unlike jinja2.
                match tag.ends_with("-%}") {
                    true => kept += tag,
                    false => kept += &(tag.trim_end_matches(['+', '%', '}']).to_owned() + "+%}"),
                }
                let end = rest.match_indices("{%").find(|(start, _)| {
                    rest[start + 2..]
                        .trim_start_matches(['-', '+'])
                        .trim_start()
                        .starts_with("endraw")
                });
                let end = end.map_or(rest.len(), |(start, _)| start);
                kept += &rest[..end];
                rest = &rest[end..];
            }
            _ => kept += tag,
        }
    }
    kept + rest
}

/// Returns the length of a tag, expression or comment, whose end is not within a string.
fn tag_length(text: &str) -> Option<usize> {
    let close = match text.get(..2)? {
        "{{" => "}}",
        "{%" => "%}",
        _ => return text.find("#}").map(|end| end + 2),
    };
    let (mut quote, mut escaped) = (None, false);
    let end = text.char_indices().find(|&(start, character)| {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if character == '\\' => escaped = true,
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'') => quote = Some(character),
            None => return start >= 2 && text[start..].starts_with(close),
        }
        false
    });
    end.map(|(end, _)| end + close.len())
}

/// Returns a format of dates in which fields that `jiff` has otherwise are replaced. The clock has
/// no time zone, as `datetime.now()` has none.
fn date_format(format: &str) -> String {
    let (mut changed, mut rest) = (String::new(), format);
    while let Some((before, field)) = rest.split_once('%') {
        let name = field.chars().next();
        let (name, own) = match name {
            Some('c') => ("c", "%a %b %e %H:%M:%S %Y"),
            Some('x') => ("x", "%m/%d/%y"),
            Some('X') => ("X", "%H:%M:%S"),
            Some('r') => ("r", "%I:%M:%S %p"),
            Some('f') => ("f", "%6f"),
            Some('z') => ("z", ""),
            Some('Z') => ("Z", ""),
            Some('%') => ("%", "%%"),
            _ => ("", "%"),
        };
        changed += before;
        changed += own;
        rest = &field[name.len()..];
    }
    changed + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, messages: &[Message]) -> Result<String, ChatTemplateError> {
        let source = Source { text: template.into(), origin: "a test".into() };
        let clock = || jiff::civil::date(2024, 7, 26).at(9, 5, 0, 0);
        Jinja::at(source, clock)?.render(
            messages,
            &TemplateArguments::default(),
            true,
            &BTreeMap::new(),
        )
    }

    /// Templates, and what Python renders for them.
    #[test]
    fn templates_render_as_in_python() -> Result<(), ChatTemplateError> {
        let messages = [Message::user(" a<b> \"é\" ")];
        for (template, expected) in [
            ("{{ messages | tojson }}", r#"[{"role": "user", "content": " a<b> \"é\" "}]"#),
            (
                "{{ {'a': [1, 2], 'b': {}} | tojson(indent=2) }}",
                "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}",
            ),
            ("{{ none }} {{ true }} {{ 1 }} {{ nothing }}", "None True 1 "),
            ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
            ("{{ messages[0].content.strip().split('<')[0] }}", "a"),
            (
                "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}",
                "02",
            ),
            (
                "{% if tools is none and documents is none and x is not defined %}yes{% endif %}",
                "yes",
            ),
            ("{% if true %}\n  {% if true %}\n{{ 'x' }}\n  {% endif %}\n{% endif %}\n", "x\n"),
            ("a\n  {%- generation -%}\n b {% endgeneration %}\nc", "ab c"),
            ("{{ 'generation' }}{% if add_generation_prompt %}!{% endif %}", "generation!"),
        ] {
            assert_eq!(render(template, &messages)?, expected, "{template}");
        }
        Ok(())
    }

    #[test]
    fn errors_have_a_reason_and_a_line() {
        let failure = |template: &str| {
            render(template, &[]).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let refused = failure("{{ raise_exception('roles must alternate') }}");
        assert!(refused.contains("refuses these messages: roles must alternate"), "{refused}");
        let in_macro = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
        assert!(failure(in_macro).contains("refuses these messages: deep"));
        let broken = failure("a\n{% for %}");
        assert!(broken.contains("a test cannot be used") && broken.contains("line 2"), "{broken}");
        let undefined = failure("\n{{ messages[0].content }}");
        assert!(undefined.contains("cannot render") && undefined.contains("line 2"), "{undefined}");
        let endless = "{% for i in range(9999) %}".repeat(3) + &"{% endfor %}".repeat(3);
        assert!(failure(&endless).contains("does not finish within"));
        assert!(failure("{{ 1 | tojson(colour=3) }}").contains("colour"));
    }
}
