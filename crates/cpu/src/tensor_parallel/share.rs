//! Which outputs of each matrix a member computes.

use crate::kernels::LANES;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{Architecture, Attention, Layer, QkNorms};
use std::ops::Range;

/// The part of a model that one of several members computes.
///
/// A member has some of the outputs of a matrix: query heads with the key/value heads that they
/// read, the inner numbers of an MLP, hidden numbers, or tokens of the vocabulary. A piece of a
/// layer that is not named here is whole on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    member: usize,
    members: usize,
}

impl Share {
    /// The whole model.
    pub const WHOLE: Self = Self { member: 0, members: 1 };

    /// Creates the share of `member`, of several.
    ///
    /// # Panics
    /// If there is no such member: a programming error.
    #[must_use]
    pub fn new(member: usize, members: usize) -> Self {
        assert!(member < members, "member {member} of {members}");
        Self { member, members }
    }

    /// Returns the number of the member, from 0.
    #[must_use]
    pub fn member(self) -> usize {
        self.member
    }

    /// Returns the number of members.
    #[must_use]
    pub fn members(self) -> usize {
        self.members
    }

    /// Returns the shares of all members.
    pub(crate) fn all(self) -> impl Iterator<Item = Self> {
        (0..self.members).map(move |member| Self { member, ..self })
    }

    /// Returns the rows of a tensor that the member holds: outputs of a matrix, or numbers of a
    /// vector.
    pub(crate) fn rows(self, architecture: &Architecture, tensor: Tensor) -> Range<usize> {
        let all = architecture.shape(tensor).first().copied().unwrap_or(0);
        let Tensor::Layer(index, part) = tensor else {
            return match tensor {
                Tensor::Embedding | Tensor::Head | Tensor::HeadBias | Tensor::Expert(..) => {
                    self.outputs(all)
                }
                _ => 0..all,
            };
        };
        use LayerTensor as T;
        let attention = architecture.layers.get(index).and_then(|layer| layer.attention.as_ref());
        match (part, attention) {
            (T::Gate | T::GateBias | T::Up | T::UpBias | T::Down | T::DownBias, _)
            | (T::Output | T::OutputBias | T::MixerOutput, _) => self.outputs(all),
            (_, Some(attention)) => self.rows_of_heads(attention, part, all),
            _ => 0..all,
        }
    }

    fn rows_of_heads(self, attention: &Attention, part: LayerTensor, all: usize) -> Range<usize> {
        use LayerTensor as T;
        let heads = self.heads(attention);
        let (of_heads, count) = match part {
            T::Query | T::QueryBias | T::AttentionGate | T::AttentionGateBias => {
                (heads.queries, attention.n_heads)
            }
            T::QueryUp | T::LatentUp | T::Sinks => (heads.queries, attention.n_heads),
            T::Key | T::KeyBias | T::Value | T::ValueBias => (heads.keys, attention.n_kv_heads),
            T::QueryNorm if attention.qk_norms == QkNorms::OwnHeads => {
                (heads.queries, attention.n_heads)
            }
            T::KeyNorm if attention.qk_norms == QkNorms::OwnHeads => {
                (heads.keys, attention.n_kv_heads)
            }
            _ => return 0..all,
        };
        let each = all / count.max(1);
        of_heads.start * each..of_heads.end * each
    }

    /// Returns the heads of the member: whole groups of the heads that read the same key/value
    /// head. If there are fewer groups than members, several members share a group, and each has
    /// its key/value head.
    fn heads(self, attention: &Attention) -> Heads {
        let Attention { n_heads, n_kv_heads, .. } = *attention;
        if attention.qk_norms == QkNorms::Whole {
            return Heads { queries: 0..n_heads, keys: 0..n_kv_heads };
        }
        let group = n_heads / n_kv_heads.max(1);
        if self.members <= n_kv_heads {
            let keys = self.part_of(n_kv_heads);
            return Heads { queries: keys.start * group..keys.end * group, keys };
        }
        let key = self.member * n_kv_heads / self.members;
        let first = (key * self.members).div_ceil(n_kv_heads);
        let end = ((key + 1) * self.members).div_ceil(n_kv_heads);
        let in_group = Self { member: self.member - first, members: end - first }.part_of(group);
        match in_group.is_empty() {
            true => Heads { queries: 0..0, keys: 0..0 },
            false => Heads {
                queries: key * group + in_group.start..key * group + in_group.end,
                keys: key..key + 1,
            },
        }
    }

    /// Returns the member's part of a layer: its heads, and the inner numbers of its MLP and
    /// experts.
    pub(crate) fn of_layer(self, layer: &Layer) -> Layer {
        let mut own = layer.clone();
        if let Some(attention) = &mut own.attention {
            let heads = self.heads(attention);
            (attention.n_heads, attention.n_kv_heads) = (heads.queries.len(), heads.keys.len());
        }
        let mlps = own.mlp.iter_mut().chain(own.experts.iter_mut().map(|experts| &mut experts.mlp));
        mlps.for_each(|mlp| mlp.intermediate_size = self.outputs(mlp.intermediate_size).len());
        own
    }

