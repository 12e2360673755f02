//! The sampler: turns logits into the distribution to sample from, for target and drafter alike.

use crate::coupling::best_perturbed;
use crate::filters::Filtered;
use crate::logit_row::LogitRow;
use crate::penalties::Penalties;
use crate::{
    Constraint, Distribution, Node, RowLogits, RowUse, Sampling, SamplingError, TokenId, TokenMask,
    TokenTree, Verification,
};
use std::borrow::Cow;

/// The sampling options applied after one prefix. One is made for each job.
///
/// Its rows are those of a tree after the prefix. `None` stands for the row after the prefix
/// itself, and a node for the row after that node, with the penalties and the constraint of the
/// node's path.
pub struct Sampler<'a> {
    sampling: &'a Sampling,
    /// The absolute position of the first token after the prefix.
    position: usize,
    penalties: Option<Penalties<'a>>,
    constraint: Option<AnswerConstraint<'a>>,
}

/// A constraint, and the tokens of the answer so far.
struct AnswerConstraint<'a> {
    constraint: &'a Constraint,
    answer: Vec<TokenId>,
}

impl<'a> Sampler<'a> {
    /// Creates the sampler for the rows after a prefix. The first `prompt_len` tokens of the prefix
    /// are the prompt, the others the answer so far.
    #[must_use]
    pub fn new(sampling: &'a Sampling, tokens: &[TokenId], prompt_len: usize) -> Self {
        let penalties = Penalties::new(sampling, tokens, prompt_len);
        let constraint = sampling.constraint.as_ref().map(|constraint| AnswerConstraint {
            constraint,
            answer: tokens[prompt_len.min(tokens.len())..].to_vec(),
        });
        Self { sampling, position: tokens.len(), penalties, constraint }
    }

    /// Returns the distribution of the token after `at`, given the row's logits, or as many of its
    /// best tokens as [`Sampling::row_use`] says.
    ///
    /// Greedy and coupled rows are point masses on the token that would be emitted there. Equal
    /// logits rank by ascending token id.
    ///
    /// # Errors
    /// [`SamplingError::Logit`] if a logit is NaN or infinite, [`SamplingError::BiasToken`] if a
    /// bias is for a token outside the row, [`SamplingError::Constraint`] if the constraint could
    /// not be compiled, [`SamplingError::PartialRow`] if there are too few of the best tokens.
    pub fn distribution<'l>(
        &self,
        logits: impl Into<RowLogits<'l>>,
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Result<Distribution, SamplingError> {
        let logits = logits.into();
        let row = self.row(logits, self.sampling.row_use(logits.tokens()), tree, at)?;
        if self.sampling.temperature == 0.0 {
            return Ok(Distribution::point(row.argmax()));
        }
        let position = self.position_of(tree, at);
        let filtered = Filtered::new(row, self.sampling, position).into_distribution();
        if self.sampling.verification != Verification::Coupled {
            return Ok(filtered);
        }
        let drawn = self.perturbed(&filtered, position, 1);
        Ok(drawn.first().map_or(filtered, |&(token, _)| Distribution::point(token)))
    }

    /// Returns how sure a drafter is after `at`: the probability of its best token, before filters,
    /// at the temperature or, for greedy decoding, at 0.6. It reads what
    /// [`Sampling::confidence_use`] says. Of a part of a row, it is the share of the best token
    /// among those.
    ///
    /// # Errors
    /// The same as [`Sampler::distribution`].
    pub fn confidence<'l>(
        &self,
        logits: impl Into<RowLogits<'l>>,
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Result<f32, SamplingError> {
        let logits = logits.into();
        let row = self.row(logits, self.sampling.confidence_use(logits.tokens()), tree, at)?;
        let temperature = match self.sampling.temperature {
            0.0 => GREEDY_CANDIDATES,
            temperature => temperature,
        };
        Ok(Filtered::unfiltered(row, temperature).best_share())
    }

