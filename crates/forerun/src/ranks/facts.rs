//! What ranks tell each other before they work together.

use super::{DECODING_RANK, RankError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What all ranks of a plan must agree on, and what rank 0 must know of the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFacts {
    pub(super) version: String,
    pub(super) plan: String,
    /// The models of the plan with a fingerprint of their files.
    pub(super) models: Vec<(String, String)>,
    /// A model that other ranks must compute with the same bits, and the instruction set of this
    /// rank.
    pub(super) isa: Option<(String, String)>,
    /// What each drafter drafts in one job, if it is on this rank: the fields of [`DraftPattern`].
    pub(super) patterns: Vec<Option<(Option<usize>, bool, u32)>>,
}

/// Checks that the ranks fit together.
pub(super) fn check(own: &RankFacts, others: &[RankFacts]) -> Result<(), RankError> {
    let mut isas = BTreeMap::new();
    isas.extend(own.isa.as_ref().map(|(model, isa)| (model, (DECODING_RANK, isa))));
    for (rank, facts) in (1..).zip(others) {
        if facts.version != own.version {
            let (found, expected) = (facts.version.clone(), own.version.clone());
            return Err(RankError::Version { rank, found, expected });
        }
        if facts.plan != own.plan {
            return Err(RankError::Plan { rank });
        }
        let different = facts.models.iter().zip(&own.models).find(|(theirs, own)| theirs != own);
        if let Some(((model, _), _)) = different {
            return Err(RankError::Model { rank, model: model.clone() });
        }
        let Some((model, found)) = &facts.isa else { continue };
        let (other, expected) = *isas.entry(model).or_insert((rank, found));
        if found != expected {
            let (model, found, expected) = (model.clone(), found.clone(), expected.clone());
            return Err(RankError::Isa { model, rank, found, other, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> RankFacts {
        RankFacts {
            version: "1".into(),
            plan: "plan".into(),
            models: vec![("target".into(), "a".into()), ("drafter".into(), "b".into())],
            isa: None,
            patterns: Vec::new(),
        }
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let error = |changes: [fn(&mut RankFacts); 3]| {
            let all = changes.map(|change| {
                let mut facts = facts();
                change(&mut facts);
                facts
            });
            check(&all[0], &all[1..]).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let same = |_: &mut RankFacts| {};
        let avx2 = |facts: &mut RankFacts| {
            facts.isa = Some(("the target".into(), "avx2".into()));
        };
        assert_eq!(error([same, same, same]), "");
        assert_eq!(error([same, avx2, avx2]), "");
        assert!(
            error([same, same, |facts| facts.plan.clear()]).starts_with("rank 2 has other options")
        );
        assert!(
            error([same, |facts| facts.version = "2".into(), same])
                .starts_with("rank 1 runs forerun 2")
        );
        let other = error([same, same, |facts| facts.models[1].1 = "c".into()]);
        assert!(other.starts_with("the model drafter of rank 2 differs"), "{other}");
        let portable = |facts: &mut RankFacts| {
            facts.isa = Some(("the target".into(), "portable".into()));
        };
        let isa = error([same, avx2, portable]);
        assert!(
            isa.contains("rank 2 computes the target with portable, and rank 1 with avx2"),
            "{isa}"
        );
        let drafts = |facts: &mut RankFacts| {
            facts.isa = Some(("the drafter rank:2+rank:3".into(), "portable".into()));
        };
        let reason = "other bits of a draft do not change the distribution of the text";
        assert_eq!(error([avx2, avx2, drafts]), "", "{reason}");
    }
}
