//! Checkpoints of drafters that belong to one target: they share its embedding or head, or read its
//! features.
//!
//! The kind of a drafter is detected from its tensors, because published configurations are often
//! wrong:
//!
//! * Medusa (Cai et al. 2024, arXiv 2401.10774), in the layouts of its authors and of vLLM;
//! * Hydra (Ankner et al. 2024, arXiv 2402.05109) and Hydra++, with heads that read drafted tokens;
//! * EAGLE (Li et al. 2024, arXiv 2401.15077) and EAGLE-2, which differ only in how they draft, and
//!   EAGLE-3;
//! * ParallelSpec (Xiao et al. 2024, arXiv 2410.05589) in its two integrations. Its authors
//!   published no checkpoints, so the layout is forerun's own;
//! * PARD (An et al. 2025, arXiv 2504.18583), a complete model with a mask token;
//! * PARD-2 (An et al. 2026, arXiv 2605.08632), the same with a projection of the target's
//!   features;
//! * DFlash (Chen et al. 2026, arXiv 2602.06036), layers that draft a block in one pass;
//! * DFlash 2, the same with convolutions in the block and a selector of paths;
//! * DSpark (Cheng et al. 2026, arXiv 2607.05147), the same with heads that correct a block
//!   position by position;
//! * MTP (DeepSeek-AI 2024, arXiv 2412.19437), a layer of the target's own checkpoint.

pub(crate) mod assistant;
mod dflash;
mod dflash2;
mod draft_vocabulary;
mod dspark;
mod eagle3;
mod hydra;
mod layers;
mod medusa;
pub(crate) mod mtp;
mod pard2;

use crate::architecture::{Architecture, BlockHeads, DraftHeads, FeatureSource};
use crate::checkpoint::{
    Checkpoint, GgufFile, LoadError, NamedTensors, Tensor, TensorRows, TensorSource, pickle,
    read_text,
};
use crate::config::Config;
use crate::json_options::JsonOptions;
use crate::weight_type::WeightType;
pub use dflash::DraftBlock;
use forerun_core::TokenId;
use layers::short_name;
pub use pard2::PROJECTION_FILES;
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
    /// A layer on tokens and hidden states from three depths of the target, with its own head
    /// (EAGLE-3).
    Eagle3,
    /// EAGLE-3's layers with a mask, which draft all tokens in one pass (P-EAGLE).
    PEagle,
    /// Layers on hidden states of the target, which draft a block of tokens in one pass (DFlash).
    DFlash,
    /// The same with convolutions over the block, and a selector that chooses among the most
    /// probable tokens (DFlash 2).
    DFlash2,
    /// DFlash's layers with heads that correct the block one position after another (DSpark).
    DSpark,
    /// A layer of the target's own checkpoint on tokens and the target's features (MTP). It is not
    /// detected, but opened on request ([`Speculator::open_mtp`]).
    Mtp,
    /// Layers that attend to keys and values of the target (Gemma 4's assistants).
    Assistant,
    /// A layer on tokens only, with mask tokens (ParallelSpec).
    ParallelMedusa,
    /// A layer on tokens and the target's features, with mask tokens (ParallelSpec).
    ParallelEagle,
    /// A complete model with one token that serves as all mask tokens.
    Pard {
        /// The mask token.
        mask: TokenId,
    },
    /// A complete model with such a token, which also reads the target's features (PARD-2).
    Pard2 {
        /// The mask token.
        mask: TokenId,
    },
}

impl SpeculatorKind {
    /// Whether the drafter reads its target's features, not only tokens.
    #[must_use]
    pub fn reads_features(self) -> bool {
        !matches!(self, Self::ParallelMedusa | Self::Pard { .. })
    }

    /// Whether the checkpoint is a whole language model, too.
    #[must_use]
    pub fn is_model(self) -> bool {
        matches!(self, Self::Pard { .. } | Self::Pard2 { .. })
    }

    /// Whether the drafter can draft after draft tokens. Others on features need those of all
    /// tokens before a draft.
    #[must_use]
    pub fn drafts_ahead(self) -> bool {
        !matches!(self, Self::Medusa | Self::Hydra)
    }

