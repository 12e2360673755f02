//! The option reference of the guide, written from the definitions of the command line.
//!
//! An option that several commands define alike is explained once: under its help heading, or with
//! the command whose subcommands have it. `just reference` updates `docs/guide/src/reference.md`;
//! the test fails if the file is out of date.

use crate::arguments::Arguments;
use clap::{Arg, Command, CommandFactory};
use std::path::Path;

const INTRODUCTION: &str = "\
<!-- Generated from the command-line definitions by `just reference`. Do not edit. -->

# Option reference

This page lists every command and option of the `forerun` binary. Options of several commands come
first; each command then names the groups that it takes. Options that only the subcommands of a
command share stand with that command. A value in parentheses is the default. `forerun COMMAND
--help` shows all options of a command.

Every option can also be set by an environment variable, such as `FORERUN_MAX_TOKENS` for
`--max-tokens`, or in the file of `--config`. Some commands need a feature, for example
`cargo install --locked --path crates/cli --features laboratory,plots,train`.
";

/// The fewest words of an option that stands once if only two commands share it.
const LONG: usize = 10;

/// The most words of a list of values on one line.
const SHORT: usize = 40;

/// The columns of the page.
const COLUMNS: usize = 100;

/// What the page says about an option. Commands may give it different defaults.
#[derive(Clone, PartialEq)]
struct Explanation {
    /// The spelling that other texts use, such as `--model`.
    name: String,
    /// All spellings, and the help.
    text: String,
    /// The possible values with their help.
    values: Vec<(String, String)>,
}

/// An option of a command.
struct Entry<'a> {
    command: &'a str,
    heading: Option<&'a str>,
    explanation: Explanation,
    default: Option<String>,
}

/// Where a group of shared options stands.
#[derive(Clone, PartialEq)]
enum Place<'a> {
    /// In the section of a help heading.
    Heading(&'a str),
    /// With a command, for these subcommands.
    Parent(&'a str, Vec<&'a str>),
}

/// Options that several commands share.
struct Group<'a> {
    place: Place<'a>,
    options: Vec<&'a Explanation>,
}

/// A list of values that stands on the page.
struct List {
    link: String,
    values: Vec<(String, String)>,
}

/// The page so far.
struct Page<'a> {
    text: String,
    entries: &'a [Entry<'a>],
    groups: Vec<Group<'a>>,
    lists: Vec<List>,
}

/// Returns the page for all commands.
fn reference() -> String {
    let mut root = Arguments::command();
    root.build();
    let mut commands = Vec::new();
    collect(&root, &mut commands);
    let entries: Vec<Entry<'_>> = commands
        .iter()
        .flat_map(|command| visible(command).map(|argument| Entry::new(command, argument)))
        .collect();
    let (text, groups, lists) = (INTRODUCTION.to_owned(), groups(&entries), Vec::new());
    let mut page = Page { text, entries: &entries, groups, lists };
    page.text += "\n## Options of every command\n\n";
    for argument in root.get_arguments().filter(|argument| argument.is_global_set()) {
        let Entry { explanation, default, .. } = Entry::new(&root, argument);
        page.option(&explanation, default.as_deref(), "");
    }
    page.shared();
    for command in commands {
        page.command(command);
    }
    page.text
}

/// Collects the commands that the help shows, each before its subcommands.
fn collect<'a>(command: &'a Command, commands: &mut Vec<&'a Command>) {
    for command in command.get_subcommands() {
        if command.get_name() != "help" && !command.is_hide_set() {
            commands.push(command);
            collect(command, commands);
        }
    }
}

/// Returns a command's own options, without those of every command.
fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    let own = |argument: &&Arg| !argument.is_hide_set() && !argument.is_global_set();
    command.get_arguments().filter(own).filter(|argument| argument.get_id() != "help")
}

