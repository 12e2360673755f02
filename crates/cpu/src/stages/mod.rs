//! Pipeline stages on devices without common memory, such as the ranks of an MPI job.
//!
//! Each member has consecutive layers of a model, with their weights, keys and values. A pass goes
//! from member to member: each hands its rows' hidden states over to the next one. Every layer is
//! computed as on a single device, so the results are bit-identical.
//!
//! The member with the *last* stage leads ([`StagedModel`]): it has the head, so logits are not
//! sent, and the features that drafters read. It sends the other members ([`StageFollower`]) the
//! rows of each pass, and what happens to the pages of its caches. So the members, which are
//! numbered from the leader on, form a ring: member 1 has the first stage, and the leader, member
//! 0, follows the last member.
//!
//! Everything that is sent has the number of its pass, so what belongs to a cancelled pass is
//! dropped, and a member that is out of step is an error.

mod follower;
mod leader;
mod link;
mod message;

pub use follower::StageFollower;
pub use leader::StagedModel;

use crate::pipeline::LayerSizes;
use forerun_formats::{Layer, LoadError};
use std::ops::Range;

/// One of several pipeline stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    number: usize,
    stages: usize,
}

impl Stage {
    /// Creates the stage with this number, from 0, of several.
    ///
    /// # Panics
    /// If there is no such stage: a programming error.
    #[must_use]
    pub fn new(number: usize, stages: usize) -> Self {
        assert!(number < stages, "stage {number} of {stages}");
        Self { number, stages }
    }

    /// Returns the stage of a member of a group, whose leader has the last one.
    ///
    /// # Panics
    /// If there is no such member: a programming error.
    #[must_use]
    pub fn of_member(member: usize, members: usize) -> Self {
        Self::new((member + members - 1) % members, members)
    }

    /// Returns the layers of the stage, in a division whose largest stage is as small as possible.
    /// Layers that read the keys and values of others are on the same stage as those.
    pub(crate) fn layers(
        self,
        layers: &[Layer],
        sizes: &LayerSizes,
    ) -> Result<Range<usize>, LoadError> {
        let Self { number, stages } = self;
        let keys_of = |layer: &Layer| layer.attention.as_ref()?.keys_of;
        let can_begin = |first: &usize| {
            layers[*first..].iter().filter_map(keys_of).all(|keys_of| keys_of >= *first)
        };
        let cuts: Vec<usize> = (1..layers.len()).filter(can_begin).collect();
        if stages > cuts.len() + 1 {
            let share_keys = layers.iter().any(|layer| keys_of(layer).is_some());
            return Err(LoadError::Stages { stages, most: cuts.len() + 1, share_keys });
        }
        Ok(sizes.divide(&cuts, stages).swap_remove(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::{Attention, Mlp};

    #[test]
    fn the_leader_has_the_last_stage() {
        let stages = (0..4).map(|member| Stage::of_member(member, 4).number);
        assert!(stages.eq([3, 0, 1, 2]));
        assert_eq!(Stage::of_member(0, 1), Stage::new(0, 1));
    }

    #[test]
    fn layers_that_share_keys_are_on_one_stage() {
        let mut layers = vec![plain_layer(); 6];
        let stages = |layers: &[Layer], stages| -> Result<Vec<Range<usize>>, LoadError> {
            let sizes = LayerSizes { layers: vec![10; layers.len()], first: 0, last: 10 };
            (0..stages).map(|number| Stage::new(number, stages).layers(layers, &sizes)).collect()
        };
        assert_eq!(stages(&layers, 3).unwrap(), [0..2, 2..4, 4..6]);
        assert_eq!(stages(&layers, 6).unwrap().len(), 6);
        let message =
            |result: Result<Vec<Range<usize>>, LoadError>| result.unwrap_err().to_string();
        let error = message(stages(&layers, 7));
        assert!(error.contains("6 pipeline stages") && !error.contains("keys"), "{error}");
        for (layer, keys_of) in [(4, 2), (5, 3)] {
            layers[layer].attention.as_mut().unwrap().keys_of = Some(keys_of);
        }
        assert_eq!(stages(&layers, 2).unwrap(), [0..2, 2..6]);
        assert_eq!(stages(&layers, 3).unwrap(), [0..1, 1..2, 2..6]);
        let error = message(stages(&layers, 4));
        assert!(error.contains("3 pipeline stages") && error.contains("share keys"), "{error}");
    }

    fn plain_layer() -> Layer {
        Layer::plain(Attention::plain(4, 2, 8), Mlp::gated(32))
    }
}
