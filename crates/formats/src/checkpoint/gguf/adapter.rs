//! Adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them.

use super::architectures::GgufArchitecture;
use super::metadata::GgufMetadata;
use super::parse::{GgufHead, StoredTensor};
use super::places::Places;
use crate::adapter::AdapterFile;
use crate::architecture::Architecture;
use crate::checkpoint::stored_names::StoredAs;
use crate::checkpoint::{TensorRows, WeightFile};
use crate::config::Config;
use crate::load_error::LoadError;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::path::Path;

/// An adapter in a GGUF file.
pub(crate) struct GgufAdapter<'a> {
    file: WeightFile,
    gguf: &'static GgufArchitecture,
    config: &'a Config,
    architecture: &'a Architecture,
    tensors: BTreeMap<String, StoredTensor>,
    alpha: f32,
}

impl<'a> GgufAdapter<'a> {
    pub(crate) fn open(
        path: &Path,
        config: &'a Config,
        architecture: &'a Architecture,
    ) -> Result<Self, LoadError> {
        let file = WeightFile::map(path.to_owned())?;
        let head = GgufHead::parse(file.bytes(), file.path())?;
        let metadata = GgufMetadata::new(&file, &head.metadata);
        for (option, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            if metadata.text(option)? != Some(expected) {
                return Err(metadata.invalid(option, &format!("{expected:?}: a LoRA adapter")));
            }
        }
        if let Some(option) = metadata.keys().find(|key| key.starts_with("adapter.alora.")) {
            return Err(metadata.invalid(option, "none: an adapter for all tokens"));
        }
        let name = metadata.text("general.architecture")?.unwrap_or_default();
        let has_experts = config.experts.is_some();
        let gguf = GgufArchitecture::named(name, has_experts).ok_or_else(|| {
            let expected = format!("one of {}", GgufArchitecture::all_names());
            metadata.invalid("general.architecture", &expected)
        })?;
        // Other architectures have the same names of tensors.
        if gguf.family != config.family
            && let Some(own) = GgufArchitecture::of(config.family)
        {
            let expected = format!("{:?}, that of the model", own.name);
            return Err(metadata.invalid("general.architecture", &expected));
        }
        let alpha = metadata.f32("adapter.lora.alpha")?.unwrap_or(0.0);
        let tensors = head.tensors;
        Ok(Self { file, gguf, config, architecture, tensors, alpha })
    }
}

impl AdapterFile for GgufAdapter<'_> {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn place(&self, tensor: Tensor) -> StoredAs {
        let has = |name: &str| self.tensors.contains_key(&self.pair(name)[0]);
        let Self { gguf, config, architecture, .. } = *self;
        Places { gguf, config, architecture, has: &has }.of(tensor)
    }

    fn pair(&self, stored: &str) -> [String; 2] {
        ["a", "b"].map(|matrix| format!("{stored}.lora_{matrix}"))
    }

    fn scale(&self, rank: usize) -> f32 {
        // As in llama.cpp, where 0 stands for an unknown alpha.
        if self.alpha == 0.0 { 1.0 } else { self.alpha / rank as f32 }
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| &stored.shape[..])
    }

    fn rows(&self, stored: &StoredAs, shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let (file, tensor) = (self.file.path().to_owned(), stored.name.clone());
        let Some(found) = self.tensors.get(&stored.name) else {
            let hint = "each lora_a needs its lora_b";
            return Err(LoadError::MissingTensor { file, tensor, hint });
        };
        if found.shape != stored.shape {
            let (expected, found) = (stored.shape.clone(), found.shape.clone());
            return Err(LoadError::Shape { file, tensor, expected, found });
        }
        let whole = TensorRows::plain(&self.file, tensor, found.bytes.clone(), found.dtype, shape);
        Ok(TensorRows { layout: stored.layout, ..whole })
    }
}