fn name_of(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

/// Returns the name of the command that a command belongs to.
fn parent_of(name: &str) -> &str {
    name.rsplit_once(' ').map_or("", |(parent, _)| parent)
}

/// Returns the shared options, in the order of the commands.
fn groups<'a>(entries: &'a [Entry<'a>]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let is_same = |other: &&Entry<'_>| other.explanation == entry.explanation;
        if entries[..index].iter().any(|other| is_same(&other)) {
            continue;
        }
        let commands: Vec<&str> = entries.iter().filter(is_same).map(|it| it.command).collect();
        let parent = parent_of(entry.command);
        let are_siblings = commands.iter().all(|command| parent_of(command) == parent);
        let is_long = entry.explanation.text.split_whitespace().count() >= LONG;
        let place = match entry.heading {
            _ if commands.len() > 1 && are_siblings && parent.contains(' ') => {
                Place::Parent(parent, commands)
            }
            Some(heading) if commands.len() > 2 || is_long && commands.len() > 1 => {
                Place::Heading(heading)
            }
            _ => continue,
        };
        match groups.iter_mut().find(|group| group.place == place) {
            Some(group) => group.options.push(&entry.explanation),
            None => groups.push(Group { place, options: vec![&entry.explanation] }),
        }
    }
    groups
}

