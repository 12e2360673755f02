//! The recordings side by side, as lines of a terminal.

use super::recording::Recording;
use crate::terminal::Size;

/// The narrowest pane.
const MIN_WIDTH: usize = 34;
/// Columns between panes.
const GAP: usize = 2;
/// Lines below the panes, for the shell's prompt.
const SPARE_LINES: usize = 2;

/// The panes of all recordings.
pub(crate) struct Panes<'a> {
    recordings: &'a [Recording],
    colours: bool,
    /// The number of panes next to each other.
    across: usize,
    width: usize,
    /// The lines of text in a pane.
    height: usize,
}

/// A character, and whether it was drafted.
type Shown = (char, bool);

impl<'a> Panes<'a> {
    pub(crate) fn new(recordings: &'a [Recording], size: Size, colours: bool) -> Self {
        let fits = |across: &usize| across * (MIN_WIDTH + GAP) <= size.columns + GAP;
        let across = [4, 2, 1].into_iter().find(fits).unwrap_or(1).min(recordings.len().max(1));
        let width = ((size.columns + GAP) / across).saturating_sub(GAP).max(1);
        let rows_of_panes = recordings.len().div_ceil(across).max(1);
        let room = size.lines.saturating_sub(SPARE_LINES) / rows_of_panes;
        let text = |recording: &Recording| wrap(&shown(recording, u64::MAX), width).len();
        let needed = recordings.iter().map(text).max().unwrap_or(0);
        // A title and an empty line belong to each pane.
        let height = needed.min(room.saturating_sub(2)).max(1);
        Self { recordings, colours, across, width, height }
    }

    /// Returns the time of the last token of the slowest recording.
    pub(crate) fn end_ns(&self) -> u64 {
        self.recordings.iter().map(Recording::total_ns).max().unwrap_or(1)
    }

    /// Returns the lines at a time after the first token.
    pub(crate) fn frame(&self, now_ns: u64) -> Vec<String> {
        let mut lines = Vec::new();
        for panes in self.recordings.chunks(self.across) {
            let panes: Vec<Vec<String>> = panes.iter().map(|one| self.pane(one, now_ns)).collect();
            for line in 0..self.height + 2 {
                let cells: Vec<&str> = panes.iter().map(|pane| &*pane[line]).collect();
                lines.push(cells.join(&" ".repeat(GAP)).trim_end().to_owned());
            }
        }
        lines
    }

    /// Returns the lines of one pane: its title, the end of its text, and an empty line.
    fn pane(&self, recording: &Recording, now_ns: u64) -> Vec<String> {
        let title = self.title(recording, now_ns);
        let text = shown(recording, now_ns);
        let mut lines = wrap(&text, self.width);
        lines.drain(..lines.len().saturating_sub(self.height));
        lines.resize(self.height, Vec::new());
        let bold = if self.colours { ["\x1b[1m", "\x1b[0m"] } else { ["", ""] };
        let title: String = title.chars().take(self.width).collect();
        let padding = " ".repeat(self.width - title.chars().count());
        let mut pane = vec![format!("{}{title}{}{padding}", bold[0], bold[1])];
        pane.extend(lines.iter().map(|line| self.paint(line)));
        pane.push(" ".repeat(self.width));
        pane
    }

    /// Returns the name and, at the end, the speed of a method.
    fn title(&self, recording: &Recording, now_ns: u64) -> String {
        let name = recording.title;
        if now_ns < recording.total_ns() {
            let tokens = recording.pieces.iter().take_while(|piece| piece.at_ns <= now_ns).last();
            return format!("{name}  {} tokens", tokens.map_or(0, |piece| piece.tokens));
        }
        let title = format!("{name}  {:.0} tok/s", recording.speed());
        let plain = self.recordings.first().filter(|plain| !std::ptr::eq(*plain, recording));
        match plain.map(|plain| recording.gain(plain)) {
            Some(Some(gain)) => format!("{title}, {gain:.1} × plain"),
            Some(None) => format!("{title}, no drafts"),
            None => title,
        }
    }

