//! Ouroboros: a small model drafts phrase by phrase.
//!
//! *Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding*, Zhao et al. 2024,
//! arXiv 2402.13720, section 3.
//!
//! 1. A pool has phrases by their first token: from the text, from drafts, and from verification, where
//!    the target says behind each candidate, also a rejected one, how it would go on.
//! 2. Drafting is faster by phrases: those that begin with the last token are candidates of the small
//!    model, which follows them as far as they are its own most probable tokens. So the draft is its
//!    greedy one, in fewer forwards.
//! 3. Drafts are longer by phrases: several that begin with the draft's last token stand behind it, as
//!    branches of one tree.
//!
//! Deviations: the small model makes no phrases beside drafting (the paper has it look ahead). The pool is an
//! answer's own, so that it does not depend on earlier ones. Candidates are verified as
//! deterministic ones above temperature 0, too.

use crate::answer_tracker::AnswerTracker;
use crate::grow::{node_of, own_sampling};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, DraftShape, Proposal, SequenceId, TokenId, TokenTree, VerifiedDraft};
use forerun_model::{LanguageModel, ModelError};
use std::collections::{HashMap, VecDeque};

/// Tokens of a phrase behind its first, which is what phrases add to a draft at the most.
pub const PHRASE_TOKENS: usize = 4;
/// Phrases that are kept for one first token.
const KEPT: usize = 6;

/// Drafts with a language model and with phrases.
pub struct OuroborosDrafter<M> {
    model: M,
    /// Tokens that may be candidates: all below this.
    vocab_size: usize,
    /// By sequence, its present answer.
    sequences: HashMap<SequenceId, (AnswerTracker, Pool)>,
}

/// The phrases of an answer.
#[derive(Default)]
struct Pool {
    /// By their first token: what follows it, the latest last.
    phrases: HashMap<TokenId, VecDeque<Vec<TokenId>>>,
    /// Places of the text that were read.
    read: usize,
}

impl Pool {
    fn add(&mut self, first: TokenId, rest: &[TokenId]) {
        if rest.is_empty() {
            return;
        }
        let known = self.phrases.entry(first).or_default();
        known.retain(|other| *other != rest);
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back(rest.to_vec());
    }

    /// What may follow a token, the latest first.
    fn phrases_after(&self, token: TokenId) -> impl Iterator<Item = &[TokenId]> {
        self.phrases.get(&token).into_iter().flatten().rev().map(Vec::as_slice)
    }

    /// Takes the phrases of the text that are whole by now.
    fn read_text(&mut self, tokens: &[TokenId]) {
        while let Some(rest) = tokens.get(self.read + 1..self.read + 1 + PHRASE_TOKENS) {
            self.add(tokens[self.read], rest);
            self.read += 1;
        }
    }

    /// Takes how the target would go on behind each candidate, as far as the tree tells.
    fn read_scores(&mut self, last_draft: &VerifiedDraft) {
        for node in 0..last_draft.tree.len() {
            let (mut rest, mut at) = (Vec::new(), Some(node));
            while let Some(row) = at.map(|node| node + 1).filter(|_| rest.len() < PHRASE_TOKENS) {
                let Some(&token) = last_draft.tokens.get(row) else { break };
                rest.push(token);
                at = last_draft.tree.child_with(at, token);
            }
            self.add(last_draft.tree.token(node), &rest);
        }
    }

    /// Takes the phrases of a draft.
    fn read_draft(&mut self, draft: &[TokenId]) {
        for (place, &first) in draft.iter().enumerate() {
            let rest = &draft[place + 1..];
            self.add(first, &rest[..rest.len().min(PHRASE_TOKENS)]);
        }
    }
}

/// A shape as this drafter fills it: of the depth of one that has no phrases, the last tokens are theirs.
#[must_use]
pub fn with_phrases(shape: &DraftShape) -> DraftShape {
    let width = match shape {
        DraftShape::Phrases { .. } => return shape.clone(),
        DraftShape::Chain { .. } => 1,
        DraftShape::Top { width, .. } => *width,
        DraftShape::Sampled { branching } => branching.first().copied().unwrap_or(0),
    };
    let depth = shape.depth();
    let length = depth.saturating_sub(PHRASE_TOKENS).max(depth.min(1));
    DraftShape::Phrases { length, width, phrase: depth - length, budget: Some(shape.max_nodes()) }
}

