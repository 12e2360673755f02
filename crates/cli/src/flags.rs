//! Flags in messages of the libraries.
//!
//! A library error names an option by its field, in backticks: `draft_model`, or with a value
//! `drafter = easyspec`. Users of the command know the option as a flag.

use crate::arguments::Arguments;
use clap::{Command, CommandFactory};

/// Fields whose flag is spelt differently.
const OTHER_NAMES: [(&str, &str); 5] = [
    ("weight_type", "dtype"),
    ("additional_drafters", "also-draft"),
    ("layer_parallel_size", "lp"),
    ("layer_parallel_overlap", "fuzzy-overlap"),
    ("held_out_share", "held-out"),
];

/// Returns the message with every option as a flag of the command that is running: `draft_model`
/// becomes `--draft-model`, and `drafter = easyspec` becomes `--drafter easyspec`. Other text in
/// backticks stays as it is.
pub(crate) fn with_flags(message: &str) -> String {
    let root = Arguments::command();
    let mut command = &root;
    for argument in std::env::args().skip(1) {
        match command.find_subcommand(&argument) {
            Some(subcommand) => command = subcommand,
            None => break,
        }
    }
    replace(message, command)
}

fn replace(message: &str, command: &Command) -> String {
    let mut parts = message.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    // Parts alternate between quoted and unquoted text; a backtick without its partner quotes nothing.
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
    let has = |flag: &&str| command.get_arguments().any(|own| own.get_long() == Some(*flag));
    let own = name.replace('_', "-");
    let other = OTHER_NAMES.iter().find(|(field, _)| *field == name).map(|(_, flag)| *flag);
    let flag = Some(own.as_str()).filter(has).or(other.filter(has))?;
    Some(match value {
        Some(value) => format!("--{flag} {value}"),
        None => format!("--{flag}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_in_backticks_become_flags_of_the_command() {
        let root = Arguments::command();
        let table = [
            (
                "generate",
                "add `draft_model`, or `drafter = easyspec`",
                "add --draft-model, or --drafter easyspec",
            ),
            ("generate", "`weight_type` and `layer_parallel_size`", "--dtype and --lp"),
            ("make-pair", "`layers` is 0", "--layers is 0"),
            (
                "generate",
                "`hidden_size` of `config.json` and `seed",
                "`hidden_size` of `config.json` and `seed",
            ),
            ("export", "`draft_model`", "`draft_model`"),
            ("generate", "nothing to do", "nothing to do"),
        ];
        for (name, message, expected) in table {
            let command = root.find_subcommand(name).expect("a command");
            assert_eq!(replace(message, command), expected);
        }
    }
}
