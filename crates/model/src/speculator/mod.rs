//! Checkpoints of drafters that belong to one target: they share its embedding or head, or read its
//! features.
//!
//! The kind of a drafter is detected from its tensors, because published configurations are often wrong:
//!
//! * Medusa (Cai et al. 2024, arXiv 2401.10774), in the layouts of its authors and of vLLM;
//! * Hydra (Ankner et al. 2024, arXiv 2402.05109) and Hydra++, with heads that read drafted tokens;
//! * EAGLE (Li et al. 2024, arXiv 2401.15077) and EAGLE-2, which differ only in how they draft, and
//!   EAGLE-3;
//! * ParallelSpec (Xiao et al. 2024, arXiv 2410.05589) in its two integrations. Its authors published no
//!   checkpoints, so the layout is forerun's own;
//! * PARD (An et al. 2025, arXiv 2504.18583), a complete model with a mask token.

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
use crate::weights::lossless_type;
use forerun_core::TokenId;
use std::fmt;
use std::path::{Path, PathBuf};

/// A kind of drafter that belongs to one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeculatorKind {
    /// Residual heads on the target's last hidden state.
    Medusa,
    /// Heads on the target's last hidden state and on the tokens after it.
    Hydra,
    /// A layer on tokens and the target's features, which drafts one token after another.
    Eagle,
    /// A layer on tokens and hidden states from three depths of the target, with its own head (EAGLE-3).
    Eagle3,
    /// A layer on tokens only, with mask tokens (ParallelSpec).
    ParallelMedusa,
    /// A layer on tokens and the target's features, with mask tokens (ParallelSpec).
    ParallelEagle,
    /// A complete model with one token that serves as all mask tokens.
    Pard {
        /// The mask token.
        mask: TokenId,
    },
}

impl SpeculatorKind {
    /// Returns the features that the drafter reads of a target with this configuration. `None` if it
    /// reads only tokens.
    #[must_use]
    pub fn features(self, target: &Config) -> Option<FeatureSource> {
        match self {
            Self::Medusa | Self::Hydra | Self::Eagle | Self::ParallelEagle => {
                Some(FeatureSource::LastHidden)
            }
            Self::Eagle3 => {
                // The same layers as in its authors' code, counted as the number of layers before.
                let layers = target.num_hidden_layers;
                let chosen = vec![layers.min(2), layers / 2, layers.saturating_sub(3)];
                Some(FeatureSource::Layers(chosen))
            }
            Self::ParallelMedusa | Self::Pard { .. } => None,
        }
    }

    /// Whether the drafter reads its target's features, not only tokens.
    #[must_use]
    pub fn reads_features(self) -> bool {
        !matches!(self, Self::ParallelMedusa | Self::Pard { .. })
    }

    /// Returns the width of the features that the drafter reads for each token.
    fn feature_width(self, target: &Config) -> usize {
        self.features(target).map_or(0, |features| features.width(target.hidden_size))
    }

