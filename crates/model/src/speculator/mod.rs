//! Checkpoints of drafters that belong to one target: they share its embedding or head, or read its
//! features.
//!
//! What a folder holds is told by its tensors, for published configurations are often wrong:
//!
//! * Medusa (Cai et al. 2024, arXiv 2401.10774), as its authors and as vLLM write it;
//! * Hydra (Ankner et al. 2024, arXiv 2402.05109) and Hydra++, whose heads read what was drafted;
//! * EAGLE (Li et al. 2024, arXiv 2401.15077) and EAGLE-2, which differ in their drafts alone, and
//!   EAGLE-3;
//! * ParallelSpec (Xiao et al. 2024, arXiv 2410.05589) in its two integrations, which published
//!   nothing: the layout is our own;
//! * PARD (An et al. 2025, arXiv 2504.18583), which is a model of its own with a mask token.

mod eagle3;
mod hydra;
mod layers;
mod medusa;

pub(crate) use hydra::HydraHead;
pub use hydra::HydraWeights;
pub use layers::EagleWeights;
pub use medusa::MedusaWeights;

use crate::checkpoint::{Checkpoint, LoadError, NamedTensors, pickle, read_text};
use crate::config::Config;
use crate::features::FeatureSource;
use crate::json_options::JsonOptions;
use crate::kernels::WeightType;
use crate::weights::type_of_all;
use forerun_core::TokenId;
use std::fmt;
use std::path::{Path, PathBuf};

/// A kind of drafter that belongs to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeculatorKind {
    /// Residual heads on the target's last hidden state.
    Medusa,
    /// Heads on the target's last hidden state and on the tokens behind it.
    Hydra,
    /// A layer on tokens and the target's features, one token after another.
    Eagle,
    /// The same on hidden states from three depths of the target, with a head of its own (EAGLE-3).
    Eagle3,
    /// A layer on tokens alone, and masks (ParallelSpec).
    ParallelMedusa,
    /// A layer on tokens and the target's features, and masks (ParallelSpec).
    ParallelEagle,
    /// A whole model, in which one token serves as all masks.
    Pard {
        /// That token.
        mask: TokenId,
    },
}

impl SpeculatorKind {
    /// What it reads of a target of this configuration, if it reads more than tokens.
    #[must_use]
    pub fn features(self, target: &Config) -> Option<FeatureSource> {
        match self {
            Self::Medusa | Self::Hydra | Self::Eagle | Self::ParallelEagle => {
                Some(FeatureSource::LastHidden)
            }
            Self::Eagle3 => {
                // As its authors' code has them, which counts the layers before.
                let layers = target.num_hidden_layers;
                let chosen = vec![layers.min(2), layers / 2, layers.saturating_sub(3)];
                Some(FeatureSource::Layers(chosen))
            }
            Self::ParallelMedusa | Self::Pard { .. } => None,
        }
    }

    /// Whether it reads more of its target than tokens.
    #[must_use]
    pub fn reads_features(self) -> bool {
        !matches!(self, Self::ParallelMedusa | Self::Pard { .. })
    }

    /// Numbers of a token's features that it reads.
    fn width(self, target: &Config) -> usize {
        self.features(target).map_or(0, |features| features.width(target.hidden_size))
    }

    /// What a folder holds; `None` if it is no such drafter, or no folder at all.
    ///
    /// # Errors
    ///
    /// When a file is unreadable, broken, or pickled by PyTorch.
    pub fn of(directory: &Path) -> Result<Option<Self>, LoadError> {
        if directory.is_file() && pickle::is_pickle(directory) {
            return Err(pickle::error(directory.to_owned()));
        }
        if !directory.is_dir() {
            return Ok(None);
        }
        if let Some(mask) = pard_token(directory)? {
            return Ok(Some(Self::Pard { mask }));
        }
        let tensors = NamedTensors::open(directory)?;
        Ok(tensors.and_then(|tensors| Self::of_tensors(&tensors)))
    }

    fn of_tensors(tensors: &NamedTensors) -> Option<Self> {
        if medusa::Layout::of(tensors).is_some() {
            return Some(Self::Medusa);
        }
        if hydra::Layout::of(tensors).is_some() {
            return Some(Self::Hydra);
        }
        if eagle3::prefix(tensors).is_some() {
            return Some(Self::Eagle3);
        }
        match [layers::MASK_EMBEDDINGS, layers::FUSION].map(|name| tensors.has(name)) {
            [true, true] => Some(Self::ParallelEagle),
            [true, false] => Some(Self::ParallelMedusa),
            [false, true] => Some(Self::Eagle),
            [false, false] => None,
        }
    }
}

