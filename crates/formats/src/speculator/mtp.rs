//! The layer of a complete model that predicts a further token (multi-token prediction, MTP).
//!
//! *DeepSeek-V3 Technical Report*, DeepSeek-AI 2024, arXiv 2412.19437, section 2.2. The layer has
//! four tensors of its own: a matrix projects `cat(norm(embedding), norm(hidden))` to the layer's
//! input, and a norm precedes the head. The hidden states are the target's after its final norm,
//! and those of the layer itself after its last norm, as in transformers, SGLang, vLLM and
//! llama.cpp. The embedding and the head are the target's. There are two layouts:
//!
//! | model | layer | matrix | norms | last norm |
//! |---|---|---|---|---|
//! | DeepSeek-V3, GLM-4.5 | the one after the last, `model.layers.N` | `eh_proj` | `enorm`, `hnorm` | `shared_head.norm` |
//! | Qwen3-Next, Qwen3.5 | `mtp.layers.0` | `mtp.fc` | `mtp.pre_fc_norm_embedding`, `mtp.pre_fc_norm_hidden` | `mtp.norm` |
//!
//! DeepSeek-V3 and GLM-4.5 also store copies of the embedding and the head (`embed_tokens`,
//! `shared_head.head`), which are not read. The layer of a hybrid Qwen has attention, not a
//! recurrent mixer, and experts if the model has any.
//!
//! GGUF files have the layer after the last for all of them, `blk.N`, and its own tensors under
//! `blk.N.nextn`.

use super::Speculator;
use crate::architecture::{Architecture, Head, Input};
use crate::checkpoint::{Checkpoint, LoadError, NamedTensors, StoredAs, Tensor};
use crate::config::{Config, Family};

/// The layer among the tensors of its target.
pub(crate) struct Layout {
    /// The target's configuration with one more layer.
    config: Config,
    /// What the target and the layer compute.
    model: Architecture,
}

impl Layout {
    /// Reads the layer's place and its kind from the target's configuration. Fails when the family
    /// or the checkpoint has no such layer, or it has tensors that are not computed.
    pub(super) fn read(target: &Checkpoint, tensors: &NamedTensors) -> Result<Self, LoadError> {
        let no_head = |expected: String| no_head(target, expected);
        let layout = Self::of_family(target)?;
        let projection = layout.own_name(Tensor::Fusion);
        if !tensors.has(&projection) {
            return Err(no_head(format!("one with the tensor `{projection}`")));
        }
        let architecture = layout.architecture();
        let known = architecture.tensors().map(|tensor| layout.stored_in(tensors, tensor).name);
        let known: Vec<String> = known.collect();
        if tensors.any_is_quantized(|name| layout.owns(name)) {
            return Err(no_head("one whose head is stored in f32, f16 or bf16".to_owned()));
        }
        tensors.reject_unknown("this MTP head", |name| {
            !layout.owns(name) || known.iter().any(|known| known == name)
        })?;
        Ok(layout)
    }

    /// Returns the layout of a head of this target, if its family has one.
    fn of_family(target: &Checkpoint) -> Result<Self, LoadError> {
        let family = target.config().family;
        if !matches!(family, Family::DeepseekV3 | Family::Glm4Moe) && !family.is_hybrid_qwen() {
            let families = "DeepSeek-V3, GLM-4-MoE, Qwen3-Next or Qwen3.5";
            return Err(no_head(target, format!("a model of the family {families}")));
        }
        Ok(Self::of(target.config()))
    }

    /// Returns the layout of a head of this target.
    pub(crate) fn of(target: &Config) -> Self {
        let layers = target.num_hidden_layers + 1;
        let mut config = Config { num_hidden_layers: layers, ..target.clone() };
        if let Some(recurrent) = &mut config.recurrent {
            recurrent.layers.resize(layers, false);
        }
        let model = config.architecture();
        Self { config, model }
    }

    /// Returns the target's configuration with one more layer.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what the target with one more layer computes.
    pub(crate) fn model(&self) -> &Architecture {
        &self.model
    }

    fn layer(&self) -> usize {
        self.config.num_hidden_layers - 1
    }

    /// Whether the layer has names of its own, not those of the layer after the last.
    fn has_own_names(&self) -> bool {
        self.config.family.is_hybrid_qwen()
    }

    /// Whether a stored tensor belongs to a head, except for copies of the target's tensors.
    pub(super) fn owns(&self, name: &str) -> bool {
        if self.has_own_names() {
            return name.starts_with("mtp.");
        }
        let copies = ["embed_tokens.weight", "shared_head.head.weight"];
        let is_copy = name.strip_prefix(&self.prefix()).is_some_and(|rest| copies.contains(&rest));
        later_layer(name).is_some_and(|layer| layer >= self.layer()) && !is_copy
    }

