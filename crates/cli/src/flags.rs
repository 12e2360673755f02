//! Flags in messages of the libraries.
//!
//! A library error names an option by its field, in backticks: `draft_model`, or with a value
//! `drafter = easyspec`. Users of the command know the option as a flag.

use crate::arguments::Arguments;
use clap::{Command, CommandFactory};
use std::collections::HashSet;

/// Fields whose flag is spelt differently.
const OTHER_NAMES: [(&str, &str); 3] =
    [("weight_type", "dtype"), ("additional_drafters", "also-draft"), ("layers", "layer-groups")];

/// Returns the message with every option as a flag of this command: `draft_model` becomes
/// `--draft-model`, and `drafter = easyspec` becomes `--drafter easyspec`. Other text in backticks
/// stays as it is.
pub(crate) fn with_flags(message: &str) -> String {
    let mut known = HashSet::new();
    collect_flags(&Arguments::command(), &mut known);
    let mut parts = message.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    // Parts alternate between quoted and unquoted text; a backtick without its partner quotes nothing.
    while let Some(quoted) = parts.next() {
        let Some(rest) = parts.next() else {
            text += "`";
            text += quoted;
            break;
        };
        match flag(quoted, &known) {
            Some(flag) => text += &flag,
            None => text += &format!("`{quoted}`"),
        }
        text += rest;
    }
    text
}

/// The flag for an option, with its value if there is one; `None` if no command has such a flag.
fn flag(option: &str, known: &HashSet<String>) -> Option<String> {
    let (name, value) = match option.split_once(" = ") {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let other = OTHER_NAMES.iter().find(|(field, _)| *field == name).map(|(_, flag)| *flag);
    let flag = other.map_or_else(|| name.replace('_', "-"), str::to_owned);
    known.contains(&flag).then(|| match value {
        Some(value) => format!("--{flag} {value}"),
        None => format!("--{flag}"),
    })
}

fn collect_flags(command: &Command, flags: &mut HashSet<String>) {
    flags.extend(command.get_arguments().filter_map(|own| own.get_long()).map(str::to_owned));
    for subcommand in command.get_subcommands() {
        collect_flags(subcommand, flags);
    }
}

#[cfg(test)]
mod tests {
    use super::with_flags;

    #[test]
    fn options_in_backticks_become_flags() {
        let table = [
            (
                "add `draft_model`, or `drafter = easyspec`",
                "add --draft-model, or --drafter easyspec",
            ),
            ("`weight_type` is wrong", "--dtype is wrong"),
            (
                "`hidden_size` of `config.json` and `draft_model",
                "`hidden_size` of `config.json` and `draft_model",
            ),
            ("nothing to do", "nothing to do"),
            ("", ""),
        ];
        for (message, expected) in table {
            assert_eq!(with_flags(message), expected);
        }
    }
}
