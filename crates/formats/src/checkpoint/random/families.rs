//! Small configurations of the families that are not plain Llamas.

use super::examples::example_config;
use crate::architecture::{
    Activation, ExpertGroups, Experts, Latent, Mlp, Norm, QkNorms, Recurrent, RecurrentRule,
    Router, Weighting,
};
use crate::config::{
    Config, Family, GlobalHeads, MixtureLayers, NormPlacement, RecurrentLayers, RopeScaling,
    SharedKeys, SlidingLayers, SlidingWindow, Yarn,
};

const YARN: Yarn = Yarn {
    factor: 4.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    truncate: true,
    attention_factor: 1.125,
    original_max_position_embeddings: 64,
};

/// Returns the window of some of two layers.
fn window(size: usize, layers: [bool; 2]) -> Option<SlidingWindow> {
    Some(SlidingWindow { size, layers: SlidingLayers::Listed(layers.to_vec()) })
}

/// Returns dense families: norms in other places, layer norms, limits, and parts of heads with
/// RoPE.
pub(super) fn dense() -> Vec<Config> {
    let gemma2 = Config {
        family: Family::Gemma2,
        norm_placement: NormPlacement::Around,
        hidden_act: Activation::GeluTanh,
        embedding_multiplier: 48.0_f32.sqrt(),
        attention_multiplier: Some(0.25),
        attn_logit_softcapping: Some(2.0),
        final_logit_softcapping: Some(4.0),
        sliding_window: window(9, [true, false]),
        tie_word_embeddings: true,
        ..example_config()
    };
    let gemma3 = Config {
        family: Family::Gemma3,
        attn_logit_softcapping: None,
        final_logit_softcapping: None,
        qk_norms: QkNorms::Heads,
        rope_theta: 1e6,
        rope_scaling: RopeScaling::Linear { factor: 8.0 },
        local_rope: Some((1e4, RopeScaling::None)),
        ..gemma2.clone()
    };
    let gemma4 = Config {
        family: Family::Gemma4,
        attention_multiplier: Some(1.0),
        final_logit_softcapping: Some(4.0),
        rope_scaling: RopeScaling::Proportional { share: 0.5, factor: 1.0 },
        value_norm: true,
        layer_scalar: true,
        global_heads: Some(GlobalHeads {
            head_dim: 12,
            num_key_value_heads: 2,
            values_are_keys: true,
        }),
        ..gemma3.clone()
    };
    // The second layer attends to the keys of the first one.
    let gemma4_inputs = Config {
        sliding_window: window(9, [false, false]),
        global_heads: Some(GlobalHeads {
            head_dim: 10,
            num_key_value_heads: 3,
            values_are_keys: false,
        }),
        shared_keys: Some(SharedKeys { layers: 1, wide_mlp: true }),
        per_layer_input: Some(11),
        ..gemma4.clone()
    };
    let gemma4_experts = Config {
        global_heads: gemma4
            .global_heads
            .map(|heads| GlobalHeads { values_are_keys: false, ..heads }),
        experts: Some(MixtureLayers {
            shared_size: Some(gemma4.intermediate_size),
            ..MixtureLayers::in_all(gemma4_experts())
        }),
        ..gemma4.clone()
    };
    let starcoder2 = Config {
        family: Family::StarCoder2,
        norm: Norm::Layer { bias: true },
        hidden_act: Activation::GeluTanh,
        gated_mlp: false,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        ..example_config()
    };
    let phi = Config {
        family: Family::Phi,
        norm_placement: NormPlacement::Parallel,
        partial_rotary_factor: 0.5,
        head_bias: true,
        ..starcoder2.clone()
    };
    let phi3 = Config {
        family: Family::Phi3,
        head_dim: 8,
        partial_rotary_factor: 0.75,
        rope_scaling: RopeScaling::Divisors {
            divisors: [1.0, 1.5, 4.0].into(),
            attention_factor: 1.25,
        },
        sliding_window: Some(SlidingWindow { size: 30, layers: SlidingLayers::From(0) }),
        ..example_config()
    };
    let olmo2 = Config {
        family: Family::Olmo2,
        norm_placement: NormPlacement::After,
        qk_norms: QkNorms::Whole,
        ..example_config()
    };
    let olmo3 = Config {
        family: Family::Olmo3,
        rope_theta: 5e5,
        rope_scaling: RopeScaling::Yarn(YARN),
        local_rope: Some((5e5, RopeScaling::None)),
        sliding_window: window(12, [true, false]),
        ..olmo2.clone()
    };
    let cohere = Config {
        family: Family::Cohere,
        norm: Norm::Layer { bias: false },
        norm_placement: NormPlacement::Parallel,
        qk_norms: QkNorms::OwnHeads,
        logits_scaling: 2.0,
        tie_word_embeddings: true,
        ..example_config()
    };
    let cohere2 = Config {
        family: Family::Cohere2,
        qk_norms: QkNorms::None,
        rope_layers: Some(vec![true, false]),
        sliding_window: window(11, [true, false]),
        ..cohere.clone()
    };
    let glm = Config {
        family: Family::Glm,
        partial_rotary_factor: 0.5,
        qkv_bias: true,
        ..example_config()
    };
    let glm4 =
        Config { family: Family::Glm4, norm_placement: NormPlacement::Around, ..glm.clone() };
    let stablelm = Config {
        family: Family::StableLm,
        norm: Norm::Layer { bias: true },
        norm_placement: NormPlacement::Parallel,
        partial_rotary_factor: 0.25,
        qkv_bias: true,
        ..example_config()
    };
    let gpt_neox = Config {
        family: Family::GptNeoX,
        norm_placement: NormPlacement::ParallelNorms,
        hidden_act: Activation::Gelu,
        partial_rotary_factor: 0.25,
        num_key_value_heads: 6,
        ..starcoder2.clone()
    };
    let gpt2 = Config {
        family: Family::Gpt2,
        learned_positions: Some(0),
        rope_layers: Some(vec![false, false]),
        num_key_value_heads: 6,
        tie_word_embeddings: true,
        ..starcoder2.clone()
    };
    let opt = Config {
        family: Family::Opt,
        hidden_act: Activation::Relu,
        learned_positions: Some(2),
        ..gpt2.clone()
    };
    let falcon = Config {
        family: Family::Falcon,
        norm: Norm::Layer { bias: true },
        norm_placement: NormPlacement::ParallelNorms,
        hidden_act: Activation::Gelu,
        gated_mlp: false,
        tie_word_embeddings: true,
        ..example_config()
    };
    let falcon_single = Config {
        norm_placement: NormPlacement::Parallel,
        num_key_value_heads: 1,
        ..falcon.clone()
    };
    let ernie45 = Config {
        family: Family::Ernie45,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        tie_word_embeddings: true,
        ..example_config()
    };
    let olmo = Config {
        family: Family::Olmo,
        norm: Norm::UnweightedLayer,
        clip_qkv: Some(0.75),
        ..example_config()
    };
    vec![
        gpt2,
        opt,
        falcon,
        falcon_single,
        ernie45,
        olmo,
        gemma2,
        gemma3,
        gemma4,
        gemma4_inputs,
        gemma4_experts,
        phi,
        phi3,
        olmo2,
        olmo3,
        cohere,
        cohere2,
        glm,
        glm4,
        starcoder2,
        stablelm,
        gpt_neox,
    ]
}

