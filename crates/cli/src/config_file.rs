//! Options from the environment and from a TOML file. The command line comes before the
//! environment, and that before the file.
//!
//! The variable `FORERUN_MAX_TOKENS` stands for `--max-tokens`, and so on. In the file, entries at
//! the top are options of every command that has them. A table, such as `[serve]` or `[bench.run]`,
//! has options of one command.

use crate::arguments::{BY_POSITION, MODEL};
use crate::text_file;
use anyhow::{Context, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The name of the option that gives the file.
const OPTION: &str = "config";

/// Options that are not taken from the environment. `FORERUN_DATA` is the folder of checkpoints for
/// tests.
const NOT_OF_ENVIRONMENT: [&str; 4] = [OPTION, "help", "version", "data"];

/// A command line with the options of other places.
pub(crate) struct Given {
    pub(crate) line: Vec<OsString>,
    /// The other places that have options of this command: variables and the file.
    pub(crate) sources: Vec<String>,
}

/// Returns the command line with the options of the environment and of the configuration file, if
/// one is named. `variable` returns the value of an environment variable.
///
/// # Errors
/// If the file cannot be read or is not TOML, or if it has an option that no command has, or if it
/// or a variable has a value that cannot be one of an option.
pub(crate) fn with_other_options(
    root: &Command,
    line: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Given> {
    // An option that is required may come from elsewhere. Other errors are reported with the whole
    // line.
    let Ok(matches) = lenient(root.clone()).try_get_matches_from(&line) else {
        return Ok(Given { line, sources: Vec::new() });
    };
    let Environment { mut words, names: mut sources, options: given } =
        Environment::read(root, &matches, variable)?;
    if let Some(path) = deepest(&matches).get_one::<PathBuf>(OPTION).cloned() {
        let text = text_file::read(&path).with_context(|| shown(&path))?;
        let table: Table = text.parse().with_context(|| shown(&path))?;
        let options = options(root, &matches, &table, &given).with_context(|| shown(&path))?;
        words.extend(options);
        sources.push(path.display().to_string());
    }
    // After `--` there are no options.
    let end = line.iter().position(|word| word == "--").unwrap_or(line.len());
    let mut line = line;
    line.splice(end..end, words);
    Ok(Given { line, sources })
}

/// The options of the command that runs, as far as environment variables set them.
struct Environment {
    /// Words of a command line.
    words: Vec<OsString>,
    /// The names of the variables.
    names: Vec<String>,
    /// The ids of the options.
    options: HashSet<String>,
}

impl Environment {
    fn read(
        root: &Command,
        matches: &ArgMatches,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<Self> {
        let (mut command, mut inner) = (root, matches);
        while let Some((name, next)) = inner.subcommand() {
            let Some(found) = command.find_subcommand(name) else { break };
            (command, inner) = (found, next);
        }
        let mut read = Self { words: Vec::new(), names: Vec::new(), options: HashSet::new() };
        let global = root.get_arguments().filter(|argument| argument.is_global_set());
        for argument in command.get_arguments().chain(global) {
            // Some options name a variable themselves.
            let Some(long) = argument.get_long().filter(|_| argument.get_env().is_none()) else {
                continue;
            };
            if NOT_OF_ENVIRONMENT.contains(&long) || is_given(inner, argument) {
                continue;
            }
            let name = format!("FORERUN_{}", long.replace('-', "_").to_ascii_uppercase());
            let Some(value) = variable(&name).filter(|value| !value.is_empty()) else { continue };
            read.options.insert(argument.get_id().to_string());
            if argument.get_action().takes_values() {
                let mut word = OsString::from(format!("--{long}="));
                word.push(value);
                read.words.push(word);
            } else {
                match value.to_string_lossy().to_ascii_lowercase().as_str() {
                    "1" | "true" | "yes" | "on" => read.words.push(format!("--{long}").into()),
                    "0" | "false" | "no" | "off" => {}
                    _ => bail!("{name} is {value:?}, but must be true or false"),
                }
            }
            read.names.push(name);
        }
        Ok(read)
    }
}

/// Returns whether the command line or a variable that the option names gives a value. The command
/// line may give the model by position.
fn is_given(matches: &ArgMatches, argument: &Arg) -> bool {
    let id = argument.get_id().as_str();
    let source = matches.value_source(id);
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        || id == MODEL && matches.try_contains_id(BY_POSITION).unwrap_or(false)
}

fn shown(path: &Path) -> String {
    format!("the configuration file {}", path.display())
}

/// Returns the command without required options.
fn lenient(command: Command) -> Command {
    let command = command.mut_args(|argument| argument.required(false));
    command.mut_subcommands(lenient)
}

/// Returns the matches of the command that runs.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| deepest(inner))
}

/// Returns the file's options for the command that runs, as words of a command line, without the
/// `given` ones.
fn options(
    root: &Command,
    matches: &ArgMatches,
    table: &Table,
    given: &HashSet<String>,
) -> anyhow::Result<Vec<OsString>> {
    let (mut command, mut matches, mut table) = (root, matches, Some(table));
    let mut words = Vec::new();
    check(root, table.into_iter().flatten())?;
    // Options of outer tables apply to inner commands, which come later and so before them.
    let mut entries: Vec<(&String, &Value)> = Vec::new();
    loop {
        for (name, value) in table.into_iter().flatten().filter(|(_, value)| !value.is_table()) {
            entries.retain(|(other, _)| *other != name);
            entries.push((name, value));
        }
        let Some((name, inner)) = matches.subcommand() else { break };
        let Some(next) = command.find_subcommand(name) else { break };
        table = table.and_then(|table| table.get(name)).and_then(Value::as_table);
        (command, matches) = (next, inner);
    }
    for (name, value) in entries {
        let global = || option(root, name).filter(|argument| argument.is_global_set());
        let Some(argument) = option(command, name).or_else(global) else { continue };
        if !given.contains(argument.get_id().as_str()) && !is_given(matches, argument) {
            words.extend(words_of(argument, name, value)?);
        }
    }
    Ok(words)
}

/// Checks that there is an option for each entry, in the command or in one below it.
fn check<'a>(
    command: &Command,
    entries: impl Iterator<Item = (&'a String, &'a Value)>,
) -> anyhow::Result<()> {
    for (name, value) in entries {
        match (value, command.find_subcommand(name)) {
            (Value::Table(table), Some(inner)) => check(inner, table.iter())?,
            (Value::Table(_), None) => bail!("[{name}]: there is no such command"),
            _ if has_option(command, name) => {}
            _ => bail!("{name}: `{}` has no option --{name}", command.get_name()),
        }
    }
    Ok(())
}

fn has_option(command: &Command, name: &str) -> bool {
    option(command, name).is_some()
        || command.get_subcommands().any(|inner| has_option(inner, name))
}

/// Returns the option of this name, or with this alias. The name may have `_` where options have
/// `-`.
pub(crate) fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let name = name.replace('_', "-");
    let is_it = |argument: &&Arg| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long() == Some(&name) || aliases.contains(&&*name)
    };
    let found = command.get_arguments().find(is_it);
    found.filter(|argument| ![OPTION, "help", "version"].contains(&argument.get_id().as_str()))
}