    /// Returns the `width` best candidates for deterministic drafting after `at`, best first, each
    /// with the logarithm of its probability among the tokens that the filters keep. It reads what
    /// [`Sampling::candidates_use`] says.
    ///
    /// Greedy candidates rank by the unfiltered logits, and their probabilities are those at a
    /// temperature of 0.6: a greedy target accepts the best candidate more often, and the others
    /// less often, than the drafter's probabilities at temperature 1 say. Coupled candidates rank
    /// by their perturbed scores, and their probabilities are shares among the best few.
    ///
    /// # Errors
    /// The same as [`Sampler::distribution`].
    pub fn candidates<'l>(
        &self,
        logits: impl Into<RowLogits<'l>>,
        tree: &TokenTree,
        at: Option<Node>,
        width: usize,
    ) -> Result<Vec<(TokenId, f64)>, SamplingError> {
        let logits = logits.into();
        let row = self.row(logits, self.sampling.candidates_use(logits.tokens()), tree, at)?;
        if self.sampling.temperature == 0.0 {
            return Ok(Filtered::unfiltered(row, GREEDY_CANDIDATES).into_best(width));
        }
        let position = self.position_of(tree, at);
        let filtered = Filtered::new(row, self.sampling, position);
        if self.sampling.verification != Verification::Coupled {
            return Ok(filtered.into_best(width));
        }
        let filtered = filtered.into_distribution();
        let mut best = self.perturbed(&filtered, position, width.max(COUPLED_CANDIDATES));
        let mass: f64 = best.iter().map(|&(_, score)| score.exp()).sum();
        best.truncate(width);
        Ok(best.into_iter().map(|(token, score)| (token, score - mass.ln())).collect())
    }

    /// Returns the tokens of [`Sampler::candidates`]. Without their probabilities, it reads only
    /// what [`Sampling::best_tokens_use`] says.
    ///
    /// # Errors
    /// The same as [`Sampler::distribution`].
    pub fn best_tokens<'l>(
        &self,
        logits: impl Into<RowLogits<'l>>,
        tree: &TokenTree,
        at: Option<Node>,
        width: usize,
    ) -> Result<Vec<TokenId>, SamplingError> {
        let logits = logits.into();
        let is_greedy = self.sampling.temperature == 0.0;
        if !is_greedy && self.sampling.verification == Verification::Coupled {
            let candidates = self.candidates(logits, tree, at, width)?;
            return Ok(candidates.into_iter().map(|(token, _)| token).collect());
        }
        let needed = self.sampling.best_tokens_use(width, logits.tokens());
        let row = self.row(logits, needed, tree, at)?;
        let filtered = match is_greedy {
            true => Filtered::unfiltered(row, GREEDY_CANDIDATES),
            false => Filtered::new(row, self.sampling, self.position_of(tree, at)),
        };
        Ok(filtered.into_best_tokens(width))
    }

    /// Returns whether equal logits give equal rows after all nodes of a depth, because nothing
    /// depends on the path.
    #[must_use]
    pub fn is_path_independent(&self) -> bool {
        self.penalties.is_none() && self.constraint.is_none()
    }

    /// Applies bias, penalties and constraint, and checks the logits. `needed` is what is read of
    /// the row.
    fn row<'l>(
        &self,
        logits: RowLogits<'l>,
        needed: RowUse,
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Result<LogitRow<'l>, SamplingError> {
        let logits = match (logits, needed) {
            (RowLogits::Full(logits), _) => logits,
            (RowLogits::Best(best), RowUse::Best { count, .. }) if count <= best.ranked.len() => {
                return LogitRow::of_best(best, self.position_of(tree, at));
            }
            (RowLogits::Best(best), _) => {
                return Err(SamplingError::PartialRow(best.ranked.len()));
            }
        };
        let logits = match &self.penalties {
            None => Cow::Borrowed(logits),
            Some(penalties) => Cow::Owned(penalties.apply(logits, tree, at)?),
        };
        let row = LogitRow::new(logits, self.position_of(tree, at))?;
        let mask = self.constraint.as_ref().map(|constraint| constraint.mask(tree, at));
        Ok(match mask.transpose()?.flatten() {
            Some(mask) => row.masked(&mask),
            None => row,
        })
    }

    fn position_of(&self, tree: &TokenTree, at: Option<Node>) -> usize {
        self.position + at.map_or(0, |node| tree.depth(node))
    }

    fn perturbed(&self, row: &Distribution, position: usize, count: usize) -> Vec<(TokenId, f64)> {
        best_perturbed(row, &self.sampling.randomness, position, count)
    }
}

