//! Word wrap of text that is printed while it is generated.

use crate::terminal;
use std::io::IsTerminal;

/// What begins and ends lines of code in Markdown.
const FENCE: &str = "```";

/// Breaks lines between words where the terminal ends. A word is held back until its end is known.
pub(crate) struct WordWrap {
    /// The width of the terminal; `None` leaves the text as it is.
    columns: Option<usize>,
    /// The column after the printed text.
    column: usize,
    /// Spaces and then a part of a word that are not printed yet.
    spaces: String,
    word: String,
    /// Whether the text is code, whose lines are not broken.
    is_code: bool,
}

impl WordWrap {
    /// Wraps text for standard output, if that is a terminal.
    pub(crate) fn on_standard_output() -> Self {
        Self::new(std::io::stdout().is_terminal().then(|| terminal::size().columns))
    }

    fn new(columns: Option<usize>) -> Self {
        let (spaces, word) = (String::new(), String::new());
        Self { columns, column: 0, spaces, word, is_code: false }
    }

    /// Returns what to print for further text.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let Some(columns) = self.columns else { return text.to_owned() };
        let mut shown = String::new();
        for one in text.chars() {
            match one {
                '\n' => {
                    self.print(columns, &mut shown);
                    self.spaces.clear();
                    shown.push('\n');
                    self.column = 0;
                }
                ' ' | '\t' => {
                    self.print(columns, &mut shown);
                    self.spaces.push(one);
                }
                // Lines may be broken before and after them.
                wide if width(wide) == 2 => {
                    self.print(columns, &mut shown);
                    self.word.push(wide);
                    self.print(columns, &mut shown);
                }
                other => {
                    self.word.push(other);
                    // What is longer than a line is no word.
                    if self.word.len() >= columns {
                        self.print(columns, &mut shown);
                    }
                }
            }
        }
        shown
    }

    /// Returns the text that was held back, at the end.
    pub(crate) fn end(&mut self) -> String {
        self.push("\n").strip_suffix('\n').unwrap_or_default().to_owned()
    }

    /// Prints the word, on a new line if it does not fit.
    fn print(&mut self, columns: usize, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        if self.column == 0 && self.word.starts_with(FENCE) {
            self.is_code = !self.is_code;
        }
        let needed = self.word.chars().map(width).sum::<usize>();
        let spaces = self.spaces.chars().map(width).sum::<usize>();
        let is_full = self.column + spaces + needed > columns;
        if is_full && self.column > 0 && spaces > 0 && !self.is_code {
            shown.push('\n');
            self.column = 0;
        } else {
            shown.push_str(&self.spaces);
            self.column += spaces;
        }
        shown.push_str(&self.word);
        self.column += needed;
        // The terminal breaks lines that are too long.
        if self.column > columns {
            self.column = (self.column - 1) % columns + 1;
        }
        self.spaces.clear();
        self.word.clear();
    }
}

/// Returns the columns of a character, nearly: letters of East Asia and pictures have two.
fn width(one: char) -> usize {
    match u32::from(one) {
        // A typical tab.
        0x09 => 4,
        0x0300..=0x036f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 => 2,
        0x1f300..=0x1f64f | 0x1f680..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wraps a text that arrives in pieces of so many characters.
    fn wrapped(text: &str, columns: Option<usize>, piece: usize) -> String {
        let mut wrap = WordWrap::new(columns);
        let all: Vec<char> = text.chars().collect();
        let pieces = all.chunks(piece).map(|piece| piece.iter().collect::<String>());
        let mut shown: String = pieces.map(|piece| wrap.push(&piece)).collect();
        shown += &wrap.end();
        shown
    }

    #[test]
    fn lines_are_broken_between_words() {
        for (text, expected) in [
            ("one two three four", "one two\nthree four"),
            ("ten column and", "ten column\nand"),
            ("a  b\n  c", "a  b\n  c"),
            ("one two  \nthree\n\nfour ", "one two\nthree\n\nfour"),
            ("a veryverylongword b", "a\nveryverylongword b"),
            ("从前有一只狐狸", "从前有一只狐狸"),
            ("one 从前 two", "one 从前\ntwo"),
            (
                "say:\n```\none two three\n```\none two three",
                "say:\n```\none two three\n```\none two\nthree",
            ),
            ("", ""),
        ] {
            for piece in [1, 2, 3, 100] {
                assert_eq!(wrapped(text, Some(10), piece), expected, "{piece}");
            }
        }
    }

    #[test]
    fn text_that_is_not_for_a_terminal_stays_as_it_is() {
        let text = "one two  three four \n five";
        assert_eq!(wrapped(text, None, 4), text);
    }
}