/// Returns an entry as words of a command line.
pub(crate) fn words_of(argument: &Arg, name: &str, value: &Value) -> anyhow::Result<Vec<OsString>> {
    let long = argument.get_long().unwrap_or(name);
    let takes_value = argument.get_action().takes_values();
    Ok(match value {
        Value::Boolean(true) if !takes_value => vec![format!("--{long}").into()],
        Value::Boolean(false) if !takes_value => Vec::new(),
        _ if !takes_value => bail!("{name} must be true or false"),
        Value::Array(values) if !values.iter().any(Value::is_array) => {
            let words = values.iter().map(|value| words_of(argument, name, value));
            words.collect::<anyhow::Result<Vec<_>>>()?.concat()
        }
        Value::String(text) => vec![format!("--{long}={text}").into()],
        Value::Integer(number) => vec![format!("--{long}={number}").into()],
        Value::Float(number) => vec![format!("--{long}={number}").into()],
        Value::Boolean(yes) => vec![format!("--{long}={yes}").into()],
        Value::Array(_) | Value::Datetime(_) | Value::Table(_) => {
            return Err(anyhow!("{name} must be a text, a number, or an array of these"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::{CommandFactory, Parser};

    fn with(file: &str, line: &str) -> anyhow::Result<String> {
        with_variables(file, line, &[])
    }

    fn with_variables(
        file: &str,
        line: &str,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("options.toml");
        std::fs::write(&path, file)?;
        let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        words.insert(2, format!("--config={}", path.display()).into());
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let given = with_other_options(&Arguments::command(), words, variable)?;
        let words = given.line.iter().map(|word| word.to_string_lossy().into_owned());
        let rest: Vec<String> = words.filter(|word| !word.starts_with("--config")).collect();
        Ok(rest.join(" "))
    }

    #[test]
    fn options_come_from_the_file_unless_the_line_has_them() -> anyhow::Result<()> {
        let file = "temperature = 0.5\nmax_tokens = 7\nseed = 3\n[chat]\nseed = 4\n[generate]\nseed = 5\n\
                    ignore-eos = true\njson = false\nstop = [\"a\", \"b c\"]\n";
        let line = with(file, "forerun generate --max-tokens 9 --prompt x")?;
        let expected = "forerun generate --max-tokens 9 --prompt x --temperature=0.5 --ignore-eos \
                        --seed=5 --stop=a --stop=b c";
        let sorted = |line: &str| {
            let mut words: Vec<String> = line.split(" --").map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(sorted(&line), sorted(expected));
        // `devices` has none of these options.
        assert_eq!(with(file, "forerun devices")?, "forerun devices");
        let line = "forerun generate owner/name";
        let variables = [("FORERUN_MODEL", "owner/other")];
        assert_eq!(with_variables("model = \"another\"\n", line, &variables)?, line);
        Ok(())
    }

    #[test]
    fn variables_come_before_the_file() -> anyhow::Result<()> {
        let variables = [
            ("FORERUN_MAX_TOKENS", "5"),
            ("FORERUN_SEED", "2"),
            ("FORERUN_IGNORE_EOS", "true"),
            ("FORERUN_JSON", "0"),
            ("FORERUN_TOP_K", ""),
            ("FORERUN_DATA", "/checkpoints"),
            ("FORERUN_QUIET", "on"),
            ("FORERUN_ISA", "avx2"),
        ];
        let file = "max-tokens = 7\ntop-k = 3\njson = true\nverbose = true\n";
        let line = with_variables(file, "forerun generate --seed 1 --quiet", &variables)?;
        let expected =
            "forerun generate --seed 1 --quiet --max-tokens=5 --ignore-eos --top-k=3 --verbose";
        assert_eq!(line, expected);
        // It conflicts, as two such options of the line would.
        assert!(Arguments::try_parse_from(line.split(' ')).is_err());
        let line = with_variables("", "forerun devices", &variables)?;
        assert_eq!(line, "forerun devices --quiet");
        let wrong = with_variables("", "forerun generate", &[("FORERUN_JSON", "maybe")]);
        let text = format!("{:#}", wrong.expect_err("a flag is true or false"));
        assert!(text.contains("FORERUN_JSON"), "{text}");
        Ok(())
    }

    #[test]
    fn wrong_entries_are_named() {
        for (file, named) in [
            ("temprature = 1", "temprature"),
            ("[generat]\nseed = 1", "[generat]"),
            ("[generate]\nport = 1", "--port"),
            ("[generate]\nignore-eos = 3", "ignore-eos must be true or false"),
            ("seed = {a = 1}", "[seed]"),
            ("seed = 1979-05-27", "seed must be"),
            ("stop = [[\"a\"]]", "stop must be"),
            ("config = \"x\"", "config"),
            ("seed = ", "line 1"),
        ] {
            let given = with(file, "forerun generate --prompt x");
            let text = format!("{:#}", given.expect_err(file));
            assert!(text.contains(named), "{file}: {text}");
            assert!(text.contains("options.toml"), "{text}");
        }
    }
}
