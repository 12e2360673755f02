//! Block verification and token-by-token verification of the same drafts, with all random outcomes
//! enumerated: chains and trees on small vocabularies.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    Distribution, Draft, Key, KeyedRandomness, Proposal, Purpose, Randomness, TokenId, TokenTree,
    Verdict, Verification, draft_key, node_of_row, verify, verify_block,
};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// A rule of verification.
type Rule = fn(&Draft, &[Distribution], usize, &dyn Randomness) -> Verdict;

/// Enumerates the outcomes of independent draws, each with a key of its own.
#[derive(Default)]
struct Outcomes(Mutex<Branch>);

#[derive(Default)]
struct Branch {
    /// The draws of this branch: the probabilities of their outcomes, and the current outcome.
    draws: Vec<(Vec<f64>, usize)>,
    used: BTreeSet<Key>,
}

impl Outcomes {
    /// Returns the result of every branch with its probability.
    fn of<T>(run: impl Fn(&dyn Randomness) -> T) -> Vec<(T, f64)> {
        let (outcomes, mut results) = (Self::default(), Vec::new());
        loop {
            let result = run(&outcomes);
            let mut branch = outcomes.0.lock().unwrap();
            let weight = branch.draws.iter().map(|(chances, at)| chances[*at]).product();
            results.push((result, weight));
            branch.used.clear();
            while branch.draws.pop_if(|(chances, at)| *at + 1 == chances.len()).is_some() {}
            match branch.draws.last_mut() {
                Some((_, at)) => *at += 1,
                None => return results,
            }
        }
    }
}

impl Randomness for Outcomes {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let mut branch = self.0.lock().unwrap();
        assert!(branch.used.insert(key), "{key:?} is used twice");
        let draw = branch.used.len() - 1;
        if draw == branch.draws.len() {
            let thresholds: Vec<f64> = thresholds.map(|threshold| threshold.min(1.0)).collect();
            let low = [0.0].into_iter().chain(thresholds.iter().copied());
            let high = thresholds.iter().copied().chain([1.0]);
            branch.draws.push((low.zip(high).map(|(low, high)| high - low).collect(), 0));
        }
        branch.draws[draw].1
    }
}

/// A world: the rows of target and drafter after every path.
#[derive(Clone, Copy)]
struct World {
    vocab: TokenId,
    target: fn(u64, &[TokenId], TokenId) -> f32,
    drafter: fn(u64, &[TokenId], TokenId) -> f32,
    seed: u64,
}

impl World {
    fn row(&self, weight: fn(u64, &[TokenId], TokenId) -> f32, path: &[TokenId]) -> Distribution {
        let tokens = 0..self.vocab;
        Distribution::from_weights(tokens.map(|token| (token, weight(self.seed, path, token))))
    }

    /// Draws a draft after the empty prefix, with `branching[d]` children for each node of depth
    /// `d`. Returns it with the target's rows.
    fn draft(
        &self,
        branching: &[usize],
        randomness: &dyn Randomness,
    ) -> (Draft, Vec<Distribution>) {
        let (mut tree, mut proposed) = (TokenTree::new(), Vec::new());
        let path = |tree: &TokenTree, at: Option<usize>| -> Vec<TokenId> {
            at.map_or_else(Vec::new, |node| tree.path(node))
                .into_iter()
                .map(|node| tree.token(node))
                .collect()
        };
        let mut row = 0;
        while row <= tree.len() {
            let at = node_of_row(row);
            let depth = at.map_or(0, |node| tree.depth(node));
            let distribution = self.row(self.drafter, &path(&tree, at));
            for _ in 0..branching.get(depth).copied().unwrap_or(0) {
                let key = draft_key(Verification::Block, 0, &tree, depth, 0);
                let token = distribution.pick(randomness, key);
                tree.push(at, token);
            }
            proposed.push(distribution);
            row += 1;
        }
        let rows =
            (0..=tree.len()).map(|row| self.row(self.target, &path(&tree, node_of_row(row))));
        let rows = rows.collect();
        (Draft::new(tree, Proposal::Sampled(proposed)), rows)
    }

    /// Returns the target's probability of a continuation.
    fn probability(&self, before: &[TokenId], after: &[TokenId]) -> f64 {
        let (mut path, mut probability) = (before.to_vec(), 1.0);
        for &token in after {
            probability *= self.row(self.target, &path).probability(token);
            path.push(token);
        }
        probability
    }

    /// Returns the committed tokens and the number of accepted ones of every outcome.
    fn rounds(&self, branching: &[usize], rule: Rule) -> Vec<((Vec<TokenId>, usize), f64)> {
        Outcomes::of(|randomness| {
            let (draft, rows) = self.draft(branching, randomness);
            let verdict = rule(&draft, &rows, 0, randomness);
            let accepted = verdict.accepted.iter().map(|&node| draft.tree.token(node));
            let tested = draft.tree.children(verdict.accepted.last().copied()).next().is_some();
            assert_eq!(verdict.rejected, tested);
            (accepted.chain(verdict.token).collect(), verdict.accepted.len())
        })
    }

    /// Returns the largest deviation from the target's joint distribution of as many tokens as a
    /// round can commit.
    fn deviation(&self, branching: &[usize], rule: Rule) -> f64 {
        let rounds = self.rounds(branching, rule);
        let total: f64 = rounds.iter().map(|(_, weight)| weight).sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
        let texts = (0..=branching.len()).fold(vec![Vec::new()], |texts, _| {
            let longer =
                |text: Vec<TokenId>| (0..self.vocab).map(move |t| [&text[..], &[t]].concat());
            texts.into_iter().flat_map(longer).collect()
        });
        let error = |text: &Vec<TokenId>| {
            let found = rounds.iter().filter(|((tokens, _), _)| text.starts_with(tokens));
            let found = found.map(|((tokens, _), weight)| {
                weight * self.probability(tokens, &text[tokens.len()..])
            });
            (found.sum::<f64>() - self.probability(&[], text)).abs()
        };
        texts.iter().map(error).fold(0.0, f64::max)
    }

