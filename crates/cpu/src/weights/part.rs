//! The parts of a model that the cores of one process or thread have.

use super::Weights;
use super::latent::PackedLatent;
use super::packer::WeightPacker;
use crate::cpu_pages::CpuPages;
use crate::pipeline::LayerSizes;
use crate::stages::Stage;
use crate::tensor_parallel::Share;
use forerun_cache::PageStorage;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Architecture, CacheType, ExpertTensor, Head, Layer, LoadError, MatrixTypes, ModelTypes,
    TensorSource, WeightTypes,
};
use std::ops::Range;

/// The part of a model that the cores of one process or thread compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CorePart {
    /// The whole model.
    Whole,
    /// A share of each layer.
    Share(Share),
    /// Consecutive layers: the first stage has the embedding, too, and the last one the head.
    Stage(Stage),
    /// Everything but the layers before this one, which are on another device. A
    /// [`SplitModel`](forerun_model::SplitModel) computes the whole.
    FromLayer(usize),
}

impl CorePart {
    /// Returns the layers of the part. Stages are chosen so that the largest has as few bytes of
    /// matrices as possible.
    ///
    /// # Errors
    /// [`LoadError::Stages`] if the model cannot be split into so many stages. If a tensor is
    /// missing, or has the wrong dtype or shape.
    pub fn layers(
        self,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<Range<usize>, LoadError> {
        let layers = PackedPart::new(self, architecture, source, types)?.layers;
        Ok(layers.start..layers.end.min(architecture.layers.len()))
    }

    /// Returns the memory that the part needs at least, in bytes: its packed weights, and one page
    /// of its cache; also two states, the old one and the new one, if it has recurrent layers.
    /// Matrices that it shares with its target count as nothing.
    ///
    /// # Errors
    /// As [`Self::layers`].
    pub fn least_memory(
        self,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<usize, LoadError> {
        let part = PackedPart::new(self, architecture, source, types)?;
        let cache_type = types.cache.unwrap_or(CacheType::F16);
        let pages = CpuPages::new(&part.own_layers(architecture), cache_type);
        let cache = pages.page_bytes().saturating_add(pages.state_bytes().saturating_mul(2));
        Ok(part.bytes(architecture, source, types.weights)?.saturating_add(cache))
    }
}

/// The tensors that are packed.
#[derive(Clone)]
pub(crate) struct PackedPart<'a> {
    pub(super) share: Share,
    /// The model that has the embedding or the head, if this one does not.
    pub(super) target: Option<&'a Weights>,
    /// The layers that are not on another device.
    pub(super) layers: Range<usize>,
    pub(super) embedding: bool,
    pub(super) head: bool,
}

impl PackedPart<'_> {
    pub(super) const WHOLE: Self = Self {
        share: Share::WHOLE,
        target: None,
        layers: 0..usize::MAX,
        embedding: true,
        head: true,
    };

    pub(super) fn new(
        part: CorePart,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        Ok(match part {
            CorePart::Whole => Self::WHOLE,
            CorePart::Share(share) => Self { share, ..Self::WHOLE },
            CorePart::FromLayer(first) => Self { layers: first..usize::MAX, ..Self::WHOLE },
            CorePart::Stage(stage) => Self::of_stage(stage, architecture, source, types)?,
        })
    }

    fn of_stage(
        stage: Stage,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        let types = MatrixTypes::of_model(types.weights, architecture, source)?;
        let packer = WeightPacker { source, types, part: None };
        let of_layer = |layer: usize| {
            let part = PackedPart { layers: layer..layer + 1, ..PackedPart::WHOLE };
            part.layer_bytes(&packer, architecture, &architecture.layers)
        };
        let layers = (0..architecture.layers.len()).map(of_layer);
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let bytes = |tensor| packer.matrix_bytes(tensor, &architecture.shape(tensor));
        let is_tied = architecture.head == Head::Embedding;
        // Every stage computes the inputs of its own layers from the embedding.
        let has_inputs = architecture.own_input().is_some();
        // What all stages have does not count.
        let first = if has_inputs { 0 } else { bytes(Tensor::Embedding)? };
        let last = if is_tied { first } else { bytes(Tensor::Head)? };
        let layers = stage.layers(&architecture.layers, &LayerSizes { layers, first, last })?;
        let is_last = layers.end == architecture.layers.len();
        Ok(Self {
            embedding: layers.start == 0 || has_inputs || (is_last && is_tied),
            head: is_last,
            layers,
            ..Self::WHOLE
        })
    }

