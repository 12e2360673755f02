//! LoRA adapters (Hu et al. 2021, arXiv 2106.09685): low-rank updates of a model's projections, as
//! PEFT and llama.cpp store them.

use crate::architecture::Architecture;
use crate::checkpoint::gguf::GgufAdapter;
use crate::checkpoint::{
    LayerTensor, NamedTensors, RowLayout, StoredAs, Tensor, TensorRows, names_in_multimodal,
    read_text,
};
use crate::config::Config;
use crate::json_options::JsonOptions;
use crate::load_error::{LoadError, shortened};
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// An adapter: what it adds to the projections of a model.
pub struct Adapter {
    /// At most one for each projection, in the order of the layers.
    pub updates: Vec<LowRankUpdate>,
}

/// What an adapter adds to the output `y` of a projection of `x`: `y += up · (down · x)`.
pub struct LowRankUpdate {
    /// The layer.
    pub layer: usize,
    /// The projection.
    pub tensor: LayerTensor,
    /// The number of rows of `down`.
    pub rank: usize,
    /// The matrix A: `[rank, inputs]`.
    pub down: Vec<f32>,
    /// The matrix B times the adapter's scale: `[outputs, rank]`.
    pub up: Vec<f32>,
}

/// The projections that an adapter can update.
const PARTS: [LayerTensor; 8] = [
    LayerTensor::Query,
    LayerTensor::Key,
    LayerTensor::Value,
    LayerTensor::AttentionGate,
    LayerTensor::Output,
    LayerTensor::Gate,
    LayerTensor::Up,
    LayerTensor::Down,
];

/// A file of an adapter.
pub(crate) trait AdapterFile {
    fn path(&self) -> &Path;

    /// Returns where models of this format store a matrix.
    fn place(&self, tensor: Tensor) -> StoredAs;

    /// Returns the names of the matrices A and B of the update of a stored matrix.
    fn pair(&self, stored: &str) -> [String; 2];

    /// Returns what B is multiplied by.
    fn scale(&self, rank: usize) -> f32;

    fn names(&self) -> Vec<&str>;

    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Returns the rows of a tensor of this shape, of which the stored one may hold more.
    fn rows(&self, stored: &StoredAs, shape: &[usize]) -> Result<TensorRows<'_>, LoadError>;
}

impl Adapter {
    /// Reads an adapter for a model: a folder of PEFT (`adapter_config.json` and
    /// `adapter_model.safetensors`), or a GGUF file of llama.cpp.
    ///
    /// # Errors
    /// When a file is missing or broken, a matrix has the wrong shape, or the adapter changes
    /// something else than projections of attention and of dense MLPs.
    pub fn open(
        path: &Path,
        config: &Config,
        architecture: &Architecture,
    ) -> Result<Self, LoadError> {
        let file: Box<dyn AdapterFile + '_> = match path.is_dir() {
            true => Box::new(PeftAdapter::open(path, config, architecture)?),
            false => Box::new(GgufAdapter::open(path, config, architecture)?),
        };
        Self::read(&*file, config, architecture)
    }

    fn read(
        file: &dyn AdapterFile,
        config: &Config,
        architecture: &Architecture,
    ) -> Result<Self, LoadError> {
        let (mut updates, mut used) = (Vec::new(), HashSet::new());
        for (index, layer) in architecture.layers.iter().enumerate() {
            // Latent attention has other matrices.
            let is_latent = layer.attention.as_ref().is_some_and(|it| it.latent.is_some());
            let parts = if is_latent { &PARTS[5..] } else { &PARTS[..] };
            for &part in parts.iter().filter(|part| layer.has(**part, architecture.norm)) {
                let tensor = Tensor::Layer(index, part);
                let names = file.pair(&file.place(tensor).name);
                let Some(shape) = file.shape(&names[0]) else { continue };
                let rank = shape.first().copied().unwrap_or(0).max(1);
                updates.push(update(file, (index, part), rank, &architecture.shape(tensor))?);
                used.extend(names);
            }
        }
        match file.names().into_iter().find(|name| !used.contains(*name)) {
            _ if updates.is_empty() && used.len() == file.names().len() => Err(LoadError::Format {
                file: file.path().to_owned(),
                expected: "the matrices lora_A and lora_B of some projections",
                found: "none".to_owned(),
            }),
            Some(name) => Err(LoadError::AdapterTensor {
                file: file.path().to_owned(),
                tensor: shortened(name),
                family: config.family,
                layers: config.num_hidden_layers,
            }),
            None => Ok(Self { updates }),
        }
    }
}

/// Reads the update of a projection with this shape.
fn update(
    file: &dyn AdapterFile,
    (layer, tensor): (usize, LayerTensor),
    rank: usize,
    shape: &[usize],
) -> Result<LowRankUpdate, LoadError> {
    let StoredAs { name, shape: whole, layout, .. } = file.place(Tensor::Layer(layer, tensor));
    let [a, b] = file.pair(&name);
    let (outputs, inputs) = (shape[0], shape[1]);
    let stored_outputs = layout.transposed.unwrap_or(whole[0]);
    let stored = |name, shape: [usize; 2], layout| StoredAs {
        name,
        shape: shape.to_vec(),
        expert: None,
        layout,
    };
    let down = stored(a, [rank, inputs], RowLayout::PLAIN);
    let up = stored(b, [stored_outputs, rank], layout.untransposed());
    let down = file.rows(&down, &[rank, inputs])?.read_all()?;
    let mut up = file.rows(&up, &[outputs, rank])?.read_all()?;
    let scale = file.scale(rank);
    up.iter_mut().for_each(|value| *value *= scale);
    Ok(LowRankUpdate { layer, tensor, rank, down, up })
}

