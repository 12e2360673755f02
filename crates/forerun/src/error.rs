//! Why there is no engine, or no answer.

use crate::plan::{DrafterKind, PlanError};
use crate::request::RequestError;
use crate::tokenizer::TokenizerError;
use forerun_core::TokenId;
use forerun_decode::DecodeError;
use forerun_model::{IsaError, LayerGroupsError, LoadError, SpeculatorKind};
use forerun_runtime::StartError;
use std::path::PathBuf;

/// Why there is no engine, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum ForerunError {
    /// A checkpoint that cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A model of the hub that cannot be had.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(Box<crate::hub::HubError>),
    /// A file of the hub's cache that makes no sense.
    #[cfg(feature = "hub")]
    #[error(
        "{cause}; if it was damaged in the cache, delete {file} and run again to fetch it anew"
    )]
    Cached {
        /// What is wrong with it.
        cause: Box<Self>,
        /// Where its content lies.
        file: PathBuf,
    },
    /// Whoever watched the loading broke it off.
    #[error("loading was cancelled; a download goes on from there the next time")]
    Cancelled,
    /// A tokenizer that cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// `FORERUN_ISA` asks for what there is not.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A worker that cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Options of the answer out of range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A tree of another vocabulary's tokens.
    #[error(
        "the drafter {drafter} has another vocabulary than the target {target} ({}): its drafts are \
         translated by their text, and so must be chains; leave --tree out, or choose a drafter of \
         the target's family",
        if drafter_size == target_size {
            format!("both have {target_size} tokens, but not the same")
        } else {
            format!("{drafter_size} tokens against {target_size} tokens")
        }
    )]
    Vocabulary {
        /// The target's checkpoint.
        target: PathBuf,
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// Size of the target's vocabulary.
        target_size: usize,
        /// Size of the drafter's.
        drafter_size: usize,
    },
    /// A drafter of another vocabulary, of which such drafting makes no use.
    #[error(
        "the drafter {drafter} has another vocabulary than the target {target}, which --drafter \
         {kind} cannot translate: choose a drafter of the target's family, or --drafter model"
    )]
    NoTranslation {
        /// Who was to draft.
        kind: DrafterKind,
        /// The target's checkpoint.
        target: PathBuf,
        /// The drafter's checkpoint.
        drafter: PathBuf,
    },
    /// A draft model of another kind.
    #[error(
        "{path} holds {found}, which --drafter {asked} does not draft with: use --drafter {}",
        DrafterKind::of(*found)
    )]
    OtherDrafter {
        /// The draft model.
        path: PathBuf,
        /// What it is.
        found: SpeculatorKind,
        /// Who was to draft.
        asked: DrafterKind,
    },
    /// A draft model that is none of the asked kind.
    #[error(
        "{path} holds no drafter for --drafter {asked}: name a folder with the tensors of one, or use \
         --drafter model for a whole model"
    )]
    NoSuchDrafter {
        /// The draft model.
        path: PathBuf,
        /// Who was to draft.
        asked: DrafterKind,
    },
    /// A drafter that does not go with the plan, as its files tell.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Layer groups of another model.
    #[error("{cause}: {}", drafter.display())]
    LayerGroups {
        /// What does not fit.
        cause: LayerGroupsError,
        /// The drafter's checkpoint.
        drafter: PathBuf,
    },
    /// A tokenizer with more tokens than its model, those not counted that were added to it later.
    #[error(
        "the tokenizer {tokenizer} has tokens up to {largest}, but the model {model} only {expected} \
         tokens: they do not belong together"
    )]
    TokenizerSize {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// The checkpoint.
        model: PathBuf,
        /// The tokenizer's largest token.
        largest: TokenId,
        /// Tokens of the model.
        expected: usize,
    },
    /// Nothing to continue.
    #[error("the prompt is empty: give some text to continue")]
    EmptyPrompt,
    /// No room for an answer.
    #[error(
        "the prompt has {prompt} tokens, but the model {model} has a context of {context}: shorten \
         the prompt to at most {} tokens", context - 1
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the model can see.
        context: usize,
        /// The checkpoint.
        model: PathBuf,
    },
    /// Decoding failed; what was streamed before is certain all the same.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

#[cfg(feature = "hub")]
impl From<crate::hub::FetchError> for ForerunError {
    fn from(error: crate::hub::FetchError) -> Self {
        match error {
            crate::hub::FetchError::Hub(error) => Self::Hub(Box::new(error)),
            crate::hub::FetchError::Index(error) => Self::Load(error),
            crate::hub::FetchError::Cancelled => Self::Cancelled,
        }
    }
}
