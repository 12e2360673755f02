//! Answers that repeat one phrase without end, as greedy decoding of small models does.

/// The fewest repetitions, and the fewest tokens that they have together.
const REPETITIONS: usize = 3;
const TOKENS: usize = 200;

/// The longest phrase. A longer one would be searched for in vain after every token.
const LONGEST_PHRASE: usize = 1_000;

/// Returns whether an answer ends with exact repetitions of a phrase: at least three, of at least
/// 200 tokens together. The last one may be incomplete.
///
/// `tokens` are all tokens of the answer, or their texts.
#[must_use]
pub fn repeats_itself<T: PartialEq>(tokens: &[T]) -> bool {
    (1..=LONGEST_PHRASE).any(|phrase| {
        let start = tokens.len().checked_sub(TOKENS.max(REPETITIONS * phrase));
        start.is_some_and(|start| {
            let end = &tokens[start..];
            end[phrase..] == end[..end.len() - phrase]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns different tokens, and then the first of a phrase, which is repeated.
    fn answer(before: usize, phrase: usize, repeated: usize) -> Vec<usize> {
        (0..before).chain((0..repeated).map(|index| 10_000 + index % phrase)).collect()
    }

    #[test]
    fn long_exact_repetitions_are_found_as_soon_as_they_are_long() {
        for phrase in [1, 2, 3, 7, 66, 67, 100, 1_000] {
            let needed = 200.max(3 * phrase);
            for before in [0, 1, 500] {
                let found = |count| repeats_itself(&answer(before, phrase, count));
                let counts = [needed - 1, needed, needed + 1];
                assert_eq!(counts.map(found), [false, true, true], "{phrase} after {before}");
            }
        }
    }

    #[test]
    fn other_texts_do_not_repeat() {
        assert!(!repeats_itself::<usize>(&[]));
        assert!(!repeats_itself(&answer(3_000, 1, 0)));
        // Two times, and a phrase that is too long.
        assert!(!repeats_itself(&answer(10, 300, 600)));
        assert!(!repeats_itself(&answer(10, 1_001, 9_000)));
        // One token differs in each repetition, as the number of a list does.
        let list: Vec<usize> = (0..900).map(|at| if at % 9 == 4 { at } else { at % 9 }).collect();
        assert!(!repeats_itself(&list));
        // The repetition has ended.
        let mut ended = answer(0, 5, 400);
        assert!(repeats_itself(&ended));
        ended.push(1);
        assert!(!repeats_itself(&ended));
    }
}
