//! What a decoding method is: its entry in the registry, its options, and its decoder.

use crate::{Decoder, DraftLength, PearlOptions, SharedGoodput, SpeculativeDraftLength};
use forerun_core::{DraftShape, Guesser, Need};
use forerun_plan::{Planned, Policy, TreeLimits};

/// A decoding method: what it does, what it offers to drafters, and how its decoder is built.
pub struct MethodEntry {
    /// Its name in options.
    pub name: &'static str,
    /// A line of help.
    pub help: &'static str,
    /// When it drafts.
    pub drafting: Drafting,
    /// Whether it uses several replicas of the target.
    pub several_targets: bool,
    /// What drafters and draft options can rely on.
    pub offers: &'static [Need],
    /// Whether one decoder works with all drafters. Otherwise decoders with one drafter each are
    /// used in turn ([`new_decoder`](crate::new_decoder)).
    pub combines_drafters: bool,
    /// Builds its decoder.
    pub decoder: fn(&DecoderOptions) -> Box<dyn AnswerDecoder>,
}

/// When a method drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drafting {
    /// Never: it needs no drafter.
    None,
    /// Before each pass of the target. Drafter and target can share cores.
    BeforeVerification,
    /// While the target verifies. Drafter and target need separate cores.
    DuringVerification,
}

/// The options from which methods build their decoders. Each method uses those that concern it.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// The shape of drafts.
    pub shape: DraftShape,
    /// The number of draft tokens in a row, or their maximum if it adapts.
    pub draft_tokens: usize,
    /// How the number of draft tokens adapts.
    pub length: DraftLength,
    /// The largest tree, if an automatic length grows trees of ranked candidates. Otherwise they
    /// have the `shape`.
    pub trees: Option<TreeLimits>,
    /// The goodput of all sequences, by which an automatic number of draft tokens knows the load.
    pub goodput: SharedGoodput,
    /// What the drafter can draft in a forward pass.
    pub pattern: DraftPattern,
    /// The time of a forward pass of the drafter, in passes of the target, that the sizes of the
    /// models suggest; `None` if sizes say nothing of their times, as on different kinds of
    /// devices.
    pub expected_passes: Option<f64>,
    /// The index of the drafter, or of the first one of several.
    pub drafter: usize,
    /// The other drafters, whose indices follow.
    pub additional_drafters: Vec<DrafterSize>,
    /// The variant of PEARL.
    pub pearl: PearlOptions,
    /// What guesses tokens for rounds in which the drafter does not draft, if there are such
    /// rounds.
    pub lookup: Option<MakeGuesser>,
    /// The number of target replicas.
    pub targets: usize,
    /// Whether the drafters are also on the target's devices, where they work in turn with the
    /// target: with the indices after all drafters, in the same order. [`Auto`](crate::Auto) uses
    /// them for methods that draft before they verify.
    pub repeats_drafters: bool,
    /// Whether the text of a seed must not depend on measured times or on which device finishes
    /// first. An automatic length then follows the acceptance and the sizes of the models, or, with
    /// methods that draft during verification, is four tokens.
    pub reproducible: bool,
}

/// The draft length of methods that draft during verification if sampled text must not depend on
/// measured times.
const REPRODUCIBLE_LENGTH: usize = 4;

