//! Input of a chat: a terminal, with line editing and history, or a pipe.

use crate::{note, terminal};
use anyhow::Context;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Editor, Helper};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{BufRead, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

/// Number of lines kept in the history.
const HISTORY: usize = 1000;

const PROMPT: &str = "> ";
/// Prompt of the further lines of a message.
const CONTINUATION: &str = "… ";

/// A line of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A message or command; lines joined with backslashes or between quotes are one message.
    Text(String),
    /// An empty line, or one discarded with Ctrl-C.
    Empty,
    /// The end of the input.
    End,
}

pub(super) enum Input {
    Terminal(Box<Terminal>),
    Pipe,
}

impl Input {
    /// Opens the terminal if standard input is one, else the pipe. Lines typed at a terminal are
    /// saved in the history file if `history`.
    pub(super) fn new(history: bool) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        Ok(Self::Terminal(Box::new(Terminal::new(history.then(history_file).flatten())?)))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Reads the next message or command.
    pub(super) fn read(&mut self) -> anyhow::Result<Line> {
        match self {
            Self::Terminal(terminal) => terminal.read(),
            Self::Pipe => read_piped(&mut std::io::stdin().lock()),
        }
    }
}

/// A terminal with line editing.
pub(super) struct Terminal {
    editor: Editor<TypingDetector, FileHistory>,
    /// The history file.
    history: Option<PathBuf>,
    /// Whether the last key was Ctrl-C at an empty prompt.
    leaving: bool,
    /// The further lines of a pasted text that began with quotes.
    pasted: VecDeque<String>,
}

/// Records whether the current line is empty, which the editor's interrupt error does not report.
/// The editor asks for a hint whenever the line changes.
#[derive(Default)]
struct TypingDetector(Cell<bool>);

impl Hinter for TypingDetector {
    type Hint = String;

    fn hint(&self, line: &str, _pos: usize, _context: &rustyline::Context<'_>) -> Option<String> {
        self.0.set(!line.is_empty());
        None
    }
}

impl Completer for TypingDetector {
    type Candidate = String;
}

impl Highlighter for TypingDetector {}
impl Validator for TypingDetector {}
impl Helper for TypingDetector {}

impl Terminal {
    fn new(history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config =
            Config::builder().max_history_size(HISTORY).map(rustyline::config::Builder::build);
        let config = config.context("cannot set up line editing")?;
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        terminal::remember();
        editor.set_helper(Some(TypingDetector::default()));
        // The file does not exist before the first chat. A pipe or a device may have no end.
        let history = history.filter(|file| {
            let is_usable = !file.exists() || file.is_file();
            if !is_usable {
                note(format_args!("history is not saved: {} is no regular file", file.display()));
            }
            is_usable
        });
        if let Some(file) = &history {
            drop(editor.load_history(file));
        }
        Ok(Self { editor, history, leaving: false, pasted: VecDeque::new() })
    }

    fn read(&mut self) -> anyhow::Result<Line> {
        let mut message = Message::default();
        loop {
            match self.line(&message) {
                Ok(line) => {
                    self.leaving = false;
                    if !message.add(&line) {
                        break;
                    }
                }
                // Ctrl-C discards what was typed.
                Err(ReadlineError::Interrupted) if message.has_begun || self.is_typing() => {
                    self.leaving = false;
                    return Ok(Line::Empty);
                }
                Err(ReadlineError::Interrupted) if self.leaving => return Ok(Line::End),
                Err(ReadlineError::Interrupted) => {
                    self.leaving = true;
                    note("(press Ctrl-C again or Ctrl-D to leave)");
                    return Ok(Line::Empty);
                }
                Err(ReadlineError::Eof) => return Ok(Line::End),
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    note("(the line is discarded: it is not UTF-8)");
                    return Ok(Line::Empty);
                }
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
        let line = message.end();
        if let Line::Text(text) = &line {
            self.remember(text);
        }
        Ok(line)
    }

    /// Reads the next line of a message.
    fn line(&mut self, message: &Message) -> Result<String, ReadlineError> {
        if let Some(line) = self.pasted.pop_front() {
            return Ok(line);
        }
        let prompt = if message.has_begun { CONTINUATION } else { PROMPT };
        let line = self.editor.readline(prompt)?;
        // A pasted text comes as one line with line breaks. After its quotes, commands may follow.
        if message.is_quoted || line.trim_start().starts_with(QUOTES) {
            self.pasted.extend(line.lines().map(str::to_owned));
            return Ok(self.pasted.pop_front().unwrap_or_default());
        }
        Ok(line)
    }

    fn is_typing(&self) -> bool {
        self.editor.helper().is_some_and(|detector| detector.0.get())
    }

    /// Adds a line to the history and, at once, to its file: a chat may be killed at any time.
    fn remember(&mut self, text: &str) {
        let added = self.editor.add_history_entry(text).unwrap_or(false);
        let Some(file) = self.history.clone().filter(|_| added) else { return };
        if let Err(error) = self.save_history(&file) {
            note(format_args!("history is not saved: cannot write {}: {error}", file.display()));
            self.history = None;
        }
    }

    fn save_history(&mut self, file: &Path) -> Result<(), ReadlineError> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        self.editor.append_history(file)
    }
}

