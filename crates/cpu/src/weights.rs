//! A model's weights, packed in the layout that the kernels read.

mod inputs;
mod latent;
mod layer_packer;
mod packed_layer;
mod packer;
mod part;

use crate::kernels::{NormWeights, PackedMatrix, Rope};
use crate::tensor_parallel::{Share, Widths};
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    Architecture, CacheType, Checkpoint, Head, Layer, LoadError, MatrixTypes, ModelTypes, Norm,
    TensorSource, WeightType,
};
use inputs::InputWeights;
pub(crate) use latent::PackedLatent;
use layer_packer::LayerPacker;
pub(crate) use packed_layer::{
    LayerWeights, PackedBlockConv, PackedExperts, PackedMlp, PackedNorm, PackedOwnInput,
};
pub(crate) use packer::WeightPacker;
pub use part::CorePart;
use part::PackedPart;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

/// A model's packed weights. Replicas on devices that share memory share them.
pub struct Weights {
    architecture: Architecture,
    /// The part of the model that this process or thread computes, which is usually the whole.
    share: Share,
    /// The layers as the share computes them. Those on another device have no attention and keep
    /// nothing.
    own_layers: Vec<Layer>,
    /// The packed layers. The others are on other devices.
    packed_layers: Range<usize>,
    /// How the members share the vocabulary, in the embedding and the head.
    pub(crate) vocabulary: Widths,
    cache_type: CacheType,
    /// The embedding. A drafter may share its target's.
    pub(crate) embedding: Arc<PackedMatrix>,
    pub(crate) inputs: InputWeights,
    /// The packed ones.
    layers: Vec<LayerWeights>,
    /// The experts of the first layers, where these are on another device without them.
    lone_experts: Vec<Option<PackedExperts>>,
    /// The different position embeddings of the layers.
    pub(crate) ropes: Vec<Rope>,
    /// `None` if the head reads the hidden state without a norm.
    pub(crate) final_norm: Option<NormWeights>,
    pub(crate) head: Arc<PackedMatrix>,
}

