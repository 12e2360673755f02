//! Ours against peers: speed answer by answer, and whether the texts are the same.

use crate::Contestant;
use crate::record::AnswerRecord;
use forerun::{DrafterKind, TokenId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Median and quartiles, interpolated between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quartiles {
    /// A quarter of the values is below.
    pub low: f64,
    /// Half of them is.
    pub median: f64,
    /// A quarter of them is above.
    pub high: f64,
}

impl Quartiles {
    /// Of some values, if there are any.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |share: f64| {
            let place = last as f64 * share;
            let below = values[place as usize];
            let above = values[(place as usize + 1).min(last)];
            below + (above - below) * place.fract()
        };
        Some(Self { low: at(0.25), median: at(0.5), high: at(0.75) })
    }
}

/// One of ours against a peer that drafts in the same way, on the same weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// Our configuration.
    pub own: String,
    /// The peer's.
    pub peer: String,
    /// Our tokens per second, over all answers.
    pub own_tokens_per_second: Quartiles,
    /// The peer's.
    pub peer_tokens_per_second: Quartiles,
    /// Ours over the peer's, of answers to the same prompt in the same repeat.
    pub ratio: Quartiles,
    /// Such pairs.
    pub pairs: usize,
    /// Those in which we were faster.
    pub won: usize,
}

/// How much of a peer's greedy text is ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SameText {
    /// The peer's configuration.
    pub peer: String,
    /// Prompts that it answered.
    pub prompts: usize,
    /// Those whose answer is our plain decoding's, token by token.
    pub equal: usize,
    /// The first difference in each of the others.
    pub differences: Vec<PeerDifference>,
}

/// Where a peer's text leaves ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerDifference {
    /// The prompt.
    pub prompt: String,
    /// The first token that differs, from 0.
    pub position: usize,
    /// Ours and the peer's there; `None` behind the end.
    pub tokens: [Option<TokenId>; 2],
    /// How much more probable our model finds its own token, in nats: near 0, rounding decides which of
    /// both is the best. `None` if not asked, or if the peer's is not among our best.
    pub gap: Option<f64>,
}

/// All pairs of ours with peers that have the same baseline and kind of drafter.
#[must_use]
pub fn versus(contestants: &[Contestant], answers: &[AnswerRecord]) -> Vec<Versus> {
    let speeds = speeds(answers);
    let mut all = Vec::new();
    for peer in contestants.iter().filter(|own| own.is_peer()) {
        let alike = |own: &&Contestant| {
            !own.is_peer()
                && own.baseline == peer.baseline
                && kind(own.drafter) == kind(peer.drafter)
        };
        for own in contestants.iter().filter(alike) {
            let of = |one: &Contestant| speeds.get(one.name.as_str());
            let (Some(mine), Some(theirs)) = (of(own), of(peer)) else { continue };
            let ratios: Vec<f64> = mine
                .iter()
                .filter_map(|(place, speed)| Some(speed / theirs.get(place)?))
                .filter(|ratio| ratio.is_finite())
                .collect();
            let (pairs, won) = (ratios.len(), ratios.iter().filter(|ratio| **ratio > 1.0).count());
            let of = |speeds: &Speeds<'_>| Quartiles::of(speeds.values().copied().collect());
            let (Some(ratio), Some(mine), Some(theirs)) =
                (Quartiles::of(ratios), of(mine), of(theirs))
            else {
                continue;
            };
            all.push(Versus {
                own: own.name.clone(),
                peer: peer.name.clone(),
                own_tokens_per_second: mine,
                peer_tokens_per_second: theirs,
                ratio,
                pairs,
                won,
            });
        }
    }
    all
}

/// Tokens per second by prompt and repeat.
type Speeds<'a> = BTreeMap<(&'a str, usize), f64>;

fn speeds(answers: &[AnswerRecord]) -> BTreeMap<&str, Speeds<'_>> {
    let mut speeds: BTreeMap<&str, Speeds<'_>> = BTreeMap::new();
    for answer in answers {
        let tokens: usize = answer.turns.iter().map(|turn| turn.tokens.len()).sum();
        let total_ns: u64 = answer.turns.iter().map(|turn| turn.total_ns).sum();
        let speed = tokens as f64 / (total_ns.max(1) as f64 / 1e9);
        let own = speeds.entry(&answer.configuration).or_default();
        own.insert((&answer.prompt, answer.repeat), speed);
    }
    speeds
}

/// Who drafts, but for how a whole model does it: heads on the target are nobody else's.
fn kind(drafter: DrafterKind) -> DrafterKind {
    if drafter == DrafterKind::EasySpec { DrafterKind::Model } else { drafter }
}

