//! The forward pass of a block drafter: DFlash (arXiv 2602.06036, §4) and DSpark (arXiv 2607.05147,
//! §3).
//!
//! The context of a token is `norm(fc(hidden states of several of the target's layers))`. Every
//! layer computes keys and values of all tokens before a block from it. A block is the embedding of
//! its anchor, and that of the mask token in all further places. In DFlash, the row of a mask
//! predicts the token in its place. In DSpark, each row predicts the token after its place.

use super::forward::Drafter;
use super::target::{Target, Text};
use super::weights::{
    ATTENTION, ATTENTION_NORM, CONTEXT_NORM, FC, KEY_NORM, MLP, MLP_NORM, QUERY_NORM, of_layer,
};
use crate::ops::context_attention::ContextAttention;
use crate::ops::groups::Groups;
use crate::ops::mlp_block::MlpBlock;
use crate::ops::{AttentionShape, MlpShape, apply};
use candle_core::{D, Device, Result, Tensor, bail};
use std::sync::Arc;

impl Drafter {
    /// Computes the rows of all blocks that predict tokens,
    /// `[sequences · positions · blocks, hidden]`: in each sequence, the first one of every block,
    /// then the second one of every block, and so on.
    pub(super) fn block_rows(
        &self,
        target: &Target,
        text: &Text,
        groups: &Arc<Groups>,
    ) -> Result<Tensor> {
        let hidden = self.config.hidden_size;
        let (sequences, blocks) = (text.sequences(), groups.anchors().len());
        let block_rows = groups.further_rows() * blocks;
        let context = self.context_rows(text)?.reshape((sequences, text.context, hidden))?;
        let mut x = self.block_inputs(target, text, groups)?;
        for layer in 0..self.config.num_hidden_layers {
            let weights = |name| self.weights.require(&of_layer(name, layer));
            let norms = [weights(ATTENTION_NORM)?, weights(QUERY_NORM)?, weights(KEY_NORM)?];
            let attention = ContextAttention {
                shape: AttentionShape::of(&self.config),
                rope: Arc::clone(&self.rope),
                groups: Arc::clone(groups),
            };
            let rows = Tensor::cat(&[&context, &x.reshape((sequences, block_rows, hidden))?], 1)?;
            let rows = rows.contiguous()?.reshape((sequences * groups.rows(), hidden))?;
            x = apply(attention, [&rows, &Tensor::cat(&norms, 0)?, weights(ATTENTION)?])?;
            let mlp = MlpBlock { shape: MlpShape::of(&self.config) };
            x = apply(mlp, [&x, weights(MLP_NORM)?, weights(MLP)?])?;
        }
        let x = x.reshape((sequences, block_rows, hidden))?;
        let first = self.kind().first_predicting_row() * blocks;
        let predicting = x.narrow(1, first, block_rows - first)?.contiguous()?;
        predicting.reshape((sequences * (block_rows - first), hidden))
    }

    /// Computes the context of every token: `[sequences · context, hidden]`.
    fn context_rows(&self, text: &Text) -> Result<Tensor> {
        let size = (text.inputs.len(), text.layer_features.len() / text.inputs.len());
        let features = Tensor::from_slice(&text.layer_features, size, &Device::Cpu)?;
        let projected = features.matmul(&self.weights.require(FC)?.t()?)?;
        let mean = projected.sqr()?.mean_keepdim(D::Minus1)?;
        let size = (mean + f64::from(self.config.rms_norm_eps))?.sqrt()?;
        projected.broadcast_div(&size)?.broadcast_mul(self.weights.require(CONTEXT_NORM)?)
    }

    /// Returns the inputs of the blocks, `[sequences · block · blocks, hidden]`: in each sequence,
    /// all anchors, then all first masks, and so on.
    fn block_inputs(&self, target: &Target, text: &Text, groups: &Groups) -> Result<Tensor> {
        let Some(block) = &self.shape.block else {
            bail!("a {} drafter has no blocks", self.kind())
        };
        let masks = (groups.further_rows() - 1) * groups.anchors().len();
        let mask = target.embedding_of(block.mask);
        let mut values = Vec::new();
        for tokens in text.inputs.chunks_exact(text.context) {
            for &anchor in groups.anchors() {
                values.extend_from_slice(target.embedding_of(tokens[anchor]));
            }
            (0..masks).for_each(|_| values.extend_from_slice(mask));
        }
        let size = (values.len() / mask.len(), mask.len());
        Tensor::from_vec(values, size, &Device::Cpu)
    }
}
