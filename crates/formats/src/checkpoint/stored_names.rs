//! The names and the form in which each family stores its tensors in Hugging Face checkpoints.

use super::row_layout::{Interleaved, RowLayout};
use crate::architecture::{Architecture, QkNorms};
use crate::config::{Config, Family, NormPlacement};
use crate::tensor::{ExpertTensor, LayerTensor, Tensor};

/// Where a tensor of a model is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredAs {
    /// The name of the stored tensor.
    pub(crate) name: String,
    /// The shape of the stored tensor.
    pub(crate) shape: Vec<usize>,
    /// The index of the expert whose part of the stored tensor this is, and the number of experts, if it holds
    /// those of all experts.
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
        if is_norm && matches!(config.family, Family::Gemma2 | Family::Gemma3) {
            stored.layout.offset = 1.0;
        }
        stored
    }

    /// Sets the names that are not those of a Llama.
    fn rename(&mut self, tensor: Tensor, config: &Config, architecture: &Architecture) {
        use Family as F;
        use LayerTensor as T;
        let family = config.family;
        let name = match (family, tensor) {
            (F::Phi, Tensor::FinalNorm) => "model.final_layernorm.weight",
            (F::Phi, Tensor::FinalNormBias) => "model.final_layernorm.bias",
            (F::GptNeoX, Tensor::Embedding) => "gpt_neox.embed_in.weight",
            (F::GptNeoX, Tensor::FinalNorm) => "gpt_neox.final_layer_norm.weight",
            (F::GptNeoX, Tensor::FinalNormBias) => "gpt_neox.final_layer_norm.bias",
            (F::GptNeoX, Tensor::Head) => "embed_out.weight",
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
        let is_shared = architecture.layers.get(layer).is_some_and(|layer| layer.experts.is_some());
        let shared = |weight| match family {
            F::Glm4Moe => format!("mlp.shared_experts.{weight}"),
            _ => format!("mlp.shared_expert.{weight}"),
        };
        let two_norms = config.norm_placement == NormPlacement::ParallelNorms;
        let name = match (family, part) {
            (_, T::Gate) if is_shared => &shared("gate_proj.weight"),
            (_, T::Up) if is_shared => &shared("up_proj.weight"),
            (_, T::Down) if is_shared => &shared("down_proj.weight"),
            (F::Gemma2 | F::Gemma3 | F::Olmo2 | F::Olmo3, T::AttentionOutputNorm) => {
                "post_attention_layernorm.weight"
            }
            (F::Gemma2 | F::Gemma3, T::MlpNorm) => "pre_feedforward_layernorm.weight",
            (F::Gemma2 | F::Gemma3 | F::Olmo2 | F::Olmo3, T::MlpOutputNorm) => {
                "post_feedforward_layernorm.weight"
            }
            (F::Mixtral, T::Router) => "block_sparse_moe.gate.weight",
            (F::GraniteMoe, T::Router) => "block_sparse_moe.router.layer.weight",
            (F::GptOss, T::Router) => "mlp.router.weight",
            (F::GptOss, T::RouterBias) => "mlp.router.bias",
            (F::Phi, T::Output) => "self_attn.dense.weight",
            (F::Phi, T::OutputBias) => "self_attn.dense.bias",
            (F::Phi, T::Up) => "mlp.fc1.weight",
            (F::Phi, T::UpBias) => "mlp.fc1.bias",
            (F::Phi, T::Down) => "mlp.fc2.weight",
            (F::Phi, T::DownBias) => "mlp.fc2.bias",
            (F::StarCoder2, T::Up) => "mlp.c_fc.weight",
            (F::StarCoder2, T::UpBias) => "mlp.c_fc.bias",
            (F::StarCoder2, T::Down) => "mlp.c_proj.weight",
            (F::StarCoder2, T::DownBias) => "mlp.c_proj.bias",
            (F::GptNeoX, T::Output) => "attention.dense.weight",
            (F::GptNeoX, T::OutputBias) => "attention.dense.bias",
            (F::GptNeoX, T::Up) => "mlp.dense_h_to_4h.weight",
            (F::GptNeoX, T::UpBias) => "mlp.dense_h_to_4h.bias",
            (F::GptNeoX, T::Down) => "mlp.dense_4h_to_h.weight",
            (F::GptNeoX, T::DownBias) => "mlp.dense_4h_to_h.bias",
            (F::Gpt2, T::AttentionNorm) => "ln_1.weight",
            (F::Gpt2, T::AttentionNormBias) => "ln_1.bias",
            (F::Gpt2, T::MlpNorm) => "ln_2.weight",
            (F::Gpt2, T::MlpNormBias) => "ln_2.bias",
            (F::Gpt2, T::Output) => "attn.c_proj.weight",
            (F::Gpt2, T::OutputBias) => "attn.c_proj.bias",
            (F::Gpt2, T::Up) => "mlp.c_fc.weight",
            (F::Gpt2, T::UpBias) => "mlp.c_fc.bias",
            (F::Gpt2, T::Down) => "mlp.c_proj.weight",
            (F::Gpt2, T::DownBias) => "mlp.c_proj.bias",
            (F::Opt, T::AttentionNorm) => "self_attn_layer_norm.weight",
            (F::Opt, T::AttentionNormBias) => "self_attn_layer_norm.bias",
            (F::Opt, T::MlpNorm) => "final_layer_norm.weight",
            (F::Opt, T::MlpNormBias) => "final_layer_norm.bias",
            (F::Opt, T::Output) => "self_attn.out_proj.weight",
            (F::Opt, T::OutputBias) => "self_attn.out_proj.bias",
            (F::Opt, T::Up) => "fc1.weight",
            (F::Opt, T::UpBias) => "fc1.bias",
            (F::Opt, T::Down) => "fc2.weight",
            (F::Opt, T::DownBias) => "fc2.bias",
            (F::Falcon, T::AttentionNorm) if two_norms => "ln_attn.weight",
            (F::Falcon, T::AttentionNormBias) if two_norms => "ln_attn.bias",
            (F::Falcon, T::MlpNorm) if two_norms => "ln_mlp.weight",
            (F::Falcon, T::MlpNormBias) if two_norms => "ln_mlp.bias",
            (F::Falcon, T::Output) => "self_attention.dense.weight",
            (F::Falcon, T::OutputBias) => "self_attention.dense.bias",
            (F::Falcon, T::Up) => "mlp.dense_h_to_4h.weight",
            (F::Falcon, T::UpBias) => "mlp.dense_h_to_4h.bias",
            (F::Falcon, T::Down) => "mlp.dense_4h_to_h.weight",
            (F::Falcon, T::DownBias) => "mlp.dense_4h_to_h.bias",
            _ => "",
        };
        let name = if name.is_empty() { None } else { Some(name.to_owned()) };
        self.set_layer_name(layer, name.as_deref(), family);
    }

    /// Sets the name of a layer's tensor, without the part of the layer; `None` for that of a Llama.
    fn set_layer_name(&mut self, layer: usize, name: Option<&str>, family: Family) {
        let of_llama = format!("model.layers.{layer}.");
        let prefix = match family {
            Family::GptNeoX => format!("gpt_neox.layers.{layer}."),
            Family::Gpt2 | Family::Falcon => format!("transformer.h.{layer}."),
            Family::Opt => format!("model.decoder.layers.{layer}."),
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
            T::Query | T::QueryBias => 0,
            T::Key | T::KeyBias => 1,
            T::Value | T::ValueBias => 2,
            T::QueryNorm | T::KeyNorm if config.qk_norms == QkNorms::OwnHeads => {
                self.shape = vec![self.shape[0] / head_dim, head_dim];
                self.layout.interleaved = Some(Interleaved::whole(head_dim));
                return;
            }
            _ => return,
        };
        let is_bias = part.is_bias();
        let kind = if is_bias { "bias" } else { "weight" };
        let rename = |stored: &mut Self, old: [&str; 3], new: &str| {
            let suffix = format!("self_attn.{}.{kind}", old[index]);
            stored.name = stored.name.replace(&suffix, &format!("{new}.{kind}"));
        };
        let names = ["q_proj", "k_proj", "v_proj"];
        let rotated = index < 2;
        match config.family {
            Family::Phi3 => {
                rename(self, names, "self_attn.qkv_proj");
                self.shape[0] = q_size + 2 * kv_size;
                self.layout = RowLayout::from_row([0, q_size, q_size + kv_size][index]);
            }
            Family::GptNeoX => {
                rename(self, names, "attention.query_key_value");
                self.shape[0] = 3 * q_size;
                self.layout = RowLayout::runs(index * head_dim, head_dim, 3 * head_dim);
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
            Family::Cohere | Family::Cohere2 if rotated => {
                self.layout.interleaved = Some(Interleaved::whole(head_dim));
            }
            Family::Glm | Family::Glm4 if rotated => {
                let dims = config.rotary_dims();
                self.layout.interleaved = Some(Interleaved { head_dim, dims });
            }
            _ => {}
        }
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
        let (LayerTensor::Gate | LayerTensor::Up, Family::Phi3 | Family::Glm | Family::Glm4) =
            (part, config.family)
        else {
            return;
        };
        let size = config.intermediate_size;
        let name = if part == LayerTensor::Gate { "gate_proj" } else { "up_proj" };
        self.name = self.name.replace(name, "gate_up_proj");
        self.shape[0] = 2 * size;
        self.layout = RowLayout::from_row(if part == LayerTensor::Gate { 0 } else { size });
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
            Family::Mixtral => {
                let new = ["w1", "w3", "w2"][part.projection()];
                let old = ["gate_proj", "up_proj", "down_proj"][part.projection()];
                self.name = self.name.replace(".mlp.", ".block_sparse_moe.").replace(old, new);
            }
            Family::GraniteMoe => {
                let is_down = part == E::Down;
                let name = if is_down { "output_linear" } else { "input_linear" };
                self.name = format!("{}.block_sparse_moe.{name}.weight", in_all(&self.name));
                self.expert = Some([expert, n_experts]);
                self.shape = match is_down {
                    true => vec![n_experts, hidden, size],
                    false => vec![n_experts, 2 * size, hidden],
                };
                self.layout = RowLayout::from_row(if part == E::Up { size } else { 0 });
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
}
