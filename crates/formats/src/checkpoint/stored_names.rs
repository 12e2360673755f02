//! The names and the form in which each family stores its tensors in Hugging Face checkpoints.

use super::row_layout::{Interleaved, RowLayout};
use crate::architecture::{Architecture, QkNorms, Recurrent};
use crate::config::{Config, Family, NormPlacement};
use crate::tensor::{ExpertTensor, LayerTensor, Tensor};
use std::ops::Range;

/// Where a tensor of a model is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredAs {
    /// The name of the stored tensor.
    pub(crate) name: String,
    /// The shape of the stored tensor.
    pub(crate) shape: Vec<usize>,
    /// The index of the expert whose part of the stored tensor this is, and the number of experts,
    /// if it holds those of all experts.
    pub(crate) expert: Option<[usize; 2]>,
    /// Where the rows are in the stored tensor, or in the expert's part of it.
    pub(crate) layout: RowLayout,
}

impl StoredAs {
    /// Returns where a checkpoint stores a tensor of a model.
    pub(crate) fn of(tensor: Tensor, config: &Config, architecture: &Architecture) -> Self {
        let mut stored = Self {
            name: tensor.to_string(),
            shape: architecture.shape(tensor),
            expert: None,
            layout: RowLayout::PLAIN,
        };
        stored.rename(tensor, config, architecture);
        match tensor {
            Tensor::Layer(_, part) => {
                stored.place_attention(part, config);
                stored.place_mlp(part, config);
                stored.place_mixer(part, config);
            }
            Tensor::Expert(_, expert, part) => stored.place_expert(expert, part, config),
            _ => {}
        }
        if config.family == Family::Gpt2 {
            stored.transpose_layers(tensor);
        }
        let is_norm = match tensor {
            Tensor::FinalNorm => true,
            Tensor::Layer(_, part) => part.is_norm_weight(),
            _ => false,
        };
        let is_gemma = matches!(config.family, Family::Gemma2 | Family::Gemma3);
        if is_norm && (is_gemma || config.family.is_hybrid_qwen()) {
            stored.layout.offset = 1.0;
        }
        stored
    }

    /// Returns where a checkpoint stores a tensor of an expert if those of all experts of a layer
    /// are one tensor: `mlp.experts.gate_up_proj`, `[experts, 2 · size, hidden]`, and
    /// `mlp.experts.down_proj`, `[experts, hidden, size]`. Qwen3.5's mixtures are published so, and
    /// transformers 5 computes so. `None` for other tensors, and for families with another module
    /// of experts.
    pub(crate) fn in_all_experts(
        tensor: Tensor,
        config: &Config,
        architecture: &Architecture,
    ) -> Option<Self> {
        use ExpertTensor as E;
        let Tensor::Expert(_, expert, part @ (E::Gate | E::Up | E::Down)) = tensor else {
            return None;
        };
        let mut stored = Self::of(tensor, config, architecture);
        let (layer, _) = stored.name.split_once(".mlp.experts.")?;
        let name = if part == E::Down { "down_proj" } else { "gate_up_proj" };
        stored.name = format!("{layer}.mlp.experts.{name}");
        stored.place_in_all_experts(expert, part, config);
        Some(stored)
    }

    /// Returns the part of the stored tensor's bytes that belongs to the tensor's expert, or all.
    pub(crate) fn part_of(&self, bytes: Range<usize>) -> Range<usize> {
        let Some([expert, n_experts]) = self.expert else { return bytes };
        let size = bytes.len() / n_experts;
        bytes.start + expert * size..bytes.start + (expert + 1) * size
    }

    /// Returns the names of the tensors that hold the parts of a vector, one for each head, if they
    /// are stored apart (the norms of StableLM's queries and keys).
    pub(crate) fn of_heads(
        tensor: Tensor,
        config: &Config,
        architecture: &Architecture,
    ) -> Option<Vec<String>> {
        let (layer, name) = match tensor {
            _ if config.family != Family::StableLm => return None,
            Tensor::Layer(layer, LayerTensor::QueryNorm) => (layer, "q_layernorm"),
            Tensor::Layer(layer, LayerTensor::KeyNorm) => (layer, "k_layernorm"),
            _ => return None,
        };
        let heads = architecture.shape(tensor)[0] / config.head_dim;
        let of_head = |head| format!("model.layers.{layer}.self_attn.{name}.norms.{head}.weight");
        Some((0..heads).map(of_head).collect())
    }

