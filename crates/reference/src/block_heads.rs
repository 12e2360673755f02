//! The heads after a block drafter's layers on the reference device.

use crate::matrix::Matrix;
use crate::weights::{ReferenceModel, add_assign};
use forerun_core::TokenId;
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    BlockHeadTensor, BlockHeads, ConfidenceInput, LoadError, MarkovKind, MatrixTypes, TensorSource,
};
use forerun_lm::{BlockCorrection, BlockPosition, ForwardBlockHeads};
use forerun_vector::{sigmoid, tanh};
use std::collections::HashMap;
use std::sync::Arc;

/// The heads after a block drafter's layers on the reference device.
pub struct ReferenceBlockHeads {
    heads: BlockHeads,
    layers: Arc<ReferenceModel>,
    matrices: HashMap<BlockHeadTensor, Matrix>,
    vectors: HashMap<BlockHeadTensor, Vec<f32>>,
}

impl ReferenceBlockHeads {
    /// Reads the tensors of the heads after `layers`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, or a value is not finite.
    pub fn load(
        heads: BlockHeads,
        source: &dyn TensorSource,
        layers: Arc<ReferenceModel>,
    ) -> Result<Self, LoadError> {
        let types = layers.arithmetic().types.weights;
        let types = MatrixTypes::of_block_heads(types, &heads, source)?;
        let (mut matrices, mut vectors) = (HashMap::new(), HashMap::new());
        for part in heads.matrices() {
            let tensor = Tensor::BlockHead(part);
            let rows = source.rows(tensor, &heads.shape(part))?;
            matrices.insert(part, Matrix::read(&rows, types.of(tensor))?);
        }
        for part in heads.vectors() {
            let rows = source.rows(Tensor::BlockHead(part), &heads.shape(part))?;
            vectors.insert(part, rows.read_all()?);
        }
        Ok(Self { heads, layers, matrices, vectors })
    }

    /// Applies a projection with its bias.
    fn project(&self, part: BlockHeadTensor, bias: BlockHeadTensor, x: &[f32]) -> Vec<f32> {
        let mut out = self.layers.multiply(&self.matrices[&part], x);
        add_assign(&mut out, &self.vectors[&bias]);
        out
    }

    /// Returns the latent vector of a position, and the state after it.
    fn latent(&self, kind: MarkovKind, normed: &[f32], read: (&[f32], &[f32])) -> [Vec<f32>; 2] {
        use BlockHeadTensor as T;
        let (embedding, state) = read;
        match kind {
            MarkovKind::Vanilla => [embedding.to_vec(), Vec::new()],
            MarkovKind::Gated => {
                let gates = self.project(T::Gate, T::GateBias, &[normed, embedding].concat());
                let gated = gates.iter().zip(embedding).map(|(gate, e)| sigmoid(*gate) * e);
                [gated.collect(), Vec::new()]
            }
            MarkovKind::Recurrent => {
                let rank = self.heads.rank();
                let mut state = state.to_vec();
                state.resize(rank, 0.0);
                let inputs = [&state[..], embedding, normed].concat();
                let joint = self.project(T::Joint, T::JointBias, &inputs);
                let next = (0..rank).map(|i| {
                    let gate = sigmoid(joint[i]);
                    gate * state[i] + (1.0 - gate) * tanh(joint[rank + i])
                });
                let outputs = joint[2 * rank..].iter().map(|output| tanh(*output));
                [outputs.collect(), next.collect()]
            }
        }
    }

    /// Returns the bias of the logits of a latent vector: `[vocab]`.
    fn logit_bias(&self, latent: &[f32]) -> Vec<f32> {
        let row = self.layers.multiply(&self.matrices[&BlockHeadTensor::LogitBias], latent);
        let Some(tokens) = &self.heads.head_tokens else { return row };
        let mut biases = vec![0.0; self.heads.vocab_size];
        for (&token, bias) in tokens.iter().zip(row) {
            biases[token as usize] = bias;
        }
        biases
    }

    fn confidence(&self, normed: &[f32], embedding: &[f32]) -> f32 {
        let inputs = match self.heads.confidence {
            None => return 1.0,
            Some(ConfidenceInput::Hidden) => normed.to_vec(),
            Some(ConfidenceInput::HiddenAndPrevious) => [normed, embedding].concat(),
        };
        let weights = &self.vectors[&BlockHeadTensor::Confidence];
        let sum = inputs.iter().zip(weights).fold(0.0, |sum, (input, weight)| sum + input * weight);
        sigmoid(sum + self.vectors[&BlockHeadTensor::ConfidenceBias][0])
    }

    /// Returns what a selector adds to the logits of a position's candidates: `[candidates]`.
    fn candidate_biases(&self, position: &BlockPosition<'_>, normed: &[f32]) -> Vec<f32> {
        use BlockHeadTensor as T;
        let projected = self.layers.multiply(&self.matrices[&T::SelectorProjection], normed);
        let predecessor = self.matrices[&T::Predecessor].weights(position.previous as usize);
        let context: Vec<f32> = projected.iter().zip(&predecessor).map(|(x, y)| x * y).collect();
        let bias = |&candidate: &TokenId| {
            let successor = self.matrices[&T::Successor].weights(candidate as usize);
            context.iter().zip(&successor).fold(0.0, |sum, (x, y)| sum + x * y)
        };
        position.candidates.iter().map(bias).collect()
    }

    fn correction(&self, position: &BlockPosition<'_>) -> BlockCorrection {
        let normed = self.layers.final_norm(position.hidden);
        if self.heads.selector.is_some() {
            let logit_bias = self.candidate_biases(position, &normed);
            return BlockCorrection { logit_bias, confidence: 1.0, state: Vec::new() };
        }
        let Some(markov) = self.heads.markov else {
            let confidence = self.confidence(&normed, &[]);
            return BlockCorrection { confidence, ..BlockCorrection::default() };
        };
        let previous = &self.matrices[&BlockHeadTensor::Previous];
        let embedding = previous.weights(position.previous as usize);
        let [latent, state] = self.latent(markov.kind, &normed, (&embedding, position.state));
        let confidence = self.confidence(&normed, &embedding);
        let logit_bias = if position.predicts { self.logit_bias(&latent) } else { Vec::new() };
        BlockCorrection { logit_bias, confidence, state }
    }
}

impl ForwardBlockHeads for ReferenceBlockHeads {
    fn is_recurrent(&self) -> bool {
        self.heads.markov.is_some_and(|markov| markov.kind == MarkovKind::Recurrent)
    }

    fn candidates(&self) -> Option<usize> {
        self.heads.selector.map(|selector| selector.candidates)
    }

    fn forward(&mut self, positions: &[BlockPosition<'_>]) -> Vec<BlockCorrection> {
        positions.iter().map(|position| self.correction(position)).collect()
    }
}
