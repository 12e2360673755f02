//! The architectures of llama.cpp that are read, and what each of them computes without an option.

use super::options::ModelOptions;
use super::{gemma4, latent, mixer, mixture};
use crate::architecture::{Activation, Norm, QkNorms};
use crate::config::{
    Config, Family, NormPlacement, Pooling, PoolingMode, RopeScaling, SlidingLayers, SlidingWindow,
};
use crate::load_error::LoadError;

/// The order of the rows of queries and keys: that of the pairs that RoPE rotates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairs {
    /// (2i, 2i + 1).
    Neighbours,
    /// (i, i + dims/2).
    Halves,
}

/// An architecture of llama.cpp.
pub(super) struct GgufArchitecture {
    /// The value of `general.architecture`, with which the model's options begin.
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) pairs: Pairs,
    pub(super) norm: Norm,
    /// The sliding window of files that do not give its size.
    pub(super) window: Option<usize>,
    /// The last of so many layers has no window.
    pub(super) window_period: Option<usize>,
    /// Whether RoPE may rotate a part of each head.
    pub(super) partial_rope: bool,
    /// Options that the architecture reads, among those that most do not compute.
    reads: &'static [&'static [&'static str]],
}

/// An architecture whose rows of queries and keys have this order, and which has RMS norms and no
/// windows.
const fn architecture(name: &'static str, family: Family, pairs: Pairs) -> GgufArchitecture {
    GgufArchitecture {
        name,
        family,
        pairs,
        norm: Norm::Rms,
        window: None,
        window_period: None,
        partial_rope: false,
        reads: &[],
    }
}

/// An architecture whose pairs are neighbours.
const fn neighbours(name: &'static str, family: Family) -> GgufArchitecture {
    architecture(name, family, Pairs::Neighbours)
}

/// An architecture whose pairs are in the halves of a head.
const fn halves(name: &'static str, family: Family) -> GgufArchitecture {
    architecture(name, family, Pairs::Halves)
}

/// The number of layers for multi-token prediction, which follow the others.
pub(super) const NEXT_TOKEN_LAYERS: &str = "nextn_predict_layers";

const EXPERTS: &[&str] = &["expert_count", "expert_used_count"];
const SHARED_EXPERT_SIZE: &[&str] = &["expert_shared_feed_forward_length"];
const EXPERTS_IN_GROUPS: &[&str] = &[
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_scale",
    "leading_dense_block_count",
    NEXT_TOKEN_LAYERS,
];
const LATENT: &[&str] = &[
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "rope.scaling.yarn_log_multiplier",
];
const INDEXER: &[&str] = &["attention.indexer.head_count"];
/// What only images change.
const IMAGES: &[&str] = &["n_deepstack_layers", "rope.dimension_sections"];
const FACTORS: &[&str] = &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"];
const PARALLEL: &[&str] = &["use_parallel_residual"];

/// The drafters of Gemma 4 ([`crate::speculator`]), which are no models by themselves. All their
/// layers are for multi-token prediction.
pub(super) const ASSISTANT: &str = "gemma4-assistant";

/// The hidden size of an assistant's target.
pub(super) const TARGET_SIZE: &str = "embedding_length_out";

const GEMMA4: &[&str] = &[
    "final_logit_softcapping",
    "rope.freq_base_swa",
    "rope.dimension_count_swa",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "attention.shared_kv_layers",
    "embedding_length_per_layer_input",
];

/// What hybrid Qwens read. Positions of a text are the same in all sections of RoPE.
const HYBRID_QWEN: &[&[&str]] = &[
    EXPERTS,
    SHARED_EXPERT_SIZE,
    &["full_attention_interval", "rope.dimension_sections", NEXT_TOKEN_LAYERS],
];

const LAYER_NORM: Norm = Norm::Layer { bias: true };
const LAYER_NORM_WITHOUT_BIAS: Norm = Norm::Layer { bias: false };