/// What of a shape the model drafts, and what phrases add.
struct Plan {
    /// Tokens of the model's chain.
    chain: usize,
    /// Tokens behind it.
    phrase: usize,
    /// Phrases side by side.
    width: usize,
    /// Nodes in all.
    budget: usize,
}

impl Plan {
    /// Of a shape, and the tokens that the model can still read.
    fn of(shape: &DraftShape, left: usize) -> Self {
        let shape = with_phrases(shape).truncated(left);
        let (width, phrase) = match shape {
            DraftShape::Phrases { width, phrase, .. } => (width, phrase),
            _ => (0, 0),
        };
        let budget = shape.max_nodes();
        Self { chain: shape.length().min(budget), phrase, width, budget }
    }
}

impl<M: LanguageModel> OuroborosDrafter<M> {
    /// A drafter that asks `model`.
    pub fn new(model: M) -> Self {
        let vocab_size = model.vocab_size();
        Self { model, vocab_size, sequences: HashMap::new() }
    }

    /// The same for a target whose vocabulary may have another size.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { vocab_size: vocab_size.min(self.vocab_size), ..self }
    }

    /// The model's greedy chain, of which phrases of the pool may save forwards.
    fn chain(
        &mut self,
        context: &DraftContext<'_>,
        plan: &Plan,
        pool: &Pool,
    ) -> Result<TokenTree, ModelError> {
        let sampling = own_sampling(context.sampling, self.vocab_size);
        let sampler = sampling.sampler(context.tokens, context.prompt_len);
        let known = self.model.vocab_size();
        let mut chain = TokenTree::new();
        while chain.len() < plan.chain {
            let (end, mut tree) = (chain.len().checked_sub(1), chain.clone());
            let last = end.map_or(context.tokens.last().copied(), |node| Some(chain.token(node)));
            // The last token of the chain needs no candidate behind it.
            let room = plan.chain - chain.len() - 1;
            for phrase in
                last.into_iter().flat_map(|last| pool.phrases_after(last)).take(plan.width)
            {
                let readable = phrase.iter().copied().take_while(|&token| (token as usize) < known);
                insert(&mut tree, end, readable.take(room), usize::MAX);
            }
            let first_row = chain.len();
            let logits = self.model.logits(&context.rows(&tree, first_row))?;
            let rows: Vec<&[f32]> = logits.rows_below(self.vocab_size).collect();
            let mut at = end;
            loop {
                let row = at.map_or(0, |node| node + 1);
                let best = sampler.candidates(rows[row - first_row], &tree, node_of(row), 1)?;
                let Some(&(token, _)) = best.first() else { return Ok(chain) };
                chain.push(chain.len().checked_sub(1), token);
                match tree.child_with(at, token) {
                    Some(child) if chain.len() < plan.chain => at = Some(child),
                    _ => break,
                }
            }
        }
        Ok(chain)
    }
}

/// Adds a chain under a node, sharing the nodes that are there, as far as `budget` nodes go.
fn insert(
    tree: &mut TokenTree,
    under: Option<usize>,
    chain: impl Iterator<Item = TokenId>,
    budget: usize,
) {
    let mut at = under;
    for token in chain {
        at = match tree.child_with(at, token) {
            None if tree.len() >= budget => return,
            None => Some(tree.push(at, token)),
            known => known,
        };
    }
}

