//! Compares sampling with its slow reference: every option alone and combined with others, on
//! small and large vocabularies, with many ties, after prefixes and in trees.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::reference::EveryNth;
use forerun_core::{
    BestTokens, Constraint, Dry, Key, KeyedRandomness, Purpose, RowLogprobs, RowUse, Sampler,
    Sampling, SamplingError, SamplingOptions, TokenId, TokenTree, Verification, reference,
};

/// A stream of random numbers.
struct Draws {
    randomness: KeyedRandomness,
    position: usize,
}

impl Draws {
    fn new(seed: u64) -> Self {
        Self { randomness: KeyedRandomness { seed, sample: 0 }, position: 0 }
    }

    fn uniform(&mut self) -> f64 {
        self.position += 1;
        let key = Key { position: self.position, purpose: Purpose::Sample, candidate: 0 };
        self.randomness.uniform(key)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.uniform() * end as f64) as usize
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Draws logits of one of several kinds: spread, peaked, flat, with many ties, or all equal.
    fn logits(&mut self, len: usize) -> Vec<f32> {
        let (spread, step) = self.one_of(&[(4.0, 0.0), (40.0, 0.0), (0.5, 0.0), (8.0, 0.5)]);
        let (spread, step) = if self.below(20) == 0 { (0.0, 0.0) } else { (spread, step) };
        let logit = |draws: &mut Self| {
            let logit = (draws.uniform() + draws.uniform() - 1.0) * spread;
            (if step > 0.0 { (logit / step).round() * step } else { logit }) as f32
        };
        (0..len).map(|_| logit(self)).collect()
    }

    fn constraint(&mut self, vocab_size: usize) -> Option<Constraint> {
        let nth = self.one_of(&[0, 0, 2, 3, 50]);
        let vocab_size = vocab_size as TokenId;
        (nth > 0 && vocab_size > 1).then(|| EveryNth { vocab_size, nth }.constraint())
    }

    fn sampling(&mut self, vocab_size: usize) -> Sampling {
        let bias = |draws: &mut Self| {
            let token = draws.below(vocab_size) as TokenId;
            (token, draws.one_of(&[-100.0, -2.5, 1.0, 3.0, 100.0]))
        };
        Sampling {
            options: SamplingOptions {
                temperature: self.one_of(&[0.0, 0.1, 0.7, 1.0, 1.0, 2.5]),
                top_k: self.one_of(&[0, 0, 0, 1, 5, 50, 700, 1_000_000]),
                top_p: self.one_of(&[1.0, 1.0, 0.05, 0.37, 0.9, 0.9991]),
                min_p: self.one_of(&[0.0, 0.0, 0.003, 0.11, 0.5]),
                typical_p: self.one_of(&[1.0, 1.0, 1.0, 0.31, 0.93]),
                top_n_sigma: self.one_of(&[0.0, 0.0, 0.0, -1.0, 0.83, 2.3]),
                xtc_probability: self.one_of(&[0.0, 0.0, 0.47, 1.0]),
                xtc_threshold: self.one_of(&[0.0, 0.0013, 0.109, 0.5]),
                dynatemp_range: self.one_of(&[0.0, 0.0, 0.0, 0.4, 3.0]),
                dynatemp_exponent: self.one_of(&[0.7, 1.0, 2.2]),
                dry: Dry {
                    multiplier: self.one_of(&[0.0, 0.0, 0.5, 1.3]),
                    allowed_length: self.below(4),
                    penalty_last_n: self.one_of(&[None, None, Some(0), Some(5)]),
                    ..Dry::default()
                },
                repetition_penalty: self.one_of(&[1.0, 1.0, 1.3, 0.8]),
                frequency_penalty: self.one_of(&[0.0, 0.0, 0.7, -0.4, 2.0]),
                presence_penalty: self.one_of(&[0.0, 0.0, 1.1, -1.5]),
                logit_bias: (0..self.one_of(&[0, 0, 1, 4])).map(|_| bias(self)).collect(),
            },
            randomness: KeyedRandomness { seed: 5, sample: 0 },
            verification: self.one_of(&[Verification::Rejection, Verification::Coupled]),
            constraint: self.constraint(vocab_size),
            dry_breakers: (*self.one_of(&[&[][..], &[vec![0, 7 % vocab_size as TokenId]]])).into(),
            adapter: None,
        }
    }
}

