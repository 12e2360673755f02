//! A drafter's rows: what it reads, its one layer, and what goes to the target's head.

use super::options::TrainedDrafterKind;
use super::target::{Target, Text};
use super::weights::{
    ATTENTION, ATTENTION_NORM, FC, FC_BIAS, FINAL_NORM, MASK_EMBEDDINGS, MASK_FEATURES, MLP,
    MLP_NORM, Weights,
};
use crate::model::Parameter;
use crate::ops::attention::Rope;
use crate::ops::attention_block::AttentionBlock;
use crate::ops::groups::Groups;
use crate::ops::mlp_block::MlpBlock;
use crate::ops::{AttentionShape, MlpShape, apply, none};
use candle_core::{Device, Result, Tensor, Var};
use forerun_model::Config;
use std::sync::Arc;

/// A drafter with its weights in f32.
pub struct Drafter {
    pub(super) kind: TrainedDrafterKind,
    /// Medusa's heads, or masks; 0 for EAGLE.
    pub(super) size: usize,
    /// Its layer is one of the target's shape.
    pub(super) config: Config,
    pub(super) weights: Weights,
    rope: Arc<Rope>,
}

impl Drafter {
    /// A drafter that has learnt nothing, of `draft_tokens` heads or masks.
    ///
    /// # Errors
    /// Where the library fails.
    pub fn random(
        kind: TrainedDrafterKind,
        draft_tokens: usize,
        target: &Target,
        seed: u64,
    ) -> Result<Self> {
        let weights = Weights::random(kind, draft_tokens, target, seed)?;
        Ok(Self::new(kind, draft_tokens, target.config(), weights))
    }

    pub(super) fn new(
        kind: TrainedDrafterKind,
        draft_tokens: usize,
        target: &Config,
        weights: Weights,
    ) -> Self {
        let size = if kind == TrainedDrafterKind::Eagle { 0 } else { draft_tokens };
        let config = Config { num_hidden_layers: 1, ..target.clone() };
        let frequencies: Vec<f32> =
            (0..config.head_dim / 2).map(|pair| config.rope_frequency(pair)).collect();
        // Drafts may reach beyond the last token.
        let positions = config.max_position_embeddings + draft_tokens + 1;
        let rope = Arc::new(Rope::new(&frequencies, positions));
        Self { kind, size, config, weights, rope }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> TrainedDrafterKind {
        self.kind
    }

    /// Medusa's heads, or masks; 0 for EAGLE.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Everything that is trained.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        self.weights.parameters()
    }

    /// Rows of a sequence that are tokens, of a text of `context` tokens: EAGLE has none for the
    /// first, since there is no feature before it.
    pub(super) fn token_rows(&self, context: usize) -> usize {
        context - usize::from(self.kind.predicts_features())
    }

    /// Medusa's rows, `[heads · places, hidden]`, head by head: `x + SiLU(W x + b)` of each feature
    /// (Medusa, §2.1.1).
    pub(super) fn medusa(&self, features: &Tensor) -> Result<Tensor> {
        let of_head = |[weight, bias]: &[Var; 2]| {
            let inner = features.matmul(&weight.t()?)?.broadcast_add(bias)?.silu()?;
            features + inner
        };
        let heads = self.weights.heads().iter().map(of_head).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&heads, 0)
    }

    /// What the layer reads of a text's tokens, `[sequences · token rows, hidden]`: their embeddings,
    /// or `fc` of each with the feature before it (`noise` is added to features).
    pub(super) fn token_inputs(
        &self,
        target: &Target,
        text: &Text,
        noise: Option<&[f32]>,
    ) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let features = self.kind.predicts_features();
        let rows = self.token_rows(text.context);
        let mut values = Vec::with_capacity(text.inputs.len() * 2 * hidden);
        for (sequence, tokens) in text.inputs.chunks_exact(text.context).enumerate() {
            for (row, &token) in tokens[text.context - rows..].iter().enumerate() {
                values.extend_from_slice(target.embedding_of(token));
                if !features {
                    continue;
                }
                let place = sequence * text.context + row;
                let feature = &text.features[place * hidden..][..hidden];
                match noise {
                    None => values.extend_from_slice(feature),
                    Some(noise) => {
                        let noise = &noise[place * hidden..][..hidden];
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

    /// What the layer reads of tokens with features that it predicted itself: `[rows, hidden]`.
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

    /// What the layer reads of masks: `[masks, hidden]`.
    fn mask_inputs(&self) -> Result<Tensor> {
        let embeddings = self.weights.of(MASK_EMBEDDINGS)?;
        match self.weights.get(MASK_FEATURES) {
            None => Ok(embeddings.clone()),
            Some(features) => self.fc(&Tensor::cat(&[embeddings, features], 1)?),
        }
    }

    fn fc(&self, inputs: &Tensor) -> Result<Tensor> {
        inputs.matmul(&self.weights.of(FC)?.t()?)?.broadcast_add(self.weights.of(FC_BIAS)?)
    }

    /// The layer's rows of token inputs and its own masks, in the order of `groups` for each sequence.
    pub(super) fn masked_rows(&self, tokens: &Tensor, groups: &Arc<Groups>) -> Result<Tensor> {
        if groups.masks() == 0 {
            return self.rows(tokens, &[], groups);
        }
        let masks = self.mask_inputs()?;
        let sequences = tokens.dim(0)? / groups.tokens();
        let size = (sequences * groups.anchors().len(), self.config.hidden_size);
        let of_depth = |mask| masks.narrow(0, mask, 1)?.broadcast_as(size);
        let masks = (0..groups.masks()).map(of_depth).collect::<Result<Vec<_>>>()?;
        self.rows(tokens, &masks, groups)
    }

    /// The layer's rows, `[sequences · rows, hidden]`, of token inputs, and for each depth behind them
    /// `[sequences · groups, hidden]`.
    pub(super) fn rows(
        &self,
        tokens: &Tensor,
        behind: &[Tensor],
        groups: &Arc<Groups>,
    ) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let sequences = tokens.dim(0)? / groups.tokens();
        let by_sequence = |rows: &Tensor| {
            let own = rows.dim(0)? / sequences;
            rows.contiguous()?.reshape((sequences, own, hidden))
        };
        let parts = std::iter::once(tokens).chain(behind).map(by_sequence);
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
        let x = apply(attention, [&inputs, &norm, self.weights.of(ATTENTION)?])?;
        let mlp = MlpBlock { shape: MlpShape::of(&self.config) };
        apply(mlp, [&x, self.weights.of(MLP_NORM)?, self.weights.of(MLP)?])
    }

    /// The norm between the layer and the target's head, or none.
    pub(super) fn final_norm(&self) -> Result<Tensor> {
        match self.weights.get(FINAL_NORM) {
            Some(norm) => Ok(norm.clone()),
            None => none(),
        }
    }
}
