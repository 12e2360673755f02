//! System messages for chat templates that accept them only at the beginning, or not at all.

use forerun::text::TemplateArguments;
use forerun::{ChatTemplate, Message};

/// What is between texts that become one message.
const BETWEEN: &str = "\n\n";

/// Returns the messages so that the template writes every system message. Those that it refuses or
/// leaves out become user text at the same place.
///
/// What a template accepts is found out by rendering, from the smallest change to the largest. If
/// no change helps, the messages are returned as they are.
pub(crate) fn with_accepted_system_messages(
    template: &ChatTemplate,
    messages: Vec<Message>,
    arguments: &TemplateArguments,
) -> Vec<Message> {
    if !messages.iter().any(is_system) {
        return messages;
    }
    // Marks stand for the texts of system messages, so that they can be found in what the template
    // writes.
    let mark = |(index, message): (usize, &Message)| match is_system(message) {
        true => Message { content: format!("system{index}text"), ..message.clone() },
        false => message.clone(),
    };
    let marked: Vec<Message> = messages.iter().enumerate().map(mark).collect();
    let writes_all = |changed: &[Message]| {
        let text = template.render_with(changed, arguments, true);
        let mut systems = marked.iter().filter(|message| is_system(message));
        text.is_ok_and(|text| systems.all(|message| text.contains(&message.content)))
    };
    if writes_all(&marked) {
        return messages;
    }
    // In some templates, user and assistant must alternate. In some of these, a tool's result
    // counts as the user's turn.
    for keeps_first in [true, false] {
        for joins in [&[] as &[&str], &["user"], &["user", "tool"]] {
            if writes_all(&as_user_text(&marked, keeps_first, joins)) {
                return as_user_text(&messages, keeps_first, joins);
            }
        }
    }
    if template.render_with(&messages, arguments, true).is_ok() {
        tracing::warn!("the chat template leaves out system messages");
    }
    messages
}

fn is_system(message: &Message) -> bool {
    message.role == "system"
}

/// Returns the messages with user messages in place of system messages. Those at the beginning
/// become one system message instead if `keeps_first`. The user messages join neighbours of the
/// roles `joins`, the first of these roles if possible.
fn as_user_text(messages: &[Message], keeps_first: bool, joins: &[&str]) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| keeps_first && is_system(message)).count();
    let (first, rest) = messages.split_at(leading);
    let first = first.iter().cloned().reduce(|first, next| joined(&first, &next, &first));
    let changed = |message: &Message| match is_system(message) {
        true => (Message { role: "user".to_owned(), ..message.clone() }, true),
        false => (message.clone(), false),
    };
    let rest = rest.iter().map(changed).collect();
    let rest = joins.iter().fold(rest, |rest, role| join(rest, role));
    first.into_iter().chain(rest.into_iter().map(|(message, _)| message)).collect()
}

/// Joins messages that were changed, which are marked with `true`, with neighbours of this role.
fn join(messages: Vec<(Message, bool)>, role: &str) -> Vec<(Message, bool)> {
    let mut all: Vec<(Message, bool)> = Vec::new();
    let mut follows_changed = false;
    for (message, changed) in messages {
        match all.last_mut() {
            Some((last, _)) if changed && last.role == role => {
                *last = joined(last, &message, last);
            }
            // User messages before and after a changed one become one message. Results of tools
            // stay apart.
            Some((last, last_changed))
                if follows_changed && message.role == role && (*last_changed || role == "user") =>
            {
                (*last, *last_changed) = (joined(last, &message, &message), false);
            }
            _ => all.push((message, changed)),
        }
        follows_changed = changed;
    }
    all
}

