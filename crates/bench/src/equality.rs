//! The check that every answer is the same as that of autoregressive decoding.

use crate::record::{AnswerRecord, TurnRecord};
use forerun::TokenId;
use std::fmt;

/// The first difference between an answer and that of autoregressive decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The configuration whose answer differs.
    pub configuration: String,
    /// Its baseline.
    pub baseline: String,
    /// The id of the prompt.
    pub prompt: String,
    /// The turn of the prompt, from 0.
    pub turn: usize,
    /// The repeat of the answer, from 0.
    pub repeat: usize,
    /// The position of the first token that differs, from 0.
    pub position: usize,
    /// The token of the baseline and that of the answer at this position; `None` after the end.
    pub tokens: [Option<TokenId>; 2],
    /// The seeds of both answers, in the same order.
    pub seeds: [u64; 2],
    /// The command that reproduces the difference.
    pub reproduce: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token =
            |token: Option<TokenId>| token.map_or("the end".into(), |t| format!("token {t}"));
        write!(
            f,
            "the answer of {:?} to prompt {:?} (turn {}, repeat {}) differs from that of {:?}: at \
             position {} it has {} instead of {} (seeds {} and {}). This is a bug in forerun; the answer \
             is not kept. To reproduce it: {}",
            self.configuration,
            self.prompt,
            self.turn + 1,
            self.repeat + 1,
            self.baseline,
            self.position,
            token(self.tokens[1]),
            token(self.tokens[0]),
            self.seeds[0],
            self.seeds[1],
            self.reproduce,
        )
    }
}

impl std::error::Error for Difference {}

/// Returns the first difference between an answer and the baseline's, if there is one. `reproduce`
/// is the command that generates the answer again.
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
        let common = plain.iter().zip(&other).take_while(|(a, b)| a == b).count();
        Some((turn, common))
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
mod tests {
    use super::*;
    use crate::testing::{answer, turn};

    #[test]
    fn the_first_difference_is_reported() {
        let plain = answer("plain", "p", 0, turn(&[(10, 1), (20, 1), (30, 1)]));
        // The answer is the same, whatever the times of its tokens.
        let mut other = answer("other", "p", 2, turn(&[(15, 3)]));
        assert_eq!(difference(&plain, &other, ""), None);
        other.turns[0].tokens[1] = 9;
        let found = difference(&plain, &other, "forerun generate").unwrap();
        assert_eq!((found.position, found.tokens), (1, [Some(1), Some(9)]));
        let text = found.to_string();
        for part in [
            "the answer of \"other\" to prompt \"p\"",
            "turn 1, repeat 3",
            "at position 1 it has token 9 instead of token 1",
            "seeds 7 and 7",
            "To reproduce it: forerun generate",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }

    #[test]
    fn shorter_answers_and_missing_turns_differ_at_their_end() {
        let plain = answer("plain", "p", 0, turn(&[(10, 1), (20, 1)]));
        let mut other = plain.clone();
        other.turns[0].tokens.pop();
        let found = difference(&plain, &other, "").unwrap();
        assert_eq!((found.turn, found.position, found.tokens), (0, 1, [Some(1), None]));
        other.turns.clear();
        assert_eq!(difference(&plain, &other, "").unwrap().position, 0);
    }
}