    /// Detects the kind of the drafter in a folder, or in a GGUF file. Returns `None` if there is no
    /// such drafter.
    ///
    /// # Errors
    /// When a file is unreadable, broken, or pickled by PyTorch.
    pub fn of(directory: &Path) -> Result<Option<Self>, LoadError> {
        if directory.is_file() && pickle::is_pickle(directory) {
            return Err(pickle::pickle_error(directory.to_owned()));
        }
        if GgufFile::find(directory)?.is_some_and(|file| file.is_assistant()) {
            return Ok(Some(Self::Assistant));
        }
        if !directory.is_dir() {
            return Ok(None);
        }
        let tensors = NamedTensors::open(directory)?;
        if let Some(kind) = pard_kind(directory, tensors.as_ref())? {
            return Ok(Some(kind));
        }
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
            return Some(if eagle3::has_mask(tensors) { Self::PEagle } else { Self::Eagle3 });
        }
        if dflash::is_dflash(tensors) {
            return Some(match dflash::Algorithm::of_tensors(tensors) {
                dflash::Algorithm::DFlash => Self::DFlash,
                dflash::Algorithm::DFlash2 => Self::DFlash2,
                dflash::Algorithm::DSpark => Self::DSpark,
            });
        }
        if assistant::is_assistant(tensors) {
            return Some(Self::Assistant);
        }
        let has = |tensor| tensors.has(&short_name(tensor));
        match [Tensor::MaskEmbeddings, Tensor::Fusion].map(has) {
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
            Self::PEagle => "a P-EAGLE drafter",
            Self::DFlash => "a DFlash drafter",
            Self::DFlash2 => "a DFlash 2 drafter",
            Self::DSpark => "a DSpark drafter",
            Self::Mtp => "an MTP head",
            Self::Assistant => "an assistant of Gemma 4",
            Self::ParallelMedusa => "a ParallelSpec drafter on tokens",
            Self::ParallelEagle => "a ParallelSpec drafter on features",
            Self::Pard { .. } => "a PARD drafter",
            Self::Pard2 { .. } => "a PARD-2 drafter",
        })
    }
}

/// Returns whether a folder's configuration is that of PARD-2, whose projection is in one of the
/// [`PROJECTION_FILES`]. The weights may be missing.
#[must_use]
pub fn has_projection(directory: &Path) -> bool {
    matches!(pard_kind(directory, None), Ok(Some(SpeculatorKind::Pard2 { .. })))
}

/// Returns the kind of a PARD model: a model with a mask token. P-EAGLE may have an option of the
/// same name.
fn pard_kind(
    directory: &Path,
    tensors: Option<&NamedTensors>,
) -> Result<Option<SpeculatorKind>, LoadError> {
    let file = directory.join("config.json");
    if !file.exists() || tensors.is_some_and(eagle3::has_mask) {
        return Ok(None);
    }
    let text = read_text(&file)?;
    let options = JsonOptions::parse(&text, &file)?;
    let Some(mask) = options.token_id(pard2::MASK)? else { return Ok(None) };
    Ok(Some(match pard2::is_pard2(&options)? {
        true => SpeculatorKind::Pard2 { mask },
        false => SpeculatorKind::Pard { mask },
    }))
}

/// A drafter that is not a complete model, opened for reading.
pub struct Speculator {
    path: PathBuf,
    kind: SpeculatorKind,
    tensors: NamedTensors,
    layout: Layout,
    /// The configuration of the target that it was opened for.
    target: Config,
}

/// The storage layout of a drafter.
enum Layout {
    Medusa(medusa::Layout),
    Hydra(hydra::Layout),
    Eagle3(Box<eagle3::Layout>),
    DFlash(Box<dflash::Layout>),
    Mtp(Box<mtp::Layout>),
    /// The MTP head of a GGUF file.
    MtpOfGguf(Box<Checkpoint>),
    Pard2(Box<pard2::Layout>),
    Assistant(Box<assistant::Layout>),
    /// Layers of EAGLE or ParallelSpec.
    Layers {
        config: Box<Config>,
    },
}

