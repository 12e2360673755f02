//! The widths of the buffers of passes.

use crate::latent::plain_stride;
use crate::layer_weights::{
    AttentionNormWeights, AttentionWeights, LayerWeights, MixerWeights, RecurrentWeights,
};
use crate::weights::GpuWeights;

/// The numbers of a row in the buffers of passes: those of the layer with the most.
#[derive(Default)]
pub(crate) struct Widths {
    pub(crate) projected: usize,
    pub(crate) queries: usize,
    pub(crate) attended: usize,
    pub(crate) gates: usize,
    pub(crate) latent_normed: usize,
    pub(crate) latent_queries: usize,
    pub(crate) latent_plain: usize,
    pub(crate) latent_down: usize,
    pub(crate) latent_values: usize,
    pub(crate) convolved: usize,
    pub(crate) recurred: usize,
    pub(crate) scores: usize,
    pub(crate) own_inputs: usize,
    pub(crate) features: usize,
    pub(crate) embeddings: usize,
    pub(crate) joined: usize,
    /// The numbers of convolutions over blocks, and the width of what they convolve.
    pub(crate) block_own: usize,
    pub(crate) block: usize,
    /// The width of the output of a dense MLP, if a layer also has experts.
    pub(crate) dense_next_to_experts: usize,
}

impl Widths {
    pub(crate) fn of(weights: &GpuWeights) -> Self {
        let mut widths = Self { gates: 1, ..Self::default() };
        if let Some(inputs) = &weights.own_inputs {
            widths.own_inputs = inputs.projection.outputs;
            widths.projected = inputs.projection.outputs;
        }
        let architecture = weights.architecture();
        if let Some(features) = &weights.features {
            widths.features = architecture.feature_width();
            widths.embeddings = architecture.hidden_size;
            widths.joined = features.projection.as_ref().map_or(0, |matrix| matrix.inputs);
            if features.prediction.is_some() {
                include(&mut widths.joined, widths.features);
            }
        }
        for layer in &weights.layers {
            if let AttentionNormWeights::EmbeddingAndHidden { .. } = layer.attention_norm {
                include(&mut widths.joined, 2 * architecture.hidden_size);
            }
            for conv in layer.attention_conv.iter().chain(&layer.mlp_conv) {
                include(&mut widths.block_own, conv.projection.outputs);
                include(&mut widths.block, architecture.hidden_size);
            }
            match &layer.mixer {
                MixerWeights::Attention(attention) => widths.include_attention(attention),
                MixerWeights::Recurrent(mixer) => widths.include_recurrent(mixer),
            }
            if let Some(experts) = &layer.experts {
                include(&mut widths.scores, experts.router.outputs);
                if layer.dense.is_some() {
                    widths.dense_next_to_experts = weights.architecture().hidden_size;
                }
            }
        }
        widths
    }

    fn include_attention(&mut self, attention: &AttentionWeights) {
        let shape = &attention.shape;
        include(&mut self.projected, attention.projection.outputs);
        include(&mut self.queries, shape.q_size());
        include(&mut self.attended, shape.n_heads * attention.value_dim());
        if attention.gate.is_some() {
            include(&mut self.gates, shape.q_size());
        }
        if let Some(latent) = &attention.latent {
            if let Some((_, up)) = &latent.queries {
                include(&mut self.latent_normed, up.inputs);
                include(&mut self.latent_queries, up.outputs);
            }
            include(&mut self.latent_plain, shape.n_heads * plain_stride(latent));
            include(&mut self.latent_down, latent.down.outputs);
            include(&mut self.latent_values, shape.n_heads * latent.shape.value_dim);
        }
    }

    fn include_recurrent(&mut self, mixer: &RecurrentWeights) {
        include(&mut self.projected, mixer.projection.outputs);
        include(&mut self.convolved, mixer.shape.channels());
        include(&mut self.recurred, mixer.shape.value_width());
        include(&mut self.attended, mixer.shape.value_width());
    }
}

fn include(widest: &mut usize, width: usize) {
    *widest = width.max(*widest);
}

/// Returns the widest projections of dense MLPs and of experts: their gates and ups, and the
/// results of activations. Layers' own inputs count as dense MLPs.
pub(crate) fn widths_of_mlps(weights: &GpuWeights) -> [[usize; 2]; 2] {
    let widest = |one: [usize; 2], other: [usize; 2]| [one[0].max(other[0]), one[1].max(other[1])];
    let of_layer = |layer: &LayerWeights| {
        let own_input = layer.own_input.as_ref().map_or(0, |input| input.shape.width);
        let dense = layer.dense.as_ref();
        let experts = layer.experts.as_ref();
        [
            widest(
                [own_input; 2],
                dense.map_or([0, 0], |it| [it.gate_up.outputs, it.mlp.intermediate_size]),
            ),
            experts.map_or([0, 0], |experts| {
                [experts.gate_up.outputs, experts.shape.mlp.intermediate_size]
            }),
        ]
    };
    let all = weights.layers.iter().map(of_layer);
    all.fold([[0; 2]; 2], |[dense, experts], of| [widest(dense, of[0]), widest(experts, of[1])])
}