    /// Sets the names that are not those of a Llama.
    fn rename(&mut self, tensor: Tensor, config: &Config, architecture: &Architecture) {
        use Family as F;
        use LayerTensor as T;
        let family = config.family;
        let layer_after_norm = match tensor {
            Tensor::FinalNorm | Tensor::FinalNormBias => Some(config.num_hidden_layers),
            Tensor::Layer(layer, T::AttentionNorm | T::AttentionNormBias) => Some(layer),
            _ => None,
        };
        if let Some(layer) = layer_after_norm.filter(|_| family == F::Bert) {
            let kind = if self.name.ends_with(".bias") { "bias" } else { "weight" };
            // The norm of the embeddings, or the last one of the layer before.
            self.name = match layer.checked_sub(1) {
                None => format!("embeddings.LayerNorm.{kind}"),
                Some(before) => format!("encoder.layer.{before}.output.LayerNorm.{kind}"),
            };
            return;
        }
        let name = match (family, tensor) {
            (F::Phi, Tensor::FinalNorm) => "model.final_layernorm.weight",
            (F::Phi, Tensor::FinalNormBias) => "model.final_layernorm.bias",
            (F::GptNeoX, Tensor::Embedding) => "gpt_neox.embed_in.weight",
            (F::GptNeoX, Tensor::FinalNorm) => "gpt_neox.final_layer_norm.weight",
            (F::GptNeoX, Tensor::FinalNormBias) => "gpt_neox.final_layer_norm.bias",
            (F::GptNeoX, Tensor::Head) => "embed_out.weight",
            (F::Lfm2 | F::Lfm2Moe, Tensor::FinalNorm) => "model.embedding_norm.weight",
            (F::Bert, Tensor::Embedding) => "embeddings.word_embeddings.weight",
            (F::Bert, Tensor::Positions) => "embeddings.position_embeddings.weight",
            (F::Bert, Tensor::TokenTypes) => "embeddings.token_type_embeddings.weight",
            (F::Gpt2, Tensor::Embedding) => "transformer.wte.weight",
            (F::Gpt2, Tensor::Positions) => "transformer.wpe.weight",
            (F::Gpt2 | F::Falcon, Tensor::FinalNorm) => "transformer.ln_f.weight",
            (F::Gpt2 | F::Falcon, Tensor::FinalNormBias) => "transformer.ln_f.bias",
            (F::Falcon, Tensor::Embedding) => "transformer.word_embeddings.weight",
            (F::Opt, Tensor::Embedding) => "model.decoder.embed_tokens.weight",
            (F::Opt, Tensor::Positions) => "model.decoder.embed_positions.weight",
            (F::Opt, Tensor::FinalNorm) => "model.decoder.final_layer_norm.weight",
            (F::Opt, Tensor::FinalNormBias) => "model.decoder.final_layer_norm.bias",
            _ => "",
        };
        if !name.is_empty() {
            name.clone_into(&mut self.name);
            return;
        }
        let Tensor::Layer(layer, part) = tensor else { return };
        let has_experts =
            architecture.layers.get(layer).is_some_and(|layer| layer.experts.is_some());
        let is_shared = has_experts && family != F::Gemma4;
        let shared = |module| match family {
            F::Qwen2Moe | F::Qwen3Next | F::Qwen35Moe => format!("mlp.shared_expert.{module}"),
            _ => format!("mlp.shared_experts.{module}"),
        };
        let values_are_keys = |layer| {
            let of_global = config.global_heads.is_some_and(|heads| heads.values_are_keys);
            of_global && config.window(layer).is_none()
        };
        let two_norms = config.norm_placement == NormPlacement::ParallelNorms;
        let module = match (family, part) {
            (F::GraniteMoeHybrid, T::Gate | T::Up) => "shared_mlp.input_linear",
            (F::GraniteMoeHybrid, T::Down) => "shared_mlp.output_linear",
            (_, T::Gate | T::GateBias) if is_shared => &shared("gate_proj"),
            (_, T::Up | T::UpBias) if is_shared => &shared("up_proj"),
            (_, T::Down | T::DownBias) if is_shared => &shared("down_proj"),
            (F::Gemma2 | F::Gemma3 | F::Gemma4 | F::Olmo2 | F::Olmo3, T::AttentionOutputNorm) => {
                "post_attention_layernorm"
            }
            (F::Gemma2 | F::Gemma3 | F::Gemma4, T::MlpNorm) => "pre_feedforward_layernorm",
            (F::Gemma2 | F::Gemma3 | F::Gemma4 | F::Olmo2 | F::Olmo3, T::MlpOutputNorm) => {
                "post_feedforward_layernorm"
            }
            (F::Gemma4, T::Value | T::ValueBias) if values_are_keys(layer) => "self_attn.k_proj",
            (F::Gemma4, T::Router) => "router.proj",
            (F::Mixtral | F::MiniMaxM2, T::Router) => "block_sparse_moe.gate",
            (F::GraniteMoe | F::GraniteMoeHybrid, T::Router) => "block_sparse_moe.router.layer",
            (F::Lfm2 | F::Lfm2Moe, T::AttentionNorm) => "operator_norm",
            (F::Lfm2 | F::Lfm2Moe, T::MlpNorm) => "ffn_norm",
            (F::Lfm2 | F::Lfm2Moe, T::QueryNorm) => "self_attn.q_layernorm",
            (F::Lfm2 | F::Lfm2Moe, T::KeyNorm) => "self_attn.k_layernorm",
            (F::Lfm2 | F::Lfm2Moe, T::Output) => "self_attn.out_proj",
            (F::Lfm2 | F::Lfm2Moe, T::MixerOutput) => "conv.out_proj",
            (F::Lfm2Moe, T::Router) => "feed_forward.gate",
            (F::Lfm2 | F::Lfm2Moe, T::Gate) => "feed_forward.w1",
            (F::Lfm2 | F::Lfm2Moe, T::Up) => "feed_forward.w3",
            (F::Lfm2 | F::Lfm2Moe, T::Down) => "feed_forward.w2",
            (F::GptOss, T::Router | T::RouterBias) => "mlp.router",
            (F::Phi, T::Output | T::OutputBias) => "self_attn.dense",
            (F::Phi, T::Up | T::UpBias) => "mlp.fc1",
            (F::Phi, T::Down | T::DownBias) => "mlp.fc2",
            (F::StarCoder2 | F::Gpt2, T::Up | T::UpBias) => "mlp.c_fc",
            (F::StarCoder2 | F::Gpt2, T::Down | T::DownBias) => "mlp.c_proj",
            (F::GptNeoX, T::Output | T::OutputBias) => "attention.dense",
            (F::GptNeoX | F::Falcon, T::Up | T::UpBias) => "mlp.dense_h_to_4h",
            (F::GptNeoX | F::Falcon, T::Down | T::DownBias) => "mlp.dense_4h_to_h",
            (F::Gpt2, T::AttentionNorm | T::AttentionNormBias) => "ln_1",
            (F::Gpt2, T::MlpNorm | T::MlpNormBias) => "ln_2",
            (F::Gpt2, T::Output | T::OutputBias) => "attn.c_proj",
            (F::Bert, T::Query | T::QueryBias) => "attention.self.query",
            (F::Bert, T::Key | T::KeyBias) => "attention.self.key",
            (F::Bert, T::Value | T::ValueBias) => "attention.self.value",
            (F::Bert, T::Output | T::OutputBias) => "attention.output.dense",
            (F::Bert, T::MlpNorm | T::MlpNormBias) => "attention.output.LayerNorm",
            (F::Bert, T::Up | T::UpBias) => "intermediate.dense",
            (F::Bert, T::Down | T::DownBias) => "output.dense",
            (F::Opt, T::AttentionNorm | T::AttentionNormBias) => "self_attn_layer_norm",
            (F::Opt, T::MlpNorm | T::MlpNormBias) => "final_layer_norm",
            (F::Opt, T::Output | T::OutputBias) => "self_attn.out_proj",
            (F::Opt, T::Up | T::UpBias) => "fc1",
            (F::Opt, T::Down | T::DownBias) => "fc2",
            (F::Falcon, T::AttentionNorm | T::AttentionNormBias) if two_norms => "ln_attn",
            (F::Falcon, T::MlpNorm | T::MlpNormBias) if two_norms => "ln_mlp",
            (F::Falcon, T::Output | T::OutputBias) => "self_attention.dense",
            _ => "",
        };
        let name = match (family, part) {
            (
                F::GraniteMoeHybrid,
                T::DecayRate | T::DecayBias | T::Skip | T::MixerNorm | T::MixerOutput,
            ) => part.name().split_once('.').map(|(_, name)| format!("mamba.{name}")),
            (F::MiniMaxM2, T::RouterCorrection) => {
                Some("block_sparse_moe.e_score_correction_bias".to_owned())
            }
            (F::Lfm2Moe, T::RouterCorrection) => Some("feed_forward.expert_bias".to_owned()),
            (F::Ernie45Moe, T::RouterCorrection) => {
                self.shape.insert(0, 1);
                Some("mlp.moe_statics.e_score_correction_bias".to_owned())
            }
            _ if module.is_empty() => None,
            _ => Some(format!("{module}.{}", if part.is_bias() { "bias" } else { "weight" })),
        };
        self.set_layer_name(layer, name.as_deref(), family);
    }

