//! The choice of the drafters, and EasySpec's options.

use super::{Method, Options, PlanError, UnknownValue};
use crate::easyspec::{EasySpec, LayerStrategy};
use crate::model_source::ModelSource;
use forerun_formats::SpeculatorKind;
use std::fmt;
use std::str::FromStr;

/// A kind of drafter.
///
/// Parsed from and displayed as its name in lower case, with a hyphen in `prompt-lookup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterKind {
    /// No drafter.
    None,
    /// A second, smaller language model.
    Model,
    /// A second language model that computes several of its layers at a time (EasySpec, arXiv
    /// 2502.02493).
    EasySpec,
    /// The tokens after earlier occurrences of the last tokens. Needs no model.
    PromptLookup,
    /// N-grams that the target itself generates in the passes that verify (lookahead decoding, arXiv
    /// 2402.02057). Needs no draft model.
    Lookahead,
    /// A second language model whose drafts are built from, and extended by, phrases (Ouroboros,
    /// arXiv 2402.13720).
    Ouroboros,
    /// Heads on the target's last hidden state (Medusa, arXiv 2401.10774).
    Medusa,
    /// Heads on the target's last hidden state and on the tokens that earlier heads drafted (Hydra
    /// and Hydra++, arXiv 2402.05109).
    Hydra,
    /// A layer on the target's hidden states (EAGLE, EAGLE-2 and EAGLE-3, arXiv 2401.15077).
    Eagle,
    /// A drafter that predicts all positions in one forward pass (both integrations of ParallelSpec,
    /// arXiv 2410.05589; PARD, arXiv 2504.18583).
    Parallel,
}

impl DrafterKind {
    /// Returns whether this drafter needs a checkpoint, named by
    /// [`Options::draft_model`](crate::Options::draft_model).
    #[must_use]
    pub fn has_model(self) -> bool {
        !matches!(self, Self::None | Self::PromptLookup | Self::Lookahead)
    }

    /// Returns whether this drafter's checkpoint is trained for one target. Such checkpoints are not
    /// models by themselves, except PARD's.
    #[must_use]
    pub fn belongs_to_target(self) -> bool {
        matches!(self, Self::Medusa | Self::Hydra | Self::Eagle | Self::Parallel)
    }

    /// Returns whether this drafter learns from how the target verified the last draft.
    #[must_use]
    pub(crate) fn learns_from_feedback(self) -> bool {
        matches!(self, Self::Lookahead | Self::Ouroboros)
    }

    /// Returns the kind of drafter that uses a checkpoint of the given kind.
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

/// A drafter in addition to the first one, for [`Method::Dsi`].
///
/// Parsed from `prompt-lookup`, or from the name of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdditionalDrafter {
    /// A language model with this checkpoint.
    Model(ModelSource),
    /// The tokens after earlier occurrences of the last tokens.
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
            Self::Model(model) => write!(f, "{model}"),
            Self::PromptLookup => f.write_str("prompt-lookup"),
        }
    }
}

/// Chooses the method and the drafter. `found` is the kind of drafter that the draft model holds.
pub(super) fn method_and_drafter(
    options: &Options,
    found: Option<SpeculatorKind>,
) -> Result<(Method, DrafterKind), PlanError> {
    // Plain decoding ignores the drafter, so that one option switches between a method and its
    // baseline.
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

/// Returns the additional drafters, which only DSI uses.
pub(super) fn additional_drafters(
    options: &Options,
    method: Method,
) -> Result<Vec<AdditionalDrafter>, PlanError> {
    match method {
        Method::Dsi => Ok(options.additional_drafters.clone()),
        // Plain decoding ignores all drafters.
        Method::Autoregressive => Ok(Vec::new()),
        _ if options.additional_drafters.is_empty() => Ok(Vec::new()),
        _ => Err(PlanError::SingleDrafter(method)),
    }
}

/// Counts the drafters that have a checkpoint.
pub(super) fn count_models(drafter: DrafterKind, additional: &[AdditionalDrafter]) -> usize {
    let is_model =
        |additional: &&AdditionalDrafter| matches!(additional, AdditionalDrafter::Model(_));
    usize::from(drafter.has_model()) + additional.iter().filter(is_model).count()
}

/// Returns EasySpec's options if it drafts, and refuses them for other drafters.
pub(super) fn easyspec(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<Option<EasySpec>, PlanError> {
    if drafter == DrafterKind::EasySpec {
        if options.layers == Some(LayerStrategy::Parallel(0)) {
            let (option, expected) = ("layer_parallel_size", "1 or more layers at a time");
            return Err(PlanError::Range { option, found: "0".into(), expected });
        }
        let layers = options.layers.clone().unwrap_or_default();
        return Ok(Some(EasySpec { layers, calibration: options.calibration.unwrap_or_default() }));
    }
    let option = match (&options.layers, options.calibration) {
        (Some(LayerStrategy::Parallel(_)), _) => "layer_parallel_size",
        (Some(LayerStrategy::Groups(_)), _) => "layer_groups",
        (None, Some(_)) => "calibration",
        (None, None) => return Ok(None),
    };
    // Plain decoding ignores the drafter, and so the drafter's options.
    match method {
        Method::Autoregressive if options.drafter == Some(DrafterKind::EasySpec) => Ok(None),
        _ => Err(PlanError::EasySpecOnly(option)),
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