impl fmt::Display for SpeculatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Medusa => "Medusa heads",
            Self::Hydra => "Hydra heads",
            Self::Eagle => "an EAGLE drafter",
            Self::Eagle3 => "an EAGLE-3 drafter",
            Self::ParallelMedusa => "a ParallelSpec drafter on tokens",
            Self::ParallelEagle => "a ParallelSpec drafter on features",
            Self::Pard { .. } => "a PARD drafter",
        })
    }
}

/// The token that a PARD model was trained to take for masks.
fn pard_token(directory: &Path) -> Result<Option<TokenId>, LoadError> {
    let file = directory.join("config.json");
    if !file.exists() {
        return Ok(None);
    }
    JsonOptions::parse(&read_text(&file)?, &file)?.token_id("pard_token")
}

/// A drafter that is no model by itself, open for reading.
pub struct Speculator {
    path: PathBuf,
    kind: SpeculatorKind,
    tensors: NamedTensors,
    /// Of its layers; heads have none.
    config: Option<Config>,
}

impl Speculator {
    /// Opens such a drafter; `None` where a folder holds none: a whole model, as PARD's are, too.
    ///
    /// # Errors
    ///
    /// When a file is unreadable or broken, the configuration makes no sense, or the drafter was made
    /// for another target, as far as that can be told.
    pub fn open(directory: &Path, target: &Checkpoint) -> Result<Option<Self>, LoadError> {
        if !directory.is_dir() || pard_token(directory)?.is_some() {
            return Ok(None);
        }
        let Some(tensors) = NamedTensors::open(directory)? else { return Ok(None) };
        let Some(kind) = SpeculatorKind::of_tensors(&tensors) else { return Ok(None) };
        let file = directory.join("config.json");
        let text = if file.exists() { read_text(&file)? } else { "{}".to_owned() };
        let options = JsonOptions::parse(&text, &file)?;
        let hash = options.text("target_embedding_sha256")?;
        let name = options.text("target")?.unwrap_or_else(|| "of another name".to_owned());
        let config = match kind {
            SpeculatorKind::Medusa | SpeculatorKind::Hydra => None,
            // Its name for itself is no model's.
            _ => Some(Config::parse(&options.without("architectures"), &file)?),
        };
        if let (Some(told), Some([masks, _])) =
            (options.size("n_mask_tokens")?, tensors.shape(layers::MASK_EMBEDDINGS))
            && told != *masks
        {
            let expected = format!("{masks}, as many as `{}` has rows", layers::MASK_EMBEDDINGS);
            return Err(options.invalid("n_mask_tokens", &told, &expected));
        }
        if kind == SpeculatorKind::Hydra {
            // Other heads than those on the last hidden state were tried, and not published.
            let supported = "0, the last hidden state";
            options.only("hidden_state_offset", supported, |offset| offset.as_u64() == Some(0))?;
        }
        let speculator = Self { path: directory.to_owned(), kind, tensors, config };
        speculator.check(target, hash.map(|hash| (name, hash)))?;
        Ok(Some(speculator))
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> SpeculatorKind {
        self.kind
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was made for this target: one of its sizes, and of the name and the SHA-256 of the
    /// embedding that it tells.
    fn check(
        &self,
        target: &Checkpoint,
        made_for: Option<(String, String)>,
    ) -> Result<(), LoadError> {
        let of_target = target.config();
        let mut sizes = Vec::new();
        match &self.config {
            Some(config) => sizes.extend([
                ("hidden size", config.hidden_size, of_target.hidden_size),
                ("vocabulary", config.vocab_size, of_target.vocab_size),
            ]),
            None => {
                let of_medusa = medusa::Layout::of(&self.tensors).map(|own| own.hidden_size);
                let of_hydra = || hydra::Layout::of(&self.tensors).map(|own| own.hidden_size);
                let size = of_medusa.or_else(of_hydra).unwrap_or(0);
                sizes.push(("hidden size", size, of_target.hidden_size));
            }
        }
        if let Some(&(what, found, expected)) = sizes.iter().find(|(_, own, its)| own != its) {
            let (drafter, target) = (self.path.clone(), target.path().to_owned());
            return Err(LoadError::TargetSize { drafter, what, found, expected, target });
        }
        match made_for {
            Some((made_for, hash)) if hash != target.embedding_sha256()? => {
                let (drafter, target) = (self.path.clone(), target.path().to_owned());
                Err(LoadError::OtherTarget { drafter, made_for, target })
            }
            _ => Ok(()),
        }
    }

    /// The asked type, or the smallest that keeps all of its matrices' values.
    fn weight_type(&self, asked: Option<WeightType>) -> Result<WeightType, LoadError> {
        match asked {
            Some(asked) => Ok(asked),
            None => Ok(type_of_all(self.tensors.matrix_dtypes()?)),
        }
    }

    /// The error of a drafter of another kind.
    fn not_that(&self, expected: &'static str) -> LoadError {
        let (path, found) = (self.path.clone(), self.kind.to_string());
        LoadError::NotThatDrafter { path, found, expected }
    }
}
