//! The mixes of llama.cpp: which block type each matrix of a quantised model has.
//!
//! Source: `llama_tensor_get_type` and `tensor_type_fallback` in `src/llama-quant.cpp` of
//! llama.cpp, for dense models and without an importance matrix.

use crate::architecture::{Architecture, Head};
use crate::block_type::BlockType;
use crate::table_enum::table_enum;
use crate::tensor::{BlockHeadTensor, ExpertTensor, HeadTensor, LayerTensor, Tensor};
use crate::weight_type::WeightType;
use BlockType::{Q2_K, Q3_K, Q4_0, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
use std::fmt;

table_enum! {
    /// A choice of block types, named after the type of most matrices. Matrices that matter more
    /// have more bits.
    ///
    /// A matrix whose number of inputs is no multiple of 256 has a type with blocks of 32 instead,
    /// and f16 if it is no multiple of 32 either.
    #[expect(non_camel_case_types, reason = "the names that llama.cpp uses")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Mix;

    /// Returns the code of a file's type (`llama_ftype`).
    pub(crate) fn file_type() -> u32;

    /// Q2_K; some matrices in Q4_K.
    Q2_K_S = 21,
    /// llama.cpp's `Q2_K`: Q2_K, and Q3_K for the outputs of attention and MLP.
    Q2_K_M = 10,
    /// Q3_K, and Q6_K for the head.
    Q3_K_S = 11,
    /// Q3_K; values and the outputs of attention and MLP in Q4_K or Q5_K.
    Q3_K_M = 12,
    /// Q3_K; values and the outputs of attention and MLP in Q5_K.
    Q3_K_L = 13,
    /// Q4_K; values and MLP outputs of the first layers in Q5_K.
    Q4_K_S = 14,
    /// Q4_K; values and MLP outputs of half of the layers in Q6_K.
    Q4_K_M = 15,
    /// Q5_K, and Q6_K for the head.
    Q5_K_S = 16,
    /// Q5_K; values and MLP outputs of half of the layers in Q6_K.
    Q5_K_M = 17,
}

impl Mix {
    /// Returns the type of a model's matrix with this number of inputs.
    pub(crate) fn of_model(
        self,
        model: &Architecture,
        tensor: Tensor,
        inputs: usize,
    ) -> WeightType {
        let layers = model.layers.len();
        let block_type = match tensor {
            Tensor::Head => Q6_K,
            Tensor::Embedding if model.head == Head::Embedding => Q6_K,
            Tensor::Layer(layer, LayerTensor::Value) => {
                let attention = model.layers.iter().find_map(|layer| layer.attention.as_ref());
                let group = attention
                    .map_or(1, |attention| attention.n_heads / attention.n_kv_heads.max(1));
                self.of_values(layer, layers, group)
            }
            Tensor::Layer(_, LayerTensor::Output | LayerTensor::MixerOutput) => {
                self.of_attention_output()
            }
            Tensor::Layer(layer, LayerTensor::Down)
            | Tensor::Expert(layer, _, ExpertTensor::Down) => self.of_mlp_output(layer, layers),
            _ => self.of_most(),
        };
        with_whole_blocks(block_type, inputs)
    }

    /// Returns the type of a draft head's matrix with this number of inputs.
    pub(crate) fn of_draft_head(self, tensor: HeadTensor, inputs: usize) -> WeightType {
        let is_head = tensor == HeadTensor::Matrix;
        with_whole_blocks(if is_head { Q6_K } else { self.of_most() }, inputs)
    }

    /// Returns the type of a block head's matrix with this number of inputs.
    pub(crate) fn of_block_head(self, tensor: BlockHeadTensor, inputs: usize) -> WeightType {
        let is_head = matches!(tensor, BlockHeadTensor::LogitBias | BlockHeadTensor::Successor);
        with_whole_blocks(if is_head { Q6_K } else { self.of_most() }, inputs)
    }

    fn of_most(self) -> BlockType {
        match self {
            Self::Q2_K_S | Self::Q2_K_M => Q2_K,
            Self::Q3_K_S | Self::Q3_K_M | Self::Q3_K_L => Q3_K,
            Self::Q4_K_S | Self::Q4_K_M => Q4_K,
            Self::Q5_K_S | Self::Q5_K_M => Q5_K,
        }
    }

    /// The value projection. `group` is the number of query heads that share a value head.
    fn of_values(self, layer: usize, layers: usize, group: usize) -> BlockType {
        let usual = match self {
            Self::Q2_K_S | Self::Q2_K_M if group >= 4 => Q4_K,
            Self::Q2_K_M => Q3_K,
            Self::Q3_K_M if layer < 2 => Q5_K,
            Self::Q3_K_M => Q4_K,
            Self::Q3_K_L => Q5_K,
            Self::Q4_K_S if layer < 4 => Q5_K,
            Self::Q4_K_M | Self::Q5_K_M if has_more_bits(layer, layers) => Q6_K,
            _ => self.of_most(),
        };
        match usual {
            // Llama 2 70B, where eight heads share a value head, and models of its size.
            Q3_K | Q4_K if layers == 80 => Q5_K,
            usual => usual,
        }
    }

    fn of_attention_output(self) -> BlockType {
        match self {
            Self::Q2_K_M => Q3_K,
            Self::Q3_K_M => Q4_K,
            Self::Q3_K_L => Q5_K,
            _ => self.of_most(),
        }
    }

    fn of_mlp_output(self, layer: usize, layers: usize) -> BlockType {
        match self {
            Self::Q2_K_S if layer < layers / 8 => Q4_K,
            Self::Q2_K_M => Q3_K,
            Self::Q3_K_M if layer < layers / 16 => Q5_K,
            Self::Q3_K_M => Q4_K,
            Self::Q3_K_L => Q5_K,
            Self::Q4_K_S if layer < layers / 8 => Q5_K,
            Self::Q4_K_M | Self::Q5_K_M if has_more_bits(layer, layers) => Q6_K,
            _ => self.of_most(),
        }
    }
}

/// Whether a layer is in the first or last eighth, or the last of three between them
/// (`use_more_bits`).
fn has_more_bits(layer: usize, layers: usize) -> bool {
    let first = layers / 8;
    layer < first || layer >= 7 * layers / 8 || (layer - first) % 3 == 2
}

/// Returns the type itself if rows of `inputs` are whole blocks, and otherwise the next one that
/// fits.
fn with_whole_blocks(block_type: BlockType, inputs: usize) -> WeightType {
    let smaller = match block_type {
        Q2_K | Q3_K => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        _ => Q8_0,
    };
    let fits = |block_type: &BlockType| inputs.is_multiple_of(block_type.weights());
    let found = [block_type, smaller].into_iter().find(fits);
    found.map_or(WeightType::F16, WeightType::Quantized)
}

impl fmt::Display for Mix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of the variants are the names of the mixes.
        formatter.write_str(&format!("{self:?}").to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn model(layers: usize, kv_heads: usize, tied: bool) -> Architecture {
        let config = Config {
            hidden_size: 512,
            intermediate_size: 768,
            num_hidden_layers: layers,
            num_attention_heads: 8,
            num_key_value_heads: kv_heads,
            head_dim: 64,
            vocab_size: 16,
            tie_word_embeddings: tied,
            ..Config::plain_llama()
        };
        config.architecture()
    }

    /// The types of a tensor in all layers, one digit each: the bits of a weight.
    fn digits(mix: Mix, model: &Architecture, tensor: LayerTensor) -> String {
        let digit = |layer| match mix.of_model(model, Tensor::Layer(layer, tensor), 512) {
            WeightType::Quantized(block_type) => block_type.to_string().as_bytes()[1] as char,
            other => panic!("{other}"),
        };
        (0..model.layers.len()).map(digit).collect()
    }

    #[test]
    fn layers_have_the_types_of_llama_cpp() {
        use LayerTensor::{Down, Gate, Output, Query, Value};
        let model = model(16, 2, false);
        let all = |digit: &str| digit.repeat(16);
        for (mix, most, value, output, down) in [
            (Mix::Q2_K_S, "2", all("4"), "2", "44".to_owned() + &"2".repeat(14)),
            (Mix::Q2_K_M, "2", all("4"), "3", all("3")),
            (Mix::Q3_K_S, "3", all("3"), "3", all("3")),
            (
                Mix::Q3_K_M,
                "3",
                "55".to_owned() + &"4".repeat(14),
                "4",
                "5".to_owned() + &"4".repeat(15),
            ),
            (Mix::Q3_K_L, "3", all("5"), "5", all("5")),
            (
                Mix::Q4_K_S,
                "4",
                "5555".to_owned() + &"4".repeat(12),
                "4",
                "55".to_owned() + &"4".repeat(14),
            ),
            (Mix::Q4_K_M, "4", "6644644644644666".into(), "4", "6644644644644666".into()),
            (Mix::Q5_K_S, "5", all("5"), "5", all("5")),
            (Mix::Q5_K_M, "5", "6655655655655666".into(), "5", "6655655655655666".into()),
        ] {
            assert_eq!(digits(mix, &model, Query), all(most), "{mix}");
            assert_eq!(digits(mix, &model, Gate), all(most), "{mix}");
            assert_eq!(digits(mix, &model, Value), value, "{mix}");
            assert_eq!(digits(mix, &model, Output), all(output), "{mix}");
            assert_eq!(digits(mix, &model, Down), down, "{mix}");
        }
    }

    #[test]
    fn values_depend_on_heads_and_size() {
        let few_heads = model(2, 4, false);
        assert_eq!(digits(Mix::Q2_K_S, &few_heads, LayerTensor::Value), "22");
        assert_eq!(digits(Mix::Q2_K_M, &few_heads, LayerTensor::Value), "33");
        let large = model(80, 1, false);
        assert_eq!(digits(Mix::Q4_K_S, &large, LayerTensor::Value), "5".repeat(80));
        assert_eq!(digits(Mix::Q4_K_S, &large, LayerTensor::Query), "4".repeat(80));
    }

    #[test]
    fn the_head_and_a_tied_embedding_are_q6_k() {
        let types = |tied| {
            let of = |tensor| Mix::Q4_K_M.of_model(&model(2, 2, tied), tensor, 512).to_string();
            [Tensor::Embedding, Tensor::Head].map(of)
        };
        assert_eq!(types(false), ["q4_k", "q6_k"]);
        assert_eq!(types(true)[0], "q6_k");
        assert_eq!(Mix::Q3_K_S.of_draft_head(HeadTensor::Matrix, 256).to_string(), "q6_k");
        assert_eq!(Mix::Q3_K_S.of_draft_head(HeadTensor::First, 256).to_string(), "q3_k");
    }

    #[test]
    fn rows_that_are_not_whole_blocks_have_other_types() {
        let of = |block_type, inputs| with_whole_blocks(block_type, inputs).to_string();
        let fallbacks = [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K].map(|block_type| of(block_type, 576));
        assert_eq!(fallbacks, ["q4_0", "q4_0", "q5_0", "q5_1", "int8"]);
        assert_eq!((of(Q4_K, 512), of(Q4_K, 100)), ("q4_k".into(), "f16".into()));
    }
}