const ARCHITECTURES: &[GgufArchitecture] = &[
    neighbours("llama", Family::Llama),
    neighbours("llama", Family::Mixtral).reads(&[EXPERTS]),
    halves("qwen2", Family::Qwen2),
    halves("qwen2moe", Family::Qwen2Moe).reads(&[
        EXPERTS,
        SHARED_EXPERT_SIZE,
        &["expert_shared_count"],
    ]),
    halves("qwen3", Family::Qwen3),
    halves("qwen3moe", Family::Qwen3Moe).reads(&[EXPERTS]),
    halves("qwen3vl", Family::Qwen3).reads(&[IMAGES]),
    halves("qwen3vlmoe", Family::Qwen3Moe).reads(&[EXPERTS, IMAGES]),
    halves("gpt-oss", Family::GptOss).window_period(2).reads(&[EXPERTS]),
    GgufArchitecture { window: Some(4096), ..halves("gemma2", Family::Gemma2) }
        .window_period(2)
        .reads(&[&["attn_logit_softcapping", "final_logit_softcapping", "attention.scale"]]),
    halves("gemma3", Family::Gemma3).window_period(6).reads(&[&[
        "final_logit_softcapping",
        "attention.scale",
        "rope.freq_base_swa",
    ]]),
    halves("gemma4", Family::Gemma4).reads(&[EXPERTS, GEMMA4]),
    halves(ASSISTANT, Family::Gemma4).reads(&[GEMMA4, &[TARGET_SIZE, NEXT_TOKEN_LAYERS]]),
    neighbours("granite", Family::Granite).reads(&[FACTORS]),
    neighbours("granitemoe", Family::GraniteMoe).reads(&[FACTORS, EXPERTS]),
    neighbours("smollm3", Family::SmolLm3),
    halves("olmo2", Family::Olmo2).window_period(4).reads(&[&["rope.freq_base_swa"]]),
    halves("olmoe", Family::Olmoe).reads(&[EXPERTS]),
    halves("phi3", Family::Phi3).partial_rope(),
    halves("gpt2", Family::Gpt2).norm(LAYER_NORM),
    halves("falcon", Family::Falcon).norm(LAYER_NORM),
    neighbours("olmo", Family::Olmo).norm(Norm::UnweightedLayer).reads(&[&["attention.clamp_kqv"]]),
    halves("starcoder2", Family::StarCoder2).norm(LAYER_NORM),
    // Files say that the residual is parallel although it is not. The tensors decide.
    halves("stablelm", Family::StableLm).norm(LAYER_NORM).partial_rope().reads(&[PARALLEL]),
    halves("gptneox", Family::GptNeoX).norm(LAYER_NORM).partial_rope().reads(&[PARALLEL]),
    halves("phi2", Family::Phi).norm(LAYER_NORM).partial_rope(),
    neighbours("command-r", Family::Cohere)
        .norm(LAYER_NORM_WITHOUT_BIAS)
        .reads(&[&["logit_scale"]]),
    neighbours("cohere2", Family::Cohere2)
        .norm(LAYER_NORM_WITHOUT_BIAS)
        .window_period(4)
        .reads(&[&["logit_scale"]]),
    neighbours("glm4", Family::Glm4).partial_rope(),
    neighbours("chatglm", Family::Glm).partial_rope(),
    halves("glm4moe", Family::Glm4Moe).partial_rope().reads(&[EXPERTS_IN_GROUPS]),
    // Files with sigmoids as weights of experts are those of DeepSeek-V3.
    neighbours("deepseek2", Family::DeepseekV2).reads(&[EXPERTS_IN_GROUPS, LATENT]),
    neighbours("deepseek32", Family::DeepseekV32).reads(&[EXPERTS_IN_GROUPS, LATENT, INDEXER]),
    neighbours("glm-dsa", Family::GlmMoeDsa).reads(&[EXPERTS_IN_GROUPS, LATENT, INDEXER]),
    halves("dots1", Family::Dots1).reads(&[EXPERTS_IN_GROUPS]),
    neighbours("ernie4_5", Family::Ernie45),
    neighbours("ernie4_5-moe", Family::Ernie45Moe).reads(&[
        EXPERTS,
        SHARED_EXPERT_SIZE,
        &["expert_shared_count", "interleave_moe_layer_step", "leading_dense_block_count"],
    ]),
    halves("minimax-m2", Family::MiniMaxM2).partial_rope().reads(&[EXPERTS]),
    halves("qwen3next", Family::Qwen3Next).partial_rope().reads(HYBRID_QWEN),
    halves("qwen35", Family::Qwen35).partial_rope().reads(HYBRID_QWEN),
    halves("qwen35moe", Family::Qwen35Moe).partial_rope().reads(HYBRID_QWEN),
    halves("lfm2", Family::Lfm2),
    halves("lfm2moe", Family::Lfm2Moe).reads(&[EXPERTS, &["leading_dense_block_count"]]),
    halves("bert", Family::Bert).norm(LAYER_NORM).reads(&[&["attention.causal"]]),
    neighbours("granitehybrid", Family::GraniteMoeHybrid).reads(&[
        FACTORS,
        EXPERTS,
        SHARED_EXPERT_SIZE,
    ]),
];