    /// Sets the name of a layer's tensor, without the part of the layer; `None` for that of a
    /// Llama.
    fn set_layer_name(&mut self, layer: usize, name: Option<&str>, family: Family) {
        let of_llama = format!("model.layers.{layer}.");
        let prefix = match family {
            Family::GptNeoX => format!("gpt_neox.layers.{layer}."),
            Family::Gpt2 | Family::Falcon => format!("transformer.h.{layer}."),
            Family::Opt => format!("model.decoder.layers.{layer}."),
            Family::Bert => format!("encoder.layer.{layer}."),
            _ => of_llama.clone(),
        };
        let name = name.or(self.name.strip_prefix(&of_llama)).unwrap_or(&self.name);
        self.name = format!("{prefix}{name}");
    }

    /// Places queries, keys and values, which may be one stored tensor, with rows in another order.
    fn place_attention(&mut self, part: LayerTensor, config: &Config) {
        use LayerTensor as T;
        let (q_size, kv_size, head_dim) = (config.q_size(), config.kv_size(), config.head_dim);
        let index = match part {
            T::Query | T::QueryBias if config.latent.is_none() => 0,
            T::Key | T::KeyBias => 1,
            T::Value | T::ValueBias => 2,
            T::AttentionGate | T::AttentionGateBias => 3,
            T::Query | T::QueryUp | T::LatentDown | T::LatentDownBias
                if config.latent.is_some() =>
            {
                self.layout.interleaved = Self::interleaved_latent(part, config);
                return;
            }
            T::QueryNorm | T::KeyNorm if config.qk_norms == QkNorms::OwnHeads => {
                self.shape = vec![self.shape[0] / head_dim, head_dim];
                self.layout.interleaved = Some(Interleaved::whole(head_dim));
                return;
            }
            _ => return,
        };
        let is_bias = part.is_bias();
        let kind = if is_bias { "bias" } else { "weight" };
        let rename = |stored: &mut Self, old: [&str; 4], new: &str| {
            let suffix = format!("self_attn.{}.{kind}", old[index]);
            stored.name = stored.name.replace(&suffix, &format!("{new}.{kind}"));
        };
        let names = ["q_proj", "k_proj", "v_proj", "gate_proj"];
        let rotated = index < 2;
        match config.family {
            Family::Phi3 => {
                rename(self, names, "self_attn.qkv_proj");
                self.shape[0] = q_size + 2 * kv_size;
                self.layout = RowLayout::from_row([0, q_size, q_size + kv_size, 0][index]);
            }
            Family::GptNeoX => {
                rename(self, names, "attention.query_key_value");
                self.shape[0] = 3 * q_size;
                self.layout = RowLayout::runs(index * head_dim, head_dim, 3 * head_dim);
            }
            // Each head's query is followed by its gate.
            family if family.is_hybrid_qwen() && (index == 0 || index == 3) => {
                rename(self, names, "self_attn.q_proj");
                self.shape[0] = 2 * q_size;
                self.layout = RowLayout::runs(index / 3 * head_dim, head_dim, 2 * head_dim);
            }
            Family::Gpt2 => {
                rename(self, names, "attn.c_attn");
                self.layout = RowLayout::from_row(index * q_size);
                self.shape = match is_bias {
                    true => vec![3 * q_size],
                    false => vec![config.hidden_size, 3 * q_size],
                };
            }
            Family::Falcon => {
                rename(self, names, "self_attention.query_key_value");
                self.shape[0] = q_size + 2 * kv_size;
                let [queries, set] = config.falcon_rows();
                self.layout = match index {
                    0 => RowLayout::runs(0, queries, set),
                    _ => RowLayout::runs(queries + (index - 1) * head_dim, head_dim, set),
                };
            }
            Family::Cohere | Family::Cohere2 | Family::Ernie45 | Family::Ernie45Moe if rotated => {
                self.layout.interleaved = Some(Interleaved::whole(head_dim));
            }
            Family::Glm | Family::Glm4 if rotated => {
                let dims = config.rotary_dims();
                self.layout.interleaved = Some(Interleaved { head_dim, first: 0, dims });
            }
            _ => {}
        }
    }