    /// Detects the kind of the drafter in a folder. Returns `None` if the path is not a folder, or the
    /// folder does not hold such a drafter.
    ///
    /// # Errors
    ///
    /// When a file is unreadable, broken, or pickled by PyTorch.
    pub fn of(directory: &Path) -> Result<Option<Self>, LoadError> {
        if directory.is_file() && pickle::is_pickle(directory) {
            return Err(pickle::pickle_error(directory.to_owned()));
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

/// Returns the mask token of a PARD model.
fn pard_token(directory: &Path) -> Result<Option<TokenId>, LoadError> {
    let file = directory.join("config.json");
    if !file.exists() {
        return Ok(None);
    }
    JsonOptions::parse(&read_text(&file)?, &file)?.token_id("pard_token")
}

/// A drafter that is not a complete model, opened for reading.
pub struct Speculator {
    path: PathBuf,
    kind: SpeculatorKind,
    tensors: NamedTensors,
    /// The configuration of its layers. Heads have none.
    config: Option<Config>,
}

impl Speculator {
    /// Opens a drafter. Returns `None` if the folder does not hold one, or holds a complete model, such
    /// as PARD's.
    ///
    /// # Errors
    ///
    /// When a file is unreadable or broken, the configuration is invalid, or the checkpoint shows that
    /// the drafter was trained for another target.
    pub fn open(directory: &Path, target: &Checkpoint) -> Result<Option<Self>, LoadError> {
        if !directory.is_dir() || pard_token(directory)?.is_some() {
            return Ok(None);
        }
        let Some(tensors) = NamedTensors::open(directory)? else { return Ok(None) };
        let Some(kind) = SpeculatorKind::of_tensors(&tensors) else { return Ok(None) };
        let file = directory.join("config.json");
        let text = if file.exists() { read_text(&file)? } else { "{}".to_owned() };
        let options = JsonOptions::parse(&text, &file)?;
        let hash = options.string("target_embedding_sha256")?;
        let name = options.string("target")?.unwrap_or_else(|| "(unnamed)".to_owned());
        let config = match kind {
            SpeculatorKind::Medusa | SpeculatorKind::Hydra => None,
            // `architectures` names a drafter's class, not a model's.
            _ => Some(Config::parse(&options.without("architectures"), &file)?),
        };
        if let (Some(configured), Some([masks, _])) =
            (options.size("n_mask_tokens")?, tensors.shape(layers::MASK_EMBEDDINGS))
            && configured != *masks
        {
            let expected = format!("{masks}, the number of rows of `{}`", layers::MASK_EMBEDDINGS);
            return Err(options.invalid("n_mask_tokens", &configured, &expected));
        }
        if kind == SpeculatorKind::Hydra {
            // Hydra's authors tried other hidden states, but did not publish such heads.
            let supported = "0, the last hidden state";
            let is_last = |offset: &serde_json::Value| offset.as_u64() == Some(0);
            options.check_supported("hidden_state_offset", supported, is_last)?;
        }
        let speculator = Self { path: directory.to_owned(), kind, tensors, config };
        speculator.check_target(target, hash.map(|hash| (name, hash)))?;
        Ok(Some(speculator))
    }

    /// Returns the drafter's kind.
    #[must_use]
    pub fn kind(&self) -> SpeculatorKind {
        self.kind
    }

    /// Returns the drafter's folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the drafter was trained for this target: that their sizes agree, and that the
    /// target's embedding has the SHA-256 in `trained_for` (the target's name and the hash), if any.
    fn check_target(
        &self,
        target: &Checkpoint,
        trained_for: Option<(String, String)>,
    ) -> Result<(), LoadError> {
        let target_config = target.config();
        let mut sizes = Vec::new();
        match &self.config {
            Some(config) => sizes.extend([
                ("hidden size", config.hidden_size, target_config.hidden_size),
                ("vocabulary", config.vocab_size, target_config.vocab_size),
            ]),
            None => {
                let medusa = medusa::Layout::of(&self.tensors).map(|layout| layout.hidden_size);
                let hydra = || hydra::Layout::of(&self.tensors).map(|layout| layout.hidden_size);
                let hidden_size = medusa.or_else(hydra).unwrap_or(0);
                sizes.push(("hidden size", hidden_size, target_config.hidden_size));
            }
        }
        let mismatch = sizes.iter().find(|(_, found, expected)| found != expected);
        if let Some(&(size, found, expected)) = mismatch {
            let (drafter, target) = (self.path.clone(), target.path().to_owned());
            return Err(LoadError::TargetSizeMismatch { drafter, size, found, expected, target });
        }
        match trained_for {
            Some((trained_for, hash)) if hash != target.embedding_sha256()? => {
                let (drafter, target) = (self.path.clone(), target.path().to_owned());
                Err(LoadError::TargetMismatch { drafter, trained_for, target })
            }
            _ => Ok(()),
        }
    }

    /// Returns the requested type, or the smallest type that represents all matrices exactly.
    fn weight_type(&self, requested: Option<WeightType>) -> Result<WeightType, LoadError> {
        match requested {
            Some(requested) => Ok(requested),
            None => Ok(lossless_type(self.tensors.matrix_dtypes()?)),
        }
    }

    /// Returns the error for a drafter of another kind than `expected`.
    fn wrong_kind(&self, expected: &'static str) -> LoadError {
        let (path, found) = (self.path.clone(), self.kind.to_string());
        LoadError::WrongDrafterKind { path, found, expected }
    }
}
