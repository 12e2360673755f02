//! Ouroboros: a small model drafts with phrases, and phrases extend the draft.
//!
//! *Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding*, Zhao et
//! al. 2024, arXiv 2402.13720, section 3.
//!
//! 1. A pool holds phrases by their first token. They come from the text, from drafts, and from
//!    verification: the target's tokens after each candidate, also after rejected ones.
//! 2. Phrases accelerate drafting. Those that start with the last token are verified by the small
//!    model, which accepts them as far as they are its own most probable tokens. So the draft is
//!    the model's greedy draft, made in fewer forwards.
//! 3. Phrases make drafts longer. Several phrases that start with the draft's last token follow it,
//!    as branches of one tree.
//!
//! Deviations: in the paper the small model also generates phrases by lookahead decoding, which is
//! not implemented. Each answer has its own pool, so that drafts do not depend on earlier answers.
//! Candidates are verified as deterministic ones at all temperatures.

use crate::answer_tracker::AnswerTracker;
use crate::candidate_model::CandidateModel;
use crate::ngram_pool::NgramPool;
use crate::{DefaultShape, DraftContext, Drafter, DrafterTraits};
use forerun_core::{
    Draft, DraftShape, Need, RowLogits, Sampler, SequenceId, TokenId, TokenTree, VerifiedDraft,
    row_of,
};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use std::collections::HashMap;

/// The number of tokens in a phrase after its first one. This is the maximum that phrases add to a
/// draft.
pub const PHRASE_TOKENS: usize = 4;
/// The number of phrases that are kept for a first token.
const PHRASES_PER_TOKEN: usize = 6;

/// The number of phrases after a draft, if no tree is requested.
const PHRASES: usize = 3;

/// What Ouroboros needs. Its phrases are branches after the tokens that the model drafts.
pub const OUROBOROS_TRAITS: DrafterTraits = DrafterTraits {
    needs: &[Need::Feedback, Need::Trees],
    shape: DefaultShape::ChainWithPhrases { phrases: PHRASES },
};

/// Drafts with a language model and phrases.
pub struct OuroborosDrafter<M> {
    candidates: CandidateModel<M>,
    /// The current answer of each sequence.
    sequences: HashMap<SequenceId, (AnswerTracker, PhrasePool)>,
}

/// The phrases of an answer.
#[derive(Default)]
struct PhrasePool {
    phrases: NgramPool<PHRASES_PER_TOKEN>,
    /// The number of positions of the text from which phrases were read.
    read: usize,
}

impl PhrasePool {
    fn add(&mut self, first: TokenId, rest: &[TokenId]) {
        if !rest.is_empty() {
            self.phrases.add(first, rest);
        }
    }

    /// Iterates over the phrases that may follow a token, the latest first.
    fn phrases_after(&self, token: TokenId) -> impl Iterator<Item = &[TokenId]> {
        self.phrases.continuations(token)
    }

    /// Adds the complete phrases of the text that are new.
    fn read_text(&mut self, tokens: &[TokenId]) {
        while let Some(rest) = tokens.get(self.read + 1..self.read + 1 + PHRASE_TOKENS) {
            self.add(tokens[self.read], rest);
            self.read += 1;
        }
    }

    /// Adds the target's continuation of each candidate, as far as the tree contains it.
    fn read_scores(&mut self, last_draft: &VerifiedDraft) {
        for node in 0..last_draft.tree.len() {
            let (mut rest, mut at) = (Vec::new(), Some(node));
            while at.is_some() && rest.len() < PHRASE_TOKENS {
                let Some(&token) = last_draft.tokens.get(row_of(at)) else { break };
                rest.push(token);
                at = last_draft.tree.child_with(at, token);
            }
            self.add(last_draft.tree.token(node), &rest);
        }
    }

    /// Adds the phrases of a draft.
    fn read_draft(&mut self, draft: &[TokenId]) {
        for (index, &first) in draft.iter().enumerate() {
            let rest = &draft[index + 1..];
            self.add(first, &rest[..rest.len().min(PHRASE_TOKENS)]);
        }
    }
}