/// Returns experts with a router and norms of their own.
fn gemma4_experts() -> Experts {
    let router = Router { own_norm: true, expert_scales: true, ..Router::softmax(2) };
    let mlp = Mlp { activation: Activation::GeluTanh, ..Mlp::gated(36) };
    Experts { own_norms: true, ..Experts::plain(6, mlp, router) }
}

/// Returns mixtures of experts, of which some have dense layers, shared experts or groups.
pub(super) fn mixtures() -> Vec<Config> {
    let router = Router::softmax(2);
    let experts = |size, router| Experts::plain(6, Mlp::gated(size), router);
    let layers = MixtureLayers::in_all;
    let of = |family, layers| Config { family, experts: Some(layers), ..example_config() };
    let unnormalised = Router { normalised: false, ..router };
    let mixtral = of(Family::Mixtral, layers(experts(100, router)));
    let qwen2_moe = Config {
        qkv_bias: true,
        ..of(
            Family::Qwen2Moe,
            MixtureLayers {
                experts: Experts { shared_gate: true, ..experts(36, unnormalised) },
                shared_size: Some(52),
                dense: Vec::new(),
            },
        )
    };
    let qwen3_moe = Config {
        qk_norms: QkNorms::Heads,
        ..of(
            Family::Qwen3Moe,
            MixtureLayers { dense: vec![true, false], ..layers(experts(36, router)) },
        )
    };
    let olmoe = Config {
        qk_norms: QkNorms::Whole,
        // More than are computed together.
        ..of(Family::Olmoe, layers(Experts { n_experts: 13, ..experts(100, unnormalised) }))
    };
    let of_chosen = Router { weighting: Weighting::SoftmaxOfChosen, ..unnormalised };
    let granite_moe = Config {
        attention_multiplier: Some(0.25),
        embedding_multiplier: 1.5,
        residual_multiplier: 0.5,
        logits_scaling: 0.75,
        ..of(Family::GraniteMoe, layers(experts(100, of_chosen)))
    };
    let glm4_moe = Config {
        partial_rotary_factor: 0.5,
        ..of(
            Family::Glm4Moe,
            MixtureLayers {
                experts: experts(
                    36,
                    Router {
                        weighting: Weighting::Sigmoid,
                        scale: 1.5,
                        correction: true,
                        groups: Some(ExpertGroups {
                            n_groups: 3,
                            groups_per_token: 2,
                            experts_scored: 2,
                        }),
                        ..router
                    },
                ),
                shared_size: Some(72),
                dense: vec![true, false],
            },
        )
    };
    let clamped = Activation::ClampedSwiglu { limit: 1.0 };
    let base = experts(100, Router { bias: true, ..of_chosen });
    let gpt_oss = Config {
        sinks: true,
        qkv_bias: true,
        output_bias: true,
        sliding_window: window(10, [true, false]),
        rope_scaling: RopeScaling::Yarn(Yarn { truncate: false, ..YARN }),
        ..of(
            Family::GptOss,
            layers(Experts { mlp: Mlp { activation: clamped, bias: true, ..base.mlp }, ..base }),
        )
    };
    let sigmoid = Router { weighting: Weighting::Sigmoid, correction: true, ..router };
    let minimax_m2 = Config {
        qk_norms: QkNorms::Whole,
        partial_rotary_factor: 0.5,
        ..of(Family::MiniMaxM2, layers(experts(100, sigmoid)))
    };
    let dots1 = Config {
        qk_norms: QkNorms::Heads,
        sliding_window: window(11, [false, true]),
        experts: glm4_moe.experts.clone(),
        ..of(Family::Dots1, layers(experts(36, router)))
    };
    // A correction of a softmax.
    let ernie45_moe = of(
        Family::Ernie45Moe,
        MixtureLayers {
            shared_size: Some(72),
            ..layers(experts(36, Router { correction: true, ..router }))
        },
    );
    let qwen3_vl_moe =
        Config { qk_norms: QkNorms::Heads, ..of(Family::Qwen3VlMoe, layers(experts(36, router))) };
    let mut all = vec![
        mixtral,
        qwen2_moe,
        qwen3_moe,
        olmoe,
        granite_moe,
        glm4_moe,
        gpt_oss,
        minimax_m2,
        dots1,
        ernie45_moe,
        qwen3_vl_moe,
    ];
    all.extend(latent());
    all
}