/// Checks every row of a random tree over a vocabulary of `len` tokens.
fn check(draws: &mut Draws, len: usize) {
    let sampling = draws.sampling(len);
    assert_eq!(sampling.validate_for(len), Ok(()));
    // Few distinct tokens, so that they repeat.
    let token = |draws: &mut Draws| (draws.below(len.min(6)) * 7 % len) as TokenId;
    let (prompt_len, answer_len) = (draws.below(9), draws.below(9));
    let prefix: Vec<TokenId> = (0..prompt_len + answer_len).map(|_| token(draws)).collect();
    let (prompt, answer) = prefix.split_at(prompt_len);
    let mut tree = TokenTree::new();
    for node in 0..3 {
        let parent = draws.below(node + 1).checked_sub(1);
        tree.push(parent, token(draws));
    }
    let sampler = Sampler::new(&sampling, &prefix, prompt_len);
    for at in [None, Some(0), Some(1), Some(2)] {
        let logits = draws.logits(len);
        let path = at.map_or(Vec::new(), |node| tree.path(node));
        let path: Vec<TokenId> = path.into_iter().map(|node| tree.token(node)).collect();
        let answer = [answer, &path].concat();
        let case = format!("{len} tokens after {at:?}, {sampling:?}");

        let row = sampler.distribution(&logits, &tree, at).unwrap();
        let exact = reference::probabilities(&sampling, prompt, &answer, &logits);
        if sampling.is_deterministic() {
            let token = reference::token(&sampling, prompt, &answer, &logits);
            assert_eq!(row.as_point(), Some(token), "{case}");
        } else {
            for (token, &probability) in (0..).zip(&exact) {
                // An exponent of up to 80 is rounded to 24 bits a few times. Smaller weights
                // vanish.
                let error = (row.probability(token) - probability).abs();
                assert!(error <= 2e-5 * probability + 1e-30, "token {token}, {case}");
            }
        }

        let width = 1 + draws.below(5);
        let candidates = sampler.candidates(&logits, &tree, at, width).unwrap();
        let best = sampler.best_tokens(&logits, &tree, at, width).unwrap();
        assert!(candidates.iter().map(|&(token, _)| token).eq(best.iter().copied()), "{case}");
        // As many of the best tokens as are read give the same bits.
        if let Some(part) = part_of(&logits, sampling.row_use(len)) {
            assert_eq!(sampler.distribution(&part, &tree, at).as_ref(), Ok(&row), "{case}");
        }
        if let Some(part) = part_of(&logits, sampling.candidates_use(len)) {
            let found = sampler.candidates(&part, &tree, at, width);
            assert_eq!(found.as_ref(), Ok(&candidates), "{case}");
        }
        if let Some(part) = part_of(&logits, sampling.best_tokens_use(width, len)) {
            assert_eq!(sampler.best_tokens(&part, &tree, at, width), Ok(best), "{case}");
        }
        assert!(candidates.is_sorted_by(|a, b| a.1 >= b.1), "{case}");
        let greedy = sampling.temperature == 0.0;
        let unfiltered = Sampling {
            options: SamplingOptions {
                // The temperature of the probabilities by which greedy candidates are compared.
                temperature: 0.6,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                typical_p: 1.0,
                top_n_sigma: 0.0,
                xtc_probability: 0.0,
                dynatemp_range: 0.0,
                ..sampling.options.clone()
            },
            ..sampling.clone()
        };
        let unfiltered = reference::probabilities(&unfiltered, prompt, &answer, &logits);
        if greedy || sampling.verification == Verification::Rejection {
            // Candidates are in the order of their probabilities, which come with them.
            let exact = if greedy { &unfiltered } else { &exact };
            for &(token, log_probability) in &candidates {
                assert!((log_probability - exact[token as usize].ln()).abs() < 1e-4, "{case}");
            }
            let least = candidates.last().unwrap().1.exp();
            let better = exact.iter().filter(|&&probability| probability > least * 1.001).count();
            assert!(better <= candidates.len(), "{case}");
        }
        if sampling.is_deterministic() {
            assert_eq!(row.as_point(), Some(candidates[0].0), "{case}");
        }

        let logprobs = RowLogprobs::new(&logits, &row, width, 0).unwrap();
        let exact = reference::logprobs(&logits);
        let (emitted, _) = row.iter().last().unwrap();
        let logprob = logprobs.for_token(&row, emitted);
        let is_close = |token: TokenId, logprob: f32| {
            (f64::from(logprob) - exact[token as usize]).abs()
                < 1e-5 * (1.0 - exact[token as usize])
        };
        assert!(is_close(emitted, logprob.logprob), "{case}");
        assert!(logprob.top.iter().all(|&(token, logprob)| is_close(token, logprob)), "{case}");
        let mut order: Vec<usize> = (0..len).collect();
        // The sort is stable, and both zeros are equal.
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
        let top: Vec<usize> = logprob.top.iter().map(|&(token, _)| token as usize).collect();
        assert_eq!(top, order[..width.min(len)], "{case}");
    }
}

