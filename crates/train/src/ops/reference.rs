//! Reference implementations of the operations, made of candle's own: slow, simple, and
//! differentiated by candle.

use super::groups::Groups;
use super::{AttentionShape, MlpShape};
use candle_core::{D, DType, Device, Result, Tensor};

pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean + f64::from(epsilon))?.sqrt()?)?.broadcast_mul(weight)
}

/// `x`: `[sequences · rows, hidden]`. RoPE has base 10,000, and the mask is that of
/// [`Groups::attends`].
pub(crate) fn attention_block(
    shape: &AttentionShape,
    groups: &Groups,
    x: &Tensor,
    norm: Option<&Tensor>,
    weights: &Tensor,
) -> Result<Tensor> {
    let normed = match norm {
        Some(norm) => rms_norm(x, norm, shape.epsilon)?,
        None => x.clone(),
    };
    x + attention(shape, groups, &normed, None, weights)?
}

/// `x`: `[sequences · rows, hidden]`, context rows and then the rows of blocks. `norms`: of the
/// blocks' rows, of queries and of keys. The result has the rows of blocks alone.
pub(crate) fn context_attention(
    shape: &AttentionShape,
    groups: &Groups,
    x: &Tensor,
    norms: &Tensor,
    weights: &Tensor,
) -> Result<Tensor> {
    let (rows, tokens) = (groups.rows(), groups.tokens());
    let sequences = x.dim(0)? / rows;
    let of_blocks = |x: &Tensor| {
        x.reshape((sequences, rows, shape.hidden))?.narrow(1, tokens, rows - tokens)?.contiguous()
    };
    let part = |from, size| norms.narrow(0, from, size);
    let norm = part(0, shape.hidden)?;
    let head_norms =
        [part(shape.hidden, shape.head_dim)?, part(shape.hidden + shape.head_dim, shape.head_dim)?];
    let context = x.reshape((sequences, rows, shape.hidden))?.narrow(1, 0, tokens)?.contiguous()?;
    let normed = rms_norm(&of_blocks(x)?, &norm, shape.epsilon)?;
    let inputs = Tensor::cat(&[context, normed], 1)?.reshape((sequences * rows, shape.hidden))?;
    let out = attention(shape, groups, &inputs, Some(&head_norms), weights)?;
    (of_blocks(x)? + of_blocks(&out)?)?.reshape((sequences * (rows - tokens), shape.hidden))
}

/// Computes attention for normed rows, with its output projection. `head_norms` are those of
/// queries and keys.
fn attention(
    shape: &AttentionShape,
    groups: &Groups,
    normed: &Tensor,
    head_norms: Option<&[Tensor; 2]>,
    weights: &Tensor,
) -> Result<Tensor> {
    let context = groups.rows();
    let AttentionShape { hidden, heads, kv_heads, head_dim, epsilon } = *shape;
    let sequences = normed.dim(0)? / context;
    let width = (heads + 2 * kv_heads) * head_dim;
    let input_weights = weights.narrow(0, 0, width * hidden)?.reshape((width, hidden))?;
    let output_weights = weights
        .narrow(0, width * hidden, heads * head_dim * hidden)?
        .reshape((hidden, heads * head_dim))?;
    let qkv = normed.matmul(&input_weights.t()?)?;
    let qkv = qkv.reshape((sequences, context, heads + 2 * kv_heads, head_dim))?.transpose(1, 2)?;
    let repeat = |from| {
        let part = qkv.narrow(1, from, kv_heads)?.contiguous()?;
        let size = (sequences, kv_heads, heads / kv_heads, context, head_dim);
        part.unsqueeze(2)?.broadcast_as(size)?.reshape((sequences, heads, context, head_dim))
    };
    let head_norm = |x: Tensor, which: usize| match head_norms {
        Some(norms) => rms_norm(&x, &norms[which], epsilon),
        None => Ok(x),
    };
    let q = rotate(&head_norm(qkv.narrow(1, 0, heads)?.contiguous()?, 0)?, groups, head_dim)?;
    let k = rotate(&head_norm(repeat(heads)?, 1)?, groups, head_dim)?;
    let v = repeat(heads + kv_heads)?;
    let scores = (q.matmul(&k.t()?)? / (head_dim as f64).sqrt())?;
    let mask: Vec<f32> = (0..context * context)
        .map(|at| if groups.attends(at / context, at % context) { 0.0 } else { -1e9 })
        .collect();
    let scores =
        scores.broadcast_add(&Tensor::from_vec(mask, (context, context), normed.device())?)?;
    let scores = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    let p = scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)?;
    let out = p.matmul(&v)?.transpose(1, 2)?.reshape((sequences * context, heads * head_dim))?;
    out.matmul(&output_weights.t()?)
}

fn rotate(x: &Tensor, groups: &Groups, head_dim: usize) -> Result<Tensor> {
    let context = groups.rows();
    let angles: Vec<f32> = (0..context)
        .flat_map(|row| {
            (0..head_dim / 2).map(move |pair| {
                groups.position(row) as f32 * 10_000_f32.powf(-2.0 * pair as f32 / head_dim as f32)
            })
        })
        .collect();
    let angles = Tensor::from_vec(angles, (context, head_dim / 2), &Device::Cpu)?;
    let (cos, sin) = (angles.cos()?.to_dtype(DType::F32)?, angles.sin()?);
    let low = x.narrow(D::Minus1, 0, head_dim / 2)?;
    let high = x.narrow(D::Minus1, head_dim / 2, head_dim / 2)?;
    let a = (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?;
    let b = (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?;
    Tensor::cat(&[a, b], D::Minus1)
}

pub(crate) fn mlp_block(
    shape: &MlpShape,
    x: &Tensor,
    norm: &Tensor,
    weights: &Tensor,
) -> Result<Tensor> {
    let MlpShape { hidden, intermediate, epsilon } = *shape;
    let size = intermediate * hidden;
    let matrix = |index: usize| weights.narrow(0, index * size, size);
    let gate = matrix(0)?.reshape((intermediate, hidden))?;
    let up = matrix(1)?.reshape((intermediate, hidden))?;
    let down = matrix(2)?.reshape((hidden, intermediate))?;
    let normed = rms_norm(x, norm, epsilon)?;
    let inner = (normed.matmul(&gate.t()?)?.silu()? * normed.matmul(&up.t()?)?)?;
    x + inner.matmul(&down.t()?)?
}

/// Computes the logarithms of the tokens' probabilities, `[rows, vocabulary]`.
pub(crate) fn log_probabilities(
    x: &Tensor,
    norm: &Tensor,
    head: &Tensor,
    epsilon: f32,
) -> Result<Tensor> {
    let logits = rms_norm(x, norm, epsilon)?.matmul(&head.t()?)?;
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)
}