    /// Returns the rows that RoPE rotates: the last ones of each head's queries, and of the
    /// compressed keys.
    pub(crate) fn interleaved_latent(part: LayerTensor, config: &Config) -> Option<Interleaved> {
        let latent = config.latent.filter(|_| config.rope_interleave)?;
        let first = match part {
            LayerTensor::Query | LayerTensor::QueryUp => latent.plain_dim,
            _ => latent.rank,
        };
        let dims = latent.rope_dim;
        Some(Interleaved { head_dim: first + dims, first, dims })
    }

    /// Makes the matrices of layers those of GPT-2, which have the inputs first.
    fn transpose_layers(&mut self, tensor: Tensor) {
        use LayerTensor as T;
        let Tensor::Layer(_, part) = tensor else { return };
        if matches!(part, T::Output | T::Up | T::Down) {
            self.shape.reverse();
        }
        if let [_, outputs] = self.shape[..] {
            self.layout.transposed = Some(outputs);
        }
    }

    /// Places gate and up, which may be one stored tensor.
    fn place_mlp(&mut self, part: LayerTensor, config: &Config) {
        let (
            LayerTensor::Gate | LayerTensor::Up,
            Family::Phi3 | Family::Glm | Family::Glm4 | Family::GraniteMoeHybrid,
        ) = (part, config.family)
        else {
            return;
        };
        let size = self.shape[0];
        let name = if part == LayerTensor::Gate { "gate_proj" } else { "up_proj" };
        self.name = self.name.replace(name, "gate_up_proj");
        self.shape[0] = 2 * size;
        self.layout = RowLayout::from_row(if part == LayerTensor::Gate { 0 } else { size });
    }