/// Compares every peer's first answers with our plain decoding's. `gap` tells how much more probable the
/// baseline of this place finds its own token than the peer's, behind so many tokens of its answer.
pub fn same_text(
    contestants: &[Contestant],
    answers: &[AnswerRecord],
    mut gap: impl FnMut(usize, &str, usize, [TokenId; 2]) -> Option<f64>,
) -> Vec<SameText> {
    let mut all = Vec::new();
    for peer in contestants.iter().filter(|own| own.is_peer()) {
        let ours = first_answers(answers, &contestants[peer.baseline].name);
        let theirs = first_answers(answers, &peer.name);
        let mut same = SameText {
            peer: peer.name.clone(),
            prompts: theirs.len(),
            equal: 0,
            differences: Vec::new(),
        };
        for (prompt, theirs) in theirs {
            let Some(ours) = ours.get(prompt) else { continue };
            if *ours == theirs {
                same.equal += 1;
                continue;
            }
            let position = ours.iter().zip(theirs).take_while(|(own, other)| own == other).count();
            let tokens = [ours.get(position).copied(), theirs.get(position).copied()];
            let gap = match tokens {
                [Some(own), Some(other)] => gap(peer.baseline, prompt, position, [own, other]),
                _ => None,
            };
            same.differences.push(PeerDifference {
                prompt: prompt.to_owned(),
                position,
                tokens,
                gap,
            });
        }
        all.push(same);
    }
    all
}

/// The tokens of somebody's first answer to every prompt.
fn first_answers<'a>(answers: &'a [AnswerRecord], name: &str) -> BTreeMap<&'a str, &'a [TokenId]> {
    let first = answers.iter().filter(|own| own.configuration == name && own.repeat == 0);
    first.filter_map(|own| Some((&own.prompt[..], &own.turns.first()?.tokens[..]))).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::peers::PeerTask;
    use crate::testing::{answer, turn};

    fn contestant(name: &str, drafter: DrafterKind, peer: bool) -> Contestant {
        Contestant {
            name: name.into(),
            flags: String::new(),
            cores: 1,
            temperature: 0.0,
            baseline: 0,
            drafter,
            point: None,
            peer: peer.then_some(PeerTask { peer: 0, drafter, draft_tokens: 4 }),
        }
    }

    fn field() -> Vec<Contestant> {
        use DrafterKind::{Model, None, PromptLookup};
        vec![
            contestant("plain", None, false),
            contestant("model", Model, false),
            contestant("lookup", PromptLookup, false),
            contestant("peer plain", None, true),
            contestant("peer model", Model, true),
        ]
    }

    #[test]
    fn pairs_are_those_that_draft_alike() {
        let mut answers = Vec::new();
        for (repeat, slower) in [(0, 2), (1, 3), (2, 4)] {
            for own in ["plain", "model", "lookup"] {
                answers.push(answer(own, "p", repeat, turn(&[(100, 4)])));
            }
            for peer in ["peer plain", "peer model"] {
                answers.push(answer(peer, "p", repeat, turn(&[(100 * slower, 4)])));
            }
        }
        let all = versus(&field(), &answers);
        let names: Vec<_> = all.iter().map(|own| (own.own.as_str(), own.peer.as_str())).collect();
        assert_eq!(names, [("plain", "peer plain"), ("model", "peer model")]);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let Quartiles { low, median, high } = all[0].ratio;
        assert!(near(low, 2.5) && near(median, 3.0) && near(high, 3.5), "{:?}", all[0].ratio);
        assert_eq!((all[0].pairs, all[0].won), (3, 3));
        assert!(near(all[0].own_tokens_per_second.median, 4e7));
    }

    #[test]
    fn quartiles_lie_between_ranks() {
        let of = |values: &[f64]| Quartiles::of(values.to_vec());
        let quartiles = of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((quartiles.low, quartiles.median, quartiles.high), (1.75, 2.5, 3.25));
        assert_eq!(of(&[5.0]).unwrap().high, 5.0);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_first_difference_of_every_prompt_is_told() {
        let same = turn(&[(1, 3)]);
        let mut other = same.clone();
        other.tokens[1] = 9;
        let mut shorter = same.clone();
        shorter.tokens.pop();
        let answers: Vec<AnswerRecord> = ["p", "q", "r"]
            .iter()
            .zip([same.clone(), other, shorter])
            .flat_map(|(prompt, turn)| {
                [answer("plain", prompt, 0, same.clone()), answer("peer plain", prompt, 0, turn)]
            })
            .collect();
        let told = same_text(&field(), &answers, |baseline, prompt, position, tokens| {
            assert_eq!((baseline, prompt, position, tokens), (0, "q", 1, [1, 9]));
            Some(0.25)
        });
        let [plain, model] = &told[..] else { panic!("two peers") };
        assert_eq!((plain.prompts, plain.equal, model.prompts), (3, 1, 0));
        let [first, second] = &plain.differences[..] else { panic!("two differences") };
        assert_eq!((first.position, first.gap), (1, Some(0.25)));
        assert_eq!((second.position, second.tokens, second.gap), (2, [Some(2), None], None));
    }
}