/// Converts a shape to one with phrases, as this drafter fills it. In a shape without phrases, the
/// last tokens of its depth become phrases.
#[must_use]
pub fn with_phrases(shape: &DraftShape) -> DraftShape {
    let width = match shape {
        DraftShape::Phrases { .. } => return shape.clone(),
        DraftShape::Chain { .. } | DraftShape::ConfidentChain { .. } => 1,
        DraftShape::Top { width, .. } => *width,
        DraftShape::Sampled { branching: counts } | DraftShape::Ranked { children: counts } => {
            counts.first().copied().unwrap_or(0)
        }
    };
    let depth = shape.depth();
    let length = depth.saturating_sub(PHRASE_TOKENS).max(depth.min(1));
    DraftShape::Phrases { length, width, phrase: depth - length, budget: Some(shape.max_nodes()) }
}

/// How a shape is divided between the model and phrases.
struct DraftPlan {
    /// The number of tokens of the model's chain.
    chain: usize,
    /// The maximum number of phrase tokens after the chain.
    phrase: usize,
    /// The maximum number of phrases.
    width: usize,
    /// The maximum number of nodes.
    budget: usize,
}

impl DraftPlan {
    /// Creates the plan for a shape. `room`: the number of tokens that the model can draft.
    fn new(shape: &DraftShape, room: usize) -> Self {
        let shape = with_phrases(shape).truncated(room);
        let (width, phrase) = match shape {
            DraftShape::Phrases { width, phrase, .. } => (width, phrase),
            _ => (0, 0),
        };
        let budget = shape.max_nodes();
        Self { chain: shape.length().min(budget), phrase, width, budget }
    }
}

impl<M: LanguageModel> OuroborosDrafter<M> {
    /// Creates a drafter that uses `model`.
    pub fn new(model: M) -> Self {
        Self { candidates: CandidateModel::new(model), sequences: HashMap::new() }
    }

