//! A suffix automaton with counts, which follows a text as it grows and as it is rolled back.
//!
//! *The smallest automaton recognizing the subwords of a text*, Blumer et al. 1985. A state stands
//! for all strings that end at the same places of the text, so they have the same count and the
//! same continuations. Its strings are suffixes of each other; those of its link are the next
//! shorter ones.
//!
//! Counts are kept for strings of up to `CONTEXT` tokens and one after them. So adding a token
//! takes amortised constant time, and changes the counts of at most `CONTEXT + 1` states. Each
//! token's changes are recorded, so taking it back costs as much as adding it.
//!
//! A text of n tokens has at most 2n states of 16 bytes, 3n transitions of 16 bytes and of at most
//! 30 in the index, 2n redirections of 8 bytes, and 28n bytes for the text and its records: about
//! 220 bytes a token, twice as much while a list grows.

use forerun_core::TokenId;
use std::collections::HashMap;

/// The state of the empty string.
const ROOT: State = 0;
/// No state, or no transition.
const NONE: u32 = u32::MAX;

/// The index of a state.
pub(crate) type State = u32;

/// What is known about the strings of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strings {
    /// The length of the longest one.
    longest: u32,
    /// The state of the longest suffix of them that is not one of them.
    link: State,
    /// How often each of them occurs, if the shortest one has at most `COUNTED` tokens.
    count: u32,
    /// The first of their transitions.
    first: u32,
}

/// A token after the strings of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transition {
    from: State,
    token: TokenId,
    to: State,
    /// The next transition from the same state.
    next: u32,
}

/// How to take a token back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Undo {
    /// The numbers of states, transitions and redirections before the token was added.
    states: u32,
    transitions: u32,
    redirections: u32,
    /// The state from which some strings were split off, or `NONE`.
    split: State,
    last: State,
    counted: State,
}

/// The strings of a text, with the counts of the continuations of strings of up to `CONTEXT`
/// tokens.
#[derive(Debug)]
pub(crate) struct SuffixAutomaton<const CONTEXT: usize> {
    tokens: Vec<TokenId>,
    states: Vec<Strings>,
    transitions: Vec<Transition>,
    /// The transitions by state and token.
    index: HashMap<(State, TokenId), u32>,
    /// The state of the whole text.
    last: State,
    /// The state of the text's last `COUNTED` tokens.
    counted: State,
    undo: Vec<Undo>,
    /// Transitions with their earlier targets.
    redirections: Vec<(u32, State)>,
}

impl<const CONTEXT: usize> Default for SuffixAutomaton<CONTEXT> {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            states: vec![Strings { longest: 0, link: NONE, count: 0, first: NONE }],
            transitions: Vec::new(),
            index: HashMap::new(),
            last: ROOT,
            counted: ROOT,
            undo: Vec::new(),
            redirections: Vec::new(),
        }
    }
}

impl<const CONTEXT: usize> SuffixAutomaton<CONTEXT> {
    /// The largest number of tokens of a string that is counted: a context and the token after it.
    const COUNTED: usize = CONTEXT + 1;

    /// Makes `tokens` the text. Takes back the tokens that differ, and adds the new ones.
    pub(crate) fn seek(&mut self, tokens: &[TokenId]) {
        let same = self.tokens.iter().zip(tokens).take_while(|(held, token)| held == token);
        let same = same.count();
        while self.tokens.len() > same {
            self.pop();
        }
        for &token in &tokens[same..] {
            self.push(token);
        }
    }

    /// Iterates over the suffixes of the text that also occur earlier, with up to `CONTEXT` tokens.
    /// Of suffixes with the same continuations only the longest is included, with its length. The
    /// longest comes first.
    pub(crate) fn repeated_suffixes(&self) -> impl Iterator<Item = (State, usize)> {
        let longest = self.within(CONTEXT, self.counted);
        let repeated = self.with_links(longest).filter(|&state| self.strings(state).count > 1);
        repeated.map(|state| (state, (self.strings(state).longest as usize).min(CONTEXT)))
    }

    /// Iterates over the tokens that follow the strings of a state, with the state of the longer
    /// strings, limited to `CONTEXT` tokens, and their count. The order is not specified.
    pub(crate) fn continuations(
        &self,
        state: State,
    ) -> impl Iterator<Item = (TokenId, State, u32)> {
        let get = |index: u32| self.transitions.get(index as usize).copied();
        let first = get(self.strings(state).first);
        let all = std::iter::successors(first, move |transition| get(transition.next));
        all.map(|Transition { token, to, .. }| {
            (token, self.within(CONTEXT, to), self.strings(to).count)
        })
    }

    /// Returns the longest suffix of a state's strings that has continuations, if one does. The
    /// empty string is not considered.
    pub(crate) fn with_continuations(&self, state: State) -> Option<State> {
        self.with_links(state).find(|&state| self.strings(state).first != NONE)
    }