    /// Returns the member's part of this many outputs, in whole tiles of packed matrices.
    pub(crate) fn outputs(self, outputs: usize) -> Range<usize> {
        let tiles = self.part_of(outputs.div_ceil(LANES));
        (tiles.start * LANES).min(outputs)..(tiles.end * LANES).min(outputs)
    }

    fn part_of(self, units: usize) -> Range<usize> {
        let end = |member: usize| units * member / self.members;
        end(self.member)..end(self.member + 1)
    }
}

struct Heads {
    queries: Range<usize>,
    /// The key/value heads that these query heads read.
    keys: Range<usize>,
}

/// The number of outputs that each member computes of a row. Empty if every member computes the
/// whole row.
#[derive(Default)]
pub(crate) struct Widths(Vec<usize>);

impl Widths {
    /// Creates the widths of all members' shares. A single member computes the whole row.
    pub(crate) fn new(share: Share, width: impl Fn(Share) -> usize) -> Self {
        if share.members == 1 {
            return Self::default();
        }
        Self(share.all().map(width).collect())
    }

    /// Creates the widths of a row of outputs that are shared in whole tiles.
    pub(crate) fn of_outputs(share: Share, outputs: usize) -> Self {
        Self::new(share, |share| share.outputs(outputs).len())
    }

    pub(crate) fn of_members(&self) -> &[usize] {
        &self.0
    }

    pub(crate) fn member_of(&self, output: usize) -> usize {
        let mut end = 0;
        let is_after = |width: &&usize| {
            end += **width;
            end <= output
        };
        self.0.iter().take_while(is_after).count()
    }
}

/// The widths of what the members gather in a layer.
#[derive(Default)]
pub(crate) struct LayerWidths {
    /// What the output projection of attention reads.
    pub(crate) attended: Widths,
    /// What attention or the mixer adds.
    pub(crate) attention: Widths,
    /// What the second projection of the dense MLP reads.
    pub(crate) inner: Widths,
    /// What the second projection of an expert reads.
    pub(crate) expert_inner: Widths,
    /// What the MLP and the experts add.
    pub(crate) mlp: Widths,
}

impl LayerWidths {
    pub(crate) fn new(share: Share, layer: &Layer, hidden_size: usize) -> Self {
        let outputs = |outputs| Widths::of_outputs(share, outputs);
        let split_heads = layer.attention.as_ref().filter(|it| it.qk_norms != QkNorms::Whole);
        let of_heads = |attention: &Attention| {
            let latent = attention.latent.as_ref();
            let value_dim = latent.map_or(attention.head_dim, |latent| latent.value_dim);
            Widths::new(share, |share| share.heads(attention).queries.len() * value_dim)
        };
        let inner = |mlp: forerun_formats::Mlp| outputs(mlp.intermediate_size);
        Self {
            attended: split_heads.map(of_heads).unwrap_or_default(),
            attention: outputs(hidden_size),
            inner: layer.mlp.map(inner).unwrap_or_default(),
            expert_inner: layer.experts.map(|experts| inner(experts.mlp)).unwrap_or_default(),
            mlp: outputs(hidden_size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the query and key/value heads of all members.
    fn heads(n_heads: usize, n_kv_heads: usize, members: usize) -> Vec<[Range<usize>; 2]> {
        let attention = Attention::plain(n_heads, n_kv_heads, 8);
        let of = |share: Share| {
            let Heads { queries, keys } = share.heads(&attention);
            [queries, keys]
        };
        Share::new(0, members).all().map(of).collect()
    }

    #[test]
    fn every_query_head_is_on_one_member_with_its_key() {
        for n_kv_heads in 1..7 {
            for (group, members) in (1..5).flat_map(|group| (1..9).map(move |m| (group, m))) {
                let mut next = 0;
                for [queries, keys] in heads(n_kv_heads * group, n_kv_heads, members) {
                    assert_eq!(queries.start.min(next), if queries.is_empty() { 0 } else { next });
                    next += queries.len();
                    let read = queries.clone().map(|query| query / group);
                    let read: std::collections::BTreeSet<usize> = read.collect();
                    assert_eq!(
                        read.into_iter().collect::<Vec<_>>(),
                        keys.clone().collect::<Vec<_>>()
                    );
                    assert_eq!(queries.len() % keys.len().max(1), 0);
                }
                assert_eq!(next, n_kv_heads * group);
            }
        }
        assert_eq!(heads(6, 3, 2), [[0..2, 0..1], [2..6, 1..3]]);
        assert_eq!(heads(4, 1, 3), [[0..1, 0..1], [1..2, 0..1], [2..4, 0..1]]);
    }

    #[test]
    fn outputs_are_shared_in_whole_tiles() {
        let outputs = |outputs, members| -> Vec<Range<usize>> {
            Share::new(0, members).all().map(|share| share.outputs(outputs)).collect()
        };
        assert_eq!(outputs(100, 2), [0..48, 48..100]);
        assert_eq!(outputs(48, 4), [0..0, 0..16, 16..32, 32..48]);
        assert_eq!(Share::WHOLE.outputs(37), 0..37);
        let widths = Widths::of_outputs(Share::new(0, 4), 48);
        assert_eq!([0, 15, 16, 47].map(|output| widths.member_of(output)), [1, 1, 2, 3]);
    }
}
