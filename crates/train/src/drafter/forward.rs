//! The forward pass of drafters: the inputs, the layer or the heads, and the rows for the target's
//! head.
//!
//! Medusa (arXiv 2401.10774, §2.1.1), Hydra (arXiv 2402.05109, §3), EAGLE (arXiv 2401.15077, §3.1)
//! and ParallelSpec (arXiv 2410.05589, §4).

use super::options::{DrafterOptions, TrainedDrafterKind};
use super::shape::DrafterShape;
use super::target::{Target, Text};
use super::vocabulary::DraftVocabulary;
use super::weights::{
    ATTENTION, ATTENTION_NORM, CONFIDENCE, CONFIDENCE_BIAS, FC, FC_BIAS, FINAL_NORM, FIRST,
    FIRST_BIAS, MARKOV_BIAS, MARKOV_EMBEDDINGS, MASK_EMBEDDINGS, MASK_FEATURES, MLP, MLP_NORM,
    RESIDUAL, RESIDUAL_BIAS, Weights, of_layer,
};
use crate::model::Parameter;
use crate::ops::attention::Rope;
use crate::ops::attention_block::AttentionBlock;
use crate::ops::draft_head::FrozenHead;
use crate::ops::groups::Groups;
use crate::ops::mlp_block::MlpBlock;
use crate::ops::{AttentionShape, MlpShape, apply, none};
use candle_core::{Device, Result, Tensor};
use forerun_formats::{Config, Family, QkNorms};
use std::sync::Arc;

/// Number of positions after the last token for which there are rotary embeddings.
pub(super) const MOST_DRAFT_TOKENS: usize = 64;

/// A drafter, with its weights in f32.
pub struct Drafter {
    pub(super) shape: DrafterShape,
    /// The configuration of its layers, which have the target's shape. Those of a block drafter are
    /// a Qwen3's.
    pub(super) config: Config,
    pub(super) weights: Weights,
    /// The tokens that it can draft, if they are not all of the target's.
    pub(super) vocabulary: Option<DraftVocabulary>,
    pub(super) rope: Arc<Rope>,
}

