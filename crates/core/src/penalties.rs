//! Logit bias and penalties. A penalty changes the logits of tokens that occurred before.

use crate::{Node, Sampling, SamplingError, SamplingOptions, TokenId, TokenTree};
use std::collections::BTreeMap;

/// Bias and penalties after one prefix. The prefix's tokens are counted once, and each row of a
/// tree adds those of its own path.
pub(crate) struct Penalties<'a> {
    sampling: &'a Sampling,
    /// The tokens to penalise, in ascending order.
    seen: Vec<Seen>,
    /// The whole prefix, for the DRY penalty; empty without it.
    text: Vec<TokenId>,
}

/// A token that occurred before.
#[derive(Clone, Copy)]
struct Seen {
    token: TokenId,
    /// How often it was generated, not counting the prompt.
    generated: u32,
}

impl<'a> Penalties<'a> {
    /// Counts the tokens of a prefix; `None` if the options change no logit.
    pub(crate) fn new(
        sampling: &'a Sampling,
        tokens: &[TokenId],
        prompt_len: usize,
    ) -> Option<Self> {
        if !sampling.changes_logits() {
            return None;
        }
        let repetition = sampling.repetition_penalty != 1.0;
        let counts_generated =
            sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0;
        let (prompt, generated) = tokens.split_at(prompt_len.min(tokens.len()));
        // Only the repetition penalty includes the prompt.
        let prompt = if repetition { prompt } else { &[] };
        let generated = if repetition || counts_generated { generated } else { &[] };
        let in_prompt = prompt.iter().map(|&token| Seen { token, generated: 0 });
        let in_answer = generated.iter().map(|&token| Seen { token, generated: 1 });
        let mut seen: Vec<Seen> = in_prompt.chain(in_answer).collect();
        seen.sort_unstable_by_key(|seen| seen.token);
        seen.dedup_by(|next, kept| {
            let same = next.token == kept.token;
            kept.generated += u32::from(same) * next.generated;
            same
        });
        let text = if sampling.dry.applies() { tokens.to_vec() } else { Vec::new() };
        Some(Self { sampling, seen, text })
    }

    /// Returns the logits of the row after `at` with bias and penalties applied.
    ///
    /// # Errors
    /// [`SamplingError::BiasToken`] if a bias is for a token outside the vocabulary.
    pub(crate) fn apply(
        &self,
        logits: &[f32],
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Result<Vec<f32>, SamplingError> {
        let mut row = logits.to_vec();
        for (&token, &bias) in &self.sampling.logit_bias {
            let vocab_size = logits.len();
            match row.get_mut(token as usize) {
                Some(logit) => *logit += bias,
                None => return Err(SamplingError::BiasToken { token, vocab_size }),
            }
        }
        // A token in both path and prefix is penalised once, by its count in both.
        let path = self.path(tree, at);
        let path_logits = path.iter().filter_map(|seen| {
            let raw = *row.get(seen.token as usize)?;
            Some((seen.token as usize, self.penalised(raw, seen.generated)))
        });
        let path_logits: Vec<(usize, f32)> = path_logits.collect();
        for seen in &self.seen {
            if let Some(logit) = row.get_mut(seen.token as usize) {
                *logit = self.penalised(*logit, seen.generated);
            }
        }
        for (token, logit) in path_logits {
            row[token] = logit;
        }
        for (token, penalty) in self.continuations(tree, at) {
            if let Some(logit) = row.get_mut(token as usize).filter(|logit| logit.is_finite()) {
                *logit = (*logit - penalty).max(f32::MIN);
            }
        }
        Ok(row)
    }

    /// Returns the DRY penalties after `at`.
    fn continuations(&self, tree: &TokenTree, at: Option<Node>) -> BTreeMap<TokenId, f32> {
        let dry = &self.sampling.dry;
        if !dry.applies() {
            return BTreeMap::new();
        }
        let path = at.into_iter().flat_map(|node| tree.path(node));
        let text: Vec<TokenId> =
            self.text.iter().copied().chain(path.map(|node| tree.token(node))).collect();
        dry.penalties(&text, &self.sampling.dry_breakers)
    }

    /// Returns the tokens of the path to `at`, each once, with their counts in prefix and path.
    fn path(&self, tree: &TokenTree, at: Option<Node>) -> Vec<Seen> {
        let mut path: Vec<Seen> = Vec::new();
        let mut node = at;
        while let Some(here) = node {
            let token = tree.token(here);
            match path.iter_mut().find(|seen| seen.token == token) {
                Some(seen) => seen.generated += 1,
                None => {
                    let before = self.seen.binary_search_by_key(&token, |seen| seen.token);
                    let before = before.map_or(0, |index| self.seen[index].generated);
                    path.push(Seen { token, generated: before + 1 });
                }
            }
            node = tree.parent(here);
        }
        path
    }

    /// Returns the penalised logit of a token that occurred before, `generated` times in the
    /// answer.
    fn penalised(&self, raw: f32, generated: u32) -> f32 {
        let SamplingOptions { repetition_penalty, frequency_penalty, presence_penalty, .. } =
            **self.sampling;
        let repeated = if raw > 0.0 { raw / repetition_penalty } else { raw * repetition_penalty };
        let changed = match generated {
            0 => repeated,
            count => repeated - count as f32 * frequency_penalty - presence_penalty,
        };
        // Clamp overflows that a penalty causes. Broken logits of the model stay visible.
        if raw.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { raw }
    }
}
