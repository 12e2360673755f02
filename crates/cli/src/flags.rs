//! Flags in messages of the libraries.
//!
//! A library error names an option by its field, in backticks: `draft_model`, or with a value
//! `drafter = easyspec`. Users of the command know the option as a flag. Options of files are in
//! double quotes, because they are not flags.

use crate::arguments::Arguments;
use clap::{Command, CommandFactory};

/// Fields whose flag is spelt differently.
const OTHER_NAMES: [(&str, &str); 11] = [
    ("adapters", "lora"),
    ("adapter", "lora"),
    ("weight_type", "dtype"),
    ("cache_type", "kv-type"),
    ("additional_drafters", "also-draft"),
    ("layer_parallel_size", "lp"),
    ("layer_parallel_overlap", "fuzzy-overlap"),
    ("held_out_share", "held-out"),
    ("draft_tokens", "heads"),
    ("draft_tokens", "masks"),
    ("draft_tokens", "block-size"),
];

/// Returns the message with every option as a flag of the command that is running: `draft_model`
/// becomes `--draft-model`, and `drafter = easyspec` becomes `--drafter easyspec`. Other text in
/// backticks stays as it is.
pub(crate) fn with_flags(message: &str) -> String {
    let (root, line): (_, Vec<String>) = (Arguments::command(), std::env::args().collect());
    as_typed(&with_flags_of(message, running(&root, &line)), &root, &line)
}

/// Returns the command of a line.
fn running<'a>(root: &'a Command, line: &[String]) -> &'a Command {
    let mut command = root;
    // An interpreter may stand before the program: `python forerun generate`.
    for word in line.iter().skip_while(|word| root.find_subcommand(word).is_none()) {
        match command.find_subcommand(word) {
            Some(subcommand) => command = subcommand,
            None => break,
        }
    }
    command
}

/// Returns the message with the aliases of flags that the line has, in place of the flags.
pub(crate) fn as_typed(message: &str, root: &Command, line: &[String]) -> String {
    let is_on_line = |name: &str| line.iter().any(|word| word.split('=').next() == Some(name));
    let mut text = message.to_owned();
    for argument in running(root, line).get_arguments() {
        let Some(flag) = argument.get_long().map(|long| format!("--{long}")) else { continue };
        let aliases = argument.get_all_aliases().unwrap_or_default();
        let mut aliases = aliases.into_iter().map(|alias| format!("--{alias}"));
        if let Some(typed) = aliases.find(|alias| is_on_line(alias) && !is_on_line(&flag)) {
            text = with_whole_words(&text, &flag, &typed);
        }
    }
    text
}

/// Replaces a flag where it is not the beginning of a longer one.
fn with_whole_words(text: &str, from: &str, to: &str) -> String {
    let mut parts = text.split(from);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, rest| {
        let is_longer = rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
        text + if is_longer { from } else { to } + rest
    })
}

/// Returns the message with every option as a flag of this command, which may be another program's.
#[must_use]
pub fn with_flags_of(message: &str, command: &Command) -> String {
    let mut parts = message.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    // Parts alternate between quoted and unquoted text; a backtick without its partner quotes
    // nothing.
    while let Some(quoted) = parts.next() {
        let Some(rest) = parts.next() else {
            text += &format!("`{quoted}");
            break;
        };
        text += &flag(quoted, command).unwrap_or_else(|| format!("`{quoted}`"));
        text += rest;
    }
    text
}