    /// Returns a line in which drafted characters are green.
    fn paint(&self, line: &[Shown]) -> String {
        let mut text = String::new();
        let mut green = false;
        for &(one, drafted) in line {
            if self.colours && drafted != green {
                text += if drafted { "\x1b[32m" } else { "\x1b[0m" };
                green = drafted;
            }
            text.push(one);
        }
        if green {
            text += "\x1b[0m";
        }
        text + &" ".repeat(self.width.saturating_sub(line.len()))
    }
}

/// Returns the text of a recording at a time. Characters that would move the cursor are spaces.
fn shown(recording: &Recording, now_ns: u64) -> Vec<Shown> {
    let pieces = recording.pieces.iter().take_while(|piece| piece.at_ns <= now_ns);
    let visible = |one: char| if one.is_control() && one != '\n' { ' ' } else { one };
    let characters =
        pieces.flat_map(|piece| piece.text.chars().map(|one| (visible(one), piece.drafted)));
    characters.skip_while(|(one, _)| one.is_whitespace()).collect()
}

/// Breaks a text into lines of at most `width` characters, at spaces if there are any.
fn wrap(text: &[Shown], width: usize) -> Vec<Vec<Shown>> {
    let mut lines = Vec::new();
    for paragraph in text.split(|(one, _)| *one == '\n') {
        let mut rest = paragraph;
        while rest.len() > width {
            let space = rest[..=width].iter().rposition(|(one, _)| *one == ' ');
            let end = space.filter(|&at| at > 0).unwrap_or(width);
            lines.push(rest[..end].to_vec());
            rest = &rest[end..];
            if rest.first().is_some_and(|(one, _)| *one == ' ') {
                rest = &rest[1..];
            }
        }
        lines.push(rest.to_vec());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::recording::tests::recording;
    use super::*;

    fn lines(text: &str, width: usize) -> Vec<String> {
        let text: Vec<Shown> = text.chars().map(|one| (one, false)).collect();
        wrap(&text, width).iter().map(|line| line.iter().map(|shown| shown.0).collect()).collect()
    }

    #[test]
    fn lines_break_at_spaces_and_within_long_words() {
        assert_eq!(lines("a fox ran home", 6), ["a fox", "ran", "home"]);
        assert_eq!(lines("a fox\n\nran", 40), ["a fox", "", "ran"]);
        assert_eq!(lines("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(lines("", 4), [""]);
    }

    #[test]
    fn panes_are_next_to_each_other_and_show_what_was_written_so_far() {
        let recordings = [recording("plain decoding", 2_000_000), recording("PEARL", 1_000_000)];
        let panes = Panes::new(&recordings, Size { columns: 80, lines: 24 }, false);
        assert_eq!(panes.end_ns(), 6_000_000);
        let frame = panes.frame(2_000_000);
        assert_eq!(frame[0], format!("{:<39}  PEARL  3 tokens", "plain decoding  2 tokens"));
        assert_eq!(frame[1], format!("{:<39}  Once upon a", "Once upon"));
        let last = panes.frame(panes.end_ns());
        assert_eq!(
            last[0],
            format!("{:<39}  PEARL  1000 tok/s, 2.0 × plain", "plain decoding  500 tok/s")
        );
        let mut undrafted = recordings.clone();
        undrafted[1].statistics.drafts = 0;
        let panes = Panes::new(&undrafted, Size { columns: 80, lines: 24 }, false);
        assert!(panes.frame(panes.end_ns())[0].ends_with("PEARL  1000 tok/s, no drafts"));
        let narrow = Panes::new(&recordings, Size { columns: 20, lines: 9 }, true);
        let frame = narrow.frame(narrow.end_ns());
        assert_eq!(frame.len(), 2 * 3);
        assert!(
            frame[1].starts_with("Once \x1b[32mupon \x1b[0ma \x1b[32mtime\x1b[0m"),
            "{:?}",
            frame[1]
        );
    }
}