impl DecoderOptions {
    /// Returns the options for drafts of this shape by one drafter that makes a token in each pass,
    /// for one target on separate devices.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        Self {
            draft_tokens: shape.length(),
            shape,
            length,
            trees: None,
            goodput: SharedGoodput::default(),
            pattern: DraftPattern::default(),
            expected_passes: None,
            drafter: 0,
            additional_drafters: Vec::new(),
            pearl: PearlOptions::default(),
            lookup: None,
            targets: 1,
            repeats_drafters: false,
            reproducible: false,
        }
    }

    /// Returns the number of drafters.
    #[must_use]
    pub fn drafters(&self) -> usize {
        1 + self.additional_drafters.len()
    }

    /// Returns the options with only one of the drafters, by its index.
    #[must_use]
    pub fn of_drafter(&self, drafter: usize) -> Self {
        let additional = drafter.checked_sub(self.drafter + 1);
        let additional = additional.and_then(|index| self.additional_drafters.get(index).copied());
        let first = DrafterSize { pattern: self.pattern, expected_passes: self.expected_passes };
        let DrafterSize { pattern, expected_passes } = additional.unwrap_or(first);
        Self { drafter, pattern, expected_passes, additional_drafters: Vec::new(), ..self.clone() }
    }

    /// Returns the options with a fixed number of draft tokens in place of an automatic one, if
    /// answers must be reproducible.
    pub(crate) fn with_fixed_length_if_reproducible(&self) -> Self {
        if !self.reproducible || self.length != DraftLength::Auto {
            return self.clone();
        }
        Self {
            length: DraftLength::Fixed,
            draft_tokens: REPRODUCIBLE_LENGTH.min(self.draft_tokens),
            trees: None,
            ..self.clone()
        }
    }

    /// Returns the policy for the lengths of drafts that begin with this shape, for methods that
    /// draft before they verify.
    pub(crate) fn draft_length(&self, shape: DraftShape) -> SpeculativeDraftLength {
        SpeculativeDraftLength::new(shape, self.length)
            .with_goodput(self.goodput.clone())
            .with_expected_passes(self.expected_passes)
            .with_tokens_per_forward(self.pattern.tokens_per_forward())
    }
}

/// What is known of a drafter after the first one before it drafts. The fields are those of
/// [`DecoderOptions`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrafterSize {
    /// What the drafter can draft in a forward pass.
    pub pattern: DraftPattern,
    /// The time of a forward pass of the drafter, in passes of the target, that the sizes of the
    /// models suggest.
    pub expected_passes: Option<f64>,
}

/// Makes the guesser of an answer.
pub type MakeGuesser = fn() -> Box<dyn Guesser>;

/// The number of positions that a drafter can draft, and in how many forward passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftPattern {
    /// The largest number of positions in a row, if limited.
    pub positions: Option<usize>,
    /// Whether all positions take one forward pass together.
    pub one_forward: bool,
    /// The stored bytes that a forward pass reads, in thousandths of those that the target's pass
    /// reads. It is 0 without a model.
    pub pass_per_mille: u32,
}

impl DraftPattern {
    /// Returns the pattern of a drafter that makes all its positions in one forward pass, of which
    /// there are at most so many.
    #[must_use]
    pub fn in_one_forward(positions: Option<usize>) -> Self {
        Self { positions, one_forward: true, pass_per_mille: 0 }
    }

    /// Returns the largest number of tokens that one forward pass drafts in a row.
    #[must_use]
    pub fn tokens_per_forward(self) -> usize {
        if self.one_forward { self.positions.unwrap_or(usize::MAX) } else { 1 }
    }
}

/// A decoder of one answer that passes on what it learned.
pub trait AnswerDecoder: Decoder + Send {
    /// Returns a decoder for an answer to a prompt of `prompt_tokens` tokens. It starts with the
    /// draft lengths that this decoder arrived at. `options` are those that this decoder was built
    /// from.
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder>;

    /// Returns its place in a planner, which it can share with other methods; `None` if it has none.
    fn planned(&mut self) -> Option<&mut Planned> {
        None
    }

    /// Returns whether its drafter has failed, so that the rest of the answer is decoded with the
    /// target alone.
    fn has_failed_drafter(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_drafter_are_those_of_its_index() {
        let additional = |per_mille| DrafterSize {
            pattern: DraftPattern { pass_per_mille: per_mille, ..DraftPattern::default() },
            expected_passes: Some(f64::from(per_mille)),
        };
        let options = DecoderOptions {
            expected_passes: Some(1.0),
            drafter: 1,
            additional_drafters: vec![additional(20), additional(30)],
            ..DecoderOptions::new(DraftShape::Chain { length: 4 }, DraftLength::Auto)
        };
        assert_eq!(options.drafters(), 3);
        let of = |index| {
            let one = options.of_drafter(index);
            let DecoderOptions { drafter, expected_passes, pattern, additional_drafters, .. } = one;
            assert!(additional_drafters.is_empty());
            (drafter, expected_passes, pattern.pass_per_mille)
        };
        assert_eq!(of(1), (1, Some(1.0), 0));
        assert_eq!(of(2), (2, Some(20.0), 20));
        assert_eq!(of(3), (3, Some(30.0), 30));
    }
}