/// Returns the path of the history file, by the XDG base directory specification, or in the folder
/// of local data on Windows.
fn history_file() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if cfg!(windows) {
        let state = absolute("XDG_STATE_HOME").or_else(|| absolute("LOCALAPPDATA"));
        return Some(state?.join("forerun/history"));
    }
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("forerun/history"))
}

/// Reads a message of one line or of several.
fn read_piped(input: &mut impl BufRead) -> anyhow::Result<Line> {
    let mut message = Message::default();
    loop {
        let mut line = String::new();
        let length = input.read_line(&mut line).context("cannot read from standard input")?;
        if length == 0 {
            return Ok(if message.has_begun { message.end() } else { Line::End });
        }
        let line = line.strip_suffix('\n').unwrap_or(&line);
        if !message.add(line.strip_suffix('\r').unwrap_or(line)) {
            return Ok(message.end());
        }
    }
}

/// What stands before and after a message of several lines.
const QUOTES: &str = "\"\"\"";

/// A message that is read line by line.
#[derive(Default)]
struct Message {
    text: String,
    has_begun: bool,
    is_quoted: bool,
}

impl Message {
    /// Adds a line. Returns whether another one follows: after a backslash, or until the quotes
    /// end.
    fn add(&mut self, line: &str) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let mut line = line;
        if is_first && let Some(quoted) = line.trim_start().strip_prefix(QUOTES) {
            self.is_quoted = true;
            if quoted.trim().is_empty() {
                return true;
            }
            line = quoted;
        }
        let (text, follows) = match self.is_quoted {
            true => match line.trim_end().strip_suffix(QUOTES) {
                Some(text) => (text, false),
                None => (line, true),
            },
            false => match line.strip_suffix('\\') {
                Some(text) => (text, true),
                None => (line, false),
            },
        };
        self.text.push_str(text);
        if follows {
            self.text.push('\n');
        } else if self.is_quoted && text.is_empty() && self.text.ends_with('\n') {
            // The quotes stand on a line of their own.
            self.text.pop();
        }
        follows
    }

    fn end(mut self) -> Line {
        if self.text.trim().is_empty() {
            return Line::Empty;
        }
        // What is quoted is no command.
        if self.is_quoted && self.text.starts_with('/') {
            self.text.insert(0, '/');
        }
        Line::Text(self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_pipe_is_a_message() -> anyhow::Result<()> {
        let mut input = &b"one\r\n\n two \nthree\\\n\\\nfour\nlast\\"[..];
        let text = |text: &str| Line::Text(text.into());
        let expected =
            [text("one"), Line::Empty, text(" two "), text("three\n\nfour"), text("last\n")];
        for line in expected {
            assert_eq!(read_piped(&mut input)?, line);
        }
        assert_eq!(read_piped(&mut input)?, Line::End);
        let mut input =
            &b"\"\"\"a\nb\\\n\nc\"\"\"\n\"\"\"\r\n d\r\n\"\"\" \r\n\"\"\"e\"\"\"\n\"\"\"/f\"\"\"\n\"\"\"\n\"\"\"\nx \"\"\"\n\"\"\"g\n"[..];
        let expected = [
            text("a\nb\\\n\nc"),
            text(" d"),
            text("e"),
            text("//f"),
            Line::Empty,
            text("x \"\"\""),
        ];
        for line in expected {
            assert_eq!(read_piped(&mut input)?, line);
        }
        // The quotes do not end.
        assert_eq!(read_piped(&mut input)?, text("g\n"));
        assert_eq!(read_piped(&mut input)?, Line::End);
        assert!(read_piped(&mut &b"\xFF\n"[..]).is_err());
        Ok(())
    }
}