/// What a drafter computes.
#[derive(Clone, Debug, PartialEq)]
pub enum SpeculatorArchitecture {
    /// Layers on tokens, and on the target's features.
    Layers(Architecture),
    /// Heads on the target's features.
    Heads(DraftHeads),
}

impl Speculator {
    /// Opens a drafter in a folder, or in a GGUF file. Returns `None` if there is none, or a
    /// complete model, such as PARD's.
    ///
    /// # Errors
    /// When a file is unreadable or broken, the configuration is invalid, or the checkpoint shows
    /// that the drafter was trained for another target.
    pub fn open(directory: &Path, target: &Checkpoint) -> Result<Option<Self>, LoadError> {
        if GgufFile::find(directory)?.is_some_and(|file| file.is_assistant()) {
            return Self::open_gguf_assistant(directory, target).map(Some);
        }
        if !directory.is_dir() {
            return Ok(None);
        }
        let Some(tensors) = NamedTensors::open(directory)? else { return Ok(None) };
        match pard_kind(directory, Some(&tensors))? {
            Some(kind @ SpeculatorKind::Pard2 { mask }) => {
                return Self::open_pard2(directory, kind, mask, target).map(Some);
            }
            Some(_) => return Ok(None),
            None => {}
        }
        let Some(kind) = SpeculatorKind::of_tensors(&tensors) else { return Ok(None) };
        let file = directory.join("config.json");
        let text = if file.exists() { read_text(&file)? } else { "{}".to_owned() };
        let options = JsonOptions::parse(&text, &file)?;
        if kind == SpeculatorKind::Assistant {
            let assistant = Self::open_assistant(directory, (&options, &file), tensors, target);
            return assistant.map(Some);
        }
        let hash = options.string("target_embedding_sha256")?;
        let name = options.string("target")?.unwrap_or_else(|| "(unnamed)".to_owned());
        // `architectures` names a drafter's class, not a model's.
        let config = || Config::parse(&options.without("architectures"), &file).map(Box::new);
        let layout = match (medusa::Layout::of(&tensors), hydra::Layout::of(&tensors)) {
            (Some(layout), _) => Layout::Medusa(layout),
            (None, Some(layout)) => Layout::Hydra(layout),
            (None, None) => match eagle3::prefix(&tensors) {
                Some(prefix) => {
                    let (file, target) = (file.as_path(), target.config());
                    let layout = eagle3::Layout::read(&options, file, (&tensors, prefix), target)?;
                    Layout::Eagle3(Box::new(layout))
                }
                None if dflash::is_dflash(&tensors) => {
                    let (file, target) = (file.as_path(), target.config());
                    let layout = dflash::Layout::read(&options, file, &tensors, target)?;
                    Layout::DFlash(Box::new(layout))
                }
                None => Layout::Layers { config: config()? },
            },
        };
        let mask_embeddings = short_name(Tensor::MaskEmbeddings);
        if let (Some(configured), Some([masks, _])) =
            (options.size("n_mask_tokens")?, tensors.shape(&mask_embeddings))
            && configured != *masks
        {
            let expected = format!("{masks}, the number of rows of `{mask_embeddings}`");
            return Err(options.invalid("n_mask_tokens", &configured, &expected));
        }
        if kind == SpeculatorKind::Hydra {
            // Hydra's authors tried other hidden states, but did not publish such heads.
            let supported = "0, the last hidden state";
            let is_last = |offset: &serde_json::Value| offset.as_u64() == Some(0);
            options.check_supported("hidden_state_offset", supported, is_last)?;
        }
        let (path, target_config) = (directory.to_owned(), target.config().clone());
        let speculator = Self { path, kind, tensors, layout, target: target_config };
        speculator.check_target(target, hash.map(|hash| (name, hash)))?;
        if let Layout::Medusa(_) | Layout::Hydra(_) | Layout::Layers { .. } = &speculator.layout {
            speculator.check_draft_vocab_size(&options, speculator.target.vocab_size)?;
        }
        Ok(Some(speculator))
    }

