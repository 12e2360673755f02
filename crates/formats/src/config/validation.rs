//! Checks that a configuration describes a valid model.

use super::{
    Config, GlobalHeads, MixtureLayers, RecurrentLayers, SharedKeys, SlidingLayers, SlidingWindow,
};
use crate::architecture::Activation;
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;
use std::fmt::Display;
use std::path::Path;

/// The largest number of layers that is accepted: tens of times that of any model, and small enough
/// to describe each layer.
pub(crate) const MAX_LAYERS: usize = 1 << 11;

/// The largest number of experts of a layer that is accepted.
pub(crate) const MAX_EXPERTS: usize = 1 << 12;

/// The largest number of positions that is accepted for a convolution.
const MAX_KERNEL: usize = 256;

/// The check of a configuration, which names the file in its errors.
#[derive(Clone, Copy)]
pub(super) struct Validation<'a> {
    pub(super) config: &'a Config,
    pub(super) file: &'a Path,
}

impl Validation<'_> {
    pub(super) fn run(self) -> Result<(), LoadError> {
        self.sizes()?;
        self.constants()?;
        self.rope()?;
        self.layer_kinds()?;
        self.latent()?;
        self.experts()?;
        self.recurrent()?;
        self.windows()?;
        self.tokens()?;
        self.tensor_sizes()
    }

    /// Returns the error of an option.
    fn invalid(
        self,
        option: &'static str,
        found: impl Display,
        expected: impl Into<String>,
    ) -> Result<(), LoadError> {
        Err(LoadError::invalid_option(self.file, option, &found, expected))
    }

    fn size(self, option: &'static str, size: usize, largest: usize) -> Result<(), LoadError> {
        match (1..=largest).contains(&size) {
            true => Ok(()),
            false => self.invalid(option, size, format!("a size from 1 to {largest}")),
        }
    }

    fn positive(self, option: &'static str, value: f32) -> Result<(), LoadError> {
        match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => self.invalid(option, value, "a positive, finite number"),
        }
    }

    /// Checks a list with an entry for each layer.
    fn for_each_layer<T>(self, option: &'static str, listed: &[T]) -> Result<(), LoadError> {
        let n_layers = self.config.num_hidden_layers;
        match listed.len() == n_layers {
            true => Ok(()),
            false => {
                let found = format!("{} entries", listed.len());
                self.invalid(option, found, format!("one for each of the {n_layers} layers"))
            }
        }
    }

    fn sizes(self) -> Result<(), LoadError> {
        let config = self.config;
        self.size("hidden_size", config.hidden_size, MAX_SIZE)?;
        self.size("intermediate_size", config.intermediate_size, MAX_SIZE)?;
        self.size("num_hidden_layers", config.num_hidden_layers, MAX_LAYERS)?;
        self.size("num_attention_heads", config.num_attention_heads, MAX_SIZE)?;
        self.size("num_key_value_heads", config.num_key_value_heads, MAX_SIZE)?;
        self.size("head_dim", config.head_dim, MAX_SIZE)?;
        self.size("vocab_size", config.vocab_size, MAX_SIZE)?;
        self.size("max_position_embeddings", config.max_position_embeddings, MAX_SIZE)?;
        self.divides_heads("num_key_value_heads", config.num_key_value_heads)?;
        if !config.head_dim.is_multiple_of(2) {
            let expected = "an even number: RoPE rotates pairs";
            return self.invalid("head_dim", config.head_dim, expected);
        }
        Ok(())
    }

    fn divides_heads(self, option: &'static str, key_value_heads: usize) -> Result<(), LoadError> {
        let heads = self.config.num_attention_heads;
        match key_value_heads > 0 && heads.is_multiple_of(key_value_heads) {
            true => Ok(()),
            false => {
                let expected = format!("a divisor of \"num_attention_heads\", {heads}");
                self.invalid(option, key_value_heads, expected)
            }
        }
    }

    fn constants(self) -> Result<(), LoadError> {
        let config = self.config;
        let local_theta = config.local_rope.as_ref().map_or(1.0, |(theta, _)| *theta);
        let constants = [
            ("rms_norm_eps", config.rms_norm_eps),
            ("rope_theta", config.rope_theta),
            ("attention_multiplier", config.score_scale()),
            ("embedding_multiplier", config.embedding_multiplier),
            ("residual_multiplier", config.residual_multiplier),
            ("logits_scaling", config.logits_scaling),
            ("attn_logit_softcapping", config.attn_logit_softcapping.unwrap_or(1.0)),
            ("clip_qkv", config.clip_qkv.unwrap_or(1.0)),
            ("final_logit_softcapping", config.final_logit_softcapping.unwrap_or(1.0)),
            ("partial_rotary_factor", config.partial_rotary_factor),
            ("rope_local_base_freq", local_theta),
        ];
        constants.into_iter().try_for_each(|(option, value)| self.positive(option, value))
    }

    fn rope(self) -> Result<(), LoadError> {
        let Self { config, file } = self;
        let rotary = config.rotary_dims();
        if rotary == 0 || rotary > config.head_dim || !rotary.is_multiple_of(2) {
            let expected = format!("a share of \"head_dim\", {}, that is even", config.head_dim);
            return self.invalid("partial_rotary_factor", config.partial_rotary_factor, expected);
        }
        let global_dim = config.global_heads.map_or(config.head_dim, |heads| heads.head_dim);
        let rotary_of_global = config.rotary_dims_of(global_dim);
        config.rope_scaling.validate(config.rope_theta, rotary_of_global, file)?;
        if let Some((theta, scaling)) = &config.local_rope {
            scaling.validate(*theta, rotary, file)?;
        }
        match &config.rope_layers {
            Some(listed) => self.for_each_layer("no_rope_layers", listed),
            None => Ok(()),
        }
    }

    fn windows(self) -> Result<(), LoadError> {
        let Some(SlidingWindow { size, layers }) = &self.config.sliding_window else {
            return Ok(());
        };
        self.size("sliding_window", *size, MAX_SIZE)?;
        match layers {
            SlidingLayers::Listed(listed) => self.for_each_layer("layer_types", listed),
            SlidingLayers::From(_) => Ok(()),
        }
    }

    fn tokens(self) -> Result<(), LoadError> {
        let config = self.config;
        let bos = config.bos_token_id.map(|id| ("bos_token_id", id));
        let eos = config.eos_token_ids.iter().map(|id| ("eos_token_id", *id));
        for (option, id) in bos.into_iter().chain(eos) {
            if id as usize >= config.vocab_size {
                let expected = format!("a token id below \"vocab_size\", {}", config.vocab_size);
                return self.invalid(option, id, expected);
            }
        }
        Ok(())
    }

    /// Checks what differs between layers with and without a window.
    fn layer_kinds(self) -> Result<(), LoadError> {
        let config = self.config;
        if let Some(GlobalHeads { head_dim, num_key_value_heads: heads, .. }) = config.global_heads
        {
            if !(1..=MAX_SIZE).contains(&head_dim) || !head_dim.is_multiple_of(2) {
                let expected = format!("an even size up to {MAX_SIZE}");
                return self.invalid("global_head_dim", head_dim, expected);
            }
            self.divides_heads("num_global_key_value_heads", heads)?;
        }
        if let Some(SharedKeys { layers, .. }) = config.shared_keys {
            let n_layers = config.num_hidden_layers;
            if layers >= n_layers {
                let expected = format!("less than the {n_layers} layers");
                return self.invalid("num_kv_shared_layers", layers, expected);
            }
            if (n_layers - layers..n_layers).any(|layer| config.keys_of(layer).is_none()) {
                let expected = "an earlier layer with a window, and one without";
                return self.invalid("num_kv_shared_layers", layers, expected);
            }
        }
        match config.per_layer_input {
            Some(width) => self.size("hidden_size_per_layer_input", width, MAX_SIZE),
            None => Ok(()),
        }
    }

    /// Checks the sizes of recurrent mixers. The options have other names in other families.
    fn recurrent(self) -> Result<(), LoadError> {
        let Some(RecurrentLayers { mixer, layers }) = &self.config.recurrent else { return Ok(()) };
        self.for_each_layer("layer_types", layers)?;
        self.size("linear_num_value_heads", mixer.n_value_heads, MAX_SIZE)?;
        self.size("linear_value_head_dim", mixer.value_dim, MAX_SIZE)?;
        self.size("linear_conv_kernel_dim", mixer.kernel, MAX_KERNEL)?;
        if mixer.has_matrices() {
            self.size("linear_num_key_heads", mixer.n_key_heads, MAX_SIZE)?;
            self.size("linear_key_head_dim", mixer.key_dim, MAX_SIZE)?;
            if !mixer.n_value_heads.is_multiple_of(mixer.n_key_heads) {
                let expected = format!("a divisor of the {} value heads", mixer.n_value_heads);
                return self.invalid("linear_num_key_heads", mixer.n_key_heads, expected);
            }
        }
        if isize::try_from(mixer.state_bytes().saturating_mul(layers.len())).is_err() {
            let expected = "states that fit in memory";
            return self.invalid("linear_value_head_dim", mixer.value_dim, expected);
        }
        Ok(())
    }

    /// Checks the sizes of compressed keys and values.
    fn latent(self) -> Result<(), LoadError> {
        let Some(latent) = self.config.latent else { return Ok(()) };
        self.size("q_lora_rank", latent.query_rank.unwrap_or(1), MAX_SIZE)?;
        self.size("kv_lora_rank", latent.rank, MAX_SIZE)?;
        self.size("qk_nope_head_dim", latent.plain_dim, MAX_SIZE)?;
        self.size("qk_rope_head_dim", latent.rope_dim, MAX_SIZE)?;
        self.size("v_head_dim", latent.value_dim, MAX_SIZE)
    }

    /// Checks the sizes of a mixture of experts.
    fn experts(self) -> Result<(), LoadError> {
        let Some(MixtureLayers { experts, shared_size, dense }) = &self.config.experts else {
            return Ok(());
        };
        let within = |size: usize, largest| (1..=largest).contains(&size);
        let (n_experts, router) = (experts.n_experts, experts.router);
        if !within(n_experts, MAX_EXPERTS) {
            let expected = format!("a number from 1 to {MAX_EXPERTS}");
            return self.invalid("num_experts", n_experts, expected);
        }
        if !within(router.experts_per_token, n_experts) {
            let expected = format!("a number of experts from 1 to {n_experts}");
            return self.invalid("num_experts_per_tok", router.experts_per_token, expected);
        }
        self.size("moe_intermediate_size", experts.mlp.intermediate_size, MAX_SIZE)?;
        self.size("moe_intermediate_size", shared_size.unwrap_or(1), MAX_SIZE)?;
        self.positive("routed_scaling_factor", router.scale)?;
        if let Activation::ClampedSwiglu { limit } = experts.mlp.activation {
            self.positive("swiglu_limit", limit)?;
        }
        if !dense.is_empty() {
            self.for_each_layer("mlp_only_layers", dense)?;
        }
        let Some(groups) = router.groups else { return Ok(()) };
        if !within(groups.n_groups, n_experts) || !n_experts.is_multiple_of(groups.n_groups) {
            return self.invalid("n_group", groups.n_groups, format!("a divisor of {n_experts}"));
        }
        let per_group = n_experts / groups.n_groups;
        if !within(groups.experts_scored, per_group) {
            let expected = format!("groups of at least {} experts", groups.experts_scored);
            return self.invalid("n_group", groups.n_groups, expected);
        }
        let chosen = groups.groups_per_token;
        if !within(chosen, groups.n_groups) || chosen * per_group < router.experts_per_token {
            let expected = format!("groups with at least {} experts", router.experts_per_token);
            return self.invalid("topk_group", chosen, expected);
        }
        Ok(())
    }

    /// Checks the sizes of the largest tensors. All others are parts or transposes of these.
    fn tensor_sizes(self) -> Result<(), LoadError> {
        let config = self.config;
        let experts = config.experts.as_ref().map_or([1, 1], |layers| {
            [layers.experts.n_experts, layers.experts.mlp.intermediate_size]
        });
        let shared = config.experts.as_ref().and_then(|layers| layers.shared_size).unwrap_or(1);
        let positions =
            config.learned_positions.map_or(1, |first| first + config.max_position_embeddings);
        let widest_head =
            config.global_heads.map_or(0, |heads| heads.head_dim).max(config.head_dim);
        let queries = [config.num_attention_heads, widest_head, config.hidden_size];
        let own_inputs = [config.num_hidden_layers, config.per_layer_input.unwrap_or(1)];
        let mixer = config.recurrent.as_ref().map(|layers| layers.mixer);
        // No projection is wider than all channels of the convolution.
        let channels = mixer.map_or(1, |mixer| mixer.channels());
        let latent = config.latent.map_or([1, 1], |latent| {
            let widest = latent.query_dim().saturating_add(latent.value_dim);
            let rank = latent.rank.saturating_add(latent.query_rank.unwrap_or(0));
            [widest, rank.saturating_add(latent.rope_dim)]
        });
        let [widest, ranks] = latent;
        let tensors = [
            ("model.layers.0.linear_attn.in_proj.weight", &[2, channels, config.hidden_size][..]),
            ("model.embed_tokens.weight", &[config.vocab_size, config.hidden_size]),
            ("model.embed_positions.weight", &[positions, config.hidden_size]),
            ("embeddings.token_type_embeddings.weight", &[config.token_types, config.hidden_size]),
            (
                "model.embed_tokens_per_layer.weight",
                &[own_inputs[0], own_inputs[1], config.vocab_size.max(config.hidden_size)],
            ),
            ("model.layers.0.self_attn.q_proj.weight", &queries),
            (
                "model.layers.0.mlp.gate_proj.weight",
                &[2, config.intermediate_size, config.hidden_size],
            ),
            (
                "model.layers.0.self_attn.q_b_proj.weight",
                &[config.num_attention_heads, widest, ranks],
            ),
            (
                "model.layers.0.self_attn.o_proj.weight",
                &[config.num_attention_heads, widest, config.hidden_size],
            ),
            ("model.layers.0.self_attn.q_a_proj.weight", &[ranks, config.hidden_size]),
            // Some files store all experts of a layer as one tensor, with gate and up together.
            ("model.layers.0.mlp.experts", &[2, experts[0], experts[1], config.hidden_size]),
            ("model.layers.0.mlp.shared_expert.up_proj.weight", &[2, shared, config.hidden_size]),
        ];
        for (tensor, sizes) in tensors {
            let bytes =
                sizes.iter().try_fold(size_of::<f32>(), |product, n| product.checked_mul(*n));
            if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
                let expected = format!("sizes that fit in memory, not {sizes:?} for `{tensor}`");
                return self.invalid("hidden_size", config.hidden_size, expected);
            }
        }
        Ok(())
    }
}
