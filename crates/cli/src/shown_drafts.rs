//! Text with marks for accepted and rejected drafts, as in ParallelSpec's figure 5 (arXiv
//! 2410.05589).

use forerun::{Answer, TextStream, Tokenizer, TokenizerError};

/// The origin of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A draft that the target accepted.
    Accepted,
    /// A draft that the target rejected; it is not part of the text.
    Rejected,
    /// The target itself.
    Own,
}

/// The pieces of an answer, including rejected drafts.
pub(crate) struct ShownDrafts {
    pieces: Vec<(Origin, String)>,
    /// Number of tokens of the answer that were drafted.
    accepted: usize,
    /// Number of verifications that ended with a rejection.
    rejected: usize,
}

impl ShownDrafts {
    /// Splits the answer to a prompt into pieces.
    ///
    /// # Errors
    /// If the prompt cannot be encoded.
    pub(crate) fn of(
        tokenizer: &Tokenizer,
        prompt: &str,
        answer: &Answer,
    ) -> Result<Self, TokenizerError> {
        let mut shown = Self { pieces: Vec::new(), accepted: 0, rejected: 0 };
        let mut stream = TextStream::new(tokenizer, &tokenizer.encode(prompt)?);
        let (mut tokens, mut left) = (answer.tokens.iter(), answer.text.len());
        let mut last = Origin::Own;
        for verified in &answer.verifications {
            for index in 0..verified.committed {
                if let (true, Some(&candidate)) =
                    (index == verified.accepted, verified.rejected.first())
                {
                    // A line break in a rejected draft would break up the text.
                    let text = tokenizer.piece(candidate).replace('\n', "\u{23ce}");
                    shown.add(Origin::Rejected, &text);
                    shown.rejected += 1;
                }
                let Some(&token) = tokens.next() else { break };
                let drafted = index < verified.accepted;
                last = if drafted { Origin::Accepted } else { Origin::Own };
                shown.accepted += usize::from(drafted);
                shown.add_within(last, &stream.push(token), &mut left);
            }
        }
        shown.add_within(last, &stream.finish(), &mut left);
        Ok(shown)
    }

    /// Adds text up to the end of the answer, `left` bytes away: a stop string is not part of it.
    fn add_within(&mut self, origin: Origin, text: &str, left: &mut usize) {
        let mut end = text.len().min(*left);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        *left -= end;
        self.add(origin, &text[..end]);
    }

    fn add(&mut self, origin: Origin, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            // Consecutive rejections stay separate.
            Some((last, known)) if *last == origin && origin != Origin::Rejected => *known += text,
            _ => self.pieces.push((origin, text.to_owned())),
        }
    }

    /// Renders the text with colours or with marks.
    pub(crate) fn render(&self, colours: bool) -> String {
        let paint = |(origin, text): &(Origin, String)| match (origin, colours) {
            (Origin::Accepted, false) => format!("{{+{text}+}}"),
            (Origin::Rejected, false) => format!("[-{text}-]"),
            // Green, and red struck through.
            (Origin::Accepted, true) => format!("\x1b[32m{text}\x1b[0m"),
            (Origin::Rejected, true) => format!("\x1b[31;9m{text}\x1b[0m"),
            (Origin::Own, _) => text.clone(),
        };
        self.pieces.iter().map(paint).collect()
    }

    /// Returns a line with the number of tokens of each origin and the time.
    pub(crate) fn summary(&self, answer: &Answer) -> String {
        let Self { accepted, rejected, .. } = self;
        let own = answer.tokens.len() - accepted;
        let ms = answer.total_ns as f64 / 1e6;
        format!(
            "{accepted} draft tokens accepted, {rejected} rejected, {own} from the target itself, \
             {ms:.1} ms"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_marks_or_colours() {
        let mut shown = ShownDrafts { pieces: Vec::new(), accepted: 0, rejected: 0 };
        let mut left = 7;
        shown.add_within(Origin::Own, "a", &mut left);
        shown.add_within(Origin::Accepted, "b", &mut left);
        shown.add_within(Origin::Accepted, "", &mut left);
        shown.add_within(Origin::Accepted, "c", &mut left);
        shown.add(Origin::Rejected, "x");
        shown.add(Origin::Rejected, "y");
        shown.add_within(Origin::Own, "d", &mut left);
        // Three bytes are left, so the second character is beyond the end.
        shown.add_within(Origin::Own, "\u{e9}\u{e9}", &mut left);
        assert_eq!(shown.render(false), "a{+bc+}[-x-][-y-]d\u{e9}");
        let colours = "a\x1b[32mbc\x1b[0m\x1b[31;9mx\x1b[0m\x1b[31;9my\x1b[0md\u{e9}";
        assert_eq!(shown.render(true), colours);
    }
}
