//! Tokens to text as they come: whole characters only, and stop strings.

use crate::tokenizer::Tokenizer;
use forerun_core::TokenId;

/// Turns committed tokens into text, piece by piece.
///
/// Pieces join differently at a text's start, so new tokens are decoded together with those of the
/// piece before. A character whose bytes are spread over several tokens appears once it is complete;
/// windows begin and end only between characters.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens of the last piece that was given out, then those whose text was not yet.
    tokens: Vec<TokenId>,
    /// Number of the former.
    given: usize,
}

impl<'a> TextStream<'a> {
    /// A stream whose text continues that of `prompt`.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[TokenId]) -> Self {
        Self { tokenizer, tokens: prompt.to_vec(), given: prompt.len() }
    }

    /// Takes one token and returns the text that is certain now, often none.
    pub fn push(&mut self, token: TokenId) -> String {
        self.tokens.push(token);
        let text = self.pending();
        // An unfinished character decodes as the replacement character.
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        self.tokens.drain(..self.given);
        self.given = self.tokens.len();
        text
    }

    /// What is left at the end; bytes that make no character show as the replacement character.
    pub fn finish(&mut self) -> String {
        let text = self.pending();
        self.given = self.tokens.len();
        text
    }

    /// The text of the tokens that was not given out.
    fn pending(&self) -> String {
        let before = self.tokenizer.decode(&self.tokens[..self.given]);
        let all = self.tokenizer.decode(&self.tokens);
        match all.strip_prefix(&before) {
            Some(text) => text.to_owned(),
            // Broken bytes behind whole characters spoil those, too: they are decoded alone.
            None => self.tokenizer.decode(&self.tokens[self.given..]),
        }
    }
}

/// Holds text back while it may be the beginning of a stop string, and ends it at one.
pub(crate) struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// What a [`StopFilter`] lets through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) text: String,
    /// A stop string came; the text before it is the last.
    pub(crate) stopped: bool,
}

impl StopFilter {
    pub(crate) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new() }
    }

    pub(crate) fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        // What was complete first counts, however the text was cut into pieces.
        let place = |stop: &String| self.held.find(stop).map(|start| (start + stop.len(), start));
        if let Some((_, start)) = self.stops.iter().filter_map(place).min() {
            self.held.truncate(start);
            return Passed { text: std::mem::take(&mut self.held), stopped: true };
        }
        let safe = self.held.len() - self.longest_beginning();
        Passed { text: self.held.drain(..safe).collect(), stopped: false }
    }

    /// What was held back, once no more text comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the text that begins a stop string.
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
    fn text_ends_before_the_first_stop_string_wherever_it_is_cut() {
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

    /// Stop strings within, around and across each other: the first to be complete ends the text, of
    /// those complete at once the longest, and where the text is cut into pieces changes nothing.
    #[test]
    fn of_several_stop_strings_the_first_to_be_complete_counts() {
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
    fn what_may_still_become_a_stop_string_is_held_back() {
        let mut filter = StopFilter::new(&["\n\n".into()]);
        assert_eq!(filter.push("one\n"), Passed { text: "one".into(), stopped: false });
        assert_eq!(filter.push("two"), Passed { text: "\ntwo".into(), stopped: false });
    }
}