/// Returns mixtures with compressed keys and values: with biases, YaRN and without compressed
/// queries.
fn latent() -> [Config; 5] {
    let latent = Latent {
        query_rank: None,
        rank: 20,
        plain_dim: 10,
        rope_dim: 8,
        value_dim: 12,
        mscale: 0.0,
        norm_epsilon: 1e-6,
    };
    let groups = |experts_scored| ExpertGroups { n_groups: 3, groups_per_token: 2, experts_scored };
    let of = |family, router| Config {
        family,
        num_key_value_heads: 6,
        head_dim: 8,
        rope_interleave: true,
        experts: Some(MixtureLayers {
            experts: Experts::plain(6, Mlp::gated(36), router),
            shared_size: Some(72),
            dense: vec![true, false],
        }),
        ..example_config()
    };
    let router = Router { scale: 1.5, ..Router::softmax(2) };
    let v2 = Config {
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        latent: Some(latent),
        ..of(Family::DeepseekV2, Router { normalised: false, groups: Some(groups(1)), ..router })
    };
    let v3 = Config {
        latent: Some(Latent {
            query_rank: Some(22),
            rank: 37,
            value_dim: 7,
            mscale: 0.7,
            ..latent
        }),
        rope_scaling: RopeScaling::Yarn(YARN),
        ..of(
            Family::DeepseekV3,
            Router {
                weighting: Weighting::Sigmoid,
                correction: true,
                groups: Some(groups(2)),
                ..router
            },
        )
    };
    // All layers have experts, and keys are wider than values.
    let glm_lite = Config {
        latent: Some(Latent { query_rank: Some(18), rank: 16, plain_dim: 14, ..latent }),
        experts: v3.experts.clone().map(|layers| MixtureLayers { dense: Vec::new(), ..layers }),
        ..of(Family::Glm4MoeLite, router)
    };
    // Sparse attention, of which only the context's end remains.
    let v32 = Config { family: Family::DeepseekV32, max_position_embeddings: 256, ..v3.clone() };
    let glm_dsa =
        Config { family: Family::GlmMoeDsa, max_position_embeddings: 256, ..glm_lite.clone() };
    [v2, v3, glm_lite, v32, glm_dsa]
}