impl<'a> Entry<'a> {
    fn new(command: &'a Command, argument: &'a Arg) -> Self {
        let takes_value = argument.get_action().takes_values();
        let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
        let (help, mut default) = without_default(&help.unwrap_or_default());
        let defaults = argument.get_default_values().iter();
        let defaults: Vec<String> = defaults.map(|it| it.to_string_lossy().into()).collect();
        if default.is_none() && takes_value && defaults.iter().any(|value| !value.is_empty()) {
            default = Some(format!("`{}`", defaults.join(",")));
        }
        let value = argument.get_value_names().unwrap_or_default().iter();
        let value = value.map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
        let short = argument.get_short().map(|short| format!("-{short}"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let name = long.clone().unwrap_or(value.clone());
        let aliases = argument.get_visible_aliases().unwrap_or_default();
        let aliases = aliases.into_iter().map(|alias| format!("--{alias}"));
        let mut spellings: Vec<String> = short.into_iter().chain(long).chain(aliases).collect();
        match spellings.last_mut() {
            Some(last) if takes_value && !value.is_empty() => *last += &format!(" {value}"),
            Some(_) => {}
            None => spellings.push(value),
        }
        let spellings: Vec<String> = spellings.iter().map(|it| format!("`{it}`")).collect();
        let possible = argument.get_possible_values();
        let possible = possible.iter().filter(|value| takes_value && !value.is_hide_set());
        let values = possible.map(|value| {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            (value.get_name().to_owned(), help)
        });
        let text = format!("{}: {help}", spellings.join(", "));
        let explanation = Explanation { name, text, values: values.collect() };
        let heading = argument.get_help_heading();
        Self { command: name_of(command), heading, explanation, default }
    }
}

/// Splits help into its sentences and the default that it names, as `[default: 4G]`.
fn without_default(help: &str) -> (String, Option<String>) {
    const START: &str = "[default: ";
    let mut default = None;
    let mut paragraphs = Vec::new();
    for paragraph in help.split("\n\n") {
        let mut text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(start) = text.find(START)
            && let Some(end) = text[start..].find(']').map(|end| start + end)
        {
            let named = &text[start + START.len()..end];
            let is_value = !named.contains([' ', '`']);
            default = Some(if is_value { format!("`{named}`") } else { named.to_owned() });
            text = format!("{}{}", text[..start].trim_end(), &text[end + 1..]);
        }
        if !text.ends_with(['.', ':', '…']) {
            text.push('.');
        }
        paragraphs.push(text);
    }
    (paragraphs.join(" "), default)
}

fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl<'a> Page<'a> {
    /// Adds a paragraph whose first line begins with `first`. Further lines are indented as far.
    fn wrapped(&mut self, first: &str, text: &str) {
        let indent = " ".repeat(first.len());
        let mut line = first.to_owned();
        let mut is_empty = true;
        for word in text.split_whitespace() {
            // A line that begins with one of these would begin a list or a heading.
            let is_mark = matches!(word, "-" | "+" | "*" | "#") || word == "1.";
            let is_long = line.chars().count() + 1 + word.chars().count() > COLUMNS;
            if !is_empty && is_long && !is_mark {
                self.text += &format!("{}\n", line.trim_end());
                line.clone_from(&indent);
            } else if !is_empty {
                line.push(' ');
            }
            line += word;
            is_empty = false;
        }
        self.text += &format!("{}\n", line.trim_end());
    }

    /// Adds an option with its default and its values. `anchor` is that of its section.
    fn option(&mut self, explanation: &Explanation, default: Option<&str>, anchor: &str) {
        let Explanation { name, text, values } = explanation;
        let mut text = text.clone();
        match default {
            // A value, not a sentence.
            Some(default) if default.starts_with('`') && !default.contains(' ') => {
                text = text.replacen(": ", &format!(" ({default}): "), 1);
            }
            Some(default) => text += &format!(" Default: {default}."),
            None => {}
        }
        if let Some(other) = self.lists.iter().find_map(|list| list.instead_of(values)) {
            text += &other;
            self.wrapped("- ", &text);
            return;
        }
        let helps = values.iter().filter(|(_, help)| !help.is_empty());
        let count: usize = helps.map(|(_, help)| help.split_whitespace().count()).sum();
        let items = values.iter().map(|(value, help)| match &**help {
            "" => format!("`{value}`"),
            help if count <= SHORT => format!("`{value}` ({help})"),
            help => format!("`{value}`: {help}"),
        });
        if count <= SHORT && !values.is_empty() {
            text += &format!(" Values: {}.", items.collect::<Vec<_>>().join(", "));
            self.wrapped("- ", &text);
        } else {
            self.wrapped("- ", &text);
            for item in items {
                self.wrapped("  - ", &item);
            }
        }
        if !values.is_empty() {
            let link = format!("[`{name}`](#{anchor})");
            self.lists.push(List { link, values: values.clone() });
        }
    }

    /// Adds the sections of options that commands of several families share.
    fn shared(&mut self) {
        self.text += "\n## Shared options\n";
        for index in 0..self.groups.len() {
            if let Place::Heading(heading) = self.groups[index].place {
                self.text += &format!("\n### {heading}\n\n");
                self.group(index, &anchor(heading));
            }
        }
    }

    fn group(&mut self, index: usize, anchor: &str) {
        for option in self.groups[index].options.clone() {
            let default = self.usual_default(option);
            self.option(option, default, anchor);
        }
    }

    /// Returns the default that most commands give a shared option.
    fn usual_default(&self, option: &Explanation) -> Option<&'a str> {
        let same = self.entries.iter().filter(|entry| entry.explanation == *option);
        let defaults: Vec<_> = same.map(|entry| entry.default.as_deref()).collect();
        let count = |default: &Option<&str>| defaults.iter().filter(|it| *it == default).count();
        // Of equal counts, the first command's.
        defaults.iter().rev().max_by_key(|default| count(default)).copied().flatten()
    }

    /// Adds the section of a command.
    fn command(&mut self, command: &Command) {
        let name = name_of(command);
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
        self.text += &format!("\n## `{name}`\n\n");
        // A command's feature is also that of its subcommands.
        let of_parent = feature_of(parent_of(name));
        if let Some(feature) = feature_of(name).filter(|it| of_parent != Some(it)) {
            self.text += &format!("Needs the feature `{feature}`.\n\n");
        }
        for (index, paragraph) in about.unwrap_or_default().trim().split("\n\n").enumerate() {
            if index > 0 {
                self.text.push('\n');
            }
            self.wrapped("", paragraph);
        }
        let entries: &'a [Entry<'a>] = self.entries;
        let own: Vec<_> = entries
            .iter()
            .filter(|entry| entry.command == name && !self.is_shared(&entry.explanation))
            .collect();
        let mut headings: Vec<Option<&str>> = Vec::new();
        for entry in &own {
            if !headings.contains(&entry.heading) {
                headings.push(entry.heading);
            }
        }
        for &heading in &headings {
            self.text.push('\n');
            if headings.len() > 1 {
                self.text += &format!("**{}**\n\n", heading.unwrap_or("Options"));
            }
            for entry in own.iter().filter(|entry| entry.heading == heading) {
                self.option(&entry.explanation, entry.default.as_deref(), &anchor(name));
            }
        }
        self.also_takes(name);
        for index in 0..self.groups.len() {
            let Place::Parent(parent, commands) = self.groups[index].place.clone() else {
                continue;
            };
            if parent == name {
                let short = commands.iter().map(|it| it.trim_start_matches(parent).trim());
                let short: Vec<&str> = short.collect();
                self.text += &format!("\n**Options of {}**\n\n", quoted(&short));
                self.group(index, &anchor(name));
            }
        }
    }

