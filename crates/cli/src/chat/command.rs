//! What a line of a conversation asks for.

use forerun::Method;
use std::path::PathBuf;

/// What `/help` shows.
pub(super) const HELP: &str = "\
/method [METHOD]  show or change the method: autoregressive, speculative, pearl, dsi
/stats            speed and acceptance of the last answer and of the whole chat
/system [TEXT]    set what the model is to keep to; without a text, take it back
/reset            begin anew
/save FILE        write the conversation as JSON
/quit             leave, as Ctrl-D does
A backslash at the end of a line continues the message on the next one.
A message that begins with a slash is typed with two.";

/// A line, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Say(String),
    Help,
    ShowMethod,
    Method(Method),
    Stats,
    System(String),
    Reset,
    Save(PathBuf),
    Quit,
}

impl Command {
    /// Reads a line; what cannot be understood gets a hint.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let Some(command) = line.strip_prefix('/') else { return Ok(Self::Say(line.to_owned())) };
        if command.starts_with('/') {
            return Ok(Self::Say(command.to_owned()));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let alone = |command: Self| match rest {
            "" => Ok(command),
            _ => Err(format!("/{name} takes nothing behind it")),
        };
        match name {
            "help" | "?" => alone(Self::Help),
            "method" if rest.is_empty() => Ok(Self::ShowMethod),
            "method" => rest.parse().map(Self::Method).map_err(|error| format!("/method: {error}")),
            "stats" => alone(Self::Stats),
            "system" => Ok(Self::System(rest.to_owned())),
            "reset" => alone(Self::Reset),
            "save" if rest.is_empty() => Err("/save needs a file: /save FILE".into()),
            "save" => Ok(Self::Save(rest.into())),
            "quit" | "exit" => alone(Self::Quit),
            _ => Err(format!("there is no command /{name}; /help lists those that there are")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let say = |text: &str| Ok(Command::Say(text.into()));
        for (line, expected) in [
            ("hello /help", say("hello /help")),
            (" /help", say(" /help")),
            ("//etc/hosts", say("/etc/hosts")),
            ("/help", Ok(Command::Help)),
            ("/method", Ok(Command::ShowMethod)),
            ("/method  speculative ", Ok(Command::Method(Method::Speculative))),
            ("/system  be  kind ", Ok(Command::System("be  kind".into()))),
            ("/system", Ok(Command::System(String::new()))),
            ("/system be\nkind", Ok(Command::System("be\nkind".into()))),
            ("/save a b.json", Ok(Command::Save("a b.json".into()))),
            ("/quit", Ok(Command::Quit)),
        ] {
            assert_eq!(Command::parse(line), expected, "{line}");
        }
        for (line, word) in [
            ("/", "/help lists"),
            ("/hlep", "no command /hlep"),
            ("/method magic", "autoregressive, speculative"),
            ("/save", "/save FILE"),
            ("/reset now", "nothing behind"),
        ] {
            assert!(Command::parse(line).is_err_and(|hint| hint.contains(word)), "{line}");
        }
    }
}