    /// Returns the rows of a tensor to pack.
    pub(super) fn rows(&self, architecture: &Architecture, tensor: Tensor) -> Range<usize> {
        let is_used = match tensor {
            Tensor::Embedding => self.embedding,
            Tensor::Head | Tensor::HeadBias => self.head,
            _ => true,
        };
        if is_used { self.share.rows(architecture, tensor) } else { 0..0 }
    }

    pub(super) fn layers_of<'l>(
        &self,
        layers: impl IntoIterator<Item = &'l Layer>,
    ) -> impl Iterator<Item = (usize, &'l Layer)> {
        layers.into_iter().enumerate().take(self.layers.end).skip(self.layers.start)
    }

    /// Returns the layers as this part computes them. Those on other devices keep nothing here.
    pub(super) fn own_layers(&self, architecture: &Architecture) -> Vec<Layer> {
        let own = |(index, layer): (usize, &Layer)| match self.layers.contains(&index) {
            true => self.share.of_layer(layer),
            false => Layer { attention: None, recurrent: None, ..layer.clone() },
        };
        architecture.layers.iter().enumerate().map(own).collect()
    }

    /// Returns the size of the packed matrices, as [`Weights::bytes`] returns it after packing.
    pub(super) fn bytes(
        &self,
        architecture: &Architecture,
        source: &dyn TensorSource,
        weights: Option<WeightTypes>,
    ) -> Result<usize, LoadError> {
        let types = MatrixTypes::of_model(weights, architecture, source)?;
        let whole = [
            (!architecture.shares_embedding).then_some(Tensor::Embedding),
            (architecture.head == Head::Own).then_some(Tensor::Head),
            architecture.fusion_inputs().map(|_| Tensor::Fusion),
            architecture.tensors().find(|tensor| *tensor == Tensor::Prediction),
            architecture.own_input().map(|_| Tensor::LayerInputs),
            architecture.own_input().map(|_| Tensor::LayerInputProjection),
        ];
        let packer = WeightPacker { source, types, part: Some((architecture, self.clone())) };
        let layers = self.layer_bytes(&packer, architecture, &self.own_layers(architecture))?;
        whole.into_iter().flatten().try_fold(layers, |sum, tensor| {
            Ok(sum.saturating_add(packer.matrix_bytes(tensor, &architecture.shape(tensor))?))
        })
    }

    /// Returns the size of the packed matrices of the layers. `own_layers` are the layers as the
    /// part computes them.
    fn layer_bytes(
        &self,
        packer: &WeightPacker<'_>,
        architecture: &Architecture,
        own_layers: &[Layer],
    ) -> Result<usize, LoadError> {
        let expansions = self
            .layers_of(own_layers)
            .map(|(index, layer)| PackedLatent::expansion_bytes(&packer.types, index, layer))
            .fold(0, usize::saturating_add);
        let mut layers = self.layers_of(&architecture.layers);
        layers.try_fold(expansions, |sum, (index, layer)| {
            matrices(architecture, index, layer).try_fold(sum, |sum, tensors| {
                Ok(sum.saturating_add(packer.projection_bytes(&tensors)?))
            })
        })
    }
}

/// Returns the tensors of each matrix of a layer, with their shapes.
fn matrices<'a>(
    architecture: &'a Architecture,
    index: usize,
    layer: &'a Layer,
) -> impl Iterator<Item = Vec<(Tensor, Vec<usize>)>> + 'a {
    let with_shape = |tensor| (tensor, architecture.shape(tensor));
    let has = |tensor: &LayerTensor| layer.has(*tensor, architecture.norm);
    let routers: [&'static [LayerTensor]; 2] = [&[LayerTensor::Router], &[LayerTensor::SharedGate]];
    let dense = LayerTensor::PROJECTIONS.into_iter().chain(routers).map(move |tensors| {
        let stored = tensors.iter().filter(|tensor| has(tensor));
        stored.map(|&tensor| with_shape(Tensor::Layer(index, tensor))).collect::<Vec<_>>()
    });
    let experts = layer.experts.into_iter().flat_map(move |experts| {
        let is_stored = move |part: &ExpertTensor| experts.mlp.gated || *part != ExpertTensor::Gate;
        (0..experts.n_experts).flat_map(move |expert| {
            ExpertTensor::PROJECTIONS.into_iter().map(move |parts| {
                let parts = parts.iter().filter(|part| is_stored(part));
                parts.map(|&part| with_shape(Tensor::Expert(index, expert, part))).collect()
            })
        })
    });
    dense.filter(|tensors| !tensors.is_empty()).chain(experts)
}
