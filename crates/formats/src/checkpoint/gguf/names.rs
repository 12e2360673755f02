//! llama.cpp's names of architectures and tensors.

use crate::config::Family;
use crate::tensor::{LayerTensor, Tensor};

/// The name of the tensor that holds one divisor of RoPE's frequency for each pair.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";
/// The name of the tensor that holds LongRoPE's divisors for texts that fit the original context.
pub(super) const SHORT_DIVISORS: &str = "rope_factors_short.weight";
/// The name of the tensor that holds LongRoPE's divisors for longer texts.
pub(super) const LONG_DIVISORS: &str = "rope_factors_long.weight";

/// The architectures that are written, with the families that they compute.
const WRITTEN: [(&str, Family); 4] = [
    ("llama", Family::Llama),
    ("llama", Family::Mistral),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
];

pub(super) const WRITTEN_ARCHITECTURES: &str = "\"llama\", \"qwen2\" and \"qwen3\"";

pub(super) fn is_supported(family: Family) -> bool {
    WRITTEN.iter().any(|(_, other)| *other == family)
}

/// Returns the architecture that computes a family. The family must be supported.
pub(super) fn architecture(family: Family) -> &'static str {
    let found = WRITTEN.iter().find(|(_, other)| *other == family);
    found.map_or("llama", |(name, _)| name)
}

/// Whether RoPE rotates neighbouring values of a head, (2i, 2i + 1), rather than (i, i +
/// head_dim/2). The rows of queries and keys are stored in that order then.
pub(super) fn rotates_neighbours(family: Family) -> bool {
    architecture(family) == "llama"
}

/// Whether the order of a tensor's rows, or of a bias's values, follows that of RoPE.
pub(super) fn is_rotated(tensor: Tensor) -> bool {
    use LayerTensor::{Key, KeyBias, Query, QueryBias};
    matches!(tensor, Tensor::Layer(_, Query | QueryBias | Key | KeyBias))
}

/// Returns a tensor's name in GGUF. Some architectures have other names for some tensors, or store
/// several tensors as one.
pub(super) fn gguf_name(tensor: Tensor) -> String {
    let (layer, part) = match tensor {
        Tensor::Embedding => return "token_embd.weight".into(),
        Tensor::Positions => return "position_embd.weight".into(),
        Tensor::TokenTypes => return "token_types.weight".into(),
        Tensor::LayerInputs => return "per_layer_token_embd.weight".into(),
        Tensor::LayerInputProjection => return "per_layer_model_proj.weight".into(),
        Tensor::LayerInputNorm => return "per_layer_proj_norm.weight".into(),
        Tensor::FinalNorm => return "output_norm.weight".into(),
        Tensor::FinalNormBias => return "output_norm.bias".into(),
        Tensor::Head => return "output.weight".into(),
        Tensor::HeadBias => return "output.bias".into(),
        // Of an assistant.
        Tensor::Fusion => return "nextn.pre_projection.weight".into(),
        Tensor::Prediction => return "nextn.post_projection.weight".into(),
        Tensor::Layer(layer, part) => (layer, part),
        // Complete models have no other tensors, except those of experts, which are parts of
        // others.
        other => return other.to_string(),
    };
    let [_, name] = part.names();
    format!("blk.{layer}.{name}")
}