    /// Returns the drafter's kind.
    #[must_use]
    pub fn kind(&self) -> SpeculatorKind {
        self.kind
    }

    /// Returns the target's features that the drafter reads. `None` if it reads only tokens.
    #[must_use]
    pub fn features(&self) -> Option<FeatureSource> {
        match &self.layout {
            Layout::Eagle3(layout) => Some(layout.features()),
            Layout::DFlash(layout) => Some(layout.features()),
            Layout::Pard2(layout) => Some(layout.features()),
            Layout::Assistant(layout) => Some(layout.features()),
            _ => self.kind.reads_features().then_some(FeatureSource::LastHidden),
        }
    }

    /// Returns the block that the drafter reads, if it drafts blocks.
    #[must_use]
    pub fn block(&self) -> Option<DraftBlock> {
        match &self.layout {
            Layout::DFlash(layout) => Some(layout.block),
            _ => None,
        }
    }

    /// Returns the heads after the layers of a block drafter, if there are any.
    ///
    /// # Errors
    /// As [`Self::architecture`].
    pub fn block_heads(&self) -> Result<Option<BlockHeads>, LoadError> {
        match &self.layout {
            Layout::DFlash(layout) => Ok(layout.block_heads(&self.dflash(layout)?)),
            _ => Ok(None),
        }
    }

    /// Returns the drafter's folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the drafter was trained for this target: that their sizes agree, and that the
    /// target's embedding has the SHA-256 in `trained_for` (the target's name and the hash), if
    /// any.
    fn check_target(
        &self,
        target: &Checkpoint,
        trained_for: Option<(String, String)>,
    ) -> Result<(), LoadError> {
        let target_config = target.config();
        let mut sizes = Vec::new();
        let hidden_size = match &self.layout {
            Layout::Medusa(layout) => layout.hidden_size,
            Layout::Hydra(layout) => layout.hidden_size,
            Layout::Eagle3(layout) => {
                sizes.extend(layout.sizes(&self.tensors, target_config));
                layout.target_hidden_size()
            }
            Layout::DFlash(layout) => {
                sizes.push(("vocabulary", layout.config.vocab_size, target_config.vocab_size));
                layout.config.hidden_size
            }
            // It is a part of the target.
            Layout::Mtp(_) | Layout::MtpOfGguf(_) => target_config.hidden_size,
            // It was checked when its options were read.
            Layout::Assistant(_) => target_config.hidden_size,
            Layout::Pard2(layout) => {
                let vocab_size = layout.model.config().vocab_size;
                sizes.push(("vocabulary", vocab_size, target_config.vocab_size));
                // The projection's width, which was checked, says for which targets it is.
                target_config.hidden_size
            }
            Layout::Layers { config } => {
                sizes.push(("vocabulary", config.vocab_size, target_config.vocab_size));
                config.hidden_size
            }
        };
        sizes.insert(0, ("hidden size", hidden_size, target_config.hidden_size));
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

    /// Returns what the drafter computes.
    ///
    /// # Errors
    /// When a tensor is unexpected, Hydra's heads do not read drafted tokens, or a drafter's own
    /// vocabulary does not fit the target's.
    pub fn architecture(&self) -> Result<SpeculatorArchitecture, LoadError> {
        use SpeculatorArchitecture::{Heads, Layers};
        let target = &self.target;
        match &self.layout {
            Layout::Medusa(layout) => self.medusa(layout, target).map(Heads),
            Layout::Hydra(layout) => self.hydra(layout, target).map(Heads),
            Layout::Eagle3(layout) => self.eagle3(layout).map(Layers),
            Layout::DFlash(layout) => self.dflash(layout).map(Layers),
            Layout::Mtp(layout) => Ok(Layers(layout.architecture())),
            Layout::MtpOfGguf(head) => Ok(Layers(head.architecture().clone())),
            Layout::Pard2(layout) => Ok(Layers(layout.architecture())),
            Layout::Assistant(layout) => Ok(Layers(layout.architecture().clone())),
            Layout::Layers { config } => self.eagle_or_parallel(config).map(Layers),
        }
    }

    /// Returns the name under which a tensor is stored, if the layout has it.
    fn stored_name(&self, tensor: Tensor) -> Option<String> {
        match (&self.layout, tensor) {
            (Layout::Medusa(layout), Tensor::DraftHead(head, tensor)) => layout.name(head, tensor),
            (Layout::Medusa(_), _) => None,
            (Layout::Hydra(layout), Tensor::DraftHead(head, tensor)) => {
                Some(layout.name(head, tensor))
            }
            (Layout::Hydra(_), tensor) => Some(format!("{}{}", hydra::PREFIX, short_name(tensor))),
            (Layout::Eagle3(layout), tensor) => Some(layout.name(tensor)),
            (Layout::Mtp(layout), tensor) => Some(layout.stored_in(&self.tensors, tensor).name),
            // Its tensors have no names here.
            (Layout::MtpOfGguf(_) | Layout::Assistant(_), _) => None,
            (Layout::Pard2(_), tensor) => pard2::name(tensor).map(str::to_owned),
            (Layout::Layers { .. } | Layout::DFlash(_), tensor) => Some(short_name(tensor)),
        }
    }

    /// Returns the whole model that stores a tensor, if the drafter has one.
    fn model_with(&self, tensor: Tensor) -> Option<&Checkpoint> {
        match &self.layout {
            Layout::Pard2(layout) if pard2::name(tensor).is_none() => Some(&layout.model),
            Layout::MtpOfGguf(head) => Some(head),
            _ => None,
        }
    }

    /// Returns the error for a drafter of another kind than `expected`.
    fn wrong_kind(&self, expected: &'static str) -> LoadError {
        let (path, found) = (self.path.clone(), self.kind.to_string());
        LoadError::WrongDrafterKind { path, found, expected }
    }
}

impl TensorSource for Speculator {
    fn has(&self, tensor: Tensor) -> bool {
        if let Some(model) = self.model_with(tensor) {
            return model.has(tensor);
        }
        if let Layout::Assistant(layout) = &self.layout {
            return layout.has(&self.tensors, tensor);
        }
        self.stored_name(tensor).is_some_and(|name| self.tensors.has(&name))
    }

