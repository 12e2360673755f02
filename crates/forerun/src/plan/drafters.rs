//! Decides who drafts, and how EasySpec's layers are computed.

use super::{Method, Options, PlanError, UnknownValue};
use crate::easyspec::{EasySpec, LayerStrategy};
use forerun_model::SpeculatorKind;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Who drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterKind {
    /// Nobody.
    None,
    /// A second language model.
    Model,
    /// A second language model, several of its layers at a time.
    EasySpec,
    /// Earlier occurrences of the last tokens.
    PromptLookup,
    /// N-grams that the target guesses itself, beside what it verifies (lookahead decoding).
    Lookahead,
    /// A second language model, whose drafts are made and lengthened by phrases (Ouroboros).
    Ouroboros,
    /// Heads on the target's last hidden state (Medusa).
    Medusa,
    /// The same, each of which reads what those before it drafted (Hydra, Hydra++).
    Hydra,
    /// A layer on the target's hidden states (EAGLE, EAGLE-2, EAGLE-3).
    Eagle,
    /// A layer that guesses all positions in one forward (ParallelSpec in both integrations; PARD).
    Parallel,
}

impl DrafterKind {
    /// Whether it drafts with a checkpoint of its own.
    #[must_use]
    pub fn has_model(self) -> bool {
        !matches!(self, Self::None | Self::PromptLookup | Self::Lookahead)
    }

    /// Whether its checkpoint is made for one target, and no model by itself but for PARD's.
    #[must_use]
    pub fn belongs_to_target(self) -> bool {
        matches!(self, Self::Medusa | Self::Hydra | Self::Eagle | Self::Parallel)
    }

    /// Whether it learns from what the target made of the last draft.
    #[must_use]
    pub(crate) fn reads_scores(self) -> bool {
        matches!(self, Self::Lookahead | Self::Ouroboros)
    }

    /// Who drafts with a checkpoint of this kind.
    #[must_use]
    pub fn of(speculator: SpeculatorKind) -> Self {
        match speculator {
            SpeculatorKind::Medusa => Self::Medusa,
            SpeculatorKind::Hydra => Self::Hydra,
            SpeculatorKind::Eagle | SpeculatorKind::Eagle3 => Self::Eagle,
            SpeculatorKind::ParallelMedusa
            | SpeculatorKind::ParallelEagle
            | SpeculatorKind::Pard { .. } => Self::Parallel,
        }
    }
}

/// Who drafts beside the first drafter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdditionalDrafter {
    /// A language model of this checkpoint.
    Model(PathBuf),
    /// Earlier occurrences of the last tokens.
    PromptLookup,
}

impl FromStr for AdditionalDrafter {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "prompt-lookup" => Self::PromptLookup,
            _ => Self::Model(text.into()),
        })
    }
}

impl fmt::Display for AdditionalDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(path) => write!(f, "{}", path.display()),
            Self::PromptLookup => f.write_str("prompt-lookup"),
        }
    }
}

/// The decoder and the drafter, by what the draft model is `found` to be made for.
pub(super) fn roles(
    options: &Options,
    found: Option<SpeculatorKind>,
) -> Result<(Method, DrafterKind), PlanError> {
    // Plain decoding leaves a drafter aside, so that methods compare by changing one flag.
    if options.method == Some(Method::Autoregressive) {
        return Ok((Method::Autoregressive, DrafterKind::None));
    }
    let drafter = options.drafter.unwrap_or(match options.draft_model {
        Some(_) => found.map_or(DrafterKind::Model, DrafterKind::of),
        None => DrafterKind::None,
    });
    let method = options.method.unwrap_or(match drafter {
        DrafterKind::None => Method::Autoregressive,
        _ => Method::Speculative,
    });
    match (drafter, &options.draft_model) {
        (drafter, None) if drafter.has_model() => Err(PlanError::NoDraftModel(drafter)),
        (DrafterKind::PromptLookup | DrafterKind::Lookahead | DrafterKind::None, Some(_)) => {
            Err(PlanError::UnusedDraftModel(drafter))
        }
        (DrafterKind::None, None) if method != Method::Autoregressive => {
            Err(PlanError::NoDrafter(method))
        }
        _ => Ok((method, drafter)),
    }
}

/// The drafters beside the first one: DSI alone has any.
pub(super) fn further(
    options: &Options,
    method: Method,
) -> Result<Vec<AdditionalDrafter>, PlanError> {
    match method {
        Method::Dsi => Ok(options.additional_drafters.clone()),
        // As the first one is left aside.
        Method::Autoregressive => Ok(Vec::new()),
        _ if options.additional_drafters.is_empty() => Ok(Vec::new()),
        _ => Err(PlanError::OneDrafter(method)),
    }
}

/// How many of them draft with a checkpoint of their own.
pub(super) fn models(drafter: DrafterKind, further: &[AdditionalDrafter]) -> usize {
    let is_model = |own: &&AdditionalDrafter| matches!(own, AdditionalDrafter::Model(_));
    usize::from(drafter.has_model()) + further.iter().filter(is_model).count()
}

/// How EasySpec computes, where it drafts; its options are nobody else's.
pub(super) fn easyspec(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<Option<EasySpec>, PlanError> {
    if drafter == DrafterKind::EasySpec {
        if options.layers == Some(LayerStrategy::Parallel(0)) {
            let (option, expected) = ("--lp", "1 or more layers at a time");
            return Err(PlanError::Range { option, found: "0".into(), expected });
        }
        let layers = options.layers.clone().unwrap_or_default();
        return Ok(Some(EasySpec { layers, calibration: options.calibration.unwrap_or_default() }));
    }
    let given = match (&options.layers, options.calibration) {
        (Some(LayerStrategy::Parallel(_)), _) => "--lp",
        (Some(LayerStrategy::Groups(_)), _) => "--layer-groups",
        (None, Some(_)) => "--calibration",
        (None, None) => return Ok(None),
    };
    // As a drafter is left aside by plain decoding, so are its options.
    match method {
        Method::Autoregressive if options.drafter == Some(DrafterKind::EasySpec) => Ok(None),
        _ => Err(PlanError::OnlyEasySpec(given)),
    }
}

impl FromStr for DrafterKind {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "none" => Ok(Self::None),
            "model" => Ok(Self::Model),
            "easyspec" => Ok(Self::EasySpec),
            "prompt-lookup" => Ok(Self::PromptLookup),
            "lookahead" => Ok(Self::Lookahead),
            "ouroboros" => Ok(Self::Ouroboros),
            "medusa" => Ok(Self::Medusa),
            "hydra" => Ok(Self::Hydra),
            "eagle" => Ok(Self::Eagle),
            "parallel" => Ok(Self::Parallel),
            _ => Err(UnknownValue::new(
                text,
                "none, model, easyspec, prompt-lookup, lookahead, ouroboros, medusa, hydra, eagle, \
                 parallel",
            )),
        }
    }
}

impl fmt::Display for DrafterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Model => "model",
            Self::EasySpec => "easyspec",
            Self::PromptLookup => "prompt-lookup",
            Self::Lookahead => "lookahead",
            Self::Ouroboros => "ouroboros",
            Self::Medusa => "medusa",
            Self::Hydra => "hydra",
            Self::Eagle => "eagle",
            Self::Parallel => "parallel",
        })
    }
}
