//! The comparison with peers: speed for each answer, and agreement of the texts.

use crate::Participant;
use crate::record::AnswerRecord;
use forerun::trace::tokens_per_second;
use forerun::{DrafterKind, TokenId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Median and quartiles, interpolated between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quartiles {
    /// The first quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The third quartile.
    pub high: f64,
}

impl Quartiles {
    /// Returns the quartiles of some values, or `None` if there are no values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |share: f64| {
            let rank = last as f64 * share;
            let below = values[rank as usize];
            let above = values[(rank as usize + 1).min(last)];
            below + (above - below) * rank.fract()
        };
        Some(Self { low: at(0.25), median: at(0.5), high: at(0.75) })
    }
}

/// The speed of one of our configurations compared with a peer that has the same weights and drafts
/// in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerComparison {
    /// Our configuration.
    pub own: String,
    /// The peer's configuration.
    pub peer: String,
    /// Our tokens per second over all answers.
    pub own_tokens_per_second: Quartiles,
    /// The peer's tokens per second over all answers.
    pub peer_tokens_per_second: Quartiles,
    /// The ratio of our speed to the peer's, for answers to the same prompt in the same repeat.
    pub ratio: Quartiles,
    /// The number of such pairs of answers.
    pub pairs: usize,
    /// The number of pairs in which we were faster.
    pub won: usize,
}

/// How far a peer's greedy texts agree with ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextAgreement {
    /// The peer's configuration.
    pub peer: String,
    /// The number of prompts that it answered.
    pub prompts: usize,
    /// The number of answers that are equal to our plain decoding's, token by token.
    pub equal: usize,
    /// The first difference in each of the other answers.
    pub differences: Vec<PeerDifference>,
}

/// The first difference between a peer's text and ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerDifference {
    /// The id of the prompt.
    pub prompt: String,
    /// The position of the first token that differs, from 0.
    pub position: usize,
    /// Our token and the peer's at this position; `None` after the end.
    pub tokens: [Option<TokenId>; 2],
    /// The log-probability that our model gives to its own token, minus the one of the peer's
    /// token, in nats. Near 0, rounding decides between the two. `None` if it was not computed, or
    /// if the peer's token is not among our most probable ones.
    pub gap: Option<f64>,
}

