//! Messages to the user on standard error, and how many of them there are.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

/// How much a command reports on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    /// Notes and progress, too.
    #[default]
    Normal,
    /// Details of what the command does, too.
    Verbose,
}

/// The verbosity of this process, which its command line sets once. Notes come from everywhere,
/// also from callbacks.
static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

impl Verbosity {
    /// Returns the verbosity that options ask for, or else a filter of logs in the form of
    /// `RUST_LOG`: its level for all parts of the program.
    pub(crate) fn of(verbose: bool, quiet: bool, log_filter: Option<&str>) -> Self {
        match (verbose, quiet) {
            (true, _) => return Self::Verbose,
            (_, true) => return Self::Quiet,
            _ => {}
        }
        let mut parts = log_filter.unwrap_or_default().split(',').map(str::trim);
        let level = parts.rfind(|part| !part.contains('=')).unwrap_or_default();
        match level.to_ascii_lowercase().as_str() {
            "debug" | "trace" => Self::Verbose,
            "off" | "error" => Self::Quiet,
            _ => Self::Normal,
        }
    }

    /// Sets the verbosity of this process. Only the first call counts.
    pub(crate) fn set(self) {
        let _ = VERBOSITY.set(self);
    }

    /// Returns the verbosity of this process.
    pub(crate) fn current() -> Self {
        VERBOSITY.get().copied().unwrap_or_default()
    }
}

/// Writes a line to standard error, unless the command is quiet.
pub(crate) fn note(line: impl Display) {
    if Verbosity::current() > Verbosity::Quiet {
        write(line);
    }
}

/// Writes a line to standard error if the command is verbose.
pub(crate) fn detail(line: impl Display) {
    if Verbosity::current() == Verbosity::Verbose {
        write(line);
    }
}

/// Writes an error to standard error.
pub(crate) fn error(error: impl Display) {
    write(format_args!("error: {error}"));
}

/// Unlike `eprintln!`, it does not panic if standard error is closed.
fn write(line: impl Display) {
    drop(writeln!(std::io::stderr(), "{}", printable(&line.to_string())));
}

/// Returns a text in which names of files, for example, cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let controls = |one: &char| one.is_control() && !matches!(one, '\n' | '\t');
    if !text.chars().any(|one| controls(&one)) {
        return text.to_owned();
    }
    let shown = |one: char| match controls(&one) {
        true => one.escape_default().collect(),
        false => one.to_string(),
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_the_filter_of_logs() {
        use Verbosity::{Normal, Quiet, Verbose};
        let of = Verbosity::of;
        assert_eq!(of(true, false, Some("off")), Verbose);
        assert_eq!(of(false, true, Some("debug")), Quiet);
        for (filter, expected) in [
            ("", Normal),
            ("info", Normal),
            ("warn, DEBUG", Verbose),
            ("trace", Verbose),
            ("error", Quiet),
            ("forerun_server=debug", Normal),
        ] {
            assert_eq!(of(false, false, Some(filter)), expected, "{filter}");
        }
        assert_eq!(of(false, false, None), Normal);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a \u{1b}[31m\r\u{9b}\n\tß"), "a \\u{1b}[31m\\r\\u{9b}\n\tß");
    }
}
