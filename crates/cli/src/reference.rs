//! The option reference of the guide, written from the definitions of the command line.
//!
//! `just reference` updates `docs/guide/src/reference.md`; the test fails if the file is out of date.

use crate::arguments::Arguments;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write;
use std::path::Path;

const INTRODUCTION: &str = "\
<!-- Generated from the command-line definitions by `just reference`. Do not edit. -->

# Option reference

This page lists every command and option of the `forerun` binary. `forerun COMMAND --help` prints the
same text. Some commands need a feature, for example
`cargo install --locked --path crates/cli --features laboratory,plots,train`.
";

/// Returns the page for all commands.
fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut root = Arguments::command();
    root.build();
    for command in root.get_subcommands() {
        describe(command, &mut page);
    }
    page
}

/// Adds a section for a command, then one for each of its subcommands.
fn describe(command: &Command, page: &mut String) {
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    add(page, &format!("\n## `{name}`\n\n"));
    if let Some(feature) = feature_of(name) {
        add(page, &format!("Needs the feature `{feature}`.\n\n"));
    }
    add(page, &format!("{}\n", about.unwrap_or_default().trim()));
    let mut headings: Vec<Option<&str>> = Vec::new();
    for argument in visible(command) {
        if !headings.contains(&argument.get_help_heading()) {
            headings.push(argument.get_help_heading());
        }
    }
    for heading in headings {
        add(page, &format!("\n**{}**\n\n", heading.unwrap_or("Options")));
        for argument in visible(command).filter(|arg| arg.get_help_heading() == heading) {
            add(page, &line(argument));
        }
    }
    for subcommand in command.get_subcommands() {
        describe(subcommand, page);
    }
}

/// Returns the feature that a command needs, if any. `main` has the same list.
fn feature_of(name: &str) -> Option<&'static str> {
    let words: Vec<&str> = name.split(' ').skip(1).collect();
    match words.as_slice() {
        ["simulate", "plot"] => Some("plots"),
        ["bench", "run" | "serve"] | ["make-pair" | "plan"] | ["analyze" | "simulate", ..] => {
            Some("laboratory")
        }
        ["train" | "distill", ..] => Some("train"),
        _ => None,
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help")
}

/// A list item for an option: spellings, value, help and default, with a list of possible values.
fn line(argument: &Arg) -> String {
    let values = || argument.get_value_names().unwrap_or_default().iter();
    let value = values().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    let aliases = aliases.into_iter().map(|alias| format!("--{alias}"));
    let takes_value = argument.get_action().takes_values();
    let mut spellings: Vec<String> = short.into_iter().chain(long).chain(aliases).collect();
    match spellings.last_mut() {
        Some(last) if takes_value && !value.is_empty() => *last += &format!(" {value}"),
        Some(_) => {}
        None => spellings.push(value),
    }
    let spellings: Vec<String> = spellings.iter().map(|spelling| format!("`{spelling}`")).collect();
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
    let help = help.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line = format!("- {}: {}", spellings.join(", "), help.trim_end_matches('.'));
    line.push('.');
    let default: Vec<String> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into()).collect();
    if takes_value && !default.is_empty() {
        line += &format!(" Default: `{}`.", default.join(","));
    }
    line.push('\n');
    let possible = argument.get_possible_values();
    for value in possible.iter().filter(|value| takes_value && !value.is_hide_set()) {
        let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        line += &format!("  - `{}`{help}\n", value.get_name());
    }
    line
}

fn add(page: &mut String, text: &str) {
    // Writing to a string cannot fail.
    let _ = page.write_str(text);
}

#[test]
fn the_guides_option_reference_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src/reference.md");
    let expected = reference();
    if std::env::var_os("FORERUN_UPDATE_REFERENCE").is_some() {
        std::fs::write(&file, &expected).expect("the reference can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let difference =
        found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "docs/guide/src/reference.md is out of date: run `just reference`. First difference: {difference:?}"
    );
}