/// Compares the speed of all pairs of our configurations and peers that have the same baseline and
/// kind of drafter.
#[must_use]
pub fn compare_with_peers(
    participants: &[Participant],
    answers: &[AnswerRecord],
) -> Vec<PeerComparison> {
    let speeds = speeds(answers);
    let mut all = Vec::new();
    for peer in participants.iter().filter(|participant| participant.is_peer()) {
        let alike = |own: &&Participant| {
            !own.is_peer()
                && own.baseline == peer.baseline
                && kind(own.drafter) == kind(peer.drafter)
        };
        for own in participants.iter().filter(alike) {
            let of = |one: &Participant| speeds.get(one.name.as_str());
            let (Some(own_speeds), Some(peer_speeds)) = (of(own), of(peer)) else { continue };
            let ratios: Vec<f64> = own_speeds
                .iter()
                .filter_map(|(answer, speed)| Some(speed / peer_speeds.get(answer)?))
                .filter(|ratio| ratio.is_finite())
                .collect();
            let (pairs, won) = (ratios.len(), ratios.iter().filter(|ratio| **ratio > 1.0).count());
            let quartiles = |speeds: &Speeds<'_>| Quartiles::of(speeds.values().copied().collect());
            let (Some(ratio), Some(own_tokens_per_second), Some(peer_tokens_per_second)) =
                (Quartiles::of(ratios), quartiles(own_speeds), quartiles(peer_speeds))
            else {
                continue;
            };
            all.push(PeerComparison {
                own: own.name.clone(),
                peer: peer.name.clone(),
                own_tokens_per_second,
                peer_tokens_per_second,
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
        let speed = tokens_per_second(tokens, total_ns);
        let by_prompt = speeds.entry(&answer.configuration).or_default();
        by_prompt.insert((&answer.prompt, answer.repeat), speed);
    }
    speeds
}

/// Returns the kind of drafter to compare by. EasySpec's drafter counts as a draft model.
fn kind(drafter: DrafterKind) -> DrafterKind {
    if drafter == DrafterKind::EasySpec { DrafterKind::Model } else { drafter }
}

/// Compares the first answers of every peer with those of our plain decoding.
///
/// `gap` computes [`PeerDifference::gap`] from the index of the baseline, the id of the prompt, the
/// position in the answer, and our and the peer's token.
pub fn text_agreement(
    participants: &[Participant],
    answers: &[AnswerRecord],
    mut gap: impl FnMut(usize, &str, usize, [TokenId; 2]) -> Option<f64>,
) -> Vec<TextAgreement> {
    let mut all = Vec::new();
    for peer in participants.iter().filter(|participant| participant.is_peer()) {
        let own_answers = first_answers(answers, &participants[peer.baseline].name);
        let peer_answers = first_answers(answers, &peer.name);
        let mut agreement = TextAgreement {
            peer: peer.name.clone(),
            prompts: peer_answers.len(),
            equal: 0,
            differences: Vec::new(),
        };
        for (prompt, peer_tokens) in peer_answers {
            let Some(own_tokens) = own_answers.get(prompt) else { continue };
            if *own_tokens == peer_tokens {
                agreement.equal += 1;
                continue;
            }
            let equal = |(own, other): &(&TokenId, &TokenId)| own == other;
            let position = own_tokens.iter().zip(peer_tokens).take_while(equal).count();
            let tokens = [own_tokens.get(position).copied(), peer_tokens.get(position).copied()];
            let gap = match tokens {
                [Some(own), Some(other)] => gap(peer.baseline, prompt, position, [own, other]),
                _ => None,
            };
            agreement.differences.push(PeerDifference {
                prompt: prompt.to_owned(),
                position,
                tokens,
                gap,
            });
        }
        all.push(agreement);
    }
    all
}

/// Returns the tokens of a participant's first answer to every prompt.
fn first_answers<'a>(answers: &'a [AnswerRecord], name: &str) -> BTreeMap<&'a str, &'a [TokenId]> {
    let first = answers.iter().filter(|answer| answer.configuration == name && answer.repeat == 0);
    first
        .filter_map(|answer| Some((&answer.prompt[..], &answer.turns.first()?.tokens[..])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PeerTask;
    use crate::testing::{answer, turn};

    fn participant(name: &str, drafter: DrafterKind, peer: bool) -> Participant {
        Participant {
            name: name.into(),
            flags: String::new(),
            cores: 1,
            temperature: 0.0,
            baseline: 0,
            drafter,
            point: None,
            paced: None,
            peer: peer.then_some(PeerTask { peer: 0, drafter, draft_tokens: 4 }),
        }
    }

    fn all_participants() -> Vec<Participant> {
        vec![
            participant("plain", DrafterKind::None, false),
            participant("model", DrafterKind::Model, false),
            participant("lookup", DrafterKind::PromptLookup, false),
            participant("peer plain", DrafterKind::None, true),
            participant("peer model", DrafterKind::Model, true),
        ]
    }

    #[test]
    fn configurations_are_paired_with_peers_that_draft_alike() {
        let mut answers = Vec::new();
        for (repeat, slower) in [(0, 2), (1, 3), (2, 4)] {
            for own in ["plain", "model", "lookup"] {
                answers.push(answer(own, "p", repeat, turn(&[(100, 4)])));
            }
            for peer in ["peer plain", "peer model"] {
                answers.push(answer(peer, "p", repeat, turn(&[(100 * slower, 4)])));
            }
        }
        let all = compare_with_peers(&all_participants(), &answers);
        let names: Vec<_> = all.iter().map(|one| (one.own.as_str(), one.peer.as_str())).collect();
        assert_eq!(names, [("plain", "peer plain"), ("model", "peer model")]);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let Quartiles { low, median, high } = all[0].ratio;
        assert!(near(low, 2.5) && near(median, 3.0) && near(high, 3.5), "{:?}", all[0].ratio);
        assert_eq!((all[0].pairs, all[0].won), (3, 3));
        assert!(near(all[0].own_tokens_per_second.median, 4e7));
    }

    #[test]
    fn quartiles_are_interpolated_between_ranks() {
        let of = |values: &[f64]| Quartiles::of(values.to_vec());
        let quartiles = of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((quartiles.low, quartiles.median, quartiles.high), (1.75, 2.5, 3.25));
        assert_eq!(of(&[5.0]).unwrap().high, 5.0);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_first_difference_of_every_prompt_is_reported() {
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
        let gap = |baseline, prompt: &str, position, tokens| {
            assert_eq!((baseline, prompt, position, tokens), (0, "q", 1, [1, 9]));
            Some(0.25)
        };
        let agreements = text_agreement(&all_participants(), &answers, gap);
        let [plain, model] = &agreements[..] else { panic!("two peers") };
        assert_eq!((plain.prompts, plain.equal, model.prompts), (3, 1, 0));
        let [first, second] = &plain.differences[..] else { panic!("two differences") };
        assert_eq!((first.position, first.gap), (1, Some(0.25)));
        assert_eq!((second.position, second.tokens, second.gap), (2, [Some(2), None], None));
    }
}