/// Returns hybrids, in which the first of two layers has a recurrent mixer.
pub(super) fn hybrids() -> Vec<Config> {
    let of = |family, mixer| {
        let recurrent = Some(RecurrentLayers { mixer, layers: vec![true, false] });
        Config { family, recurrent, ..example_config() }
    };
    let delta = Recurrent {
        rule: RecurrentRule::GatedDelta,
        n_key_heads: 2,
        key_dim: 7,
        n_value_heads: 4,
        value_dim: 9,
        kernel: 4,
        conv_bias: false,
        tiled: false,
        negative_rates: false,
    };
    let router = Router::softmax(2);
    let experts = |size, router| Experts::plain(6, Mlp::gated(size), router);
    let qwen3_next = Config {
        qk_norms: QkNorms::Heads,
        attention_gate: true,
        partial_rotary_factor: 0.25,
        experts: Some(MixtureLayers {
            experts: Experts { shared_gate: true, ..experts(36, router) },
            shared_size: Some(52),
            dense: Vec::new(),
        }),
        ..of(Family::Qwen3Next, delta)
    };
    // A head for each key head, and no dense layers.
    let equal = Recurrent { n_key_heads: 3, n_value_heads: 3, kernel: 2, ..delta };
    let qwen35 = Config {
        family: Family::Qwen35,
        qkv_bias: true,
        output_bias: true,
        tie_word_embeddings: true,
        experts: None,
        recurrent: Some(RecurrentLayers { mixer: equal, layers: vec![false, true] }),
        ..qwen3_next.clone()
    };
    let qwen35_moe = Config { family: Family::Qwen35Moe, ..qwen3_next.clone() };
    let convolution = Recurrent {
        rule: RecurrentRule::Convolution,
        n_key_heads: 0,
        key_dim: 0,
        n_value_heads: 1,
        value_dim: 48,
        kernel: 3,
        ..delta
    };
    let lfm2 = Config {
        qk_norms: QkNorms::Heads,
        tie_word_embeddings: true,
        ..of(Family::Lfm2, convolution)
    };
    let sigmoid = Router { weighting: Weighting::Sigmoid, correction: true, ..router };
    let lfm2_moe = Config {
        family: Family::Lfm2Moe,
        experts: Some(MixtureLayers {
            dense: vec![true, false],
            ..MixtureLayers::in_all(experts(36, sigmoid))
        }),
        ..lfm2.clone()
    };
    let mamba = Recurrent {
        rule: RecurrentRule::StateSpace,
        key_dim: 5,
        value_dim: 24,
        conv_bias: true,
        ..delta
    };
    let of_chosen = Router { weighting: Weighting::SoftmaxOfChosen, normalised: false, ..router };
    let granite = Config {
        attention_multiplier: Some(0.25),
        embedding_multiplier: 1.5,
        residual_multiplier: 0.5,
        logits_scaling: 0.75,
        rope_layers: Some(vec![false; 2]),
        experts: Some(MixtureLayers {
            shared_size: Some(52),
            ..MixtureLayers::in_all(experts(100, of_chosen))
        }),
        ..of(Family::GraniteMoeHybrid, mamba)
    };
    vec![qwen3_next, qwen35, qwen35_moe, lfm2, lfm2_moe, granite]
}
