//! Commands of a chat.

use super::settings;
use crate::arguments::values;
use forerun::Method;
use std::path::PathBuf;

/// The text that `/help` shows, after the methods.
const HELP: &str = "\
/stats            show speed and acceptance of the last answer and of the whole chat
/system [TEXT]    set the system message; without a text, remove it
/set [NAME [VALUE]]
                  list, show or change options: temperature, top-k, top-p, min-p, typical-p,
                  top-n-sigma, xtc-probability, xtc-threshold, dynatemp-range, dynatemp-exponent,
                  repetition-penalty, frequency-penalty, presence-penalty, dry-multiplier, dry-base,
                  dry-allowed-length, dry-penalty-last-n, seed, max-tokens, system
/clear            start a new conversation; the system message stays
/save FILE        write the conversation as JSON
/quit             leave, as /bye, /exit and Ctrl-D do
A message of several lines stands between \"\"\", or its lines end with a backslash.
To send a message that begins with a slash, type two slashes.";

/// Returns the help for a command such as `set`, or for all if there is none of this name.
pub(super) fn help(topic: &str) -> String {
    let methods: Vec<&str> = Method::all().map(Method::name).collect();
    let methods = methods.join(", ");
    let all = format!("/method [METHOD]  show or change the method: {methods}\n{HELP}");
    let topic = format!("/{}", topic.trim_start_matches('/'));
    let mut lines = all.lines().skip_while(|line| line.split(' ').next() != Some(&*topic));
    let first = lines.next().map(str::to_owned);
    let more = lines.take_while(|line| line.starts_with(' '));
    first.map(|first| more.fold(first, |text, line| text + "\n" + line)).unwrap_or(all)
}

/// A parsed line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A message to the model.
    Send(String),
    /// With a command's name, or an empty text.
    Help(String),
    ShowMethod,
    Method(Method),
    Stats,
    System(String),
    ShowSettings,
    /// An option's name.
    ShowSetting(String),
    /// An option's name and its value.
    Set(String, String),
    Clear,
    Save(PathBuf),
    Quit,
}

impl Command {
    /// Parses a line. The error is a hint for the user.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let Some(command) = line.strip_prefix('/') else {
            return Ok(match line.trim() {
                "exit" | "quit" => Self::Quit,
                _ => Self::Send(line.to_owned()),
            });
        };
        if command.starts_with('/') {
            return Ok(Self::Send(command.to_owned()));
        }
        let is_end_of_name = |c: char| c.is_whitespace() || c == '=';
        let (name, rest) = command.split_once(is_end_of_name).unwrap_or((command, ""));
        let rest = rest.trim();
        let without_argument = |command: Self| match rest {
            "" => Ok(command),
            _ => Err(format!("/{name} takes no argument")),
        };
        match name {
            "help" | "?" => Ok(Self::Help(rest.to_owned())),
            "method" if rest.is_empty() => Ok(Self::ShowMethod),
            "method" => match values::parse_method(rest) {
                Ok(method) => Ok(Self::Method(method)),
                Err(error) => Err(format!("/method: {error}")),
            },
            "stats" => without_argument(Self::Stats),
            "system" => Ok(Self::System(rest.to_owned())),
            "set" if rest.is_empty() => Ok(Self::ShowSettings),
            "set" => match rest.split_once(is_end_of_name) {
                // As in ollama.
                Some(("parameter", setting)) => Self::parse(&format!("/set {}", setting.trim())),
                Some((option, value)) => {
                    let value = value.trim_start_matches(is_end_of_name).trim_end().to_owned();
                    Ok(match option {
                        "system" => Self::System(value),
                        _ => Self::Set(option.to_owned(), value),
                    })
                }
                None if rest == "parameter" => {
                    Err("/set needs a name and a value, as in /set temperature 0.8".into())
                }
                None => Ok(Self::ShowSetting(rest.to_owned())),
            },
            "clear" | "reset" => without_argument(Self::Clear),
            "save" if rest.is_empty() => Err("/save needs a file: /save FILE".into()),
            "save" => Ok(Self::Save(rest.into())),
            "quit" | "exit" | "bye" => without_argument(Self::Quit),
            _ if settings::is_option(name) => Self::parse(&format!("/set {name} {rest}")),
            _ => Err(format!("there is no command /{name}; /help lists the commands")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_all_methods_and_explains_one_command() {
        assert!(Method::all().all(|method| help("").contains(method.name())));
        let set = help("set");
        assert!(set.starts_with("/set "), "{set}");
        assert!(settings::NAMES.split(", ").all(|name| set.contains(name)), "{set}");
        assert!(!set.contains("/clear"), "{set}");
        assert_eq!(help("nothing"), help(""));
    }

    #[test]
    fn a_line_is_parsed_as_a_message_or_a_command() {
        let send = |text: &str| Ok(Command::Send(text.into()));
        for (line, expected) in [
            ("hello /help", send("hello /help")),
            (" /help", send(" /help")),
            ("//etc/hosts", send("/etc/hosts")),
            ("/help", Ok(Command::Help(String::new()))),
            ("/help set", Ok(Command::Help("set".into()))),
            ("/set seed", Ok(Command::ShowSetting("seed".into()))),
            ("/set parameter seed", Ok(Command::ShowSetting("seed".into()))),
            ("/method", Ok(Command::ShowMethod)),
            ("/method  speculative ", Ok(Command::Method(Method::Speculative))),
            ("/system  be  kind ", Ok(Command::System("be  kind".into()))),
            ("/system", Ok(Command::System(String::new()))),
            ("/system be\nkind", Ok(Command::System("be\nkind".into()))),
            ("/set", Ok(Command::ShowSettings)),
            ("/set  top-k  40 ", Ok(Command::Set("top-k".into(), "40".into()))),
            ("/set parameter  top-k 40", Ok(Command::Set("top-k".into(), "40".into()))),
            ("/set system = be kind", Ok(Command::System("be kind".into()))),
            ("/set top-k=40", Ok(Command::Set("top-k".into(), "40".into()))),
            ("/set top-k = 40", Ok(Command::Set("top-k".into(), "40".into()))),
            ("/temp 0.2", Ok(Command::Set("temp".into(), "0.2".into()))),
            ("/temperature=0.2", Ok(Command::Set("temperature".into(), "0.2".into()))),
            ("/temperature", Ok(Command::ShowSetting("temperature".into()))),
            ("exit", Ok(Command::Quit)),
            ("exit now", send("exit now")),
            ("/clear", Ok(Command::Clear)),
            ("/reset", Ok(Command::Clear)),
            ("/save a b.json", Ok(Command::Save("a b.json".into()))),
            ("/quit", Ok(Command::Quit)),
            ("/exit", Ok(Command::Quit)),
            ("/bye", Ok(Command::Quit)),
        ] {
            assert_eq!(Command::parse(line), expected, "{line}");
        }
        for (line, word) in [
            ("/", "/help lists"),
            ("/hlep", "no command /hlep"),
            ("/method magic", "autoregressive, speculative"),
            ("/save", "/save FILE"),
            ("/set parameter", "a name and a value"),
            ("/reset now", "takes no argument"),
        ] {
            assert!(Command::parse(line).is_err_and(|hint| hint.contains(word)), "{line}");
        }
    }
}