impl Weights {
    /// Reads and packs all tensors of a checkpoint, in the smallest type that loses nothing.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Self::load_as(checkpoint, ModelTypes::default())
    }

    /// Reads all tensors and packs the matrices in given types, on all cores. In addition to the
    /// packed weights, this needs memory for a few rows only.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, LoadError> {
        let architecture = checkpoint.architecture().clone();
        Self::load_architecture(architecture, checkpoint, None, types.into())
    }

    /// Reads and packs the tensors of a part of a model, and reports progress. `on_layer` receives
    /// the number of layers packed so far; those on another device
    /// ([`CorePart::FromLayer`]) count.
    ///
    /// # Errors
    /// [`LoadError::Stages`] if the model cannot be split into so many stages. If the source lacks
    /// a tensor, or a value is not finite.
    ///
    /// # Panics
    /// If there is no such layer: a programming error.
    pub fn load_part(
        part: CorePart,
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let packed = PackedPart::new(part, &architecture, source, types)?;
        let first = packed.layers.start;
        assert!(first <= architecture.layers.len(), "a layer of the model, or its end");
        let before = if matches!(part, CorePart::Stage(_)) { first } else { 0 };
        let on_layer = &mut |layers: usize| on_layer(layers - before);
        Self::pack(architecture, source, types, &packed, on_layer)
    }

    /// Reads and packs the embedding and the head alone: what a drafter shares with a target that
    /// is on another device. A model with them has no layers.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_without_layers(
        checkpoint: &Checkpoint,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        let architecture = Architecture { layers: Vec::new(), ..checkpoint.architecture().clone() };
        Self::load_architecture(architecture, checkpoint, None, types)
    }

    /// Reads the final norm alone: what a drafter that is a whole model shares with a target
    /// (PARD-2). A model with it has no layers, no embedding and no head.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_final_norm(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let (layers, positions) = (Vec::new(), None);
        let architecture = Architecture {
            layers,
            positions,
            head_bias: false,
            ..checkpoint.architecture().clone()
        };
        let part = PackedPart { embedding: false, head: false, ..PackedPart::WHOLE };
        Self::pack(architecture, checkpoint, ModelTypes::default(), &part, &mut |_| ())
    }

    /// Reads and packs the tensors of an architecture, which may share the embedding and the head
    /// of `target`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, a value is not finite, or the
    /// target is missing.
    pub fn load_architecture(
        architecture: Architecture,
        source: &dyn TensorSource,
        target: Option<&Self>,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        Self::pack(
            architecture,
            source,
            types,
            &PackedPart { target, ..PackedPart::WHOLE },
            &mut |_| (),
        )
    }

    fn pack(
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        part: &PackedPart<'_>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let PackedPart { share, target, .. } = *part;
        let matrix_types = MatrixTypes::of_model(types.weights, &architecture, source)?;
        let all_types: Vec<WeightType> = matrix_types.all().collect();
        let of_part = Some((&architecture, part.clone()));
        let packer = WeightPacker { source, types: matrix_types, part: of_part };
        let (embedding, head) = Self::pack_ends(&packer, &architecture, part)?;
        let (mut layers, mut ropes) = (Vec::new(), Vec::new());
        let own_layers = part.own_layers(&architecture);
        let layer_packer = |(index, layer)| {
            let (packer, architecture, own) = (&packer, &architecture, &own_layers[index]);
            LayerPacker { packer, architecture, share, index, layer, own }
        };
        let lone_experts =
            part.layers_of_lone_experts(&architecture.layers).map(|(index, layer)| {
                on_layer(index);
                let pack = |shape| layer_packer((index, layer)).experts(shape);
                layer.experts.map(pack).transpose()
            });
        let lone_experts = lone_experts.collect::<Result<Vec<_>, LoadError>>()?;
        for (index, layer) in part.layers_of(&architecture.layers) {
            on_layer(index);
            layers.push(layer_packer((index, layer)).pack(&mut ropes)?);
        }
        let n_layers = architecture.layers.len();
        let packed_layers = part.layers.start..part.layers.end.min(n_layers);
        on_layer(packed_layers.end);
        let final_norm = || {
            let has_bias = architecture.norm == Norm::Layer { bias: true };
            let bias = has_bias.then_some(Tensor::FinalNormBias);
            packer.norm(&architecture, Tensor::FinalNorm, bias)
        };
        let final_norm = architecture.final_norm.then(final_norm).transpose()?;
        let mut weights = Self {
            vocabulary: Widths::of_outputs(share, architecture.vocab_size),
            inputs: InputWeights::pack(&packer, &architecture, target)?,
            architecture,
            share,
            own_layers,
            packed_layers,
            cache_type: CacheType::F32,
            embedding,
            layers,
            lone_experts,
            ropes,
            final_norm,
            head,
        };
        // All parts have caches of one type, also if some have matrices of f32 only.
        let elsewhere = all_types.into_iter().filter(|_| !weights.has_all_layers());
        let matrices = weights.matrices().map(PackedMatrix::weight_type).chain(elsewhere);
        weights.cache_type = types.cache.unwrap_or_else(|| CacheType::for_weights(matrices));
        Ok(weights)
    }

    /// Packs the embedding and the head.
    fn pack_ends(
        packer: &WeightPacker<'_>,
        architecture: &Architecture,
        part: &PackedPart<'_>,
    ) -> Result<(Arc<PackedMatrix>, Arc<PackedMatrix>), LoadError> {
        let matrix = |tensor| packer.matrix(tensor, &architecture.shape(tensor));
        let floats = |tensor| packer.floats(tensor, &architecture.shape(tensor));
        let shared = || part.target.ok_or(LoadError::NoTarget);
        let head_bias = architecture.head_bias.then(|| floats(Tensor::HeadBias)).transpose()?;
        // A tied head with a bias is the embedding with a bias, which has no effect there.
        let (own_bias, tied_bias) = match architecture.head {
            // Stages before the last one have no head.
            Head::Embedding => (None, head_bias.filter(|_| part.head)),
            _ => (head_bias, None),
        };
        let embedding = match architecture.shares_embedding {
            true => Arc::clone(&shared()?.embedding),
            false => Arc::new(matrix(Tensor::Embedding)?.with_bias(tied_bias)),
        };
        let head = match architecture.head {
            Head::Own => Arc::new(matrix(Tensor::Head)?.with_bias(own_bias)),
            Head::Target => match &architecture.head_tokens {
                None => Arc::clone(&shared()?.head),
                Some(tokens) => Arc::new(shared()?.head.select(tokens)?),
            },
            Head::Embedding => Arc::clone(&embedding),
        };
        Ok((embedding, head))
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the part of the model that these weights are.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the layers as the share computes them.
    pub(crate) fn own_layers(&self) -> &[Layer] {
        &self.own_layers
    }

    /// Returns the layers whose weights are here.
    #[must_use]
    pub fn packed_layers(&self) -> Range<usize> {
        self.packed_layers.clone()
    }

    /// Returns whether the weights of all layers are here, as a whole or a share of each.
    #[must_use]
    pub fn has_all_layers(&self) -> bool {
        self.layers.len() == self.n_layers()
    }

    /// Returns the packed weights of some layers.
    pub(crate) fn layers(&self, layers: Range<usize>) -> &[LayerWeights] {
        let first = self.packed_layers.start;
        &self.layers[layers.start - first..layers.end - first]
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerWeights {
        &self.layers[layer - self.packed_layers.start]
    }

    /// Returns the experts of a layer that is on another device without them.
    ///
    /// # Panics
    /// If they are not here: a programming error.
    pub(crate) fn lone_experts(&self, layer: usize) -> &PackedExperts {
        self.lone_experts[layer].as_ref().expect("experts that another device leaves to this one")
    }

    /// Returns the number of layers of the model, also of those that are on another device.
    pub(crate) fn n_layers(&self) -> usize {
        self.architecture.layers.len()
    }

    /// Whether the model has recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| layer.recurrent.is_some())
    }

    /// Returns the size of the packed weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.matrices().map(PackedMatrix::bytes).sum()
    }

    /// Returns the types of the packed matrices, with the bytes of each, the largest first.
    #[must_use]
    pub fn weight_types(&self) -> Vec<(WeightType, usize)> {
        let mut types: Vec<(WeightType, usize)> = Vec::new();
        for matrix in self.matrices() {
            match types.iter_mut().find(|(weight_type, _)| *weight_type == matrix.weight_type()) {
                Some((_, bytes)) => *bytes += matrix.bytes(),
                None => types.push((matrix.weight_type(), matrix.bytes())),
            }
        }
        types.sort_by_key(|(_, bytes)| Reverse(*bytes));
        types
    }

    /// Returns the type of cached keys and values.
    #[must_use]
    pub fn cache_type(&self) -> CacheType {
        self.cache_type
    }

    /// Returns all matrices, also those that are shared with another model. A tied head is the
    /// embedding.
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let layers = self.layers.iter().flat_map(LayerWeights::matrices);
        let lone_experts = self.lone_experts.iter().flatten().flat_map(PackedExperts::matrices);
        let head = (!self.has_tied_head()).then_some(&*self.head);
        let whole = self.inputs.matrices().chain([&*self.embedding]).chain(head);
        layers.chain(lone_experts).chain(whole)
    }

    /// Returns the number of bytes of weights that a forward pass over some rows with logits reads:
    /// all weights except an embedding that is not the head, the table of the layers' own inputs,
    /// and the experts that no row chooses. Their number is the expected one for rows that choose
    /// at random (`Experts::expected_distinct`), which is exact for one row.
    #[must_use]
    pub fn bytes_read(&self, rows: usize) -> usize {
        let experts = self.layers.iter().filter_map(|layer| layer.experts.as_ref());
        let experts = experts.chain(self.lone_experts.iter().flatten());
        let unread = experts.map(|experts| experts.unread_bytes(rows));
        let embedding = if self.has_tied_head() { 0 } else { self.embedding.bytes() };
        let table = self.inputs.own.as_ref().map_or(0, |inputs| inputs.table.bytes());
        self.bytes() - embedding - table - unread.sum::<usize>()
    }

    fn has_tied_head(&self) -> bool {
        self.architecture.head == Head::Embedding
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, example_families, write_random_checkpoint,
    };
    use forerun_formats::{Config, WeightTypes};

    #[test]
    fn the_packed_size_is_known_before_packing() {
        let plain =
            [false, true].map(|tied| Config { tie_word_embeddings: tied, ..example_config() });
        let is_special = |config: &Config| {
            let is_layered = config.per_layer_input.is_some();
            config.experts.is_some() || config.recurrent.is_some() || is_layered
        };
        let mixtures = example_families().into_iter().filter(is_special);
        for config in plain.into_iter().chain(mixtures) {
            let folder = tempfile::tempdir().unwrap();
            write_random_checkpoint(folder.path(), &config, 1, RandomDtype::F32).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            for types in WeightTypes::all() {
                let weights = Weights::load_as(&checkpoint, types).unwrap();
                let architecture = checkpoint.architecture();
                let of = |share| {
                    let part = PackedPart { share, ..PackedPart::WHOLE };
                    part.bytes(architecture, &checkpoint, Some(types))
                };
                let expected = of(Share::WHOLE).unwrap();
                assert_eq!(weights.bytes(), expected, "{types}, {config:?}");
                let share = Share::new(1, 3);
                let third = Weights::load_part(
                    CorePart::Share(share),
                    architecture.clone(),
                    &checkpoint,
                    types.into(),
                    &mut |_| (),
                );
                assert_eq!(third.unwrap().bytes(), of(share).unwrap(), "{types}, {config:?}");
                let least = CorePart::Whole.least_memory(architecture, &checkpoint, types.into());
                assert!(least.unwrap() > expected);
                let embedding = if weights.has_tied_head() { 0 } else { weights.embedding.bytes() };
                let many = [1, 4, 100_000].map(|rows| weights.bytes_read(rows));
                // A row reads one row of the table of the layers' own inputs.
                let table = weights.inputs.own.as_ref().map_or(0, |inputs| inputs.table.bytes());
                assert_eq!(many[2], weights.bytes() - embedding - table, "every expert is read");
                assert_eq!(many[0] < many[1], config.experts.is_some(), "{config:?}");
            }
        }
    }
}
