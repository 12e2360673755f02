//! llama.cpp's names of architectures and tensors.

use crate::config::Family;
use crate::tensor::{LayerTensor, Tensor};

/// The name of the tensor that holds one divisor of RoPE's frequency for each pair.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// The architectures with the families that they compute. Llama comes before Mistral, because a file does
/// not tell them apart.
const ARCHITECTURES: [(&str, Family); 4] = [
    ("llama", Family::Llama),
    ("llama", Family::Mistral),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
];

/// The supported architectures, for messages.
pub(super) const SUPPORTED_ARCHITECTURES: &str = "\"llama\", \"qwen2\" and \"qwen3\"";

/// Returns the family of an architecture, if it is supported.
pub(super) fn family(architecture: &str) -> Option<Family> {
    ARCHITECTURES.iter().find(|(name, _)| *name == architecture).map(|(_, family)| *family)
}

/// Returns whether an architecture computes a family.
pub(super) fn is_supported(family: Family) -> bool {
    ARCHITECTURES.iter().any(|(_, other)| *other == family)
}

/// Returns the architecture that computes a family. The family must be supported.
pub(super) fn architecture(family: Family) -> &'static str {
    let found = ARCHITECTURES.iter().find(|(_, other)| *other == family);
    found.map_or("llama", |(name, _)| name)
}

/// Whether RoPE rotates neighbouring values of a head, (2i, 2i + 1), rather than (i, i + head_dim/2). The
/// rows of queries and keys are stored in that order then.
pub(super) fn rotates_neighbours(family: Family) -> bool {
    architecture(family) == "llama"
}

/// Whether the order of a tensor's rows, or of a bias's values, follows that of RoPE.
pub(super) fn is_rotated(tensor: Tensor) -> bool {
    use LayerTensor::{Key, KeyBias, Query, QueryBias};
    matches!(tensor, Tensor::Layer(_, Query | QueryBias | Key | KeyBias))
}

/// Returns a tensor's name in GGUF.
pub(super) fn gguf_name(tensor: Tensor) -> String {
    let (layer, part) = match tensor {
        Tensor::Embedding => return "token_embd.weight".into(),
        Tensor::FinalNorm => return "output_norm.weight".into(),
        Tensor::Head => return "output.weight".into(),
        Tensor::Layer(layer, part) => (layer, part),
        // Complete models have no other tensors.
        other => return other.to_string(),
    };
    let part = match part {
        LayerTensor::AttentionNorm => "attn_norm.weight",
        LayerTensor::HiddenNorm => "attn_norm_2.weight",
        LayerTensor::Query => "attn_q.weight",
        LayerTensor::Key => "attn_k.weight",
        LayerTensor::Value => "attn_v.weight",
        LayerTensor::QueryBias => "attn_q.bias",
        LayerTensor::KeyBias => "attn_k.bias",
        LayerTensor::ValueBias => "attn_v.bias",
        LayerTensor::QueryNorm => "attn_q_norm.weight",
        LayerTensor::KeyNorm => "attn_k_norm.weight",
        LayerTensor::Output => "attn_output.weight",
        LayerTensor::OutputBias => "attn_output.bias",
        LayerTensor::MlpNorm => "ffn_norm.weight",
        LayerTensor::Gate => "ffn_gate.weight",
        LayerTensor::Up => "ffn_up.weight",
        LayerTensor::GateBias => "ffn_gate.bias",
        LayerTensor::UpBias => "ffn_up.bias",
        LayerTensor::Down => "ffn_down.weight",
        LayerTensor::DownBias => "ffn_down.bias",
        // The supported architectures have no other tensors.
        other => return Tensor::Layer(layer, other).to_string(),
    };
    format!("blk.{layer}.{part}")
}