/// The flag for an option, with its value if there is one; `None` if the command has no such flag.
fn flag(option: &str, command: &Command) -> Option<String> {
    let (name, value) = match option.split_once(" = ") {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let same = name.replace('_', "-");
    let others = OTHER_NAMES.iter().filter(|(field, _)| *field == name).map(|(_, flag)| *flag);
    let flag = std::iter::once(same.as_str())
        .chain(others)
        .find(|flag| command.get_arguments().any(|arg| arg.get_long() == Some(*flag)))?;
    Some(match value {
        Some(value) => format!("--{flag} {value}"),
        None => format!("--{flag}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::checkpoint::LoadError;
    use forerun::method::SamplingError;

    /// Replaces the options of a message as the command with this name does, such as `train lm`.
    fn replace_for(name: &str, message: &str) -> String {
        let mut command = &Arguments::command();
        for part in name.split(' ') {
            command = command.find_subcommand(part).expect("a command");
        }
        with_flags_of(message, command)
    }

    #[test]
    fn options_in_backticks_become_flags_of_the_command() {
        let table = [
            (
                "generate",
                "add `draft_model`, or `drafter = easyspec`",
                "add --draft-model, or --drafter easyspec",
            ),
            ("generate", "`weight_type` and `layer_parallel_size`", "--dtype and --lp"),
            ("generate", "`draft_tokens` is 65", "--draft-tokens is 65"),
            #[cfg(feature = "laboratory")]
            ("make-pair", "`layers` is 0", "--layers is 0"),
            #[cfg(feature = "laboratory")]
            ("simulate run", "`max_tokens` is 0", "--max-tokens is 0"),
            #[cfg(feature = "train")]
            ("train medusa", "`draft_tokens` is 0", "--heads is 0"),
            #[cfg(feature = "train")]
            ("train parallel", "`draft_tokens` is 0", "--masks is 0"),
            #[cfg(feature = "train")]
            ("train dspark", "`draft_tokens` is 1", "--block-size is 1"),
            (
                "generate",
                "`hidden_size` of `config.json` and `seed",
                "`hidden_size` of `config.json` and `seed",
            ),
            ("export", "`draft_model`", "`draft_model`"),
            ("generate", "nothing to do", "nothing to do"),
        ];
        for (name, message, expected) in table {
            assert_eq!(replace_for(name, message), expected);
        }
        let error = SamplingError::Range { name: "top_p", value: 1.5, expected: "1" }.to_string();
        assert!(replace_for("generate", &error).starts_with("--top-p is 1.5"), "{error}");
    }

    #[test]
    fn an_alias_is_named_as_it_was_typed() {
        let typed = |line: &str| {
            let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
            as_typed("--draft-tokens is 99, --draft-tokens-x", &Arguments::command(), &line)
        };
        let kept = "--draft-tokens is 99, --draft-tokens-x";
        assert_eq!(typed("forerun generate --draft-max=99"), "--draft-max is 99, --draft-tokens-x");
        assert_eq!(typed("forerun generate --draft-tokens 99"), kept);
        assert_eq!(typed("forerun devices --draft-max 99"), kept);
    }

    /// Even if the command has a flag with the same name.
    #[test]
    fn options_of_files_are_not_shown_as_flags() {
        let missing = |option| LoadError::MissingOption {
            file: "config.json".into(),
            option,
            expected: "a number",
        };
        let invalid = |option| LoadError::InvalidOption {
            file: "generation_config.json".into(),
            option,
            found: "-1".into(),
            expected: "a number".into(),
        };
        let unsupported = |option| LoadError::UnsupportedOption {
            file: "config.json".into(),
            option,
            found: "\"yarn\"".into(),
            supported: "\"default\", \"linear\"",
        };
        let table = [
            ("generate", "top_k", invalid("top_k")),
            ("chat", "temperature", missing("temperature")),
            ("export", "type", unsupported("type")),
            #[cfg(feature = "train")]
            ("train lm", "vocab_size", missing("vocab_size")),
        ];
        for (name, option, error) in table {
            let flag = format!("--{}", option.replace('_', "-"));
            assert_eq!(replace_for(name, &format!("`{option}`")), flag);
            let message = error.to_string();
            assert!(message.contains(&format!("option \"{option}\"")), "{message}");
            assert_eq!(replace_for(name, &message), message);
        }
    }
}