    /// Places the tensors of a recurrent mixer, of which most are parts of larger ones.
    fn place_mixer(&mut self, part: LayerTensor, config: &Config) {
        use LayerTensor as T;
        let Some(mixer) = config.recurrent.as_ref().map(|layers| layers.mixer) else { return };
        let (keys, values) = (mixer.key_width(), mixer.value_width());
        let layer = self.name.split(".linear_attn.").next().unwrap_or_default().to_owned();
        let mut set = |name: &str, outputs: usize, layout: RowLayout| {
            self.name = format!("{layer}.{name}");
            self.shape[0] = outputs;
            self.layout = layout;
        };
        match (config.family, part) {
            // Each key head has its query, its key, and the values and gates of its value heads.
            (Family::Qwen3Next, T::MixerQuery | T::MixerKey | T::MixerValue | T::MixerGate) => {
                let (key, value) = (mixer.key_dim, values / mixer.n_key_heads);
                let head = 2 * (key + value);
                let (first, run) = match part {
                    T::MixerQuery => (0, key),
                    T::MixerKey => (key, key),
                    T::MixerValue => (2 * key, value),
                    _ => (2 * key + value, value),
                };
                let layout = RowLayout::runs(first, run, head);
                set("linear_attn.in_proj_qkvz.weight", head * mixer.n_key_heads, layout);
            }
            (Family::Qwen3Next, T::MixerBeta | T::MixerDecay) => {
                let run = mixer.n_value_heads / mixer.n_key_heads;
                let first = if part == T::MixerBeta { 0 } else { run };
                let layout = RowLayout::runs(first, run, 2 * run);
                set("linear_attn.in_proj_ba.weight", 2 * mixer.n_value_heads, layout);
            }
            (Family::Qwen35 | Family::Qwen35Moe, T::MixerQuery | T::MixerKey | T::MixerValue) => {
                let first = match part {
                    T::MixerQuery => 0,
                    T::MixerKey => keys,
                    _ => 2 * keys,
                };
                let layout = RowLayout::from_row(first);
                set("linear_attn.in_proj_qkv.weight", mixer.channels(), layout);
            }
            (Family::GraniteMoeHybrid, _) => {
                let first = match part {
                    T::MixerGate => 0,
                    T::MixerValue => values,
                    T::MixerKey => 2 * values,
                    T::MixerQuery => 2 * values + keys,
                    T::MixerDecay => 2 * (values + keys),
                    _ => return self.place_convolution(part, "mamba.conv1d", &mixer, false),
                };
                let outputs = 2 * (values + keys) + mixer.n_value_heads;
                set("mamba.in_proj.weight", outputs, RowLayout::from_row(first));
            }
            (family, T::MixerBeta | T::MixerGate | T::MixerValue) if family.is_lfm2() => {
                let first = match part {
                    T::MixerBeta => 0,
                    T::MixerGate => values,
                    _ => 2 * values,
                };
                set("conv.in_proj.weight", 3 * values, RowLayout::from_row(first));
            }
            (family, _) if family.is_lfm2() => {
                self.place_convolution(part, "conv.conv", &mixer, true);
            }
            _ => self.place_convolution(part, "linear_attn.conv1d", &mixer, true),
        }
    }

