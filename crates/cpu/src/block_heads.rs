//! The heads after a block drafter's layers on a team (DSpark, DFlash 2). See [`BlockHeads`] for
//! what they compute.

use crate::kernels::{Activations, NormWeights, PackedMatrix, linear, norm_rows};
use crate::team::Team;
use crate::weights::WeightPacker;
use forerun_core::TokenId;
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    BlockHeadTensor, BlockHeads, ConfidenceInput, LoadError, MarkovKind, MatrixTypes, ModelTypes,
    Norm, TensorSource,
};
use forerun_lm::{BlockCorrection, BlockPosition, ForwardBlockHeads};
use forerun_vector::{sigmoid, tanh};
use std::sync::Arc;

/// The packed weights of the heads.
pub struct BlockHeadWeights {
    heads: BlockHeads,
    final_norm: NormWeights,
    markov: Option<MarkovWeights>,
    confidence: Option<ConfidenceWeights>,
    selector: Option<SelectorWeights>,
}

struct SelectorWeights {
    predecessor: PackedMatrix, // [vocab, rank]
    successor: PackedMatrix,   // [vocab, rank]
    projection: PackedMatrix,  // [rank, hidden]
}

struct MarkovWeights {
    previous: PackedMatrix, // [vocab, rank]
    /// The projection of a gated or recurrent head, with its bias.
    mixing: Option<PackedMatrix>,
    logit_bias: PackedMatrix, // [head outputs, rank]
}

struct ConfidenceWeights {
    weights: Vec<f32>, // [inputs]
    bias: f32,
}

impl BlockHeadWeights {
    /// Reads and packs the heads of a drafter.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, or a value is not finite.
    pub fn load(
        heads: BlockHeads,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        let types = MatrixTypes::of_block_heads(types.weights, &heads, source)?;
        let packer = WeightPacker { source, types, part: None };
        let matrix = |part| packer.matrix(Tensor::BlockHead(part), &heads.shape(part));
        let floats = |part| packer.floats(Tensor::BlockHead(part), &heads.shape(part));
        let mixing = |part, bias| Ok::<_, LoadError>(matrix(part)?.with_bias(Some(floats(bias)?)));
        let markov = heads.markov.map(|markov| {
            use BlockHeadTensor as T;
            Ok::<_, LoadError>(MarkovWeights {
                previous: matrix(T::Previous)?,
                mixing: match markov.kind {
                    MarkovKind::Vanilla => None,
                    MarkovKind::Gated => Some(mixing(T::Gate, T::GateBias)?),
                    MarkovKind::Recurrent => Some(mixing(T::Joint, T::JointBias)?),
                },
                logit_bias: matrix(T::LogitBias)?,
            })
        });
        let confidence = heads.confidence.map(|_| {
            let bias = floats(BlockHeadTensor::ConfidenceBias)?;
            Ok::<_, LoadError>(ConfidenceWeights {
                weights: floats(BlockHeadTensor::Confidence)?,
                bias: bias.first().copied().unwrap_or(0.0),
            })
        });
        let selector = heads.selector.map(|_| {
            Ok::<_, LoadError>(SelectorWeights {
                predecessor: matrix(BlockHeadTensor::Predecessor)?,
                successor: matrix(BlockHeadTensor::Successor)?,
                projection: matrix(BlockHeadTensor::SelectorProjection)?,
            })
        });
        let final_norm = NormWeights {
            weight: packer.floats(Tensor::FinalNorm, &[heads.hidden_size])?,
            bias: None,
            epsilon: heads.norm_epsilon,
        };
        let (markov, confidence) = (markov.transpose()?, confidence.transpose()?);
        Ok(Self { heads, final_norm, markov, confidence, selector: selector.transpose()? })
    }

    /// Returns the memory that the heads need at least, in bytes.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn least_memory(
        heads: &BlockHeads,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<usize, LoadError> {
        let types = MatrixTypes::of_block_heads(types.weights, heads, source)?;
        let packer = WeightPacker { source, types, part: None };
        heads.matrices().try_fold(0_usize, |sum, part| {
            let bytes = packer.matrix_bytes(Tensor::BlockHead(part), &heads.shape(part))?;
            Ok(sum.saturating_add(bytes))
        })
    }

    /// Returns what the heads compute.
    #[must_use]
    pub fn heads(&self) -> &BlockHeads {
        &self.heads
    }
}

