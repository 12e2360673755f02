//! The check that drafting changed nothing: every answer is autoregressive decoding's.

use crate::record::{AnswerRecord, TurnRecord};
use forerun::TokenId;
use std::fmt;

/// Where an answer is not autoregressive decoding's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The configuration that differs.
    pub configuration: String,
    /// The plain decoding that it is compared with.
    pub baseline: String,
    /// The prompt's id.
    pub prompt: String,
    /// Its turn, from 0.
    pub turn: usize,
    /// The repeat of the answer that differs, from 0.
    pub repeat: usize,
    /// The first token of the answer that differs, from 0.
    pub position: usize,
    /// The baseline's token there, and the other one; `None` behind the end.
    pub tokens: [Option<TokenId>; 2],
    /// The seeds of both answers.
    pub seeds: [u64; 2],
    /// How to see it again.
    pub reproduce: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token =
            |token: Option<TokenId>| token.map_or("the end".into(), |t| format!("token {t}"));
        write!(
            f,
            "the answer to prompt {:?} (turn {}, repeat {}) is not that of {:?}: at position {} of the \
             answer {:?} has {} instead of {} (seeds {} and {}); this is a fault of forerun, and not \
             kept as an answer. To see it again: {}",
            self.prompt,
            self.turn + 1,
            self.repeat + 1,
            self.baseline,
            self.position,
            self.configuration,
            token(self.tokens[1]),
            token(self.tokens[0]),
            self.seeds[0],
            self.seeds[1],
            self.reproduce,
        )
    }
}

impl std::error::Error for Difference {}

/// The first place where an answer differs from the baseline's, if there is one.
#[must_use]
pub fn difference(
    baseline: &AnswerRecord,
    answer: &AnswerRecord,
    reproduce: &str,
) -> Option<Box<Difference>> {
    let turns = baseline.turns.len().max(answer.turns.len());
    let (turn, position) = (0..turns).find_map(|turn| {
        let of = |record: &AnswerRecord| tokens(record.turns.get(turn));
        let (plain, other) = (of(baseline), of(answer));
        if plain == other {
            return None;
        }
        let same = plain.iter().zip(&other).take_while(|(a, b)| a == b).count();
        Some((turn, same))
    })?;
    let token = |record: &AnswerRecord| tokens(record.turns.get(turn)).get(position).copied();
    let seed = |record: &AnswerRecord| record.turns.get(turn).map_or(0, |turn| turn.seed);
    Some(Box::new(Difference {
        configuration: answer.configuration.clone(),
        baseline: baseline.configuration.clone(),
        prompt: answer.prompt.clone(),
        turn,
        repeat: answer.repeat,
        position,
        tokens: [token(baseline), token(answer)],
        seeds: [seed(baseline), seed(answer)],
        reproduce: reproduce.to_owned(),
    }))
}

fn tokens(turn: Option<&TurnRecord>) -> Vec<TokenId> {
    turn.map(|turn| turn.tokens.clone()).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::{answer, turn};

    #[test]
    fn the_first_difference_is_named() {
        let plain = answer("plain", "p", 0, turn(&[(10, 1), (20, 1), (30, 1)]));
        // The same tokens at other times are the same answer.
        let mut other = answer("other", "p", 2, turn(&[(15, 3)]));
        assert_eq!(difference(&plain, &other, ""), None);
        other.turns[0].tokens[1] = 9;
        let found = difference(&plain, &other, "forerun generate").unwrap();
        assert_eq!((found.position, found.tokens), (1, [Some(1), Some(9)]));
        let text = found.to_string();
        for part in [
            "\"p\"",
            "turn 1, repeat 3",
            "position 1",
            "\"other\" has token 9 instead of token 1",
            "seeds 7 and 7",
            "To see it again: forerun generate",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }

    #[test]
    fn a_shorter_answer_and_a_missing_turn_differ_at_their_end() {
        let plain = answer("plain", "p", 0, turn(&[(10, 1), (20, 1)]));
        let mut other = plain.clone();
        other.turns[0].tokens.pop();
        let found = difference(&plain, &other, "").unwrap();
        assert_eq!((found.turn, found.position, found.tokens), (0, 1, [Some(1), None]));
        other.turns.clear();
        assert_eq!(difference(&plain, &other, "").unwrap().position, 0);
    }
}