impl<M: LanguageModel> Drafter for OuroborosDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, feedback, .. } = *context;
        let known = self.model.vocab_size();
        if tokens.iter().any(|&token| token as usize >= known) {
            return Ok(Draft::empty());
        }
        let left = self.model.context_length().saturating_sub(tokens.len().saturating_sub(1));
        let plan = Plan::of(context.shape, left);
        let (mut answer, mut pool) = self.sequences.remove(&sequence).unwrap_or_default();
        if !answer.continues(context) {
            pool = Pool::default();
        }
        pool.read_text(tokens);
        if let Some(last_draft) = &feedback.last_draft {
            pool.read_scores(last_draft);
        }
        let chain = self.chain(context, &plan, &pool);
        if let Ok(chain) = &chain {
            pool.read_draft(chain.tokens());
        }
        let mut tree = match chain {
            Ok(chain) => chain,
            Err(error) => {
                self.sequences.insert(sequence, (answer, pool));
                return Err(error);
            }
        };
        if let Some(end) = tree.len().checked_sub(1) {
            for phrase in pool.phrases_after(tree.token(end)).take(plan.width) {
                let phrase = phrase.iter().copied().take(plan.phrase);
                insert(&mut tree, Some(end), phrase, plan.budget);
            }
        }
        self.sequences.insert(sequence, (answer, pool));
        Ok(Draft { tree, proposal: Proposal::Deterministic })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
        self.model.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::{KeyedRandomness, Sampling, TargetFeedback};
    use forerun_model::{Logits, LogitsContext};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 101;

    /// The token that model and target always take behind another.
    fn next(token: TokenId) -> TokenId {
        (token * 5 + 3) % VOCAB as TokenId
    }

    /// A model of that, which counts its forwards.
    #[derive(Default)]
    struct Counting {
        forwards: usize,
    }

    impl LanguageModel for Counting {
        fn vocab_size(&self) -> usize {
            VOCAB
        }

        fn context_length(&self) -> usize {
            512
        }

        fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
            let LogitsContext { tokens, tree, first_row, .. } = *context;
            self.forwards += 1;
            let last =
                |row: usize| node_of(row).map_or(tokens[tokens.len() - 1], |n| tree.token(n));
            let row = |row| {
                let best = next(last(row));
                (0..VOCAB as TokenId).map(move |token| if token == best { 9.0 } else { 0.0 })
            };
            let values = (first_row..=tree.len()).flat_map(row).collect();
            Ok(Logits { values, vocab_size: VOCAB, computed_tokens: 0 })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    fn draft(
        drafter: &mut OuroborosDrafter<Counting>,
        tokens: &[TokenId],
        shape: &DraftShape,
        feedback: &TargetFeedback,
    ) -> TokenTree {
        draft_after(1, drafter, tokens, shape, feedback)
    }

    /// Drafts behind tokens of which so many are the prompt.
    fn draft_after(
        prompt_len: usize,
        drafter: &mut OuroborosDrafter<Counting>,
        tokens: &[TokenId],
        shape: &DraftShape,
        feedback: &TargetFeedback,
    ) -> TokenTree {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len,
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape,
            feedback,
            cancel: &AtomicBool::new(false),
        };
        drafter.draft(&context).unwrap().tree
    }

    const SHAPE: DraftShape =
        DraftShape::Top { width: 3, depth: 4 + PHRASE_TOKENS, budget: Some(16) };

    /// Drafts are the model's own chains; once the text repeats itself, one forward makes them, and
    /// phrases double their length.
    #[test]
    fn phrases_save_forwards_and_lengthen_drafts() {
        let mut drafter = OuroborosDrafter::new(Counting::default());
        let (mut tokens, mut forwards, mut depths) = (vec![7], Vec::new(), Vec::new());
        for _ in 0..30 {
            let before = drafter.model.forwards;
            let tree = draft(&mut drafter, &tokens, &SHAPE, &TargetFeedback::default());
            forwards.push(drafter.model.forwards - before);
            depths.push(tree.max_depth());
            assert!(tree.len() <= 16);
            for _ in 0..3 {
                tokens.push(next(tokens[tokens.len() - 1]));
            }
            let expected = [0, 1, 2, 3].map(|node| tree.token(node));
            let last_chain = tokens.len() - 3;
            assert_eq!(expected[..3], tokens[last_chain..], "the model's chain");
            assert_eq!(expected[3], next(expected[2]));
        }
        assert_eq!((forwards[0], depths[0]), (4, 4), "nothing is known at first");
        assert!(forwards[20..].iter().all(|&count| count == 1), "{forwards:?}");
        assert!(depths[20..].iter().all(|&depth| depth == 4 + PHRASE_TOKENS), "{depths:?}");
        drafter.release(SequenceId(0));
        assert!(drafter.sequences.is_empty());
    }

    #[test]
    fn what_the_target_says_behind_candidates_becomes_phrases() {
        // Behind 20 the target goes on with 21, 22; 22 is no candidate there.
        let mut tree = TokenTree::chain(&[20, 21]);
        tree.push(None, 30);
        let last_draft = VerifiedDraft { tree, tokens: vec![1, 21, 22, 31] };
        let mut pool = Pool::default();
        pool.read_scores(&last_draft);
        let after = |token| pool.phrases_after(token).map(<[_]>::to_vec).collect::<Vec<_>>();
        assert_eq!(after(20), [vec![21, 22]]);
        assert_eq!((after(21), after(30)), (vec![vec![22]], vec![vec![31]]));
        assert!(after(1).is_empty());
        // It comes into the next draft.
        let mut drafter = OuroborosDrafter::new(Counting::default());
        let feedback =
            TargetFeedback { last_draft: Some(Arc::new(last_draft)), ..TargetFeedback::default() };
        let last = (0..VOCAB as TokenId).find(|&token| next(token) == 20).unwrap();
        let shape = DraftShape::Chain { length: 3 };
        assert_eq!(
            draft(&mut drafter, &[last], &shape, &feedback),
            TokenTree::chain(&[20, 21, 22])
        );
    }

    /// A chat's turns share a sequence. What an earlier one has taught must not come into a later one's
    /// drafts, whatever became of its text.
    #[test]
    fn an_answer_knows_nothing_of_earlier_ones() {
        // Behind `last` the model drafts four tokens, and of the last of them the target told a phrase.
        let last = 7;
        let end = (0..4).fold(last, |token, _| next(token));
        let last_draft =
            VerifiedDraft { tree: TokenTree::chain(&[end, 71]), tokens: vec![end, 71, 72] };
        let feedback =
            TargetFeedback { last_draft: Some(Arc::new(last_draft)), ..TargetFeedback::default() };
        let earlier = [1, 20, 30, 40, 50, 60, last];
        let draft_again = |prompt_len, tokens: &[TokenId]| {
            let mut drafter = OuroborosDrafter::new(Counting::default());
            draft(&mut drafter, &earlier, &SHAPE, &feedback);
            draft_after(prompt_len, &mut drafter, tokens, &SHAPE, &TargetFeedback::default())
        };
        let longer = [&earlier[..], &[3, last]].concat();
        for (prompt_len, tokens) in [
            // Asked again, when it was asked but once.
            (1, &earlier[..]),
            // The next turn.
            (9, &longer),
            // Another answer of the same length, and a longer one.
            (1, &[1, 9, 9, 9, 9, 9, last]),
            (1, &[1, 9, 9, 9, 9, 9, 9, 9, last]),
        ] {
            let mut fresh = OuroborosDrafter::new(Counting::default());
            let expected =
                draft_after(prompt_len, &mut fresh, tokens, &SHAPE, &TargetFeedback::default());
            assert_eq!(draft_again(prompt_len, tokens), expected, "{prompt_len} {tokens:?}");
        }
        // The same answer goes on with what it knows.
        let known = draft_again(1, &longer);
        assert!(known.child_with(Some(3), 71).is_some(), "{known:?}");
    }

    #[test]
    fn the_pool_keeps_the_latest_phrases_and_a_shorter_text_begins_anew() {
        let mut pool = Pool::default();
        for token in 0..=KEPT as TokenId {
            pool.add(9, &[token]);
        }
        pool.add(9, &[3]);
        let kept: Vec<TokenId> = pool.phrases_after(9).map(|rest| rest[0]).collect();
        assert_eq!(kept, [3, 6, 5, 4, 2, 1]);
        let mut drafter = OuroborosDrafter::new(Counting::default());
        let text: Vec<TokenId> = (0..40).collect();
        draft(&mut drafter, &text, &SHAPE, &TargetFeedback::default());
        let first = draft(&mut drafter, &text[..3], &SHAPE, &TargetFeedback::default());
        let mut fresh = OuroborosDrafter::new(Counting::default());
        assert_eq!(first, draft(&mut fresh, &text[..3], &SHAPE, &TargetFeedback::default()));
        // Shapes without room for phrases, and without any.
        for (length, expected) in [(1, 1), (0, 0)] {
            let shape = DraftShape::Chain { length };
            assert_eq!(
                draft(&mut fresh, &text[..3], &shape, &TargetFeedback::default()).len(),
                expected
            );
        }
    }
}
