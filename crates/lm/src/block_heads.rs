//! The interface of heads that correct a block's rows, one position after another (DSpark, DFlash
//! 2).

use forerun_core::TokenId;

/// Heads after the layers of a block drafter.
///
/// *DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation*, 2026,
/// arXiv 2607.05147, section 3. The layers compute all positions of a block at once; the heads see
/// the tokens that have been drafted before a position. DFlash 2 has a head that chooses among the
/// most probable tokens of a position.
pub trait ForwardBlockHeads {
    /// Returns whether what the heads compute for a position depends on all positions of the block
    /// before it, through [`BlockPosition::state`].
    fn is_recurrent(&self) -> bool;

    /// Returns the number of tokens that the heads choose among, which are those with the largest
    /// logits of the position's row. `None` if they choose among all tokens.
    fn candidates(&self) -> Option<usize>;

    /// Computes positions. What a position gets depends only on its own inputs.
    fn forward(&mut self, positions: &[BlockPosition<'_>]) -> Vec<BlockCorrection>;
}

/// What heads read for a position of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockPosition<'a> {
    /// The hidden state of the position's row after the last layer, before the final norm:
    /// `[hidden]`.
    pub hidden: &'a [f32],
    /// The token before the position.
    pub previous: TokenId,
    /// The state after the position before; empty for the first position of a block.
    pub state: &'a [f32],
    /// Whether a token is drafted for the position. If not, only the state is computed.
    pub predicts: bool,
    /// The tokens that the heads choose among, if they do not choose among all.
    pub candidates: &'a [TokenId],
}

/// What heads compute for a position of a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockCorrection {
    /// What is added to the position's logits: `[vocab]`, or `[candidates]` if the heads choose
    /// among some tokens. Empty without such a head.
    pub logit_bias: Vec<f32>,
    /// The predicted probability that the target accepts the position's token if it accepts those
    /// before it. 1 without such a head. It does not depend on the position's token.
    pub confidence: f32,
    /// The state after the position; empty if the heads are not recurrent.
    pub state: Vec<f32>,
}
