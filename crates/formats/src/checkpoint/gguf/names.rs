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

/// The architectures that are written, for messages.
pub(super) const WRITTEN_ARCHITECTURES: &str = "\"llama\", \"qwen2\" and \"qwen3\"";

/// Returns whether a family is written.
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
        Tensor::LayerInputs => return "per_layer_token_embd.weight".into(),
        Tensor::LayerInputProjection => return "per_layer_model_proj.weight".into(),
        Tensor::LayerInputNorm => return "per_layer_proj_norm.weight".into(),
        Tensor::FinalNorm => return "output_norm.weight".into(),
        Tensor::FinalNormBias => return "output_norm.bias".into(),
        Tensor::Head => return "output.weight".into(),
        Tensor::HeadBias => return "output.bias".into(),
        Tensor::Layer(layer, part) => (layer, part),
        // Complete models have no other tensors, except those of experts, which are parts of
        // others.
        other => return other.to_string(),
    };
    format!("blk.{layer}.{}", layer_name(part))
}

fn layer_name(part: LayerTensor) -> &'static str {
    match part {
        LayerTensor::AttentionNorm => "attn_norm.weight",
        LayerTensor::AttentionNormBias => "attn_norm.bias",
        LayerTensor::HiddenNorm => "attn_norm_2.weight",
        LayerTensor::Query => "attn_q.weight",
        LayerTensor::Key => "attn_k.weight",
        LayerTensor::Value => "attn_v.weight",
        LayerTensor::QueryDown => "attn_q_a.weight",
        LayerTensor::QueryDownBias => "attn_q_a.bias",
        LayerTensor::QueryLatentNorm => "attn_q_a_norm.weight",
        LayerTensor::QueryUp => "attn_q_b.weight",
        LayerTensor::LatentDown => "attn_kv_a_mqa.weight",
        LayerTensor::LatentDownBias => "attn_kv_a_mqa.bias",
        LayerTensor::LatentNorm => "attn_kv_a_norm.weight",
        LayerTensor::LatentUp => "attn_kv_b.weight",
        LayerTensor::QueryBias => "attn_q.bias",
        LayerTensor::KeyBias => "attn_k.bias",
        LayerTensor::ValueBias => "attn_v.bias",
        LayerTensor::QueryNorm => "attn_q_norm.weight",
        LayerTensor::KeyNorm => "attn_k_norm.weight",
        LayerTensor::Sinks => "attn_sinks.weight",
        LayerTensor::Output => "attn_output.weight",
        LayerTensor::OutputBias => "attn_output.bias",
        // These are parts of other tensors.
        LayerTensor::AttentionGate => "attn_q_gate.weight",
        LayerTensor::AttentionGateBias => "attn_q_gate.bias",
        LayerTensor::MixerQuery => "ssm_in_q.weight",
        LayerTensor::MixerKey => "ssm_in_k.weight",
        LayerTensor::MixerValue => "ssm_in_v.weight",
        LayerTensor::MixerGate => "ssm_in_z.weight",
        LayerTensor::MixerBeta => "ssm_beta.weight",
        LayerTensor::MixerDecay => "ssm_alpha.weight",
        LayerTensor::QueryConv => "ssm_conv1d_q.weight",
        LayerTensor::KeyConv => "ssm_conv1d_k.weight",
        LayerTensor::ValueConv => "ssm_conv1d_v.weight",
        LayerTensor::QueryConvBias => "ssm_conv1d_q.bias",
        LayerTensor::KeyConvBias => "ssm_conv1d_k.bias",
        LayerTensor::ValueConvBias => "ssm_conv1d_v.bias",
        LayerTensor::DecayRate => "ssm_a",
        LayerTensor::DecayBias => "ssm_dt.bias",
        LayerTensor::Skip => "ssm_d",
        LayerTensor::MixerNorm => "ssm_norm.weight",
        LayerTensor::MixerOutput => "ssm_out.weight",
        LayerTensor::AttentionOutputNorm => "post_attention_norm.weight",
        LayerTensor::MlpNorm => "ffn_norm.weight",
        LayerTensor::MlpNormBias => "ffn_norm.bias",
        LayerTensor::Router => "ffn_gate_inp.weight",
        LayerTensor::RouterBias => "ffn_gate_inp.bias",
        LayerTensor::RouterCorrection => "exp_probs_b.bias",
        LayerTensor::RouterNorm => "ffn_gate_inp.scale",
        LayerTensor::ExpertScales => "ffn_down_exps.scale",
        LayerTensor::ExpertsNorm => "pre_ffw_norm_2.weight",
        LayerTensor::ExpertsOutputNorm => "post_ffw_norm_2.weight",
        LayerTensor::DenseOutputNorm => "post_ffw_norm_1.weight",
        LayerTensor::SharedGate => "ffn_gate_inp_shexp.weight",
        LayerTensor::Gate => "ffn_gate.weight",
        LayerTensor::Up => "ffn_up.weight",
        LayerTensor::GateBias => "ffn_gate.bias",
        LayerTensor::UpBias => "ffn_up.bias",
        LayerTensor::Down => "ffn_down.weight",
        LayerTensor::DownBias => "ffn_down.bias",
        LayerTensor::MlpOutputNorm => "post_ffw_norm.weight",
        LayerTensor::InputGate => "inp_gate.weight",
        LayerTensor::InputUp => "proj.weight",
        LayerTensor::InputNorm => "post_norm.weight",
        LayerTensor::Scalar => "layer_output_scale.weight",
        // Only drafters have these.
        LayerTensor::AttentionConv => "attn_conv.weight",
        LayerTensor::AttentionConvProjection => "attn_conv_proj.weight",
        LayerTensor::MlpConv => "ffn_conv.weight",
        LayerTensor::MlpConvProjection => "ffn_conv_proj.weight",
    }
}
