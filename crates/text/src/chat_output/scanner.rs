//! Tags within a text that arrives in pieces.

/// Finds tags in a text, however the text was cut into pieces.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    held: String,
}

/// The next piece of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Tag(&'static str),
}

impl Scanner {
    pub(super) fn push(&mut self, text: &str) {
        self.held.push_str(text);
    }

    /// Returns the next piece. Text that may be the beginning of a tag is held back.
    pub(super) fn next(&mut self, tags: &[&'static str]) -> Option<Piece> {
        let place = |tag: &&'static str| Some((self.held.find(*tag)?, *tag));
        let first = tags.iter().filter_map(place);
        match first.min_by_key(|(at, tag)| (*at, usize::MAX - tag.len())) {
            Some((0, tag)) => {
                self.held.drain(..tag.len());
                Some(Piece::Tag(tag))
            }
            Some((at, _)) => Some(Piece::Text(self.held.drain(..at).collect())),
            None => {
                let begins =
                    |start: &usize| tags.iter().any(|tag| tag.starts_with(&self.held[*start..]));
                let mut starts = self.held.char_indices().map(|(start, _)| start);
                let safe = starts.find(begins).unwrap_or(self.held.len());
                (safe > 0).then(|| Piece::Text(self.held.drain(..safe).collect()))
            }
        }
    }

    /// Returns the text that was held back, once there is no more text.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
