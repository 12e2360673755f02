//! The first layer's input rows, from the embeddings of tokens and from features.

use super::rows::positions;
use crate::kernels::{Activations, Isa, NormWeights, linear, norm_rows};
use crate::team::Team;
use crate::weights::Weights;
use forerun_core::TokenId;
use forerun_formats::Input;
use forerun_model::{RowFeature, SequencePass};

/// The buffers of what is projected to the first layer's input.
#[derive(Default)]
pub(super) struct Inputs {
    embeddings: Vec<f32>, // [rows, hidden], if attention also reads embeddings (EAGLE-3)
    fused: Vec<f32>,      // [fused rows, inputs]
    /// The row of each of these.
    fused_rows: Vec<usize>,
    outputs: Vec<f32>, // [fused rows, hidden]
    /// An embedding or a feature before its norm.
    unnormed: Vec<f32>,
    activations: Activations,
}

impl Inputs {
    /// Returns the embeddings that attention reads next to the hidden state: `[rows, hidden]`.
    pub(super) fn embeddings(&self) -> &[f32] {
        &self.embeddings
    }

    pub(super) fn clear(&mut self) {
        self.embeddings.clear();
        self.fused.clear();
        self.fused_rows.clear();
    }

    /// Adds the new rows of a sequence to `hidden`. [`Self::fuse`] completes those that need a
    /// projection.
    pub(super) fn add(
        &mut self,
        weights: &Weights,
        team: &Team,
        sequence: &SequencePass<'_>,
        hidden: &mut Vec<f32>,
    ) {
        let (tokens, features) = (&sequence.tree.tokens()[sequence.held()..], sequence.features);
        match weights.architecture().input {
            Input::Embedding => {
                embed(weights, tokens, hidden);
                add_positions(weights, sequence, hidden);
            }
            Input::Block { .. } if features.is_empty() => embed(weights, tokens, hidden),
            input => {
                assert_eq!(features.len(), tokens.len(), "a feature for each row");
                for (&token, &feature) in tokens.iter().zip(features) {
                    match input {
                        Input::TargetKeys { width } => {
                            self.add_row_on_keys((weights, team), token, (feature, width), hidden);
                        }
                        _ => self.add_row(weights, team.isa(), (token, feature), hidden),
                    }
                }
            }
        }
    }

