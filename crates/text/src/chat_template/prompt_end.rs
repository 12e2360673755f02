//! How a rendered conversation ends.

use super::special_text::unused_character;
use super::{ChatTemplate, ChatTemplateError, Message, TemplateArguments};

/// How a rendered conversation ends: where the model begins to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptEnd {
    /// With the beginning of a new message of the assistant (`add_generation_prompt` in Hugging
    /// Face's terms).
    #[default]
    NewMessage,
    /// After the content of the last message, which the model continues (`continue_final_message`).
    LastMessage,
    /// After the whole last message, with nothing more.
    Nothing,
}

impl ChatTemplate {
    /// Renders a conversation up to where the model begins to write.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and [`ChatTemplateError::NotContinued`] if the template does
    /// not show the content of the last message, which is to be continued.
    pub fn render_until(
        &self,
        end: PromptEnd,
        messages: &[Message],
        arguments: &TemplateArguments,
    ) -> Result<String, ChatTemplateError> {
        match end {
            PromptEnd::NewMessage => self.render_with(messages, arguments, true),
            PromptEnd::Nothing => self.render_with(messages, arguments, false),
            PromptEnd::LastMessage => self.render_until_mark(messages.to_vec(), arguments),
        }
    }

    /// Renders with a mark at the end of the last message, and cuts the text there.
    fn render_until_mark(
        &self,
        mut messages: Vec<Message>,
        arguments: &TemplateArguments,
    ) -> Result<String, ChatTemplateError> {
        let mark = unused_character(&messages, arguments);
        let last = messages.last_mut().ok_or(ChatTemplateError::NotContinued)?;
        last.content.push(mark);
        // Many templates trim messages. The space shows whether this one does.
        last.content.push(' ');
        let text = self.render_with(&messages, arguments, false)?;
        let (text, rest) = text.rsplit_once(mark).ok_or(ChatTemplateError::NotContinued)?;
        let is_trimmed = !rest.starts_with(' ');
        // A template may show the message more than once.
        let text = text.replace(&format!("{mark} "), "").replace(mark, "");
        Ok(if is_trimmed { text.trim_end().to_owned() } else { text })
    }

    /// Returns what stands between the text parts of one message, as in vLLM: nothing if the
    /// template writes the parts itself, one after another, or else a line break.
    #[must_use]
    pub fn text_part_separator(&self) -> &'static str {
        let tags = self.text().split("{%").skip(1).filter_map(|rest| rest.split("%}").next());
        let mut loops = tags.filter_map(|tag| {
            let (_, list) =
                tag.trim_matches(['-', '+', ' ']).strip_prefix("for ")?.split_once(" in ")?;
            list.split_whitespace().next()
        });
        let of_content = |list: &str| {
            list == "content"
                || [".content", "['content']", "[\"content\"]"]
                    .iter()
                    .any(|end| list.ends_with(end))
        };
        if loops.any(of_content) { "" } else { "\n" }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::chat_template::Source;

    fn template(text: &str) -> ChatTemplate {
        let source = Source { text: text.into(), origin: "a test".into() };
        ChatTemplate::new(source, Default::default()).unwrap()
    }

    fn until(
        end: PromptEnd,
        template: &ChatTemplate,
        content: &str,
    ) -> Result<String, ChatTemplateError> {
        let messages = [Message::user("Count. "), Message::assistant(content)];
        template.render_until(end, &messages, &TemplateArguments::default())
    }

    const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";

    #[test]
    fn the_last_message_is_open_closed_or_followed_by_a_new_one() {
        let turns = template(TURNS);
        let text = |end| until(end, &turns, "One, ").unwrap();
        assert_eq!(text(PromptEnd::LastMessage), "<user>Count. </><assistant>One, ");
        assert_eq!(text(PromptEnd::Nothing), "<user>Count. </><assistant>One, </>");
        assert_eq!(text(PromptEnd::NewMessage), "<user>Count. </><assistant>One, </><assistant>");
        let plain = ChatTemplate::plain().unwrap();
        let text = until(PromptEnd::LastMessage, &plain, " One,").unwrap();
        assert_eq!(text, "User: Count. \nAssistant: One,");
    }

    #[test]
    fn a_template_that_trims_messages_also_trims_the_one_to_continue() {
        let trims = template(&TURNS.replace("m.content", "m.content | trim"));
        let text = |content| until(PromptEnd::LastMessage, &trims, content).unwrap();
        assert_eq!(text("One, "), "<user>Count.</><assistant>One,");
        assert_eq!(text("  One"), "<user>Count.</><assistant>One");
    }

    #[test]
    fn the_last_place_of_a_message_that_is_shown_twice_counts() {
        let twice =
            template("{% for m in messages %}[{{ m.content }}|{{ m.content }}]{% endfor %}");
        let text = until(PromptEnd::LastMessage, &twice, "a").unwrap();
        assert_eq!(text, "[Count. |Count. ][a|a");
    }

    #[test]
    fn a_message_that_the_template_leaves_out_cannot_be_continued() {
        let users =
            template("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
        let error = until(PromptEnd::LastMessage, &users, "One").unwrap_err();
        assert!(matches!(error, ChatTemplateError::NotContinued), "{error}");
    }

    #[test]
    fn text_parts_are_joined_as_the_template_writes_them() {
        let separator = |text: &str| template(text).text_part_separator();
        assert_eq!(separator(TURNS), "\n");
        assert_eq!(separator("{% for m in messages %}{{ m.content }}{% endfor %}"), "\n");
        for list in ["m.content", "m['content']", "m[\"content\"]"] {
            let text = format!(
                "{{% for m in messages %}}{{%- for part in {list} -%}}{{{{ part }}}}{{% endfor %}}{{% endfor %}}"
            );
            assert_eq!(separator(&text), "", "{text}");
        }
        let assigned = "{% for m in messages %}{% set content = m.content %}\
            {%- for item in content %}{{ item }}{% endfor %}{% endfor %}";
        assert_eq!(separator(assigned), "");
    }
}