/// A folder of PEFT.
struct PeftAdapter<'a> {
    path: PathBuf,
    config: &'a Config,
    architecture: &'a Architecture,
    tensors: NamedTensors,
    alpha: f32,
    /// Whether the scale is divided by √rank (arXiv 2312.03732).
    by_root: bool,
}

impl<'a> PeftAdapter<'a> {
    fn open(
        folder: &Path,
        config: &'a Config,
        architecture: &'a Architecture,
    ) -> Result<Self, LoadError> {
        let file = folder.join("adapter_config.json");
        let path = folder.join("adapter_model.safetensors");
        if let Some(missing) = [&file, &path].into_iter().find(|path| !path.exists()) {
            return Err(LoadError::MissingFile {
                path: missing.clone(),
                hint: "an adapter is a folder with adapter_config.json and \
                       adapter_model.safetensors, as PEFT writes it, or a GGUF file",
            });
        }
        let options = JsonOptions::parse(&read_text(&file)?, &file)?;
        options.check_supported("peft_type", "\"LORA\"", |value| value == "LORA")?;
        options.check_supported("bias", "\"none\"", |value| value == "none")?;
        let initial = "true, \"gaussian\", \"orthogonal\" and \"eva\": others change the model itself, so let PEFT \
                       convert the adapter when it saves it (path_initial_model_for_weight_conversion)";
        options.check_supported("init_lora_weights", initial, |value| {
            value.is_boolean() || ["gaussian", "orthogonal", "eva"].iter().any(|one| value == one)
        })?;
        for option in [
            "use_dora",
            "use_qalora",
            "lora_bias",
            "modules_to_save",
            "alpha_pattern",
            "layer_replication",
            "trainable_token_indices",
            "target_parameters",
            "alora_invocation_tokens",
        ] {
            options.check_supported(option, "adapters without it", |value| match value {
                Value::Bool(it) => !it,
                Value::Array(them) => them.is_empty(),
                Value::Object(them) => them.is_empty(),
                _ => false,
            })?;
        }
        let alpha = options.required_number("lora_alpha")?;
        let by_root = options.flag("use_rslora")?.unwrap_or(false);
        let tensors = NamedTensors::of_files(vec![path.clone()])?;
        Ok(Self { path, config, architecture, tensors, alpha, by_root })
    }
}

impl AdapterFile for PeftAdapter<'_> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self, tensor: Tensor) -> StoredAs {
        StoredAs::of(tensor, self.config, self.architecture)
    }

    fn pair(&self, stored: &str) -> [String; 2] {
        let module = stored.strip_suffix(".weight").unwrap_or(stored);
        let pair = |module: &str| {
            ["A", "B"].map(|matrix| format!("base_model.model.{module}.lora_{matrix}.weight"))
        };
        let in_multimodal = names_in_multimodal(module).map(|module| pair(&module));
        let found = in_multimodal.into_iter().find(|[a, _]| self.tensors.shape(a).is_some());
        found.unwrap_or_else(|| pair(module))
    }

    fn scale(&self, rank: usize) -> f32 {
        let rank = rank as f32;
        self.alpha / if self.by_root { rank.sqrt() } else { rank }
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.names().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.shape(name)
    }

    fn rows(&self, stored: &StoredAs, shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        self.tensors.rows_of(stored, shape, "each lora_A needs its lora_B")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::random::{example_config, write_random_adapter};
    use serde_json::json;
    use std::fs;

    #[test]
    fn options_that_are_not_computed_are_refused_by_name() {
        let (folder, config) = (tempfile::tempdir().unwrap(), example_config());
        write_random_adapter(folder.path(), &config, 1).unwrap();
        let open = || Adapter::open(folder.path(), &config, &config.architecture());
        assert_eq!(open().unwrap().updates.len(), 7 * config.num_hidden_layers);
        let file = folder.path().join("adapter_config.json");
        let text = fs::read_to_string(&file).unwrap();
        for (option, value) in [
            ("peft_type", json!("IA3")),
            ("use_dora", json!(true)),
            ("bias", json!("all")),
            ("modules_to_save", json!(["lm_head"])),
            ("init_lora_weights", json!("pissa")),
            ("alpha_pattern", json!({"q_proj": 3})),
            ("lora_alpha", Value::Null),
        ] {
            let mut options: Value = serde_json::from_str(&text).unwrap();
            options[option] = value;
            fs::write(&file, options.to_string()).unwrap();
            let error = open().err().unwrap().to_string();
            assert!(error.contains(option), "{error}");
        }
        fs::write(&file, text).unwrap();
        let weights = folder.path().join("adapter_model.safetensors");
        for name in ["lora_A", "lora_B"] {
            // Names of the same length, so that the header keeps its own.
            let bytes = fs::read(&weights).unwrap();
            let found = format!("o_proj.{name}");
            let mut names = bytes.windows(found.len());
            let stored = names.position(|name| name == found.as_bytes()).unwrap();
            let mut broken = bytes.clone();
            broken[stored] = b'x';
            fs::write(&weights, broken).unwrap();
            let error = open().err().unwrap().to_string();
            assert!(error.contains("_proj.lora_"), "{error}");
            fs::write(&weights, bytes).unwrap();
        }
        fs::remove_file(&weights).unwrap();
        let error = open().err().unwrap().to_string();
        assert!(error.contains("adapter_model.safetensors") && error.contains("PEFT"), "{error}");
    }
}