impl GgufArchitecture {
    const fn norm(self, norm: Norm) -> Self {
        Self { norm, ..self }
    }

    const fn window_period(self, layers: usize) -> Self {
        Self { window_period: Some(layers), ..self }
    }

    const fn partial_rope(self) -> Self {
        Self { partial_rope: true, ..self }
    }

    const fn reads(self, reads: &'static [&'static [&'static str]]) -> Self {
        Self { reads, ..self }
    }

    /// Whether the architecture reads an option that most do not compute.
    pub(super) fn reads_option(&self, name: &str) -> bool {
        self.reads.iter().any(|options| options.contains(&name))
    }

    /// Returns the architecture with this name, if it is read. Some have a variant with experts.
    pub(super) fn named(name: &str, has_experts: bool) -> Option<&'static Self> {
        let mut found = ARCHITECTURES.iter().filter(|architecture| architecture.name == name);
        let first = found.next()?;
        Some(found.next().filter(|_| has_experts).unwrap_or(first))
    }

    /// Returns the first architecture of a family; some are only stored as another family's.
    pub(super) fn of(family: Family) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.family == family)
    }

    pub(super) fn all_names() -> String {
        let names = ARCHITECTURES.iter().map(|architecture| architecture.name);
        let models = names.filter(|name| *name != ASSISTANT);
        let mut names: Vec<String> = models.map(|name| format!("\"{name}\"")).collect();
        names.dedup();
        names.join(", ")
    }

    /// Sets what the architecture computes beyond a plain Llama. `has` says whether a tensor is
    /// stored.
    pub(super) fn adapt(
        &self,
        options: &ModelOptions<'_>,
        has: &dyn Fn(&str) -> bool,
        config: &mut Config,
    ) -> Result<(), LoadError> {
        match self.family {
            Family::Qwen3 | Family::Qwen3Moe | Family::Lfm2 | Family::Lfm2Moe | Family::Dots1 => {
                config.qk_norms = QkNorms::Heads;
            }
            Family::GptOss => config.sinks = true,
            Family::Gemma2 | Family::Gemma3 => gemma(options, self.family, config)?,
            Family::Gemma4 => gemma4::read(options, has, config)?,
            Family::Granite | Family::GraniteMoe => granite(options, config)?,
            Family::GraniteMoeHybrid => {
                let has_rope = options.metadata.bool(&options.key(FINETUNED_ROPE))?;
                if has_rope == Some(false) {
                    config.rope_layers = Some(vec![false; config.num_hidden_layers]);
                }
                granite_factors(options, config)?;
                // Without experts, the shared one is the MLP.
                let shared = options.size_or_zero("expert_shared_feed_forward_length")?;
                if options.size_or_zero("expert_count")?.is_none() {
                    config.intermediate_size = shared.unwrap_or(config.intermediate_size);
                }
            }
            Family::DeepseekV2 | Family::DeepseekV32 | Family::GlmMoeDsa => {
                latent::read(options, has, config)?;
            }
            Family::Bert => {
                let types = options.metadata.u32("tokenizer.ggml.token_type_count")?;
                if options.metadata.bool(&options.key("attention.causal"))? == Some(true) {
                    return Err(options.unsupported("attention.causal", "false"));
                }
                config.set_bert(types.unwrap_or(2) as usize);
                config.hidden_act = Activation::Gelu;
            }
            family if family.is_hybrid_qwen() => {
                config.qk_norms = QkNorms::Heads;
                config.attention_gate = true;
            }
            Family::SmolLm3 => {
                // llama.cpp's constant: the last of every four layers has no RoPE.
                let layers = 1..=config.num_hidden_layers;
                config.rope_layers = Some(layers.map(|layer| !layer.is_multiple_of(4)).collect());
            }
            Family::Olmo2 => olmo2(options, config)?,
            Family::Olmoe | Family::MiniMaxM2 => config.qk_norms = QkNorms::Whole,
            Family::Gpt2 => {
                config.gated_mlp = false;
                config.hidden_act = Activation::GeluTanh;
                config.learned_positions = Some(0);
                config.rope_layers = Some(vec![false; config.num_hidden_layers]);
            }
            Family::Falcon => {
                config.gated_mlp = false;
                config.hidden_act = Activation::Gelu;
                config.norm_placement = match has("blk.0.attn_norm_2.weight") {
                    true => NormPlacement::ParallelNorms,
                    false => NormPlacement::Parallel,
                };
            }
            Family::Olmo => config.clip_qkv = options.positive_or_zero("attention.clamp_kqv")?,
            Family::StarCoder2 => {
                config.gated_mlp = false;
                config.hidden_act = Activation::GeluTanh;
            }
            Family::StableLm => {
                if !has("blk.0.ffn_norm.weight") {
                    config.norm_placement = NormPlacement::Parallel;
                }
                if has("blk.0.attn_q_norm.weight") {
                    config.qk_norms = QkNorms::OwnHeads;
                }
            }
            Family::GptNeoX => gpt_neox(options, config)?,
            Family::Phi => {
                config.norm_placement = NormPlacement::Parallel;
                config.gated_mlp = false;
                config.hidden_act = Activation::GeluTanh;
                config.head_bias = has("output.bias");
            }
            Family::Cohere | Family::Cohere2 => {
                let has_norms = has("blk.0.attn_q_norm.weight");
                config.qk_norms = if has_norms { QkNorms::OwnHeads } else { QkNorms::None };
                cohere(options, self.family, config)?;
            }
            Family::Glm4 => config.norm_placement = NormPlacement::Around,
            Family::Glm4Moe if has("blk.0.attn_q_norm.weight") => {
                config.qk_norms = QkNorms::Heads;
            }
            _ => {}
        }
        config.pooling = pooling(options)?.or(config.pooling);
        config.recurrent = mixer::read(options, self.family, has, config)?;
        config.experts = mixture::read(options, config.family, has, config)?;
        Ok(())
    }
}