    /// Places a part of a convolution, whose channels are those of queries, keys and values, or
    /// those of values, keys and queries (Mamba).
    fn place_convolution(
        &mut self,
        part: LayerTensor,
        name: &str,
        mixer: &Recurrent,
        queries_first: bool,
    ) {
        use LayerTensor as T;
        let (keys, values) = (mixer.key_width(), mixer.value_width());
        let first = match part {
            T::QueryConv | T::QueryConvBias if queries_first => 0,
            T::QueryConv | T::QueryConvBias => values + keys,
            T::KeyConv | T::KeyConvBias if queries_first => keys,
            T::KeyConv | T::KeyConvBias => values,
            T::ValueConv | T::ValueConvBias if queries_first => 2 * keys,
            T::ValueConv | T::ValueConvBias => 0,
            _ => return,
        };
        let layer = self.name.split(".linear_attn.").next().unwrap_or_default();
        let kind = if part.is_bias() { "bias" } else { "weight" };
        self.name = format!("{layer}.{name}.{kind}");
        self.layout = RowLayout::from_row(first);
        self.shape = match part.is_bias() {
            true => vec![mixer.channels()],
            false => vec![mixer.channels(), 1, mixer.kernel],
        };
    }

    /// Places a tensor of an expert, which may be a part of a tensor of all experts.
    fn place_expert(&mut self, expert: usize, part: ExpertTensor, config: &Config) {
        use ExpertTensor as E;
        let Some(experts) = config.experts.as_ref().map(|layers| layers.experts) else { return };
        let (n_experts, hidden) = (experts.n_experts, config.hidden_size);
        let size = experts.mlp.intermediate_size;
        let in_all = |name: &str| {
            let (layer, _) = name.split_once(".mlp.").unwrap_or((name, ""));
            layer.to_owned()
        };
        match config.family {
            Family::Mixtral | Family::MiniMaxM2 | Family::Lfm2Moe => {
                let new = ["w1", "w3", "w2"][part.projection()];
                let old = ["gate_proj", "up_proj", "down_proj"][part.projection()];
                let module = match config.family {
                    Family::Lfm2Moe => ".feed_forward.",
                    _ => ".block_sparse_moe.",
                };
                self.name = self.name.replace(".mlp.", module).replace(old, new);
            }
            // Published files have the input of all experts' matrices first.
            Family::Qwen3VlMoe => {
                let is_down = part == E::Down;
                let name = if is_down { "down_proj" } else { "gate_up_proj" };
                self.name = format!("{}.mlp.experts.{name}", in_all(&self.name));
                self.place_in_all_experts(expert, part, config);
                self.layout.transposed = Some(self.shape[1]);
                self.shape.swap(1, 2);
            }
            Family::GraniteMoe | Family::GraniteMoeHybrid => {
                let is_down = part == E::Down;
                let name = if is_down { "output_linear" } else { "input_linear" };
                self.name = format!("{}.block_sparse_moe.{name}.weight", in_all(&self.name));
                self.place_in_all_experts(expert, part, config);
            }
            Family::Gemma4 => {
                let name = if part == E::Down { "down_proj" } else { "gate_up_proj" };
                self.name = format!("{}.experts.{name}", in_all(&self.name));
                self.place_in_all_experts(expert, part, config);
            }
            Family::GptOss => {
                let is_down = matches!(part, E::Down | E::DownBias);
                let is_bias = matches!(part, E::GateBias | E::UpBias | E::DownBias);
                let name = if is_down { "down_proj" } else { "gate_up_proj" };
                let kind = if is_bias { "_bias" } else { "" };
                self.name = format!("{}.mlp.experts.{name}{kind}", in_all(&self.name));
                self.expert = Some([expert, n_experts]);
                let outputs = if is_down { hidden } else { 2 * size };
                let inputs = if is_down { size } else { hidden };
                // Rows of gate and up alternate.
                let layout = match part {
                    E::Gate | E::GateBias => RowLayout::runs(0, 1, 2),
                    E::Up | E::UpBias => RowLayout::runs(1, 1, 2),
                    E::Down | E::DownBias => RowLayout::PLAIN,
                };
                (self.shape, self.layout) = match is_bias {
                    true => (vec![n_experts, outputs], layout),
                    false => (
                        vec![n_experts, inputs, outputs],
                        RowLayout { transposed: Some(outputs), ..layout },
                    ),
                };
            }
            _ => {}
        }
    }

    /// Places a matrix of an expert in the tensor of all experts, which has an expert's gate and up
    /// after one another.
    fn place_in_all_experts(&mut self, expert: usize, part: ExpertTensor, config: &Config) {
        let Some(experts) = config.experts.as_ref().map(|layers| layers.experts) else { return };
        let (n_experts, hidden) = (experts.n_experts, config.hidden_size);
        let size = experts.mlp.intermediate_size;
        self.expert = Some([expert, n_experts]);
        self.shape = match part {
            ExpertTensor::Down => vec![n_experts, hidden, size],
            _ => vec![n_experts, 2 * size, hidden],
        };
        self.layout = RowLayout::from_row(if part == ExpertTensor::Up { size } else { 0 });
    }
}
