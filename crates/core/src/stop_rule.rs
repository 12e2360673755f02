//! Where a chain of draft tokens stops because the drafter is unsure.

use serde::{Deserialize, Serialize};

/// The number of classes of confidence.
pub const CONFIDENCE_CLASSES: usize = 8;

/// The least confidences of all classes but the first.
const LEAST: [f32; CONFIDENCE_CLASSES - 1] = [0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97];

/// Where a chain of draft tokens stops before its largest length: after the first token that the
/// target is unlikely to accept together with all tokens before it.
///
/// A drafter's confidence in a token is the probability of its best token at that position
/// ([`Sampler::confidence`](crate::Sampler::confidence)). It does not depend on which token was
/// drawn. So whether a chain goes on depends only on the tokens before, and verification stays
/// exact.
///
/// ```
/// use forerun_core::StopRule;
///
/// // The target accepts tokens of the best class always, and others half of the time.
/// let mut acceptance = [500; 8];
/// acceptance[7] = 1_000;
/// let rule = StopRule { acceptance, least: 400 };
/// assert!(rule.goes_on(&[0.99, 0.6, 0.99]));
/// assert!(!rule.goes_on(&[0.99, 0.6, 0.99, 0.1]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRule {
    /// How often the target accepts a token if it has accepted those before it, in thousandths, by
    /// the class of the drafter's confidence.
    pub acceptance: [u16; CONFIDENCE_CLASSES],
    /// The least probability, in thousandths, with which the target accepts all tokens of a chain
    /// that goes on. A chain never stops by itself if it is 0.
    pub least: u16,
}

impl StopRule {
    /// The rule by which no chain stops.
    pub const NEVER: Self = Self { acceptance: [1_000; CONFIDENCE_CLASSES], least: 0 };

    /// Returns whether a chain with these confidences goes on.
    #[must_use]
    pub fn goes_on(&self, confidences: &[f32]) -> bool {
        let each = confidences.iter().map(|&confidence| self.acceptance[class_of(confidence)]);
        let all: f64 = each.map(|per_mille| f64::from(per_mille) / 1_000.0).product();
        all * 1_000.0 >= f64::from(self.least)
    }
}

/// Returns the class of a confidence, from 0 for the least.
#[must_use]
pub fn class_of(confidence: f32) -> usize {
    LEAST.iter().filter(|&&least| confidence >= least).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_the_order_of_confidences() {
        let classes = [0.0, 0.19, 0.2, 0.5, 0.96, 0.97, 1.0].map(class_of);
        assert_eq!(classes, [0, 0, 1, 3, 6, 7, 7]);
        assert_eq!(class_of(f32::NAN), 0);
    }

    #[test]
    fn a_chain_stops_where_its_tokens_are_improbable_together() {
        let rule = StopRule { acceptance: [900; CONFIDENCE_CLASSES], least: 500 };
        let lengths = (0..20).take_while(|&length| rule.goes_on(&vec![0.5; length]));
        assert_eq!(lengths.count(), 7, "0.9 to the power of 6 is 0.53");
        assert!(StopRule::NEVER.goes_on(&[0.0; 64]));
    }
}
