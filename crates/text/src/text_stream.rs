//! Incremental detokenization into whole characters, and stop strings.

use crate::tokenizer::Tokenizer;
use forerun_core::TokenId;

/// Turns committed tokens into text, piece by piece.
///
/// Many tokens decode differently at the start of a text, so new tokens are decoded together with
/// the tokens of the previous piece. A character whose bytes are spread over several tokens appears
/// once it is complete.
///
/// ```
/// use forerun_formats::checkpoint::random::byte_pair_tokenizer;
/// use forerun_text::{TextStream, Tokenizer};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("tokenizer.json"), byte_pair_tokenizer(0).to_string())?;
/// let tokenizer = Tokenizer::from_checkpoint(folder)?;
/// let prompt = tokenizer.encode("Once ")?;
/// let mut stream = TextStream::new(&tokenizer, &prompt);
/// // This tokenizer spells text in bytes, and "é" has two of them.
/// let tokens = &tokenizer.encode("é!")?[1..];
/// let pieces: Vec<String> = tokens.iter().map(|&token| stream.push(token)).collect();
/// assert_eq!(pieces, ["", "é", "!"]);
/// assert_eq!(stream.finish(), "");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens of the last emitted piece, followed by the pending tokens.
    tokens: Vec<TokenId>,
    /// The number of tokens of the last emitted piece.
    emitted: usize,
    /// Whether special tokens have a text.
    special: bool,
}

impl<'a> TextStream<'a> {
    /// Creates a stream of the text that follows `prompt`.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[TokenId]) -> Self {
        Self { tokenizer, tokens: prompt.to_vec(), emitted: prompt.len(), special: false }
    }

    /// Returns this stream with the texts of special tokens.
    #[must_use]
    pub fn with_special_tokens(mut self) -> Self {
        self.special = true;
        self
    }

    /// Adds a token and returns the characters that are complete now, often none.
    pub fn push(&mut self, token: TokenId) -> String {
        self.tokens.push(token);
        let text = self.pending();
        // An unfinished character decodes as the replacement character.
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        self.tokens.drain(..self.emitted);
        self.emitted = self.tokens.len();
        text
    }

    /// Returns the text that is still pending at the end. Bytes that form no character become the
    /// replacement character.
    pub fn finish(&mut self) -> String {
        let text = self.pending();
        self.emitted = self.tokens.len();
        text
    }

    /// Returns the text of the pending tokens.
    fn pending(&self) -> String {
        let before = self.decode(&self.tokens[..self.emitted]);
        let all = self.decode(&self.tokens);
        match all.strip_prefix(&before) {
            Some(text) => text.to_owned(),
            // Invalid bytes can change how the characters before them decode. Decode them alone.
            None => self.decode(&self.tokens[self.emitted..]),
        }
    }

    fn decode(&self, tokens: &[TokenId]) -> String {
        match self.special {
            false => self.tokenizer.decode(tokens),
            true => self.tokenizer.decode_with_special(tokens),
        }
    }
}

/// Ends text at the first stop string, and holds back text that may be the beginning of one.
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// The text that a [`StopFilter`] lets through.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    /// The text.
    pub text: String,
    /// Whether a stop string was found. `text` is what precedes it, and nothing follows.
    pub stopped: bool,
}

impl StopFilter {
    /// Creates a filter for these stop strings. Empty ones have no effect.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new() }
    }

    /// Adds text, and returns what certainly belongs to no stop string.
    pub fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        // The stop string that is complete first counts, however the text was cut into pieces.
        let place = |stop: &String| self.held.find(stop).map(|start| (start + stop.len(), start));
        if let Some((_, start)) = self.stops.iter().filter_map(place).min() {
            self.held.truncate(start);
            return Passed { text: std::mem::take(&mut self.held), stopped: true };
        }
        let safe = self.held.len() - self.longest_beginning();
        Passed { text: self.held.drain(..safe).collect(), stopped: false }
    }

    /// Returns the text that was held back, once there is no more text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the length of the longest suffix of the text that is a prefix of a stop string.
    fn longest_beginning(&self) -> usize {
        let begins =
            |&start: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[start..]));
        let starts = self.held.char_indices().map(|(start, _)| start);
        starts.filter(|start| begins(start)).min().map_or(0, |start| self.held.len() - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(stops: &[&str], parts: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.into()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut text = String::new();
        for part in parts {
            let passed = filter.push(part);
            text += &passed.text;
            if passed.stopped {
                return (text, true);
            }
        }
        text += &filter.finish();
        (text, false)
    }

    #[test]
    fn text_ends_before_the_first_stop_string_for_every_cut() {
        let whole = "The end. Or not? The End!";
        for cut in 0..whole.len() {
            let (a, b) = whole.split_at(cut);
            assert_eq!(filter(&["not?", "Or"], &[a, b]), ("The end. ".into(), true));
            assert_eq!(filter(&["End!"], &[a, b]), ("The end. Or not? The ".into(), true));
            assert_eq!(filter(&["endless"], &[a, b]), (whole.into(), false));
        }
        assert_eq!(filter(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
        assert_eq!(filter(&["é!"], &["caf", "é", "?"]), ("café?".into(), false));
        assert_eq!(filter(&[""], &["x"]), ("x".into(), false));
    }

    /// Stop strings that contain or overlap each other: the first one to be complete ends the text.
    /// If several are complete at the same time, the longest one ends it. The division into pieces
    /// makes no difference.
    #[test]
    fn the_first_complete_stop_string_ends_the_text() {
        let table: [(&[&str], &str); 9] = [
            (&["cd", "cdé"], "ab"),
            (&["cdé", "cd"], "ab"),
            (&["bcdéf", "c"], "ab"),
            (&["cdé", "é"], "ab"),
            (&["é", "dé", "bcdé"], "a"),
            (&["dx", "cdéx", "éf"], "abcd"),
            (&["éf", "f"], "abcd"),
            (&["ab", "abcdéf"], ""),
            (&["éfg→", "→"], "abcd"),
        ];
        let whole = "abcdéfg→h";
        for (stops, expected) in table {
            let cuts = |from| (from..=whole.len()).filter(|&cut| whole.is_char_boundary(cut));
            for first in cuts(0) {
                for second in cuts(first) {
                    let parts = [&whole[..first], &whole[first..second], &whole[second..]];
                    assert_eq!(filter(stops, &parts), (expected.into(), true), "{stops:?}");
                }
            }
        }
    }

    #[test]
    fn a_possible_beginning_of_a_stop_string_is_held_back() {
        let mut filter = StopFilter::new(&["\n\n".into()]);
        assert_eq!(filter.push("one\n"), Passed { text: "one".into(), stopped: false });
        assert_eq!(filter.push("two"), Passed { text: "\ntwo".into(), stopped: false });
    }
}
