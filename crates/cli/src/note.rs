//! Messages to the user.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard error. Unlike `eprintln!`, it does not panic if standard error is
/// closed.
pub(crate) fn note(line: impl Display) {
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
    fn control_characters_are_escaped() {
        assert_eq!(printable("a \u{1b}[31m\r\u{9b}\n\tß"), "a \\u{1b}[31m\\r\\u{9b}\n\tß");
    }
}