/// The heads on a team.
pub struct CpuBlockHeads {
    weights: Arc<BlockHeadWeights>,
    team: Arc<Team>,
    activations: Activations,
}

/// What the heads compute for a position before the bias of the logits.
#[derive(Default)]
struct Latent {
    /// What the bias is computed from: `[rank]`.
    values: Vec<f32>,
    /// The state after the position: `[rank]`, or empty.
    state: Vec<f32>,
}

impl CpuBlockHeads {
    /// Creates heads that run on `team`.
    #[must_use]
    pub fn new(weights: Arc<BlockHeadWeights>, team: Arc<Team>) -> Self {
        Self { weights, team, activations: Activations::default() }
    }

    /// Returns the hidden states after the final norm: `[positions, hidden]`.
    fn normed(&self, positions: &[BlockPosition<'_>]) -> Vec<f32> {
        let hidden: Vec<f32> = positions.iter().flat_map(|p| p.hidden).copied().collect();
        let mut normed = vec![0.0; hidden.len()];
        norm_rows(self.team.isa(), Norm::Rms, &hidden, &self.weights.final_norm, &mut normed);
        normed
    }

    /// Returns the latent vectors of positions with these normed hidden states and embeddings:
    /// `[hidden]` and `[rank]` for each.
    fn latents(
        &mut self,
        positions: &[BlockPosition<'_>],
        normed: &[&[f32]],
        embeddings: &[Vec<f32>],
    ) -> Vec<Latent> {
        let Self { weights, team, activations } = self;
        let rank = weights.heads.rank();
        let Some(mixing) = weights.markov.as_ref().and_then(|markov| markov.mixing.as_ref()) else {
            let latent = |e: &Vec<f32>| Latent { values: e.clone(), state: Vec::new() };
            return embeddings.iter().map(latent).collect();
        };
        let is_recurrent = weights.is_recurrent();
        let mut inputs = Vec::with_capacity(positions.len() * mixing.inputs());
        for ((position, normed), embedding) in positions.iter().zip(normed).zip(embeddings) {
            if !is_recurrent {
                inputs.extend_from_slice(normed);
                inputs.extend_from_slice(embedding);
                continue;
            }
            let start = inputs.len();
            inputs.extend_from_slice(position.state);
            inputs.resize(start + rank, 0.0);
            inputs.extend_from_slice(embedding);
            inputs.extend_from_slice(normed);
        }
        let mut mixed = vec![0.0; positions.len() * mixing.outputs()];
        linear(team, &inputs, mixing, activations, &mut mixed);
        let rows = mixed.chunks_exact(mixing.outputs());
        let latent = |((row, embedding), position): ((&[f32], &Vec<f32>), &BlockPosition<'_>)| {
            if !is_recurrent {
                let values = row.iter().zip(embedding).map(|(gate, e)| sigmoid(*gate) * e);
                return Latent { values: values.collect(), state: Vec::new() };
            }
            let (gates, rest) = row.split_at(rank);
            let (candidates, outputs) = rest.split_at(rank);
            let before = position.state.iter().copied().chain(std::iter::repeat(0.0));
            let state = gates.iter().zip(candidates).zip(before).map(|((gate, candidate), old)| {
                let gate = sigmoid(*gate);
                gate * old + (1.0 - gate) * tanh(*candidate)
            });
            let values = outputs.iter().map(|output| tanh(*output)).collect();
            Latent { values, state: state.collect() }
        };
        rows.zip(embeddings).zip(positions).map(latent).collect()
    }

    /// Returns the biases of the logits of latent vectors: `[vocab]` for each.
    fn logit_biases(&mut self, latents: &[&[f32]]) -> Vec<Vec<f32>> {
        let Self { weights, team, activations } = self;
        let Some(markov) = weights.markov.as_ref().filter(|_| !latents.is_empty()) else {
            return vec![Vec::new(); latents.len()];
        };
        let outputs = markov.logit_bias.outputs();
        let mut biases = vec![0.0; latents.len() * outputs];
        linear(team, &latents.concat(), &markov.logit_bias, activations, &mut biases);
        let BlockHeads { head_tokens, vocab_size, .. } = &weights.heads;
        let of_vocabulary = |row: &[f32]| match head_tokens {
            None => row.to_vec(),
            Some(tokens) => {
                let mut biases = vec![0.0; *vocab_size];
                for (&token, &bias) in tokens.iter().zip(row) {
                    biases[token as usize] = bias;
                }
                biases
            }
        };
        biases.chunks_exact(outputs).map(of_vocabulary).collect()
    }

    /// Returns what a selector adds to the logits of the candidates of each position:
    /// `[candidates]` for each. `None` without a selector.
    fn candidate_biases(
        &mut self,
        positions: &[BlockPosition<'_>],
        normed: &[f32],
    ) -> Option<Vec<Vec<f32>>> {
        let Self { weights, team, activations } = self;
        let selector = weights.selector.as_ref()?;
        let rank = selector.projection.outputs();
        let mut projected = vec![0.0; positions.len() * rank];
        linear(team, normed, &selector.projection, activations, &mut projected);
        let mut row = vec![0.0; rank];
        let biases = |(position, projected): (&BlockPosition<'_>, &mut [f32])| {
            selector.predecessor.unpack_row(position.previous as usize, &mut row);
            projected.iter_mut().zip(&row).for_each(|(x, predecessor)| *x *= predecessor);
            let candidates = position.candidates.iter().map(|&candidate| {
                selector.successor.unpack_row(candidate as usize, &mut row);
                projected.iter().zip(&row).fold(0.0, |sum, (x, successor)| sum + x * successor)
            });
            candidates.collect()
        };
        Some(positions.iter().zip(projected.chunks_exact_mut(rank)).map(biases).collect())
    }
}

impl BlockHeadWeights {
    fn is_recurrent(&self) -> bool {
        self.heads.markov.is_some_and(|markov| markov.kind == MarkovKind::Recurrent)
    }

    /// Returns the Markov head's embedding of a token: `[rank]`.
    fn embedding(&self, token: TokenId) -> Vec<f32> {
        let mut row = vec![0.0; self.heads.rank()];
        if let Some(markov) = &self.markov {
            markov.previous.unpack_row(token as usize, &mut row);
        }
        row
    }

    /// Returns the predicted probability of acceptance.
    fn confidence(&self, normed: &[f32], embedding: &[f32]) -> f32 {
        let Some(ConfidenceWeights { weights, bias }) = &self.confidence else { return 1.0 };
        let embedding = match self.heads.confidence {
            Some(ConfidenceInput::HiddenAndPrevious) => embedding,
            _ => &[],
        };
        let inputs = normed.iter().chain(embedding);
        let sum = inputs.zip(weights).fold(0.0, |sum, (input, weight)| sum + input * weight);
        sigmoid(sum + bias)
    }
}

impl ForwardBlockHeads for CpuBlockHeads {
    fn is_recurrent(&self) -> bool {
        self.weights.is_recurrent()
    }

    fn candidates(&self) -> Option<usize> {
        self.weights.heads.selector.map(|selector| selector.candidates)
    }

    fn forward(&mut self, positions: &[BlockPosition<'_>]) -> Vec<BlockCorrection> {
        let normed = self.normed(positions);
        if let Some(biases) = self.candidate_biases(positions, &normed) {
            let correction =
                |logit_bias| BlockCorrection { logit_bias, confidence: 1.0, state: Vec::new() };
            return biases.into_iter().map(correction).collect();
        }
        let normed: Vec<&[f32]> = normed.chunks_exact(self.weights.heads.hidden_size).collect();
        let embeddings: Vec<Vec<f32>> =
            positions.iter().map(|position| self.weights.embedding(position.previous)).collect();
        let latents = self.latents(positions, &normed, &embeddings);
        let predicting = latents.iter().zip(positions).filter(|(_, position)| position.predicts);
        let predicting: Vec<&[f32]> = predicting.map(|(latent, _)| &latent.values[..]).collect();
        let mut biases = self.logit_biases(&predicting).into_iter();
        let confidences = normed.iter().zip(&embeddings);
        let confidences = confidences.map(|(normed, e)| self.weights.confidence(normed, e));
        let rows = positions.iter().zip(latents).zip(confidences);
        let correction = |((position, latent), confidence): ((&BlockPosition<'_>, Latent), f32)| {
            let logit_bias = position.predicts.then(|| biases.next()).flatten();
            let logit_bias = logit_bias.unwrap_or_default();
            BlockCorrection { logit_bias, confidence, state: latent.state }
        };
        rows.map(correction).collect()
    }
}