/// Returns a message with the texts of two, and what else `like` has.
fn joined(one: &Message, other: &Message, like: &Message) -> Message {
    Message { content: [&*one.content, &other.content].join(BETWEEN), ..like.clone() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;

    /// Returns a template for a condition under which it refuses a message, and one under which it
    /// leaves it out.
    fn template(refuses: &str, skips: &str) -> ChatTemplate {
        let text = format!(
            "{{% for m in messages %}}{{% if {refuses} %}}{{{{ raise_exception('refused') }}}}\
             {{% elif not ({skips}) %}}{{{{ m.role + ':' + m.content + '|' }}}}{{% endif %}}{{% endfor %}}"
        );
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        ChatTemplate::choose(file.path().parent().unwrap(), file.path().to_str().unwrap()).unwrap()
    }

    /// Renders a conversation that is written as `role:text|role:text`.
    fn render(template: &ChatTemplate, conversation: &str) -> String {
        let message = |text: &str| {
            let (role, content) = text.split_once(':').unwrap();
            Message::new(role, content)
        };
        let messages = conversation.split('|').map(message).collect();
        let none = TemplateArguments::default();
        let messages = with_accepted_system_messages(template, messages, &none);
        template.render(&messages, true).unwrap_or_else(|error| error.to_string())
    }

    const ALTERNATES: &str = "(m.role == 'user') != (loop.index0 % 2 == 0) or m.role == 'system'";
    const ALTERNATES_AFTER_SYSTEM: &str = "(m.role == 'system') != loop.first or not loop.first and (m.role == 'user') != (loop.index0 % 2 == 1)";
    const TOOL_THEN_USER: &str = "m.role == 'system' or m.role == 'user' and loop.previtem is defined and loop.previtem.role != 'assistant'";

    #[test]
    fn templates_that_write_all_system_messages_get_them() {
        let template = template("false", "false");
        let text = "system:a|user:b|system:c|assistant:d|system:e";
        assert_eq!(render(&template, text), format!("{text}|"));
    }

    #[test]
    fn later_system_messages_become_user_text_if_they_are_refused_or_left_out() {
        let later = "m.role == 'system' and not loop.first";
        for template in [template(later, "false"), template("false", later)] {
            for (given, expected) in [
                ("user:a|assistant:b|system:c|user:d", "user:a|assistant:b|user:c|user:d|"),
                ("system:a|user:b|tool:c|system:d", "system:a|user:b|tool:c|user:d|"),
                // Several at the beginning are one.
                ("system:a|system:b|user:c|system:d", "system:a\n\nb|user:c|user:d|"),
            ] {
                assert_eq!(render(&template, given), expected);
            }
        }
    }

    #[test]
    fn only_the_last_system_message_counts_in_some_templates() {
        let template = template(
            "false",
            "m.role == 'system' and not m == (messages | selectattr('role', 'equalto', 'system') | list)[-1]",
        );
        assert_eq!(render(&template, "system:a|user:b|system:c"), "system:a|user:b|user:c|");
    }

    #[test]
    fn user_text_joins_its_neighbours_if_roles_must_alternate() {
        let alternates = template(ALTERNATES, "false");
        for (given, expected) in [
            ("user:a|assistant:b|system:c|user:d", "user:a|assistant:b|user:c\n\nd|"),
            ("user:a|system:b|assistant:c", "user:a\n\nb|assistant:c|"),
            ("user:a|system:b|system:c|user:d|assistant:e", "user:a\n\nb\n\nc\n\nd|assistant:e|"),
            ("system:a|user:b|assistant:c|system:d", "user:a\n\nb|assistant:c|user:d|"),
        ] {
            assert_eq!(render(&alternates, given), expected);
        }
        let after_system = template(ALTERNATES_AFTER_SYSTEM, "false");
        let text = render(&after_system, "system:a|user:b|assistant:c|system:d|user:e");
        assert_eq!(text, "system:a|user:b|assistant:c|user:d\n\ne|");
    }

    #[test]
    fn text_after_the_result_of_a_tool_joins_it_if_no_user_may_follow() {
        let template = template(TOOL_THEN_USER, "false");
        for (given, expected) in [
            ("user:a|assistant:b|tool:c|system:d", "user:a|assistant:b|tool:c\n\nd|"),
            ("user:a|assistant:b|tool:c|system:d|tool:e", "user:a|assistant:b|tool:c\n\nd|tool:e|"),
        ] {
            assert_eq!(render(&template, given), expected);
        }
    }

    #[test]
    fn a_template_that_refuses_for_another_reason_says_so() {
        let template = template("m.role == 'assistant'", "false");
        assert!(render(&template, "system:a|assistant:b").contains("refused"));
    }
}
