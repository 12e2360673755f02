//! Where a GGUF file stores each tensor of a model.

use super::architectures::{GgufArchitecture, Pairs};
use super::names::gguf_name;
use crate::architecture::{Architecture, QkNorms, RecurrentRule};
use crate::checkpoint::row_layout::{Interleaved, RowLayout};
use crate::checkpoint::stored_names::StoredAs;
use crate::config::{Config, Family, NormPlacement};
use crate::tensor::{ExpertTensor, LayerTensor, Tensor};

/// The places of a model's tensors.
pub(super) struct Places<'a> {
    pub(super) gguf: &'static GgufArchitecture,
    pub(super) config: &'a Config,
    pub(super) architecture: &'a Architecture,
    /// Whether a tensor with this name is stored.
    pub(super) has: &'a dyn Fn(&str) -> bool,
}

impl Places<'_> {
    pub(super) fn of(&self, tensor: Tensor) -> StoredAs {
        let shape = self.architecture.shape(tensor);
        let name = gguf_name(tensor);
        let mut stored = StoredAs { name, shape, expert: None, layout: RowLayout::PLAIN };
        match tensor {
            Tensor::Layer(layer, part) => {
                self.place_norms_of_falcon(&mut stored, layer, part);
                self.place_norms_of_bert(&mut stored, layer, part);
                self.place_mixer(&mut stored, layer, part);
                self.place_attention(&mut stored, layer, part);
                self.place_mlp(&mut stored, layer, part);
            }
            Tensor::Expert(layer, expert, part) => {
                self.place_expert(&mut stored, layer, expert, part);
            }
            Tensor::FinalNorm | Tensor::FinalNormBias if self.gguf.family == Family::Bert => {
                let kind = if tensor == Tensor::FinalNorm { "weight" } else { "bias" };
                let last = self.config.num_hidden_layers - 1;
                stored.name = format!("blk.{last}.layer_output_norm.{kind}");
            }
            // This is the norm after the last layer.
            Tensor::FinalNorm if self.gguf.family.is_lfm2() => {
                stored.name = "token_embd_norm.weight".into();
            }
            _ => {}
        }
        stored
    }

    /// Returns the names of the two tensors that hold the expansion of compressed keys and values.
    /// Old files have one.
    pub(super) fn split_expansion(&self, tensor: Tensor) -> Option<[String; 2]> {
        let Tensor::Layer(layer, LayerTensor::LatentUp) = tensor else { return None };
        let whole = gguf_name(tensor);
        let names = ["k", "v"].map(|part| format!("blk.{layer}.attn_{part}_b.weight"));
        (!(self.has)(&whole)).then_some(names)
    }

    /// Places the tensors of a recurrent mixer, of which most are parts of larger ones.
    fn place_mixer(&self, stored: &mut StoredAs, layer: usize, part: LayerTensor) {
        use LayerTensor as T;
        let Some(mixer) = self.config.recurrent.as_ref().map(|layers| layers.mixer) else { return };
        let (keys, values) = (mixer.key_width(), mixer.value_width());
        let is_mamba = mixer.rule == RecurrentRule::StateSpace;
        let of_layer = |name: &str| format!("blk.{layer}.{name}");
        let mut set = |name: &str, outputs: usize, layout: RowLayout| {
            stored.name = of_layer(name);
            stored.shape[0] = outputs;
            stored.layout = layout;
        };
        let channels_from = match part {
            T::QueryConv | T::QueryConvBias | T::MixerQuery if is_mamba => values + keys,
            T::KeyConv | T::KeyConvBias | T::MixerKey if is_mamba => values,
            T::ValueConv | T::ValueConvBias | T::MixerValue if is_mamba => 0,
            T::KeyConv | T::MixerKey => keys,
            T::ValueConv | T::MixerValue => 2 * keys,
            _ => 0,
        };
        let channels = RowLayout::from_row(channels_from);
        match (mixer.rule, part) {
            (_, T::DecayRate | T::Skip) if is_mamba => {
                stored.shape.push(1);
            }
            (RecurrentRule::Convolution, T::ValueConv) => {
                set("shortconv.conv.weight", values, RowLayout::PLAIN);
            }
            (RecurrentRule::Convolution, T::MixerOutput) => {
                stored.name = of_layer("shortconv.out_proj.weight");
            }
            (RecurrentRule::Convolution, T::MixerBeta | T::MixerGate | T::MixerValue) => {
                let first = match part {
                    T::MixerBeta => 0,
                    T::MixerGate => values,
                    _ => 2 * values,
                };
                set("shortconv.in_proj.weight", 3 * values, RowLayout::from_row(first));
            }
            (_, T::QueryConv | T::KeyConv | T::ValueConv) => {
                set("ssm_conv1d.weight", mixer.channels(), channels);
            }
            (_, T::QueryConvBias | T::KeyConvBias | T::ValueConvBias) => {
                set("ssm_conv1d.bias", mixer.channels(), channels);
            }
            (
                RecurrentRule::StateSpace,
                T::MixerQuery | T::MixerKey | T::MixerValue | T::MixerGate | T::MixerDecay,
            ) => {
                let first = match part {
                    T::MixerGate => 0,
                    T::MixerDecay => 2 * (values + keys),
                    _ => values + channels_from,
                };
                let outputs = 2 * (values + keys) + mixer.n_value_heads;
                set("ssm_in.weight", outputs, RowLayout::from_row(first));
            }
            // Each key head has its query, its key, and the values and gates of its value heads in
            // old files.
            (_, T::MixerQuery | T::MixerKey | T::MixerValue | T::MixerGate)
                if (self.has)(&of_layer("ssm_in.weight")) =>
            {
                let (key, value) = (mixer.key_dim, values / mixer.n_key_heads);
                let head = 2 * (key + value);
                let (first, run) = match part {
                    T::MixerQuery => (0, key),
                    T::MixerKey => (key, key),
                    T::MixerValue => (2 * key, value),
                    _ => (2 * key + value, value),
                };
                let layout = RowLayout::runs(first, run, head);
                set("ssm_in.weight", head * mixer.n_key_heads, layout);
            }
            (_, T::MixerQuery | T::MixerKey | T::MixerValue) => {
                set("attn_qkv.weight", mixer.channels(), channels);
            }
            (_, T::MixerGate) => stored.name = of_layer("attn_gate.weight"),
            (_, T::MixerBeta | T::MixerDecay) if self.gguf.family == Family::Qwen3Next => {
                let run = mixer.n_value_heads / mixer.n_key_heads;
                let first = if part == T::MixerBeta { 0 } else { run };
                let layout = RowLayout::runs(first, run, 2 * run);
                set("ssm_ba.weight", 2 * mixer.n_value_heads, layout);
            }
            _ => {}
        }
    }

    /// Places the norms of a Falcon with two of them: attention reads the one that is called the
    /// second.
    fn place_norms_of_falcon(&self, stored: &mut StoredAs, layer: usize, part: LayerTensor) {
        use LayerTensor as T;
        if self.gguf.family != Family::Falcon
            || self.config.norm_placement != NormPlacement::ParallelNorms
        {
            return;
        }
        stored.name = match part {
            T::AttentionNorm => format!("blk.{layer}.attn_norm_2.weight"),
            T::AttentionNormBias => format!("blk.{layer}.attn_norm_2.bias"),
            T::MlpNorm => format!("blk.{layer}.attn_norm.weight"),
            T::MlpNormBias => format!("blk.{layer}.attn_norm.bias"),
            _ => return,
        };
    }

    /// Places the norms of a BERT, which are called after what is before them.
    fn place_norms_of_bert(&self, stored: &mut StoredAs, layer: usize, part: LayerTensor) {
        use LayerTensor as T;
        let kind = if part.is_bias() { "bias" } else { "weight" };
        stored.name = match part {
            _ if self.gguf.family != Family::Bert => return,
            T::AttentionNorm | T::AttentionNormBias => match layer.checked_sub(1) {
                None => format!("token_embd_norm.{kind}"),
                Some(before) => format!("blk.{before}.layer_output_norm.{kind}"),
            },
            T::MlpNorm | T::MlpNormBias => format!("blk.{layer}.attn_output_norm.{kind}"),
            _ => return,
        };
    }

    /// Places queries, keys and values, which may be one stored tensor, and orders the rows of
    /// RoPE's pairs.
    fn place_attention(&self, stored: &mut StoredAs, layer: usize, part: LayerTensor) {
        use LayerTensor as T;
        let config = self.config;
        let (q_size, kv_size) = (config.q_size(), config.kv_size());
        let (head_dim, dims) = (config.head_dim, config.rotary_dims());
        let is_rotated = matches!(part, T::Query | T::QueryBias | T::Key | T::KeyBias);
        let first = match part {
            T::Query | T::QueryUp | T::LatentDown | T::LatentDownBias
                if config.latent.is_some() =>
            {
                stored.layout.interleaved = StoredAs::interleaved_latent(part, config);
                return;
            }
            T::Query | T::QueryBias | T::AttentionGate | T::AttentionGateBias => 0,
            T::Key | T::KeyBias => q_size,
            T::Value | T::ValueBias => q_size + kv_size,
            T::QueryNorm | T::KeyNorm if config.qk_norms == QkNorms::OwnHeads => {
                stored.shape = vec![stored.shape[0] / head_dim, head_dim];
                if self.gguf.pairs == Pairs::Neighbours {
                    stored.layout.interleaved = Some(Interleaved { head_dim, first: 0, dims });
                }
                return;
            }
            _ => return,
        };
        let kind = if part.is_bias() { "bias" } else { "weight" };
        let is_global = config.window(layer).is_none();
        if part == T::Value
            && config.global_heads.is_some_and(|heads| heads.values_are_keys && is_global)
        {
            stored.name = format!("blk.{layer}.attn_k.weight");
            return;
        }
        // Each head's query is followed by its gate.
        if config.attention_gate && first == 0 {
            let gate = matches!(part, T::AttentionGate | T::AttentionGateBias);
            stored.name = format!("blk.{layer}.attn_q.{kind}");
            stored.shape[0] = 2 * q_size;
            stored.layout = RowLayout::runs(usize::from(gate) * head_dim, head_dim, 2 * head_dim);
            return;
        }
        let fused = format!("blk.{layer}.attn_qkv.{kind}");
        if !(self.has)(&stored.name) && (self.has)(&fused) {
            stored.name = fused;
            stored.shape[0] = q_size + 2 * kv_size;
            stored.layout = RowLayout::from_row(first);
        }
        if is_rotated && self.gguf.pairs == Pairs::Neighbours {
            stored.layout.interleaved = Some(Interleaved { head_dim, first: 0, dims });
        }
    }

    /// Places the norm and the matrices of the dense MLP. That next to experts has other names, and
    /// gate and up may be one stored tensor.
    fn place_mlp(&self, stored: &mut StoredAs, layer: usize, part: LayerTensor) {
        use LayerTensor as T;
        let has_experts =
            self.architecture.layers.get(layer).is_some_and(|layer| layer.experts.is_some());
        let shared = match part {
            T::Gate => "gate",
            T::Up => "up",
            T::Down => "down",
            T::MlpNorm
                if matches!(self.gguf.family, Family::GptOss | Family::Glm4Moe)
                    || self.gguf.family.is_hybrid_qwen() =>
            {
                stored.name = format!("blk.{layer}.post_attention_norm.weight");
                return;
            }
            _ => return,
        };
        if has_experts && self.gguf.family != Family::Gemma4 {
            stored.name = format!("blk.{layer}.ffn_{shared}_shexp.weight");
            return;
        }
        let is_fused = matches!(self.gguf.family, Family::Phi3 | Family::Glm | Family::Glm4);
        if is_fused && part != T::Down {
            let size = self.config.intermediate_size;
            stored.name = format!("blk.{layer}.ffn_up.weight");
            stored.shape[0] = 2 * size;
            stored.layout = RowLayout::from_row(if part == T::Gate { 0 } else { size });
        }
    }

    /// Places a tensor of an expert: a part of one tensor of all experts, which may hold gate and
    /// up together. Old files of Mixtral have a tensor for each expert.
    fn place_expert(&self, stored: &mut StoredAs, layer: usize, expert: usize, part: ExpertTensor) {
        use ExpertTensor as T;
        let Some(layers) = &self.config.experts else { return };
        let experts = layers.experts;
        let projection = ["gate", "up", "down"][part.projection()];
        let is_bias = matches!(part, T::GateBias | T::UpBias | T::DownBias);
        let kind = if is_bias { "bias" } else { "weight" };
        stored.name = format!("blk.{layer}.ffn_{projection}_exps.{kind}");
        if !(self.has)(&stored.name) {
            let own = format!("blk.{layer}.ffn_{projection}.{expert}.{kind}");
            let fused = format!("blk.{layer}.ffn_gate_up_exps.{kind}");
            if (self.has)(&own) {
                stored.name = own;
                return;
            }
            if projection != "down" && (self.has)(&fused) {
                let size = experts.mlp.intermediate_size;
                stored.name = fused;
                stored.shape[0] = 2 * size;
                stored.layout = RowLayout::from_row(if projection == "gate" { 0 } else { size });
            }
        }
        stored.shape.insert(0, experts.n_experts);
        stored.expert = Some([expert, experts.n_experts]);
    }
}
