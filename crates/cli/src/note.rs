//! Messages to the user.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard error. Unlike `eprintln!`, it does not panic if standard error is
/// closed.
pub(crate) fn note(line: impl Display) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