    fn rows(&self, tensor: Tensor, shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        if let Some(model) = self.model_with(tensor) {
            return model.rows(tensor);
        }
        let hint = match &self.layout {
            Layout::Medusa(_) | Layout::Hydra(_) => {
                "the checkpoint is incomplete: all heads must have the same layers"
            }
            Layout::Eagle3(_)
            | Layout::DFlash(_)
            | Layout::Mtp(_)
            | Layout::MtpOfGguf(_)
            | Layout::Pard2(_)
            | Layout::Assistant(_)
            | Layout::Layers { .. } => {
                "the checkpoint is incomplete, or config.json belongs to another drafter"
            }
        };
        if let Layout::Eagle3(layout) = &self.layout
            && let Some(stored) = layout.stored_mask(&self.tensors, tensor)
        {
            return self.tensors.rows_of(&stored, shape, hint);
        }
        if let Layout::Assistant(layout) = &self.layout {
            return layout.rows(&self.tensors, (tensor, shape), hint);
        }
        if let Layout::Mtp(layout) = &self.layout {
            return self.tensors.rows_of(&layout.stored_in(&self.tensors, tensor), shape, hint);
        }
        let name = self.stored_name(tensor).unwrap_or_else(|| tensor.to_string());
        self.tensors.rows(&name, shape, hint)
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        match &self.layout {
            Layout::Pard2(layout) => return layout.model.float_type(),
            Layout::MtpOfGguf(head) => return head.float_type(),
            Layout::Assistant(layout) => return layout.float_type(&self.tensors),
            _ => {}
        }
        let belongs = |name: &str| match &self.layout {
            Layout::Mtp(layout) => layout.owns(name),
            _ => true,
        };
        Ok(WeightType::lossless(self.tensors.matrix_dtypes(belongs)?))
    }
}