    /// Returns the drafter for a target with `vocab_size` tokens.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { candidates: self.candidates.with_vocab_size(vocab_size), ..self }
    }

    /// Drafts the model's greedy chain. Phrases of the pool save forwards.
    fn chain(
        &mut self,
        context: &DraftContext<'_>,
        plan: &DraftPlan,
        pool: &PhrasePool,
    ) -> Result<TokenTree, ModelError> {
        let sampling = self.candidates.sampling(context.sampling);
        let sampler = Sampler::new(&sampling, context.tokens, context.prompt_len);
        let mut chain = TokenTree::new();
        while chain.len() < plan.chain {
            let (end, mut tree) = (chain.len().checked_sub(1), chain.clone());
            let last = end.map_or(context.tokens.last().copied(), |node| Some(chain.token(node)));
            // The last token of the chain needs no candidates after it.
            let room = plan.chain - chain.len() - 1;
            for phrase in
                last.into_iter().flat_map(|last| pool.phrases_after(last)).take(plan.width)
            {
                let readable =
                    phrase.iter().copied().take_while(|&token| self.candidates.has(token));
                tree.insert_path(end, readable.take(room), usize::MAX);
            }
            let first_row = chain.len();
            let vocab_size = self.candidates.vocab_size();
            let rows_for = sampling.best_tokens_use(1, vocab_size);
            let request = ForwardRequest { rows_for, ..context.request(&tree, first_row) };
            let output = self.candidates.model.logits(&request)?;
            let rows: Vec<RowLogits<'_>> = output.rows_for_sampling(vocab_size).collect();
            let mut at = end;
            loop {
                let best = sampler.best_tokens(rows[row_of(at) - first_row], &tree, at, 1)?;
                let Some(&token) = best.first() else { return Ok(chain) };
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

impl<M: LanguageModel> Drafter for OuroborosDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, feedback, .. } = *context;
        if !self.candidates.can_read(tokens) {
            return Ok(Draft::empty());
        }
        let plan = DraftPlan::new(context.shape, self.candidates.room_after(tokens.len()));
        let (mut answer, mut pool) = self.sequences.remove(&sequence).unwrap_or_default();
        if !answer.continues(context) {
            pool = PhrasePool::default();
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
                tree.insert_path(Some(end), phrase, plan.budget);
            }
        }
        self.sequences.insert(sequence, (answer, pool));
        Ok(Draft::deterministic(tree))
    }

    fn release(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
        self.candidates.model.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::{KeyedRandomness, Sampling, TargetFeedback, node_of_row};
    use forerun_lm::{BatchEntry, ForwardOutput, complete_each};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 101;

    /// Returns the token that the simulated models generate after `token`.
    fn next(token: TokenId) -> TokenId {
        (token * 5 + 3) % VOCAB as TokenId
    }

    /// A model that follows [`next`], and counts its forwards.
    #[derive(Default)]
    struct CountingModel {
        forwards: usize,
    }

    impl LanguageModel for CountingModel {
        fn vocab_size(&self) -> usize {
            VOCAB
        }

        fn context_length(&self) -> usize {
            512
        }

        fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
            complete_each(batch, |request| {
                let ForwardRequest { tokens, tree, first_row, .. } = *request;
                self.forwards += 1;
                let last =
                    |row| node_of_row(row).map_or(tokens[tokens.len() - 1], |n| tree.token(n));
                let row = |row| {
                    let best = next(last(row));
                    (0..VOCAB as TokenId).map(move |token| if token == best { 9.0 } else { 0.0 })
                };
                let logits = (first_row..=tree.len()).flat_map(row).collect();
                let (vocab_size, computed_tokens) = (VOCAB, 0);
                Ok(ForwardOutput {
                    logits,
                    best: Vec::new(),
                    vocab_size,
                    computed_tokens,
                    features: None,
                })
            });
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    fn draft(
        drafter: &mut OuroborosDrafter<CountingModel>,
        tokens: &[TokenId],
        shape: &DraftShape,
        feedback: &TargetFeedback,
    ) -> TokenTree {
        draft_after(1, drafter, tokens, shape, feedback)
    }

    /// Drafts after `tokens`, of which the first `prompt_len` are the prompt.
    fn draft_after(
        prompt_len: usize,
        drafter: &mut OuroborosDrafter<CountingModel>,
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
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap().tree
    }

    const SHAPE: DraftShape =
        DraftShape::Top { width: 3, depth: 4 + PHRASE_TOKENS, budget: Some(16) };

    /// Drafts are the model's own chains. When the text repeats itself, one forward makes a draft,
    /// and phrases double its length.
    #[test]
    fn phrases_save_forwards_and_lengthen_drafts() {
        let mut drafter = OuroborosDrafter::new(CountingModel::default());
        let (mut tokens, mut forwards, mut depths) = (vec![7], Vec::new(), Vec::new());
        for _ in 0..30 {
            let before = drafter.candidates.model.forwards;
            let tree = draft(&mut drafter, &tokens, &SHAPE, &TargetFeedback::default());
            forwards.push(drafter.candidates.model.forwards - before);
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
        assert_eq!((forwards[0], depths[0]), (4, 4), "the pool is empty at first");
        assert!(forwards[20..].iter().all(|&count| count == 1), "{forwards:?}");
        assert!(depths[20..].iter().all(|&depth| depth == 4 + PHRASE_TOKENS), "{depths:?}");
        drafter.release(SequenceId(0));
        assert!(drafter.sequences.is_empty());
    }

    #[test]
    fn the_targets_tokens_after_candidates_become_phrases() {
        // After 20 the target continues with 21 22. 22 is not a candidate there.
        let mut tree = TokenTree::chain(&[20, 21]);
        tree.push(None, 30);
        let last_draft = VerifiedDraft { tree, tokens: vec![1, 21, 22, 31] };
        let mut pool = PhrasePool::default();
        pool.read_scores(&last_draft);
        let after = |token| pool.phrases_after(token).map(<[_]>::to_vec).collect::<Vec<_>>();
        assert_eq!(after(20), [vec![21, 22]]);
        assert_eq!((after(21), after(30)), (vec![vec![22]], vec![vec![31]]));
        assert!(after(1).is_empty());
        // The next draft contains the phrase.
        let mut drafter = OuroborosDrafter::new(CountingModel::default());
        let feedback =
            TargetFeedback { last_draft: Some(Arc::new(last_draft)), ..TargetFeedback::default() };
        let last = (0..VOCAB as TokenId).find(|&token| next(token) == 20).unwrap();
        let shape = DraftShape::Chain { length: 3 };
        assert_eq!(
            draft(&mut drafter, &[last], &shape, &feedback),
            TokenTree::chain(&[20, 21, 22])
        );
    }

    /// The turns of a chat share a sequence. Phrases of an earlier turn must not be used in a later
    /// one, even if its text is rewritten.
    #[test]
    fn phrases_of_earlier_answers_are_not_used() {
        // After `last` the model drafts four tokens. The target's feedback has a phrase for the
        // last.
        let last = 7;
        let end = (0..4).fold(last, |token, _| next(token));
        let last_draft =
            VerifiedDraft { tree: TokenTree::chain(&[end, 71]), tokens: vec![end, 71, 72] };
        let feedback =
            TargetFeedback { last_draft: Some(Arc::new(last_draft)), ..TargetFeedback::default() };
        let earlier = [1, 20, 30, 40, 50, 60, last];
        let draft_again = |prompt_len, tokens: &[TokenId]| {
            let mut drafter = OuroborosDrafter::new(CountingModel::default());
            draft(&mut drafter, &earlier, &SHAPE, &feedback);
            draft_after(prompt_len, &mut drafter, tokens, &SHAPE, &TargetFeedback::default())
        };
        let longer = [&earlier[..], &[3, last]].concat();
        for (prompt_len, tokens) in [
            // The same request again.
            (1, &earlier[..]),
            // The next turn.
            (9, &longer),
            // Another answer of the same length, and a longer one.
            (1, &[1, 9, 9, 9, 9, 9, last]),
            (1, &[1, 9, 9, 9, 9, 9, 9, 9, last]),
        ] {
            let mut fresh = OuroborosDrafter::new(CountingModel::default());
            let expected =
                draft_after(prompt_len, &mut fresh, tokens, &SHAPE, &TargetFeedback::default());
            assert_eq!(draft_again(prompt_len, tokens), expected, "{prompt_len} {tokens:?}");
        }
        // The same answer continues with its phrases.
        let continued = draft_again(1, &longer);
        assert!(continued.child_with(Some(3), 71).is_some(), "{continued:?}");
    }

    #[test]
    fn the_pool_keeps_the_latest_phrases_and_a_shorter_text_resets_it() {
        let mut pool = PhrasePool::default();
        for token in 0..=PHRASES_PER_TOKEN as TokenId {
            pool.add(9, &[token]);
        }
        pool.add(9, &[3]);
        let kept: Vec<TokenId> = pool.phrases_after(9).map(|rest| rest[0]).collect();
        assert_eq!(kept, [3, 6, 5, 4, 2, 1]);
        let mut drafter = OuroborosDrafter::new(CountingModel::default());
        let text: Vec<TokenId> = (0..40).collect();
        draft(&mut drafter, &text, &SHAPE, &TargetFeedback::default());
        let first = draft(&mut drafter, &text[..3], &SHAPE, &TargetFeedback::default());
        let mut fresh = OuroborosDrafter::new(CountingModel::default());
        assert_eq!(first, draft(&mut fresh, &text[..3], &SHAPE, &TargetFeedback::default()));
        // Shapes without room for phrases, and without room for any token.
        for (length, expected) in [(1, 1), (0, 0)] {
            let shape = DraftShape::Chain { length };
            assert_eq!(
                draft(&mut fresh, &text[..3], &shape, &TargetFeedback::default()).len(),
                expected
            );
        }
    }
}