/// How a model for embeddings makes them. 0 means that the file is not one for embeddings.
fn pooling(options: &ModelOptions<'_>) -> Result<Option<Pooling>, LoadError> {
    let mode = match options.metadata.u32(&options.key("pooling_type"))? {
        None | Some(0) => return Ok(None),
        Some(1) => PoolingMode::Mean,
        Some(2) => PoolingMode::First,
        Some(3) => PoolingMode::Last,
        Some(_) => return Err(options.unsupported("pooling_type", "1 (mean), 2 (cls) or 3 (last)")),
    };
    Ok(Some(mode.into()))
}

/// Gemma 2 and 3. The factor of scores is not stored: it depends on the size of the published
/// model.
fn gemma(options: &ModelOptions<'_>, family: Family, config: &mut Config) -> Result<(), LoadError> {
    let limit = |name, default: Option<f32>| match options.contains(name) {
        true => options.positive_or_zero(name),
        false => Ok(default),
    };
    let (attention, logits, layers_of_27b) = match family {
        Family::Gemma2 => (limit("attn_logit_softcapping", Some(50.0))?, Some(30.0), 46),
        _ => (None, None, 62),
    };
    config.attn_logit_softcapping = attention;
    config.final_logit_softcapping = limit("final_logit_softcapping", logits)?;
    config.norm_placement = NormPlacement::Around;
    config.hidden_act = Activation::GeluTanh;
    config.embedding_multiplier = (config.hidden_size as f32).sqrt();
    let scaled = match config.num_hidden_layers == layers_of_27b {
        true => config.hidden_size / config.num_attention_heads,
        false => config.head_dim,
    };
    let stored = options.positive_or_zero("attention.scale")?;
    config.attention_multiplier = Some(stored.unwrap_or(1.0 / (scaled as f32).sqrt()));
    if family == Family::Gemma3 {
        config.qk_norms = QkNorms::Heads;
        let theta = options.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
        config.local_rope = Some((theta, RopeScaling::None));
    }
    Ok(())
}

