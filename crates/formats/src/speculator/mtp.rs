//! The layer of a complete model that predicts a further token (multi-token prediction, MTP).
//!
//! *DeepSeek-V3 Technical Report*, DeepSeek-AI 2024, arXiv 2412.19437, section 2.2. The checkpoints of DeepSeek-V3 and
//! GLM-4.5 store it as the layer after the last one, with four tensors of its own: `eh_proj` projects
//! `cat(enorm(embedding), hnorm(hidden))` to the layer's input, and `shared_head.norm` precedes the head. The hidden
//! states are the target's after its final norm, and those of the layer itself after `shared_head.norm`, as in
//! transformers and SGLang. The embedding and the head are the target's. Copies of them are stored, too
//! (`embed_tokens`, `shared_head.head`), and not read.

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
    /// Reads the layer's place and its kind from the target's configuration.
    ///
    /// # Errors
    ///
    /// When the family or the checkpoint has no such layer, or it has tensors that are not computed.
    pub(super) fn read(target: &Checkpoint, tensors: &NamedTensors) -> Result<Self, LoadError> {
        let no_head = |expected: String| {
            let path = target.path().to_owned();
            LoadError::NoMtpHead { path, expected }
        };
        if !matches!(target.config().family, Family::DeepseekV3 | Family::Glm4Moe) {
            return Err(no_head("a model of the family DeepSeek-V3 or GLM-4-MoE".to_owned()));
        }
        let layout = Self::of(target.config());
        let projection = layout.own_name(Tensor::Fusion);
        if !tensors.has(&projection) {
            return Err(no_head(format!("one with the tensor `{projection}`")));
        }
        let architecture = layout.architecture();
        let known = architecture.tensors().map(|tensor| layout.stored_as(tensor).name);
        let known: Vec<String> = known.collect();
        let prefix = layout.prefix();
        let copies = ["embed_tokens.weight", "shared_head.head.weight"];
        tensors.reject_unknown("this MTP head", |name| match later_layer(name) {
            Some(layer) if layer >= layout.layer() => {
                let is_copy = |rest: &str| copies.contains(&rest);
                known.iter().any(|known| known == name)
                    || name.strip_prefix(&prefix).is_some_and(is_copy)
            }
            _ => true,
        })?;
        Ok(layout)
    }

    /// Returns the layout of a head of this target.
    pub(crate) fn of(target: &Config) -> Self {
        let layers = target.num_hidden_layers + 1;
        let config = Config { num_hidden_layers: layers, ..target.clone() };
        let model = config.architecture();
        Self { config, model }
    }

    /// Returns the target's configuration with one more layer.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the index of the layer.
    fn layer(&self) -> usize {
        self.config.num_hidden_layers - 1
    }

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

    /// Returns the tensor of the target with one more layer that has the meaning of a tensor of the head.
    pub(crate) fn in_target(&self, tensor: Tensor) -> Tensor {
        match tensor {
            Tensor::Layer(_, part) => Tensor::Layer(self.layer(), part),
            Tensor::Expert(_, expert, part) => Tensor::Expert(self.layer(), expert, part),
            own => own,
        }
    }

    /// Returns where a tensor is stored.
    pub(crate) fn stored_as(&self, tensor: Tensor) -> StoredAs {
        let mut stored = StoredAs::of(self.in_target(tensor), &self.config, &self.model);
        if !matches!(tensor, Tensor::Layer(..) | Tensor::Expert(..)) {
            stored.name = self.own_name(tensor);
            stored.shape = self.architecture().shape(tensor);
        }
        stored
    }

    /// Returns the name of a tensor that does not belong to the ordinary layer.
    fn own_name(&self, tensor: Tensor) -> String {
        let name = match tensor {
            Tensor::Fusion => "eh_proj.weight",
            Tensor::EmbeddingNorm => "enorm.weight",
            Tensor::FeatureNorm => "hnorm.weight",
            Tensor::FinalNorm => "shared_head.norm.weight",
            other => return format!("{}{other}", self.prefix()),
        };
        format!("{}{name}", self.prefix())
    }
}

/// Returns the index of the layer that a tensor belongs to.
fn later_layer(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

impl Speculator {
    /// Opens the MTP head of a target, which is a part of its checkpoint.
    ///
    /// # Errors
    ///
    /// When the target has no such head, a file is unreadable or broken, or the head has tensors that are not
    /// computed.
    pub fn open_mtp(target: &Checkpoint) -> Result<Self, LoadError> {
        let path = target.path().to_owned();
        let tensors = if path.is_dir() { NamedTensors::open(&path)? } else { None };
        let Some(tensors) = tensors else {
            let expected = "a Hugging Face directory with safetensors".to_owned();
            return Err(LoadError::NoMtpHead { path, expected });
        };
        let layout = Layout::read(target, &tensors)?;
        Ok(Self {
            path,
            kind: super::SpeculatorKind::Mtp,
            tensors,
            layout: super::Layout::Mtp(Box::new(layout)),
            target: target.config().clone(),
        })
    }
}