    /// Adds the row of a token with a feature.
    fn add_row(
        &mut self,
        weights: &Weights,
        isa: Isa,
        (token, feature): (TokenId, RowFeature<'_>),
        hidden: &mut Vec<f32>,
    ) {
        let input = weights.architecture().input;
        let values = match feature {
            RowFeature::Target(values)
            | RowFeature::Context(values)
            | RowFeature::Predicted(values) => values,
            RowFeature::Mask => weights.mask_feature(token),
        };
        let is_fused = match input {
            Input::EmbeddingAndFeature => {
                embed(weights, &[token], &mut self.fused);
                true
            }
            Input::NormedEmbeddingAndFeature => {
                self.unnormed.clear();
                embed(weights, &[token], &mut self.unnormed);
                let norms = weights.inputs.embedding_norm.as_slice();
                extend_normed(weights, isa, norms, &self.unnormed, &mut self.fused);
                true
            }
            Input::Feature { .. } => {
                embed(weights, &[token], &mut self.embeddings);
                !matches!(feature, RowFeature::Predicted(_))
            }
            Input::Block { .. } | Input::EmbeddingPlusFeature { .. } | Input::TargetKeys { .. } => {
                true
            }
            Input::Embedding | Input::UnprojectedFeature => false,
        };
        let final_norm = weights.final_norm.as_slice();
        if !is_fused {
            let normed = matches!(input, Input::Feature { normed_predictions: true, .. });
            let norms = if normed { final_norm } else { &[] };
            return extend_normed(weights, isa, norms, values, hidden);
        }
        let values = match (input, feature) {
            (Input::NormedEmbeddingAndFeature, RowFeature::Predicted(predicted)) => {
                self.unnormed.clear();
                extend_normed(weights, isa, final_norm, predicted, &mut self.unnormed);
                &self.unnormed
            }
            _ => values,
        };
        extend_normed(weights, isa, &weights.inputs.feature_norms, values, &mut self.fused);
        let size = weights.architecture().hidden_size;
        self.fused_rows.push(hidden.len() / size);
        match input {
            Input::EmbeddingPlusFeature { .. } => embed(weights, &[token], hidden),
            _ => hidden.resize(hidden.len() + size, 0.0),
        }
    }

    /// Adds the row of a token and the last `width` numbers of a feature, or a prediction. The rows
    /// of a context, of which layers read other parts, have no hidden state.
    fn add_row_on_keys(
        &mut self,
        (weights, team): (&Weights, &Team),
        token: TokenId,
        (feature, width): (RowFeature<'_>, usize),
        hidden: &mut Vec<f32>,
    ) {
        let Self { fused, fused_rows, unnormed, activations, .. } = self;
        let size = weights.architecture().hidden_size;
        match feature {
            RowFeature::Context(_) | RowFeature::Mask => return,
            RowFeature::Target(values) => {
                embed(weights, &[token], fused);
                let norms = &weights.inputs.feature_norms;
                extend_normed(weights, team.isa(), norms, &values[values.len() - width..], fused);
            }
            RowFeature::Predicted(state) => {
                embed(weights, &[token], fused);
                unnormed.clear();
                extend_normed(weights, team.isa(), weights.final_norm.as_slice(), state, unnormed);
                let start = fused.len();
                fused.resize(start + width, 0.0);
                if let Some(matrix) = &weights.inputs.prediction {
                    linear(team, unnormed, matrix, activations, &mut fused[start..]);
                }
            }
        }
        fused_rows.push(hidden.len() / size);
        hidden.resize(hidden.len() + size, 0.0);
    }

    /// Projects the rows that need it to the first layer's input.
    pub(super) fn fuse(&mut self, weights: &Weights, team: &Team, hidden: &mut [f32]) {
        let Self { fused, fused_rows, outputs, activations, .. } = self;
        let Some(matrix) = weights.inputs.fusion.as_ref().filter(|_| !fused_rows.is_empty()) else {
            return;
        };
        let size = matrix.outputs();
        outputs.resize(fused_rows.len() * size, 0.0);
        linear(team, fused, matrix, activations, outputs);
        for (row, output) in fused_rows.iter().zip(outputs.chunks_exact(size)) {
            let hidden = &mut hidden[row * size..][..size];
            match weights.architecture().input {
                Input::EmbeddingPlusFeature { scale, .. } => {
                    hidden.iter_mut().zip(output).for_each(|(x, output)| *x += scale * output);
                }
                _ => hidden.copy_from_slice(output),
            }
        }
    }
}

/// Adds the embeddings of positions to the last rows, if the model has any.
fn add_positions(weights: &Weights, sequence: &SequencePass<'_>, hidden: &mut [f32]) {
    if weights.architecture().positions.is_none() {
        return;
    }
    let size = weights.architecture().hidden_size;
    let first = hidden.len() - sequence.rows() * size;
    for (row, position) in hidden[first..].chunks_exact_mut(size).zip(positions(sequence)) {
        weights.add_position(position, row);
    }
}

/// Appends a row to `rows`: with a norm of each of its parts, or as it is if there are no `norms`.
fn extend_normed(
    weights: &Weights,
    isa: Isa,
    norms: &[NormWeights], // [parts][part width]
    row: &[f32],
    rows: &mut Vec<f32>,
) {
    let start = rows.len();
    rows.extend_from_slice(row);
    let Some(width) = norms.first().map(|norm| norm.weight.len()) else { return };
    let parts = row.chunks_exact(width).zip(rows[start..].chunks_exact_mut(width));
    for ((part, out), norm) in parts.zip(norms) {
        norm_rows(isa, weights.architecture().norm, part, norm, out);
    }
}

/// Appends the embeddings of tokens to `rows`.
pub(super) fn embed(weights: &Weights, tokens: &[TokenId], rows: &mut Vec<f32>) {
    let (size, start) = (weights.architecture().embedding_width(), rows.len());
    rows.resize(start + tokens.len() * size, 0.0);
    for (row, &token) in rows[start..].chunks_exact_mut(size).zip(tokens) {
        weights.embed(token, row);
    }
}
