//! The packed weights that compute what layers read next to the hidden state before them.

use super::Weights;
use super::packer::WeightPacker;
use crate::kernels::{NormWeights, PackedMatrix};
use forerun_core::TokenId;
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{Architecture, Input, LoadError, PositionTable};

/// What computes the first layer's input from embeddings, positions and features, and the inputs
/// that layers have of their own.
#[derive(Default)]
pub(crate) struct InputWeights {
    /// Embeddings of positions, with that of the token type, if the model has any.
    positions: Vec<f32>, // [rows, hidden]
    /// Embeddings of the mask tokens, which have the ids after the vocabulary.
    masks: Vec<f32>, // [masks, hidden]
    /// The projection to the first layer's input.
    pub(crate) fusion: Option<PackedMatrix>,
    /// The projection of a hidden state to what the next row reads, if it has one (Gemma 4's
    /// assistants).
    pub(crate) prediction: Option<PackedMatrix>,
    /// The norm of the embedding before the projection, if it has one (MTP).
    pub(crate) embedding_norm: Option<NormWeights>,
    /// The norms of the parts of a feature before its projection, or of the whole.
    pub(crate) feature_norms: Vec<NormWeights>, // [parts][part width]
    /// The norm of a projected feature, if it has one (DFlash).
    pub(crate) context_norm: Option<NormWeights>,
    /// What rows of mask tokens read instead of the target's features.
    mask_features: Vec<f32>, // [masks, feature width]
    /// The inputs that layers have next to the hidden state, if they have any.
    pub(crate) own: Option<PackedOwnInputs>,
}

/// What computes the inputs that layers have next to the hidden state.
pub(crate) struct PackedOwnInputs {
    pub(super) table: PackedMatrix,      // [vocab, layers · width]
    pub(crate) projection: PackedMatrix, // [layers · width, hidden]
    /// The norm of each layer's part: `[width]`.
    pub(crate) norm: Vec<f32>,
}

impl PackedOwnInputs {
    /// Writes a token's row of the table: `[layers · width]`.
    pub(crate) fn stored(&self, token: TokenId, row: &mut [f32]) {
        self.table.unpack_row(token as usize, row);
    }
}

impl InputWeights {
    pub(super) fn pack(
        packer: &WeightPacker<'_>,
        architecture: &Architecture,
        target: Option<&Weights>,
    ) -> Result<Self, LoadError> {
        let matrix = |tensor| packer.matrix(tensor, &architecture.shape(tensor));
        let floats = |tensor| packer.floats(tensor, &architecture.shape(tensor));
        let floats_if = |wanted: bool, tensor| match wanted {
            true => floats(tensor),
            false => Ok(Vec::new()),
        };
        let feature_norm = |tensor| {
            let (weight, epsilon) = (floats(tensor)?, architecture.norm_epsilon);
            Ok::<_, LoadError>(NormWeights { weight, bias: None, epsilon })
        };
        let norm_if = |wanted: bool, tensor| wanted.then(|| feature_norm(tensor)).transpose();
        let fusion = || {
            let has_bias = packer.source.has(Tensor::FusionBias);
            let bias = has_bias.then(|| floats(Tensor::FusionBias)).transpose()?;
            Ok::<_, LoadError>(matrix(Tensor::Fusion)?.with_bias(bias))
        };
        let positions = |table: PositionTable| {
            let mut positions = floats(Tensor::Positions)?;
            if table.token_types > 0 {
                let types = floats(Tensor::TokenTypes)?;
                let rows = positions.chunks_exact_mut(architecture.hidden_size);
                rows.flat_map(|row| row.iter_mut().zip(&types)).for_each(|(x, of)| *x += of);
            }
            Ok::<_, LoadError>(positions)
        };
        let own = || {
            Ok::<_, LoadError>(PackedOwnInputs {
                table: matrix(Tensor::LayerInputs)?,
                projection: matrix(Tensor::LayerInputProjection)?,
                norm: floats(Tensor::LayerInputNorm)?,
            })
        };
        let input = architecture.input;
        let (has_masks, has_fusion) =
            (architecture.mask_tokens > 0, architecture.fusion_inputs().is_some());
        Ok(Self {
            positions: architecture.positions.map(positions).transpose()?.unwrap_or_default(),
            masks: floats_if(has_masks, Tensor::MaskEmbeddings)?,
            fusion: has_fusion.then(fusion).transpose()?,
            prediction: matches!(input, Input::TargetKeys { .. })
                .then(|| matrix(Tensor::Prediction))
                .transpose()?,
            embedding_norm: norm_if(
                input == Input::NormedEmbeddingAndFeature,
                Tensor::EmbeddingNorm,
            )?,
            feature_norms: match input {
                Input::EmbeddingPlusFeature { final_norm: Some(_), .. } => {
                    let target = target.ok_or(LoadError::NoTarget)?;
                    target.final_norm.iter().cloned().collect()
                }
                _ => architecture.feature_norms().map(feature_norm).collect::<Result<_, _>>()?,
            },
            context_norm: norm_if(matches!(input, Input::Block { .. }), Tensor::ContextNorm)?,
            mask_features: floats_if(has_masks && has_fusion, Tensor::MaskFeatures)?,
            own: architecture.own_input().map(|_| own()).transpose()?,
        })
    }

    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let own = self.own.iter().flat_map(|inputs| [&inputs.table, &inputs.projection]);
        own.chain(&self.fusion).chain(&self.prediction)
    }
}

impl Weights {
    /// Writes a token's embedding to `row`: `[hidden]`. A share writes those of its part of the
    /// vocabulary.
    pub(crate) fn embed(&self, token: TokenId, row: &mut [f32]) {
        match (token as usize).checked_sub(self.architecture.vocab_size) {
            None => {
                let own = self.share.outputs(self.architecture.vocab_size);
                if !own.contains(&(token as usize)) {
                    return;
                }
                self.embedding.unpack_row(token as usize - own.start, row);
                let factor = self.architecture.factors.embedding;
                row.iter_mut().for_each(|value| *value *= factor);
            }
            Some(mask) => row.copy_from_slice(&self.inputs.masks[mask * row.len()..][..row.len()]),
        }
    }

    /// Adds the embedding of a position to a row. The model must have such embeddings.
    pub(crate) fn add_position(&self, position: usize, row: &mut [f32]) {
        let first = self.architecture.positions.map_or(0, |table| table.first);
        let embedding = &self.inputs.positions[(first + position) * row.len()..][..row.len()];
        row.iter_mut().zip(embedding).for_each(|(value, embedding)| *value += embedding);
    }

    /// Returns what the row of a mask token reads instead of a feature: `[feature width]`.
    pub(crate) fn mask_feature(&self, token: TokenId) -> &[f32] {
        let size = self.architecture.feature_width();
        let mask = token as usize - self.architecture.vocab_size;
        &self.inputs.mask_features[mask * size..][..size]
    }
}