    /// Returns the mean number of accepted tokens.
    fn accepted(&self, branching: &[usize], rule: Rule) -> f64 {
        let rounds = self.rounds(branching, rule);
        rounds.into_iter().map(|((_, accepted), weight)| accepted as f64 * weight).sum()
    }
}

/// Returns a weight that depends on everything; some are 0.
fn random_weight(seed: u64, path: &[TokenId], token: TokenId) -> f32 {
    let position = path.iter().fold(1, |hash, &token| hash * 7 + token as usize + 1);
    let key = Key { position, purpose: Purpose::Sample, candidate: token };
    let uniform = KeyedRandomness { seed, sample: 0 }.uniform(key);
    (uniform - 0.15).max(0.0).powi(2) as f32 + if token == 0 { 1e-3 } else { 0.0 }
}

fn worlds() -> impl Iterator<Item = World> {
    let drafter: fn(u64, &[TokenId], TokenId) -> f32 =
        |seed, path, token| random_weight(seed + 1_000, path, token);
    (0..12).map(move |seed| World { vocab: 3, target: random_weight, drafter, seed })
}

const SHAPES: [&[usize]; 8] = [&[1], &[1, 1], &[1, 1, 1], &[2], &[3], &[2, 1], &[1, 2], &[2, 1, 1]];

#[test]
fn the_text_has_the_targets_distribution() {
    for (world, branching) in worlds().flat_map(|world| SHAPES.map(|shape| (world, shape))) {
        let deviation = world.deviation(branching, verify_block);
        assert!(deviation < 1e-6, "world {}, {branching:?}: off by {deviation}", world.seed);
    }
}

/// Theorem 2 of the paper for chains. The trees behave alike.
#[test]
fn at_least_as_many_tokens_are_accepted_as_one_by_one() {
    for branching in SHAPES {
        let gain = |world: World| {
            let block = world.accepted(branching, verify_block);
            let single = world.accepted(branching, verify);
            assert!(block > single - 1e-6, "world {}, {branching:?}: {block} {single}", world.seed);
            block / single
        };
        let gains: Vec<f64> = worlds().map(gain).collect();
        let more = gains.iter().filter(|&&gain| gain > 1.001).count();
        println!("{branching:?}: more in {more} of {} worlds: {gains:.3?}", gains.len());
        match branching.len() {
            1 => assert_eq!(more, 0, "a single token leaves no choice"),
            _ => assert!(more >= 6, "{branching:?}: more in {more} worlds only"),
        }
    }
}

/// The example in the introduction of the paper: 10/9 tokens one by one, 11/9 in blocks.
#[test]
fn the_papers_example_accepts_as_many_as_in_the_paper() {
    let target: fn(u64, &[TokenId], TokenId) -> f32 = |_, _, token| [1.0, 2.0][token as usize];
    let drafter: fn(u64, &[TokenId], TokenId) -> f32 = |_, _, token| [2.0, 1.0][token as usize];
    let world = World { vocab: 2, target, drafter, seed: 0 };
    let accepted = |rule: Rule| world.accepted(&[1, 1], rule);
    assert!((accepted(verify) - 10.0 / 9.0).abs() < 1e-6);
    assert!((accepted(verify_block) - 11.0 / 9.0).abs() < 1e-6);
}

/// The rows after the last nodes may be missing. Then the path may end there without a token.
#[test]
fn a_draft_ahead_of_its_rows_is_verified_as_far_as_they_go() {
    for world in worlds() {
        let shorter: Rule = |draft, rows, position, randomness| {
            let verdict = verify_block(draft, &rows[..2], position, randomness);
            assert!(verdict.accepted.len() <= 2);
            assert_eq!(verdict.token.is_none(), verdict.accepted.len() == 2);
            match verdict.token {
                Some(_) => verdict,
                // What follows is as if the round ended here.
                None => {
                    let key = Key { position: 2, purpose: Purpose::Sample, candidate: 0 };
                    Verdict { token: Some(rows[2].pick(randomness, key)), ..verdict }
                }
            }
        };
        let deviation = world.deviation(&[1, 1], shorter);
        assert!(deviation < 1e-6, "world {}: off by {deviation}", world.seed);
    }
}

/// Point masses, as greedy and coupled rows are, draw nothing and are tested one by one.
#[test]
fn certain_rows_need_no_randomness() {
    let randomness = Outcomes::default();
    for (drafted, accepted, token) in
        [([7, 8, 9], 3, 6), ([7, 8, 1], 2, 9), ([7, 1, 9], 1, 8), ([1, 8, 9], 0, 7)]
    {
        let proposed = drafted.map(Distribution::point).into();
        let tree = TokenTree::chain(&drafted);
        let draft = Draft::new(tree, Proposal::Sampled(proposed));
        let rows = [7, 8, 9, 6].map(Distribution::point);
        let verdict = verify_block(&draft, &rows, 5, &randomness);
        assert_eq!(verdict, verify(&draft, &rows, 5, &randomness));
        assert_eq!((verdict.accepted.len(), verdict.token), (accepted, Some(token)));
    }
    assert!(randomness.0.lock().unwrap().used.is_empty());
}