/// Whether layers have RoPE (Granite).
const FINETUNED_ROPE: &str = "rope.scaling.finetuned";

fn granite(options: &ModelOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    if options.metadata.bool(&options.key(FINETUNED_ROPE))? == Some(false) {
        return Err(options.unsupported(FINETUNED_ROPE, "true: without it, llama.cpp has no RoPE"));
    }
    granite_factors(options, config)
}

fn granite_factors(options: &ModelOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    config.attention_multiplier = options.positive_or_zero("attention.scale")?;
    let factor = |name| Ok::<_, LoadError>(options.positive_or_zero(name)?.unwrap_or(1.0));
    config.embedding_multiplier = factor("embedding_scale")?;
    config.residual_multiplier = factor("residual_scale")?;
    // A divisor here, and a factor in Cohere's models.
    config.logits_scaling = factor("logit_scale")?;
    Ok(())
}

/// OLMo 2, and OLMo 3, which has windows. Layers with a window have unscaled RoPE.
fn olmo2(options: &ModelOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    config.qk_norms = QkNorms::Whole;
    config.norm_placement = NormPlacement::After;
    if config.sliding_window.is_some() {
        config.family = Family::Olmo3;
        let theta = options.positive("rope.freq_base_swa")?.unwrap_or(config.rope_theta);
        config.local_rope = Some((theta, RopeScaling::None));
    }
    Ok(())
}

fn gpt_neox(options: &ModelOptions<'_>, config: &mut Config) -> Result<(), LoadError> {
    const PARALLEL: &str = "use_parallel_residual";
    let parallel = options.metadata.bool(&options.key(PARALLEL))?;
    if parallel.ok_or_else(|| options.invalid(PARALLEL, "true or false"))? {
        config.norm_placement = NormPlacement::ParallelNorms;
    }
    config.gated_mlp = false;
    config.hidden_act = Activation::Gelu;
    Ok(())
}

/// Command R and its successors. In those with windows, other layers have no RoPE.
fn cohere(
    options: &ModelOptions<'_>,
    family: Family,
    config: &mut Config,
) -> Result<(), LoadError> {
    config.norm_placement = NormPlacement::Parallel;
    config.logits_scaling = 1.0 / options.required_positive("logit_scale")?;
    if family == Family::Cohere2 {
        let Some(SlidingWindow { layers: SlidingLayers::Listed(listed), .. }) =
            &config.sliding_window
        else {
            return Err(options.missing("attention.sliding_window"));
        };
        config.rope_layers = Some(listed.clone());
    }
    Ok(())
}