    /// Adds a token to the text.
    fn push(&mut self, token: TokenId) {
        let text = self.strings(self.last).longest;
        let mut undo = Undo {
            states: self.states.len() as u32,
            transitions: self.transitions.len() as u32,
            redirections: self.redirections.len() as u32,
            split: NONE,
            last: self.last,
            counted: self.counted,
        };
        let new = self.add_state(Strings { longest: text + 1, link: ROOT, count: 0, first: NONE });
        let mut at = self.last;
        while at != NONE && !self.index.contains_key(&(at, token)) {
            self.add_transition(at, token, new);
            at = self.strings(at).link;
        }
        if let Some(&transition) = self.index.get(&(at, token)) {
            let to = self.transitions[transition as usize].to;
            let link = if self.strings(at).longest + 1 == self.strings(to).longest {
                to
            } else {
                undo.split = to;
                self.split(to, at, token)
            };
            self.states[new as usize].link = link;
        }
        self.last = new;
        // The counted string gains this token, and loses its first one if it is then too long.
        let longer = self.index[&(self.counted, token)];
        self.counted = self.within(Self::COUNTED, self.transitions[longer as usize].to);
        self.count(|count| count + 1);
        self.tokens.push(token);
        self.undo.push(undo);
    }

    /// Takes the last token back.
    fn pop(&mut self) {
        let (Some(_), Some(undo)) = (self.tokens.pop(), self.undo.pop()) else { return };
        self.count(|count| count - 1);
        for (transition, to) in self.redirections.drain(undo.redirections as usize..).rev() {
            self.transitions[transition as usize].to = to;
        }
        if undo.split != NONE {
            // The strings that were split off are those of its link.
            let split_off = self.strings(undo.split).link;
            self.states[undo.split as usize].link = self.strings(split_off).link;
        }
        for transition in self.transitions.drain(undo.transitions as usize..).rev() {
            self.states[transition.from as usize].first = transition.next;
            self.index.remove(&(transition.from, transition.token));
        }
        self.states.truncate(undo.states as usize);
        (self.last, self.counted) = (undo.last, undo.counted);
    }

    /// Moves those strings of `state` that are suffixes of the strings of `from` and `token` to a
    /// state of their own, because they now end at a further place. Returns their state.
    fn split(&mut self, state: State, from: State, token: TokenId) -> State {
        let longest = self.strings(from).longest + 1;
        let split_off = self.add_state(Strings { longest, first: NONE, ..self.strings(state) });
        let mut next = self.strings(state).first;
        while let Some(&transition) = self.transitions.get(next as usize) {
            self.add_transition(split_off, transition.token, transition.to);
            next = transition.next;
        }
        self.states[state as usize].link = split_off;
        let mut at = from;
        while let Some(&index) = self.index.get(&(at, token)) {
            let transition = &mut self.transitions[index as usize];
            if transition.to != state {
                break;
            }
            self.redirections.push((index, state));
            transition.to = split_off;
            at = self.strings(at).link;
        }
        let counted = self.tokens.len().min(Self::COUNTED);
        if self.counted == state && counted <= longest as usize {
            self.counted = split_off;
        }
        split_off
    }

    /// Changes the counts of the text's suffixes of up to `COUNTED` tokens.
    fn count(&mut self, change: impl Fn(u32) -> u32) {
        let mut state = self.counted;
        while state != ROOT {
            let strings = &mut self.states[state as usize];
            strings.count = change(strings.count);
            state = strings.link;
        }
    }

    fn add_state(&mut self, strings: Strings) -> State {
        self.states.push(strings);
        (self.states.len() - 1) as State
    }

    fn add_transition(&mut self, from: State, token: TokenId, to: State) {
        let new = self.transitions.len() as u32;
        let first = &mut self.states[from as usize].first;
        self.transitions.push(Transition { from, token, to, next: *first });
        *first = new;
        self.index.insert((from, token), new);
    }

    fn strings(&self, state: State) -> Strings {
        self.states[state as usize]
    }

    /// Returns the state of the last `limit` tokens of a string of `state` that has at most one
    /// token more.
    fn within(&self, limit: usize, state: State) -> State {
        let link = self.strings(state).link;
        let is_enough = link != NONE && self.strings(link).longest as usize >= limit;
        if is_enough { link } else { state }
    }

    /// Iterates over a state and the states of its shorter suffixes, without the empty one.
    fn with_links(&self, state: State) -> impl Iterator<Item = State> {
        let states = std::iter::successors(Some(state), |&state| Some(self.strings(state).link));
        states.take_while(|&state| state != ROOT && state != NONE)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers that look random (Steele's SplitMix64).
    pub(crate) struct Dice(pub(crate) u64);

    impl Dice {
        pub(crate) fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) % limit as u64) as usize
        }