impl AnswerConstraint<'_> {
    /// Returns the mask of the row after `at`; `None` if the row stays as it is.
    fn mask(&self, tree: &TokenTree, at: Option<Node>) -> Result<Option<TokenMask>, SamplingError> {
        let compiled = self.constraint.compiled()?;
        let Some(at) = at else { return Ok(compiled.allowed(&self.answer)) };
        let mut answer = self.answer.clone();
        answer.extend(tree.path(at).into_iter().map(|node| tree.token(node)));
        Ok(compiled.allowed(&answer))
    }
}

/// The temperature of the probabilities by which greedy candidates of different nodes are compared.
///
/// With it, trees of the demonstration drafters have the most accepted tokens at 0.5 to 0.7
/// (docs/experiments/trees-and-verification.md).
const GREEDY_CANDIDATES: f32 = 0.6;

/// The number of best tokens among which the probabilities of coupled candidates are computed. The
/// noise of all others is not needed.
const COUPLED_CANDIDATES: usize = 16;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::reference::EveryNth;
    use crate::{SamplingOptions, TokenConstraint};
    use std::sync::Arc;

    fn sampling(temperature: f32, top_k: usize, top_p: f32) -> Sampling {
        Sampling {
            options: SamplingOptions { temperature, top_k, top_p, ..SamplingOptions::default() },
            ..Sampling::greedy()
        }
    }

    /// Returns the distribution after a prefix of `position` tokens.
    fn row(sampling: &Sampling, logits: &[f32], position: usize) -> Distribution {
        let sampler = Sampler::new(sampling, &vec![0; position], position);
        sampler.distribution(logits, &TokenTree::new(), None).unwrap()
    }

    fn support(sampling: &Sampling, logits: &[f32]) -> Vec<TokenId> {
        row(sampling, logits, 0).iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_of_equal_tokens() {
        assert_eq!(support(&Sampling::greedy(), &[1.0, 3.0, 3.0, 2.0]), [1]);
        assert_eq!(support(&Sampling::greedy(), &[-0.0, 0.0]), [0]);
        assert_eq!(support(&Sampling::greedy(), &[0.0, -0.0]), [0]);
    }

    #[test]
    fn filters_keep_the_expected_tokens() {
        let logits = [0.0, 2.0, 1.0, 2.0, -1.0];
        assert_eq!(support(&sampling(1.0, 0, 1.0), &logits), [0, 1, 2, 3, 4]);
        assert_eq!(support(&sampling(1.0, 1, 1.0), &logits), [1]);
        assert_eq!(support(&sampling(1.0, 3, 1.0), &logits), [1, 2, 3]);
        assert_eq!(support(&sampling(1.0, 99, 1.0), &logits), [0, 1, 2, 3, 4]);
        // The two best hold 0.39 each: the first alone reaches 0.3, both together 0.7.
        assert_eq!(support(&sampling(1.0, 0, 0.3), &logits), [1]);
        assert_eq!(support(&sampling(1.0, 0, 0.7), &logits), [1, 3]);
        // Top-p applies to the tokens that top-k kept.
        assert_eq!(support(&sampling(1.0, 2, 0.5), &logits), [1]);
        // The next token after the two best is 1/e times as probable.
        let min_p = |min_p, top_p| Sampling {
            options: SamplingOptions { min_p, ..sampling(1.0, 0, top_p).options },
            ..sampling(1.0, 0, top_p)
        };
        assert_eq!(support(&min_p(0.36, 1.0), &logits), [1, 2, 3]);
        assert_eq!(support(&min_p(0.37, 1.0), &logits), [1, 3]);
        assert_eq!(support(&min_p(1.0, 1.0), &logits), [1, 3]);
        // Min-p does not change the mass that top-p counts: the two best hold less than 0.8.
        assert_eq!(support(&min_p(0.3, 0.8), &logits), [1, 2, 3]);
        assert_eq!(support(&min_p(0.37, 0.8), &logits), [1, 3]);
    }

    #[test]
    fn temperature_divides_the_logits() {
        let row = row(&sampling(0.5, 0, 1.0), &[0.0, 1.0], 0);
        assert!((row.probability(1) - 1.0 / (1.0 + (-2.0_f64).exp())).abs() < 1e-6);
    }

    /// At temperature 1 the logarithms of the weights show how penalties changed the logits.
    #[test]
    fn penalties_count_the_tokens_before_the_row() {
        let all = Sampling {
            options: SamplingOptions {
                repetition_penalty: 2.0,
                frequency_penalty: 0.25,
                presence_penalty: 0.5,
                logit_bias: [(4, 3.0), (0, 1.0)].into(),
                ..sampling(1.0, 0, 1.0).options
            },
            ..sampling(1.0, 0, 1.0)
        };
        let logits = [1.0, -1.0, 2.0, -2.0, 0.0, 0.5];
        // The prompt is 0 3 and the answer 1 1. The tree has the roots 2 and 1, and 3 under 1.
        let sampler = Sampler::new(&all, &[0, 3, 1, 1], 2);
        let mut tree = TokenTree::new();
        tree.push(None, 2);
        let one = tree.push(None, 1);
        let three = tree.push(Some(one), 3);
        let table = [
            (None, [1.0, -2.0 - 0.5 - 0.5, 2.0, -4.0, 3.0, 0.5]),
            (Some(0), [1.0, -3.0, 1.0 - 0.25 - 0.5, -4.0, 3.0, 0.5]),
            (Some(one), [1.0, -2.0 - 0.75 - 0.5, 2.0, -4.0, 3.0, 0.5]),
            (Some(three), [1.0, -3.25, 2.0, -4.0 - 0.25 - 0.5, 3.0, 0.5]),
        ];
        for (at, expected) in table {
            let found = sampler.distribution(&logits, &tree, at).unwrap();
            let plain = row(&sampling(1.0, 0, 1.0), &expected, 0);
            assert_eq!(found, plain, "after {at:?}");
            let greedy = Sampling {
                options: SamplingOptions { temperature: 0.0, ..all.options.clone() },
                ..all.clone()
            };
            let found =
                Sampler::new(&greedy, &[0, 3, 1, 1], 2).distribution(&logits, &tree, at).unwrap();
            assert_eq!(found, Distribution::point(4));
        }
        // Each option alone reads only the part of the prefix that it needs, and has the same
        // effect.
        let alone = [
            (
                Sampling {
                    options: SamplingOptions {
                        repetition_penalty: 2.0,
                        ..sampling(1.0, 0, 1.0).options
                    },
                    ..sampling(1.0, 0, 1.0)
                },
                [0.5, -2.0, 1.0],
            ),
            (
                Sampling {
                    options: SamplingOptions {
                        frequency_penalty: 1.0,
                        ..sampling(1.0, 0, 1.0).options
                    },
                    ..sampling(1.0, 0, 1.0)
                },
                [1.0, -3.0, 1.0],
            ),
            (
                Sampling {
                    options: SamplingOptions {
                        presence_penalty: 1.0,
                        ..sampling(1.0, 0, 1.0).options
                    },
                    ..sampling(1.0, 0, 1.0)
                },
                [1.0, -2.0, 1.0],
            ),
            (
                Sampling {
                    options: SamplingOptions {
                        logit_bias: [(1, 4.0)].into(),
                        ..sampling(1.0, 0, 1.0).options
                    },
                    ..sampling(1.0, 0, 1.0)
                },
                [1.0, 3.0, 2.0],
            ),
        ];
        for (sampling_, expected) in alone {
            let sampler = Sampler::new(&sampling_, &[0, 1, 1], 1);
            let found = sampler.distribution(&logits[..3], &tree, Some(0)).unwrap();
            assert_eq!(found, row(&sampling(1.0, 0, 1.0), &expected, 0), "{sampling_:?}");
        }
    }

    #[test]
    fn overflowing_penalties_exclude_a_token_and_biases_of_unknown_tokens_are_errors() {
        let huge = Sampling {
            options: SamplingOptions { repetition_penalty: 3e38, ..sampling(1.0, 0, 1.0).options },
            ..sampling(1.0, 0, 1.0)
        };
        let found =
            Sampler::new(&huge, &[0], 1).distribution(&[-9.0, 1.0], &TokenTree::new(), None);
        assert_eq!(found.unwrap().as_point(), Some(1));
        let beyond = Sampling {
            options: SamplingOptions {
                logit_bias: [(2, 1.0)].into(),
                ..SamplingOptions::default()
            },
            ..Sampling::greedy()
        };
        let found =
            Sampler::new(&beyond, &[], 0).distribution(&[0.0, 1.0], &TokenTree::new(), None);
        assert_eq!(found, Err(SamplingError::BiasToken { token: 2, vocab_size: 2 }));
    }

    /// The constraint follows the tokens of the answer and of the path, and overrides all others.
    #[test]
    fn constraints_exclude_tokens_in_every_row() {
        let every_third = EveryNth { vocab_size: 6, nth: 3 };
        let logits = [1.0, 3.0, 0.5, 2.0, 0.0, 2.5];
        let mut tree = TokenTree::new();
        tree.push(None, 0);
        let one = tree.push(None, 1);
        let below = tree.push(Some(one), 2);
        // The answer 1 makes the sum 2, so 1 and 4 are forbidden after it, and so is what follows
        // 1.
        let table: [(_, &[TokenId]); 4] = [
            (None, &[0, 2, 3, 5]),
            (Some(0), &[1, 2, 4, 5]),
            (Some(one), &[0, 1, 2, 3, 4, 5]),
            (Some(below), &[0, 1, 2, 3, 4, 5]),
        ];
        for (at, expected) in table {
            let best = |best: TokenId, &token: &TokenId| {
                let is_better = logits[token as usize] > logits[best as usize];
                if is_better { token } else { best }
            };
            let best = expected.iter().fold(expected[0], best);
            for (temperature, top_k, bias) in [(0.0, 0, 0.0), (1.0, 0, 0.0), (1e38, 5, 100.0)] {
                let mut sampling = sampling(temperature, top_k, 1.0);
                sampling.constraint = Some(every_third.constraint());
                sampling.options.logit_bias = [(4, bias), (3, bias)].into();
                let sampler = Sampler::new(&sampling, &[2, 2, 1], 2);
                assert!(!sampler.is_path_independent());
                let row = sampler.distribution(&logits, &tree, at).unwrap();
                let support: Vec<TokenId> = row.iter().map(|(token, _)| token).collect();
                let candidates = sampler.candidates(&logits, &tree, at, 6).unwrap();
                assert!(candidates.iter().all(|(token, _)| expected.contains(token)), "{at:?}");
                match (temperature == 0.0, top_k) {
                    (true, _) => assert_eq!(support, [best], "{at:?}"),
                    (false, 0) => assert_eq!(support, expected, "{at:?}"),
                    _ => assert!(support.iter().all(|token| expected.contains(token)), "{at:?}"),
                }
            }
        }
        // A drafter's vocabulary may end before the first allowed token.
        let only_last = Sampling {
            constraint: Some(Constraint::new("last", Arc::new(OnlyLast))),
            ..Sampling::greedy()
        };
        let sampler = Sampler::new(&only_last, &[0], 1);
        let point = |logits: &[f32]| sampler.distribution(logits, &tree, None).unwrap().as_point();
        assert_eq!(point(&logits), Some(5));
        assert_eq!(point(&logits[..4]), Some(1));
    }

    /// Allows token 5 alone.
    #[derive(Debug)]
    struct OnlyLast;

    impl TokenConstraint for OnlyLast {
        fn allowed(&self, _answer: &[TokenId]) -> Option<TokenMask> {
            Some(TokenMask::of([5]))
        }
    }

    #[test]
    fn coupled_tokens_follow_the_distribution() {
        let coupled = Sampling { verification: Verification::Coupled, ..sampling(1.3, 3, 1.0) };
        let logits = [0.5, 1.5, -0.5, 1.0];
        let exact = row(&sampling(1.3, 3, 1.0), &logits, 0);
        let sampler = Sampler::new(&coupled, &[], 0);
        let tree = TokenTree::chain(&[0; 300]);
        let mut counts = [0_u32; 4];
        for seed in 0..200 {
            let sampling = Sampling {
                randomness: crate::KeyedRandomness { seed, sample: 0 },
                ..coupled.clone()
            };
            let sampler = Sampler::new(&sampling, &[], 0);
            for node in 0..300 {
                let row = sampler.distribution(&logits, &tree, Some(node)).unwrap();
                counts[row.as_point().unwrap() as usize] += 1;
            }
        }
        for (token, &count) in counts.iter().enumerate() {
            let share = f64::from(count) / 60_000.0;
            assert!((share - exact.probability(token as TokenId)).abs() < 0.008, "{counts:?}");
        }
        // A row depends on its absolute position, not on where it is in a tree.
        let in_tree = sampler.distribution(&logits, &tree, Some(9)).unwrap();
        assert_eq!(in_tree, row(&coupled, &logits, 10));
    }

    #[test]
    fn the_first_candidate_is_the_emitted_token() {
        let logits = [0.3, -1.0, 0.9, 0.8, 0.1];
        let tree = TokenTree::new();
        for verification in [Verification::Rejection, Verification::Coupled] {
            for position in 0..50 {
                let prefix = vec![1; position];
                let filtered = Sampling { verification, ..sampling(0.9, 2, 1.0) };
                let sampler = Sampler::new(&filtered, &prefix, 0);
                let mut kept = sampler.candidates(&logits, &tree, None, 3).unwrap();
                kept.sort_unstable_by_key(|candidate| candidate.0);
                assert_eq!(kept.iter().map(|candidate| candidate.0).collect::<Vec<_>>(), [2, 3]);
                let sampling = Sampling {
                    options: SamplingOptions {
                        presence_penalty: 0.3,
                        ..sampling(0.9, 0, 1.0).options
                    },
                    verification,
                    ..sampling(0.9, 0, 1.0)
                };
                let sampler = Sampler::new(&sampling, &prefix, 0);
                let candidates = sampler.candidates(&logits, &tree, None, 3).unwrap();
                assert_eq!(candidates.len(), 3);
                assert!(candidates[0].1 >= candidates[1].1 && candidates[0].1 < 0.0);
                if verification == Verification::Coupled {
                    let row = sampler.distribution(&logits, &tree, None).unwrap();
                    assert_eq!(row.as_point(), Some(candidates[0].0));
                }
            }
        }
        // Greedy candidates rank by penalised logits as well.
        let biased = Sampling {
            options: SamplingOptions {
                logit_bias: [(1, 2.0)].into(),
                ..SamplingOptions::default()
            },
            ..Sampling::greedy()
        };
        let candidates =
            Sampler::new(&biased, &[0], 1).candidates(&logits, &tree, None, 2).unwrap();
        assert_eq!(candidates.iter().map(|candidate| candidate.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn broken_logits_are_errors() {
        for (len, broken) in [(2, 1), (16, 15), (300, 0), (300, 127), (300, 299), (152_000, 77_777)]
        {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut logits = vec![0.5; len];
                logits[broken] = value;
                let sampling = Sampling {
                    options: SamplingOptions {
                        logit_bias: [(0, 1.0)].into(),
                        ..SamplingOptions::default()
                    },
                    ..Sampling::greedy()
                };
                for sampling in [Sampling::greedy(), sampling] {
                    let sampler = Sampler::new(&sampling, &[0; 4], 4);
                    let found = sampler.distribution(&logits, &TokenTree::new(), None);
                    let message = found.unwrap_err().to_string();
                    let named = message.contains(&format!("token {broken} at position 4"));
                    assert!(named, "{message}");
                }
            }
        }
    }
}