    /// Returns what names of the layer begin with among the target's layers.
    fn prefix(&self) -> String {
        format!("model.layers.{}.", self.layer())
    }

    /// Returns what the head computes.
    pub(crate) fn architecture(&self) -> Architecture {
        Architecture {
            input: Input::NormedEmbeddingAndFeature,
            shares_embedding: true,
            layers: self.model.layers.last().cloned().into_iter().collect(),
            head: Head::Target,
            // It is part of the target's head.
            head_bias: false,
            ..self.model.clone()
        }
    }

    /// Returns the tensor of the target with one more layer that has the meaning of a tensor of the
    /// head.
    pub(crate) fn in_target(&self, tensor: Tensor) -> Tensor {
        match tensor {
            Tensor::Layer(_, part) => Tensor::Layer(self.layer(), part),
            Tensor::Expert(_, expert, part) => Tensor::Expert(self.layer(), expert, part),
            own => own,
        }
    }

    pub(crate) fn stored_as(&self, tensor: Tensor) -> StoredAs {
        if matches!(tensor, Tensor::Layer(..) | Tensor::Expert(..)) {
            let of_layer = StoredAs::of(self.in_target(tensor), &self.config, &self.model);
            return self.renamed(of_layer);
        }
        // All norms of hidden states are stored like the final one.
        let norm = StoredAs::of(Tensor::FinalNorm, &self.config, &self.model);
        let shape = self.architecture().shape(tensor);
        let mut stored = StoredAs { name: self.own_name(tensor), shape, ..norm };
        if tensor == Tensor::Fusion {
            stored.layout.offset = 0.0;
        }
        stored
    }

    pub(super) fn stored_in(&self, tensors: &NamedTensors, tensor: Tensor) -> StoredAs {
        let stored = self.stored_as(tensor);
        let in_target = self.in_target(tensor);
        let fused = StoredAs::in_all_experts(in_target, &self.config, &self.model);
        let fused = fused.map(|fused| self.renamed(fused));
        let is_stored = |form: &StoredAs| tensors.has(&form.name);
        fused.filter(|fused| is_stored(fused) && !is_stored(&stored)).unwrap_or(stored)
    }

    /// Returns a place among the target's layers under the name that the layer has.
    fn renamed(&self, mut stored: StoredAs) -> StoredAs {
        if self.has_own_names() {
            stored.name = stored.name.replace(&self.prefix(), "mtp.layers.0.");
        }
        stored
    }

    /// Returns the name of a tensor that does not belong to the ordinary layer.
    fn own_name(&self, tensor: Tensor) -> String {
        let [in_later_layer, own] = match tensor {
            Tensor::Fusion => ["eh_proj", "fc"],
            Tensor::EmbeddingNorm => ["enorm", "pre_fc_norm_embedding"],
            Tensor::FeatureNorm => ["hnorm", "pre_fc_norm_hidden"],
            Tensor::FinalNorm => ["shared_head.norm", "norm"],
            other => return format!("{}{other}", self.prefix()),
        };
        match self.has_own_names() {
            true => format!("mtp.{own}.weight"),
            false => format!("{}{in_later_layer}.weight", self.prefix()),
        }
    }
}

fn no_head(target: &Checkpoint, expected: String) -> LoadError {
    LoadError::NoMtpHead { path: target.path().to_owned(), expected }
}

/// Returns the index of the layer that a tensor belongs to.
fn later_layer(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

impl Speculator {
    /// Opens the MTP head of a target, which is a part of its checkpoint.
    ///
    /// # Errors
    /// When the target has no such head, a file is unreadable or broken, or the head has tensors
    /// that are not computed.
    pub fn open_mtp(target: &Checkpoint) -> Result<Self, LoadError> {
        let path = target.path().to_owned();
        let (tensors, layout) = if target.gguf().is_some() {
            let head = target.open_mtp(&Layout::of_family(target)?)?;
            (NamedTensors::of_files(Vec::new())?, super::Layout::MtpOfGguf(Box::new(head)))
        } else {
            let tensors = if path.is_dir() { NamedTensors::open(&path)? } else { None };
            let Some(tensors) = tensors else {
                let expected = "a GGUF file, or a Hugging Face directory with safetensors";
                return Err(no_head(target, expected.to_owned()));
            };
            let layout = Layout::read(target, &tensors)?;
            (tensors, super::Layout::Mtp(Box::new(layout)))
        };
        let (kind, target) = (super::SpeculatorKind::Mtp, target.config().clone());
        Ok(Self { path, kind, tensors, layout, target })
    }
}