        /// Changes a text: cuts it, then adds tokens of an alphabet, or repeats a part of it.
        pub(crate) fn edit(&mut self, text: &mut Vec<TokenId>, alphabet: usize) {
            if self.below(3) == 0 {
                let cut = if self.below(4) == 0 { text.len() } else { text.len().min(6) };
                text.truncate(text.len() - self.below(cut + 1));
            }
            if self.below(2) == 0 || text.is_empty() {
                text.extend((0..self.below(7)).map(|_| self.below(alphabet) as TokenId));
            } else {
                let start = self.below(text.len());
                let len = self.below(12);
                // The repeated part may overlap its copy.
                for index in start..start + len {
                    text.push(text[index]);
                }
            }
        }
    }

    /// Counts the occurrences of a string in a text.
    pub(crate) fn occurrences(text: &[TokenId], string: &[TokenId]) -> usize {
        text.windows(string.len()).filter(|window| *window == string).count()
    }

    impl<const CONTEXT: usize> SuffixAutomaton<CONTEXT> {
        /// Returns the state of a string of the text.
        fn state_of(&self, string: &[TokenId]) -> Option<State> {
            string.iter().try_fold(ROOT, |state, token| {
                let transition = *self.index.get(&(state, *token))?;
                Some(self.transitions[transition as usize].to)
            })
        }

        /// Compares everything that is known about the text with a search through it.
        fn check(&self, text: &[TokenId], alphabet: usize) {
            let alphabet = 0..alphabet as TokenId;
            for start in 0..text.len() {
                for end in start + 1..=text.len().min(start + Self::COUNTED) {
                    let string = &text[start..end];
                    let state = self.state_of(string).unwrap_or(NONE);
                    let count = self.strings(state).count as usize;
                    assert_eq!(count, occurrences(text, string), "{string:?} in {text:?}");
                    if string.len() > CONTEXT {
                        continue;
                    }
                    let mut found: Vec<_> = self.continuations(state).collect();
                    found.sort_unstable();
                    let followed = alphabet.clone().filter_map(|token| {
                        let longer = [string, &[token]].concat();
                        let count = occurrences(text, &longer) as u32;
                        let within = &longer[longer.len().saturating_sub(CONTEXT)..];
                        (count > 0).then(|| (token, self.state_of(within).unwrap_or(NONE), count))
                    });
                    assert_eq!(found, followed.collect::<Vec<_>>(), "{string:?} in {text:?}");
                }
            }
            let suffixes = (1..=text.len().min(CONTEXT)).rev().map(|len| &text[text.len() - len..]);
            let repeated = suffixes.filter(|suffix| occurrences(text, suffix) > 1);
            let mut expected: Vec<_> = repeated
                .map(|suffix| (self.state_of(suffix).unwrap_or(NONE), suffix.len()))
                .collect();
            expected.dedup_by_key(|(state, _)| *state);
            assert_eq!(self.repeated_suffixes().collect::<Vec<_>>(), expected, "{text:?}");
        }

        /// Checks that taking tokens back leaves no trace.
        fn check_same(&self, fresh: &Self) {
            assert_eq!((&self.tokens, &self.states), (&fresh.tokens, &fresh.states));
            assert_eq!((&self.transitions, &self.index), (&fresh.transitions, &fresh.index));
            assert_eq!((self.last, self.counted), (fresh.last, fresh.counted));
            assert_eq!((&self.undo, &self.redirections), (&fresh.undo, &fresh.redirections));
        }
    }

    fn texts_equal_a_search<const CONTEXT: usize>() {
        for seed in 0..150 {
            let mut dice = Dice(seed);
            let alphabet = 1 + dice.below(4);
            let (mut automaton, mut text) = (SuffixAutomaton::<CONTEXT>::default(), Vec::new());
            for _ in 0..10 {
                dice.edit(&mut text, alphabet);
                automaton.seek(&text);
                automaton.check(&text, alphabet);
                let mut fresh = SuffixAutomaton::default();
                fresh.seek(&text);
                automaton.check_same(&fresh);
                let tokens = text.len();
                assert!(automaton.states.len() <= 2 * tokens.max(1));
                assert!(automaton.transitions.len() <= 3 * tokens);
                assert!(automaton.redirections.len() <= 2 * tokens);
            }
        }
    }

    #[test]
    fn texts_that_grow_and_are_rolled_back_equal_a_search() {
        texts_equal_a_search::<1>();
        texts_equal_a_search::<3>();
        texts_equal_a_search::<64>();
    }

    /// Adding a token counts few states, even where each is a suffix of the next.
    #[test]
    fn long_repetitions_are_counted_up_to_the_limit() {
        let mut automaton = SuffixAutomaton::<8>::default();
        automaton.seek(&[7; 20_000]);
        assert_eq!(automaton.with_links(automaton.counted).count(), 9);
        assert_eq!(automaton.repeated_suffixes().next(), Some((8, 8)));
        assert_eq!(automaton.continuations(8).collect::<Vec<_>>(), [(7, 8, 20_000 - 8)]);
        automaton.seek(&[]);
        automaton.check_same(&SuffixAutomaton::default());
    }
}