impl Drafter {
    /// Creates an untrained drafter with `draft_tokens` heads or masks.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn random(options: &DrafterOptions, target: &Target, seed: u64) -> Result<Self> {
        let shape = DrafterShape::of(options, target);
        let weights = Weights::random(&shape, target, seed)?;
        Ok(Self::new(shape, target.config(), weights))
    }

    pub(super) fn new(shape: DrafterShape, target: &Config, weights: Weights) -> Self {
        let config = match &shape.block {
            None => Config { num_hidden_layers: 1, ..target.clone() },
            Some(block) => Config {
                family: Family::Qwen3,
                qk_norms: QkNorms::Heads,
                num_hidden_layers: block.layers,
                ..target.clone()
            },
        };
        let frequencies: Vec<f32> =
            (0..config.head_dim / 2).map(|pair| config.rope(0).frequency(pair)).collect();
        // A draft may extend beyond the last token.
        let positions = config.max_position_embeddings + MOST_DRAFT_TOKENS;
        let rope = Arc::new(Rope::new(&frequencies, positions));
        Self { shape, config, weights, vocabulary: None, rope }
    }

    /// Limits the drafter to some of the target's tokens, in ascending order. A Markov head keeps
    /// its rows of tokens that it had before, and gets rows without effect for others. `None`
    /// changes nothing.
    pub(super) fn with_vocabulary(
        mut self,
        tokens: Option<Arc<[u32]>>,
        target: &Target,
    ) -> Result<Self> {
        let Some(tokens) = tokens else { return Ok(self) };
        if let Some(rows) = self.weights.get(MARKOV_BIAS) {
            let (rows, rank) = (rows.to_vec2::<f32>()?, rows.dim(1)?);
            let row = |&token: &u32| match self.output_of(token) {
                Some(output) => rows[output as usize].clone(),
                None => vec![0.0; rank],
            };
            let rows = tokens.iter().map(row).collect();
            self.weights.set_rows(MARKOV_BIAS, rows)?;
        }
        self.vocabulary = Some(DraftVocabulary::new(tokens, target));
        Ok(self)
    }

    /// Returns the embeddings, `[vocabulary, rank]`, and the weights, `[outputs, rank]`, of the
    /// Markov head, and their rank; `None` without one.
    pub(super) fn markov_head(&self) -> Result<Option<([Vec<f32>; 2], usize)>> {
        let (Some(embeddings), Some(bias)) =
            (self.weights.get(MARKOV_EMBEDDINGS), self.weights.get(MARKOV_BIAS))
        else {
            return Ok(None);
        };
        let values = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        Ok(Some(([values(embeddings)?, values(bias)?], embeddings.dim(1)?)))
    }

    /// Returns the weights of DSpark's heads, one after another, as [`BlockHeadLoss`] reads them.
    ///
    /// [`BlockHeadLoss`]: crate::ops::block_head_loss::BlockHeadLoss
    pub(super) fn head_weights(&self) -> Result<Tensor> {
        let flat = |name| self.weights.require(name)?.flatten_all();
        let names = [MARKOV_EMBEDDINGS, MARKOV_BIAS, CONFIDENCE, CONFIDENCE_BIAS];
        Tensor::cat(&names.map(flat).into_iter().collect::<Result<Vec<_>>>()?, 0)
    }

    /// Returns the head: the target's, or its part for the drafter's vocabulary.
    pub(super) fn head<'a>(&'a self, target: &'a Target) -> &'a Arc<FrozenHead> {
        self.vocabulary.as_ref().map_or(target.head(), DraftVocabulary::head)
    }

    /// Returns the head's output for one of the target's tokens; `None` if the drafter cannot draft
    /// it.
    pub(super) fn output_of(&self, token: u32) -> Option<u32> {
        self.vocabulary.as_ref().map_or(Some(token), |vocabulary| vocabulary.output(token))
    }

    /// Returns the target's token of one of the head's outputs.
    pub(super) fn token_of(&self, output: usize) -> usize {
        self.vocabulary.as_ref().map_or(output, |vocabulary| vocabulary.token(output))
    }

    /// Returns the kind of the drafter.
    #[must_use]
    pub fn kind(&self) -> TrainedDrafterKind {
        self.shape.kind
    }

    /// Returns the number of heads (Medusa, Hydra) or masks, or of rows of DSpark's blocks; 0 for
    /// EAGLE.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shape.slots
    }

    /// Returns the trainable parameters.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        self.weights.parameters()
    }

    /// Returns the number of token rows of a sequence of `context` tokens. EAGLE has no row for the
    /// first token, because there is no feature before it.
    pub(super) fn token_rows(&self, context: usize) -> usize {
        context - usize::from(self.kind().predicts_features())
    }

    /// Returns the rows of sequences of `context` tokens with groups of `masks` masks, or blocks,
    /// at `anchors`.
    pub(super) fn groups(&self, context: usize, masks: usize, anchors: Vec<usize>) -> Groups {
        match self.shape.block {
            Some(_) => Groups::draft_blocks(context, masks + 1, anchors),
            None => Groups::new(self.token_rows(context), masks, anchors),
        }
    }

    /// Computes the rows of the heads for some of the target's rows: `[heads · rows, hidden]`, head
    /// by head.
    ///
    /// - Medusa: `x + SiLU(W x + b)` of the feature `x` (§2.1.1).
    /// - Hydra: `R c + d + SiLU(W c + b)`, where `c` is the feature and the embeddings of the
    ///   tokens after it, one more in each head (§3, with the residual connection of the authors'
    ///   code).
    pub(super) fn head_rows(&self, target: &Target, text: &Text, rows: &[usize]) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let feature = |&row: &usize| text.features[row * hidden..][..hidden].to_vec();
        let mut inputs: Vec<Vec<f32>> = rows.iter().map(feature).collect();
        let reads_tokens = self.kind() == TrainedDrafterKind::Hydra;
        let head_rows = |head: usize| {
            if reads_tokens {
                for (inputs, &row) in inputs.iter_mut().zip(rows) {
                    // No label exists beyond the text's end.
                    let exists = row % text.context + head < text.context;
                    let token = if exists { text.targets[row + head] } else { 0 };
                    inputs.extend_from_slice(target.embedding_of(token));
                }
            }
            let size = (rows.len(), inputs.first().map_or(0, Vec::len));
            let x = Tensor::from_vec(inputs.concat(), size, &Device::Cpu)?;
            let linear = |weight, bias| {
                let weight = self.weights.require(&of_layer(weight, head))?;
                let bias = self.weights.require(&of_layer(bias, head))?;
                x.matmul(&weight.t()?)?.broadcast_add(bias)
            };
            let residual = if reads_tokens { linear(RESIDUAL, RESIDUAL_BIAS)? } else { x.clone() };
            residual + linear(FIRST, FIRST_BIAS)?.silu()?
        };
        let heads = (0..self.slots()).map(head_rows).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&heads, 0)
    }

    /// Computes the layer's inputs for the tokens of a text, `[sequences · token rows, hidden]`:
    /// their embeddings or, for EAGLE, `fc(embedding, feature before the token)`. `noise`, shaped
    /// like the features, is added to them.
    pub(super) fn token_inputs(
        &self,
        target: &Target,
        text: &Text,
        noise: Option<&[f32]>,
    ) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let features = self.kind().predicts_features();
        let rows = self.token_rows(text.context);
        let mut values = Vec::with_capacity(text.inputs.len() * 2 * hidden);
        for (sequence, tokens) in text.inputs.chunks_exact(text.context).enumerate() {
            for (row, &token) in tokens[text.context - rows..].iter().enumerate() {
                values.extend_from_slice(target.embedding_of(token));
                if !features {
                    continue;
                }
                let target_row = sequence * text.context + row;
                let feature = &text.features[target_row * hidden..][..hidden];
                match noise {
                    None => values.extend_from_slice(feature),
                    Some(noise) => {
                        let noise = &noise[target_row * hidden..][..hidden];
                        values.extend(feature.iter().zip(noise).map(|(f, n)| f + n));
                    }
                }
            }
        }
        let width = if features { 2 * hidden } else { hidden };
        let size = (values.len() / width, width);
        let inputs = Tensor::from_vec(values, size, &Device::Cpu)?;
        if features { self.fc(&inputs) } else { Ok(inputs) }
    }

    /// Computes EAGLE's inputs for drafted tokens from the features that the drafter predicted:
    /// `[rows, hidden]`.
    pub(super) fn drafted_inputs(
        &self,
        target: &Target,
        tokens: &[u32],
        features: &Tensor,
    ) -> Result<Tensor> {
        let embeddings: Vec<f32> =
            tokens.iter().flat_map(|&token| target.embedding_of(token)).copied().collect();
        let size = (tokens.len(), self.config.hidden_size);
        let embeddings = Tensor::from_vec(embeddings, size, &Device::Cpu)?;
        self.fc(&Tensor::cat(&[&embeddings, features], 1)?)
    }

    /// Computes the layer's inputs for the masks: `[masks, hidden]`.
    fn mask_inputs(&self) -> Result<Tensor> {
        let embeddings = self.weights.require(MASK_EMBEDDINGS)?;
        match self.weights.get(MASK_FEATURES) {
            None => Ok(embeddings.clone()),
            Some(features) => self.fc(&Tensor::cat(&[embeddings, features], 1)?),
        }
    }

    /// Combines embeddings and features, `[rows, 2 · hidden]`, into the layer's inputs,
    /// `[rows, hidden]`.
    fn fc(&self, inputs: &Tensor) -> Result<Tensor> {
        inputs
            .matmul(&self.weights.require(FC)?.t()?)?
            .broadcast_add(self.weights.require(FC_BIAS)?)
    }

    /// Computes the layer's rows for token inputs followed by the drafter's masks. The rows of each
    /// sequence are in the order of `groups`.
    pub(super) fn layer_rows_with_masks(
        &self,
        tokens: &Tensor,
        groups: &Arc<Groups>,
    ) -> Result<Tensor> {
        if groups.further_rows() == 0 {
            return self.layer_rows(tokens, &[], groups);
        }
        let masks = self.mask_inputs()?;
        let sequences = tokens.dim(0)? / groups.tokens();
        let size = (sequences * groups.anchors().len(), self.config.hidden_size);
        let inputs_of_mask = |mask| masks.narrow(0, mask, 1)?.broadcast_as(size);
        let masks = (0..groups.further_rows()).map(inputs_of_mask).collect::<Result<Vec<_>>>()?;
        self.layer_rows(tokens, &masks, groups)
    }

    /// Computes the layer's rows, `[sequences · rows, hidden]`, for token inputs followed by the
    /// inputs of each further depth, `[sequences · groups, hidden]` each.
    pub(super) fn layer_rows(
        &self,
        tokens: &Tensor,
        draft_inputs: &[Tensor],
        groups: &Arc<Groups>,
    ) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let sequences = tokens.dim(0)? / groups.tokens();
        let by_sequence = |rows: &Tensor| {
            let sequence_rows = rows.dim(0)? / sequences;
            rows.contiguous()?.reshape((sequences, sequence_rows, hidden))
        };
        let parts = std::iter::once(tokens).chain(draft_inputs).map(by_sequence);
        let inputs = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 1)?;
        let inputs = inputs.contiguous()?.reshape((sequences * groups.rows(), hidden))?;
        let attention = AttentionBlock {
            shape: AttentionShape::of(&self.config),
            rope: Arc::clone(&self.rope),
            groups: Arc::clone(groups),
        };
        let norm = match self.weights.get(ATTENTION_NORM) {
            Some(norm) => norm.clone(),
            None => none()?,
        };
        let x = apply(attention, [&inputs, &norm, self.weights.require(ATTENTION)?])?;
        let mlp = MlpBlock { shape: MlpShape::of(&self.config) };
        apply(mlp, [&x, self.weights.require(MLP_NORM)?, self.weights.require(MLP)?])
    }

    /// Returns the weights of the norm between the layer and the target's head; empty if there is
    /// none.
    pub(super) fn final_norm(&self) -> Result<Tensor> {
        match self.weights.get(FINAL_NORM) {
            Some(norm) => Ok(norm.clone()),
            None => none(),
        }
    }
}
