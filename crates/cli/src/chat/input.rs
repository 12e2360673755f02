//! Where messages come from: a terminal, with line editing and history, or a pipe.

use crate::note;
use anyhow::Context;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Editor, Helper};
use std::cell::Cell;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

/// Lines that the history keeps.
const HISTORY: usize = 1000;

const PROMPT: &str = "> ";
/// In front of what continues a message.
const CONTINUATION: &str = "… ";

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A message or command, of several lines where they were joined.
    Text(String),
    /// An empty line, or one that was given up.
    Nothing,
    /// No more comes.
    End,
}

pub(super) enum Input {
    Terminal(Box<Terminal>),
    Pipe,
}

impl Input {
    /// A terminal where standard input is one. Typed lines go to a history if `history`.
    pub(super) fn new(history: bool) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        Ok(Self::Terminal(Box::new(Terminal::new(history.then(history_file).flatten())?)))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next message or command.
    pub(super) fn read(&mut self) -> anyhow::Result<Line> {
        match self {
            Self::Terminal(terminal) => terminal.read(),
            Self::Pipe => read_piped(&mut std::io::stdin().lock()),
        }
    }
}

/// A terminal, and where its history is kept.
pub(super) struct Terminal {
    editor: Editor<Typed, FileHistory>,
    history: Option<PathBuf>,
    /// The last key was Ctrl-C at an empty prompt.
    leaving: bool,
}

/// Whether something is typed on the line: an interrupt alone does not tell. The editor shows the line
/// to whoever may have a hint for it, whenever it changes.
#[derive(Default)]
struct Typed(Cell<bool>);

impl Hinter for Typed {
    type Hint = String;

    fn hint(&self, line: &str, _pos: usize, _context: &rustyline::Context<'_>) -> Option<String> {
        self.0.set(!line.is_empty());
        None
    }
}

impl Completer for Typed {
    type Candidate = String;
}

impl Highlighter for Typed {}
impl Validator for Typed {}
impl Helper for Typed {}

impl Terminal {
    fn new(history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config =
            Config::builder().max_history_size(HISTORY).map(rustyline::config::Builder::build);
        let config = config.context("cannot set up line editing")?;
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Typed::default()));
        if let Some(file) = &history {
            // The first chat of all has none.
            drop(editor.load_history(file));
        }
        Ok(Self { editor, history, leaving: false })
    }

    fn read(&mut self) -> anyhow::Result<Line> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { PROMPT } else { CONTINUATION };
            match self.editor.readline(prompt) {
                Ok(line) => {
                    self.leaving = false;
                    if !add_line(&mut text, &line) {
                        break;
                    }
                }
                // It gives up what was typed, and says no more.
                Err(ReadlineError::Interrupted) if !text.is_empty() || self.typed() => {
                    self.leaving = false;
                    return Ok(Line::Nothing);
                }
                Err(ReadlineError::Interrupted) if self.leaving => return Ok(Line::End),
                Err(ReadlineError::Interrupted) => {
                    self.leaving = true;
                    note("(Ctrl-C again or Ctrl-D to leave)");
                    return Ok(Line::Nothing);
                }
                Err(ReadlineError::Eof) => return Ok(Line::End),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
        if text.trim().is_empty() {
            return Ok(Line::Nothing);
        }
        self.remember(&text);
        Ok(Line::Text(text))
    }

    fn typed(&self) -> bool {
        self.editor.helper().is_some_and(|typed| typed.0.get())
    }

    /// Adds a line to the history, and at once to its file: a chat may end in many ways.
    fn remember(&mut self, text: &str) {
        let added = self.editor.add_history_entry(text).unwrap_or(false);
        let Some(file) = self.history.clone().filter(|_| added) else { return };
        if let Err(error) = self.keep(&file) {
            note(format_args!("no history is kept: cannot write {}: {error}", file.display()));
            self.history = None;
        }
    }

    fn keep(&mut self, file: &Path) -> Result<(), ReadlineError> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        self.editor.append_history(file)
    }
}

/// Where the history is, by the XDG base directory specification.
fn history_file() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("forerun/history"))
}

/// A message of one line, or of several that end in backslashes.
fn read_piped(input: &mut impl BufRead) -> anyhow::Result<Line> {
    let (mut text, mut began) = (String::new(), false);
    loop {
        let mut line = String::new();
        let length = input.read_line(&mut line).context("cannot read from standard input")?;
        if length == 0 && !began {
            return Ok(Line::End);
        }
        began = true;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        if !add_line(&mut text, line.strip_suffix('\r').unwrap_or(line)) || length == 0 {
            break;
        }
    }
    Ok(if text.trim().is_empty() { Line::Nothing } else { Line::Text(text) })
}

/// Adds a line to a message and returns whether another one follows: a backslash at the end says so.
fn add_line(text: &mut String, line: &str) -> bool {
    match line.strip_suffix('\\') {
        Some(line) => {
            text.push_str(line);
            text.push('\n');
            true
        }
        None => {
            text.push_str(line);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_has_a_message_a_line() -> anyhow::Result<()> {
        let mut input = &b"one\r\n\n two \nthree\\\n\\\nfour\nlast\\"[..];
        let text = |text: &str| Line::Text(text.into());
        let expected =
            [text("one"), Line::Nothing, text(" two "), text("three\n\nfour"), text("last\n")];
        for line in expected {
            assert_eq!(read_piped(&mut input)?, line);
        }
        assert_eq!(read_piped(&mut input)?, Line::End);
        assert!(read_piped(&mut &b"\xFF\n"[..]).is_err());
        Ok(())
    }
}
