//! Text with colours or marks for what was drafted, as in ParallelSpec's figure 5 (arXiv
//! 2410.05589).

use forerun::text::Tokenizer;
use forerun::{Answer, AnswerToken, TokenOrigin};
use std::io::IsTerminal;

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

/// How the origin of text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Accepted drafts are green, rejected ones are red and struck through.
    Colours,
    /// `{+accepted+}` and `[-rejected-]`.
    Marks,
}

/// Shows the origin of streamed text.
pub(crate) struct ShownDrafts<'a> {
    tokenizer: &'a Tokenizer,
    /// `None` leaves the text as it is.
    style: Option<Style>,
    shows_rejected: bool,
    /// The tokens whose text has not appeared yet.
    tokens: Vec<AnswerToken>,
    /// The origin of the last text, whose mark is open.
    open: Origin,
    /// The number of tokens.
    all: usize,
    /// The number of tokens that were drafted.
    accepted: usize,
    /// The number of tokens that take the place of a rejected draft.
    rejected: usize,
}

impl<'a> ShownDrafts<'a> {
    /// Shows drafts on standard output: with `marks` everywhere, and else accepted ones on a
    /// terminal.
    pub(crate) fn on_standard_output(tokenizer: &'a Tokenizer, marks: bool) -> Self {
        let style = match colours() {
            true => Some(Style::Colours),
            false => marks.then_some(Style::Marks),
        };
        Self::new(tokenizer, style, marks)
    }

    fn new(tokenizer: &'a Tokenizer, style: Option<Style>, shows_rejected: bool) -> Self {
        let (tokens, open) = (Vec::new(), Origin::Own);
        Self { tokenizer, style, shows_rejected, tokens, open, all: 0, accepted: 0, rejected: 0 }
    }

    /// Adds a token. Its text follows.
    pub(crate) fn push(&mut self, token: AnswerToken) {
        self.all += 1;
        self.accepted += usize::from(token.origin == TokenOrigin::Draft);
        self.rejected += usize::from(!token.rejected.is_empty());
        self.tokens.push(token);
    }

    /// Returns what to print for the text of the last tokens.
    pub(crate) fn text(&mut self, text: &str) -> String {
        let mut shown = String::new();
        let mut rest = text;
        let mut tokens = std::mem::take(&mut self.tokens).into_iter().peekable();
        while let Some(token) = tokens.next() {
            self.show_rejected(&token, &mut shown);
            let piece = self.tokenizer.piece(token.token);
            let end = match tokens.peek() {
                Some(_) if rest.starts_with(&piece) => piece.len(),
                // A character of several tokens belongs to the last of them.
                Some(_) => 0,
                None => rest.len(),
            };
            let (own, after) = rest.split_at(end);
            self.show(origin(&token), own, &mut shown);
            rest = after;
        }
        // Text that was held back.
        self.show(self.open, rest, &mut shown);
        if self.style == Some(Style::Colours) {
            self.close(&mut shown);
        }
        shown
    }

    /// Returns what to print after the text.
    pub(crate) fn end(&mut self) -> String {
        let mut shown = String::new();
        for token in std::mem::take(&mut self.tokens) {
            self.show_rejected(&token, &mut shown);
        }
        self.close(&mut shown);
        shown
    }

    fn show_rejected(&mut self, token: &AnswerToken, shown: &mut String) {
        if let (true, Some(&candidate)) = (self.shows_rejected, token.rejected.first()) {
            // A line break in a rejected draft would break up the text.
            let text = self.tokenizer.piece(candidate).replace('\n', "\u{23ce}");
            self.show(Origin::Rejected, &text, shown);
            // Consecutive rejections stay separate.
            self.close(shown);
        }
    }

    fn show(&mut self, origin: Origin, text: &str, shown: &mut String) {
        if text.is_empty() {
            return;
        }
        if origin != self.open {
            self.close(shown);
            *shown += match (self.style, origin) {
                (None, _) | (_, Origin::Own) => "",
                (Some(Style::Colours), Origin::Accepted) => "\x1b[32m",
                (Some(Style::Colours), Origin::Rejected) => "\x1b[31;9m",
                (Some(Style::Marks), Origin::Accepted) => "{+",
                (Some(Style::Marks), Origin::Rejected) => "[-",
            };
            self.open = origin;
        }
        *shown += text;
    }

    fn close(&mut self, shown: &mut String) {
        *shown += match (self.style, std::mem::replace(&mut self.open, Origin::Own)) {
            (None, _) | (_, Origin::Own) => "",
            (Some(Style::Colours), _) => "\x1b[0m",
            (Some(Style::Marks), Origin::Accepted) => "+}",
            (Some(Style::Marks), Origin::Rejected) => "-]",
        };
    }

    /// Returns a line with the number of tokens of each origin and the time.
    pub(crate) fn summary(&self, answer: &Answer) -> String {
        let Self { all, accepted, rejected, .. } = self;
        let own = all - accepted;
        let ms = answer.total_ns as f64 / 1e6;
        format!(
            "{accepted} draft tokens accepted, {rejected} rejected, {own} from the target itself, \
             {ms:.1} ms"
        )
    }
}

/// Whether standard output shows colours: it is a terminal that understands them, and `NO_COLOR` is
/// not set.
pub(crate) fn colours() -> bool {
    let is_set = |name: &&str| std::env::var_os(name).is_some();
    // Old consoles of Windows print the codes. Terminals that do not have such a variable.
    let understands = !cfg!(windows) || ["WT_SESSION", "TERM", "ConEmuANSI"].iter().any(is_set);
    understands && std::io::stdout().is_terminal() && !is_set(&"NO_COLOR")
}

fn origin(token: &AnswerToken) -> Origin {
    match token.origin {
        TokenOrigin::Draft => Origin::Accepted,
        TokenOrigin::Correction | TokenOrigin::Bonus | TokenOrigin::Plain => Origin::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::{Engine, Options, RandomPair, TokenId};

    fn token(token: TokenId, drafted: bool, rejected: Option<TokenId>) -> AnswerToken {
        let origin = if drafted { TokenOrigin::Draft } else { TokenOrigin::Correction };
        let rejected = rejected.into_iter().collect();
        AnswerToken {
            token,
            origin,
            rejected,
            round: 0,
            logprob: None,
            ends_commit: true,
            ends_answer: false,
        }
    }

    #[test]
    fn pieces_have_marks_or_colours() {
        let pair = RandomPair::make().unwrap();
        let options = Options { model: pair.target().into(), ..Options::default() };
        let engine = Engine::open(options).unwrap();
        let tokenizer = engine.tokenizer();
        let id = |text: &str| *tokenizer.encode(text).unwrap().last().unwrap();
        let [a, b, c, d, x] = ["a", "b", "c", "d", "x"].map(id);
        let shown = |style| {
            let mut drafts = ShownDrafts::new(tokenizer, style, true);
            drafts.push(token(a, false, None));
            drafts.push(token(b, true, None));
            let mut shown = drafts.text("ab");
            drafts.push(token(c, true, None));
            shown += &drafts.text("c");
            drafts.push(token(d, false, Some(x)));
            // The text of the last token is held back, and cut by a stop string.
            drafts.push(token(d, false, Some(x)));
            shown += &drafts.text("d");
            shown + &drafts.end()
        };
        assert_eq!(shown(Some(Style::Marks)), "a{+bc+}[-x-]d[-x-]");
        let colours = "a\x1b[32mb\x1b[0m\x1b[32mc\x1b[0m\x1b[31;9mx\x1b[0md\x1b[31;9mx\x1b[0m";
        assert_eq!(shown(Some(Style::Colours)), colours);
    }
}