    fn is_shared(&self, option: &Explanation) -> bool {
        self.groups.iter().any(|group| group.options.contains(&option))
    }

    /// Adds a line with the shared options that a command takes, and their other defaults.
    fn also_takes(&mut self, name: &str) {
        let entries: &'a [Entry<'a>] = self.entries;
        let find = |option: &Explanation| {
            entries.iter().find(|entry| entry.command == name && entry.explanation == *option)
        };
        let (mut groups, mut defaults) = (Vec::new(), Vec::new());
        for group in &self.groups {
            let (has, lacks): (Vec<&Explanation>, Vec<&Explanation>) =
                group.options.iter().partition(|option| find(option).is_some());
            let names = |options: &[&'a Explanation]| {
                quoted(&options.iter().map(|option| &*option.name).collect::<Vec<_>>())
            };
            let link = match group.place {
                Place::Heading(heading) => format!("[{heading}](#{})", anchor(heading)),
                // The section of the parent names its commands.
                Place::Parent(..) => String::new(),
            };
            let text = match (has.len(), lacks.len()) {
                (0, _) => continue,
                (_, 0) => link,
                (some, others) if others < some => format!("{link} without {}", names(&lacks)),
                _ => format!("{} of {link}", names(&has)),
            };
            if !text.is_empty() {
                groups.push(text);
            }
            for option in has {
                let default = find(option).and_then(|entry| entry.default.as_deref());
                if default != self.usual_default(option) {
                    let default = default.unwrap_or("none");
                    defaults.push(format!("`{}` {default}", option.name));
                }
            }
        }
        let mut text = String::new();
        if !groups.is_empty() {
            text += &format!("Also takes {}. ", groups.join("; "));
        }
        if !defaults.is_empty() {
            text += &format!("Other defaults: {}.", defaults.join("; "));
        }
        if !text.is_empty() {
            self.text.push('\n');
            self.wrapped("", &text);
        }
    }
}

impl List {
    /// Returns a sentence for an option with these values, if it is shorter than another list.
    fn instead_of(&self, values: &[(String, String)]) -> Option<String> {
        let names = |from: &[(String, String)], but: &[(String, String)]| {
            let names = from.iter().filter(|value| !but.contains(value));
            names.map(|(name, help)| (name.clone(), help.clone())).collect::<Vec<_>>()
        };
        let (new, missing) = (names(values, &self.values), names(&self.values, values));
        if values.len() < 3 || new.len() > 1 {
            return None;
        }
        let Self { link, .. } = self;
        let only = |list: &[(String, String)]| {
            quoted(&list.iter().map(|(name, _)| &**name).collect::<Vec<_>>())
        };
        if missing.len() > values.len() {
            return new.is_empty().then(|| format!(" {} of {link}.", only(values)));
        }
        let mut text = format!(" The values of {link}");
        if !missing.is_empty() {
            text += &format!(" but {}", only(&missing));
        }
        for (name, help) in new {
            text += &format!(", and `{name}` ({help})");
        }
        Some(text + ".")
    }
}

/// Returns the feature that a command needs, if any. `main` has the same list.
fn feature_of(name: &str) -> Option<&'static str> {
    let words: Vec<&str> = name.split(' ').skip(1).collect();
    match words.as_slice() {
        ["simulate", "plot"] => Some("plots"),
        ["make-pair"] | ["analyze" | "simulate", ..] => Some("laboratory"),
        ["train" | "distill", ..] => Some("train"),
        _ => None,
    }
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