/// Returns the best tokens of a row, if no more is read of it.
fn part_of(logits: &[f32], read: RowUse) -> Option<BestTokens> {
    match read {
        RowUse::Full => None,
        RowUse::Best { count, tokens } => {
            assert_eq!(tokens, logits.len());
            Some(BestTokens::of(logits, count))
        }
    }
}

#[test]
fn too_few_of_the_best_tokens_and_broken_logits_are_errors() {
    let top_k = |top_k, temperature| Sampling {
        options: SamplingOptions { top_k, temperature, ..SamplingOptions::default() },
        ..Sampling::greedy()
    };
    let tree = TokenTree::new();
    let logits = [1.0, 3.0, 2.0, 0.5];
    let greedy = top_k(0, 0.0);
    let sampler = Sampler::new(&greedy, &[], 0);
    let one = BestTokens::of(&logits, 1);
    assert_eq!(sampler.distribution(&one, &tree, None).unwrap().as_point(), Some(1));
    // Their probabilities are shares of all tokens.
    assert_eq!(sampler.candidates(&one, &tree, None, 1), Err(SamplingError::PartialRow(1)));
    let two = top_k(2, 1.0);
    let sampler = Sampler::new(&two, &[], 0);
    assert_eq!(sampler.distribution(&one, &tree, None), Err(SamplingError::PartialRow(1)));
    let all = top_k(0, 1.0);
    let sampler = Sampler::new(&all, &[], 0);
    assert_eq!(sampler.distribution(&one, &tree, None), Err(SamplingError::PartialRow(1)));

    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let logits = [1.0, 3.0, broken, f32::NAN];
        for sampling in [&greedy, &two] {
            let sampler = Sampler::new(sampling, &[7], 1);
            let RowUse::Best { count, .. } = sampling.row_use(4) else { panic!("the best") };
            let best = BestTokens::of(&logits, count);
            let [whole, part] = [
                sampler.distribution(&logits, &tree, None),
                sampler.distribution(&best, &tree, None),
            ]
            .map(|row| row.unwrap_err().to_string());
            assert!(whole.contains("token 2 at position 1"), "{whole}");
            assert_eq!(whole, part);
        }
    }
}

#[test]
fn small_vocabularies_agree_with_the_reference() {
    let mut draws = Draws::new(1);
    for _ in 0..4_000 {
        let len = draws.one_of(&[1, 2, 3, 7, 31, 32, 33, 127, 129, 300]);
        check(&mut draws, len);
    }
}

#[test]
fn large_vocabularies_agree_with_the_reference() {
    let mut draws = Draws::new(2);
    for len in [8_000, 8_193, 32_000, 50_257] {
        for _ in 0..25 {
            check(&mut draws, len);
        }
    }
    for _ in 0..8 {
        check(&mut draws, 151_936);
    }
}
