//! From options to a validated, immutable plan: what runs where.

use crate::easyspec::{EasySpec, LayerStrategy};
use forerun_core::DraftShape;
use forerun_decode::{DraftLength, PearlOptions};
use forerun_draft::{Calibration, LookaheadDrafter, PHRASE_TOKENS};
use forerun_model::{SpeculatorKind, WeightType};
use forerun_runtime::{Groups, Placement, PlacementError, available_cores, granted_cores};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// When tokens are drafted and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One target forward a token.
    Autoregressive,
    /// Draft, then verify, in turn.
    Speculative,
    /// Draft and verify at the same time (PEARL).
    Pearl,
    /// Verify on several target replicas while drafting goes on (DSI).
    Dsi,
}

impl Method {
    /// Whether drafting goes on while the target works.
    #[must_use]
    pub fn is_parallel(self) -> bool {
        matches!(self, Self::Pearl | Self::Dsi)
    }
}

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
pub enum FurtherDrafter {
    /// A language model of this checkpoint.
    Model(PathBuf),
    /// Earlier occurrences of the last tokens.
    PromptLookup,
}

impl FromStr for FurtherDrafter {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "prompt-lookup" => Self::PromptLookup,
            _ => Self::Model(text.into()),
        })
    }
}

impl fmt::Display for FurtherDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(path) => write!(f, "{}", path.display()),
            Self::PromptLookup => f.write_str("prompt-lookup"),
        }
    }
}

/// How many tokens are drafted in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftTokens {
    /// As many as pay by measured times and acceptance, none where drafting does not pay.
    #[default]
    Auto,
    /// Always this many.
    Fixed(usize),
    /// Two more where all of them were accepted, else one less (assisted generation, as Hugging Face's
    /// transformers schedules it); it begins with 5.
    Assisted,
}

/// The shape of drafts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tree {
    /// A chain.
    #[default]
    None,
    /// `top:W`, `top:WxD`: the W most probable nodes at each depth. `top:WxD:N`: those expanded,
    /// the N most probable of all their children.
    Top {
        /// Nodes at each depth.
        width: usize,
        /// Depths; `None` takes the number of draft tokens.
        depth: Option<usize>,
        /// Nodes of the whole tree.
        budget: Option<usize>,
    },
    /// `sampled:3,2,1`: independently drawn children of each node, by depth.
    Sampled {
        /// Children by depth.
        branching: Vec<usize>,
    },
}

/// What a user asks for; [`Plan::new`] turns it into a plan or an error.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The target's checkpoint: a Hugging Face directory, a llama2.c file, or with the feature `hub`
    /// a hub id (see [`Loader`](crate::Loader)).
    pub model: PathBuf,
    /// The drafter's checkpoint.
    pub draft_model: Option<PathBuf>,
    /// The decoder; by default speculative where there is a drafter.
    pub method: Option<Method>,
    /// The drafter; by default what the draft model is made for, where one is named.
    pub drafter: Option<DrafterKind>,
    /// Drafters beside that one, for [`Method::Dsi`]; of those that are right the first one is followed.
    pub further_drafters: Vec<FurtherDrafter>,
    /// Tokens drafted in a row; with DSI those of one verification (its lookahead).
    pub draft_tokens: DraftTokens,
    /// The shape of drafts.
    pub tree: Tree,
    /// What of PEARL is used; other methods leave it aside.
    pub pearl: PearlOptions,
    /// The type in which matrices are kept; by default each checkpoint's own.
    pub weight_type: Option<WeightType>,
    /// Which cores do what, as in `drafter=cpu:0,target=cpu:1-3`; by default both have all cores in
    /// turn, or, where they run at the same time, the drafter model has the first core and the target
    /// the others.
    pub placement: Option<String>,
    /// Which of the drafter's layers EasySpec computes at the same time.
    pub layers: Option<LayerStrategy>,
    /// When EasySpec makes the drafter's cache exact.
    pub calibration: Option<Calibration>,
}

/// Options that do not go together, or cannot be had here.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// A drafter model without a checkpoint.
    #[error("the drafter \"{0}\" needs a checkpoint: add --draft-model DIR")]
    NoDraftModel(DrafterKind),
    /// An option of EasySpec for another drafter.
    #[error("{0} is an option of --drafter easyspec: add that, or leave {0} out")]
    OnlyEasySpec(&'static str),
    /// Speculation without a drafter.
    #[error(
        "the method {0} needs a drafter: add --draft-model DIR, or --drafter prompt-lookup, or use \
         --method autoregressive"
    )]
    NoDrafter(Method),
    /// A draft model that the chosen drafter would not use.
    #[error(
        "--draft-model was given, but --drafter {0} does not use a model: leave one of them out"
    )]
    UnusedDraftModel(DrafterKind),
    /// A size outside its range.
    #[error("{option} is {found}, but it must be {expected}")]
    Range {
        /// The option.
        option: &'static str,
        /// What was asked.
        found: String,
        /// What is possible.
        expected: &'static str,
    },
    /// Several drafters for a method that has one.
    #[error(
        "the method {0} has one drafter: leave --also-draft out, or use --method dsi with a first drafter"
    )]
    OneDrafter(Method),
    /// A tree where drafting goes on behind unverified tokens.
    #[error("the method {0} drafts chains: leave --tree out, or use --method speculative")]
    ChainsOnly(Method),
    /// A drafter that learns from the target's last pass where drafting goes on meanwhile.
    #[error(
        "the drafter {0} learns from the target's last pass, which the method {1} does not wait for: \
         use --method speculative, or another drafter"
    )]
    LearnsInTurn(DrafterKind, Method),
    /// A schedule by the outcome of rounds where there are no such rounds.
    #[error(
        "--draft-tokens assisted goes by what became of whole drafts, and the method {0} has none: use \
         --method speculative, or --draft-tokens auto"
    )]
    AssistedInTurn(Method),
    /// A drafter on the target's hidden states where drafting goes on behind tokens that the target has
    /// not read.
    #[error(
        "{0} reads hidden states of the target, which has not read the tokens that the method {1} drafts \
         behind: use --method speculative, or a drafter that reads tokens alone"
    )]
    FeaturesInTurn(SpeculatorKind, Method),
    /// A drafter on the target's hidden states whose model would go from device to device.
    #[error(
        "{0} has its model on one device, but the placement gives it several in turn: give it one of its \
         own, as in --placement drafter=cpu:0,target=cpu:1/cpu:2"
    )]
    OneDevice(SpeculatorKind),
    /// See [`PlacementError`].
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// A text that is none of an option's values.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{found:?} is not one of {expected}")]
pub struct UnknownValue {
    found: String,
    expected: &'static str,
}

/// Chains that the automatic draft length may grow to.
const AUTO_LENGTH: usize = 16;
/// Target replicas of DSI where nobody says how many.
const AUTO_REPLICAS: usize = 4;
/// Depth of an automatic tree.
const AUTO_DEPTH: usize = 5;
/// Phrases behind a draft of Ouroboros.
const OUROBOROS_PHRASES: usize = 3;
/// Tokens in a row, and nodes of a tree, that may be asked for.
const MAX_DRAFT_TOKENS: usize = 64;
const MAX_NODES: usize = 512;

/// What runs where.
#[derive(Clone, Debug)]
pub struct Plan {
    model: PathBuf,
    draft_model: Option<PathBuf>,
    method: Method,
    drafter: DrafterKind,
    further_drafters: Vec<FurtherDrafter>,
    shape: DraftShape,
    length: DraftLength,
    pearl: PearlOptions,
    weight_type: Option<WeightType>,
    placement: Placement,
    easyspec: Option<EasySpec>,
}

impl Plan {
    /// Checks options against each other and against this machine's cores.
    ///
    /// # Errors
    /// Says which options do not go together, and what to do.
    pub fn new(options: Options) -> Result<Self, PlanError> {
        Self::build(options, &available_cores(), &granted_cores())
    }

    /// The same for a machine of the given cores.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn on_cores(options: Options, cores: &[usize]) -> Result<Self, PlanError> {
        Self::build(options, cores, cores)
    }

    /// A plan on any of `cores`, by default on those `granted`.
    fn build(options: Options, cores: &[usize], granted: &[usize]) -> Result<Self, PlanError> {
        // A checkpoint that is not here yet, or broken, is looked at when it is opened.
        let found = options.draft_model.as_ref().and_then(|path| SpeculatorKind::of(path).ok()?);
        let (method, drafter) = roles(&options, found)?;
        let (shape, length) = shape(&options, drafter)?;
        if let Some(found) = found.filter(|&found| DrafterKind::of(found) == drafter) {
            check_features(found, method)?;
        }
        if method.is_parallel() && options.tree != Tree::None {
            return Err(PlanError::ChainsOnly(method));
        }
        if method.is_parallel() && drafter.reads_scores() {
            return Err(PlanError::LearnsInTurn(drafter, method));
        }
        if method.is_parallel() && options.draft_tokens == DraftTokens::Assisted {
            return Err(PlanError::AssistedInTurn(method));
        }
        let further_drafters = match method {
            Method::Dsi => options.further_drafters.clone(),
            // As the first one is left aside.
            Method::Autoregressive => Vec::new(),
            _ if options.further_drafters.is_empty() => Vec::new(),
            _ => return Err(PlanError::OneDrafter(method)),
        };
        let is_model = |own: &&FurtherDrafter| matches!(own, FurtherDrafter::Model(_));
        let further_models = further_drafters.iter().filter(is_model).count();
        let models = usize::from(drafter.has_model()) + further_models;
        let easyspec = easyspec(&options, method, drafter)?;
        // Target and drafter have the same devices in turn, unless both are to run at the same time.
        let separate = models > 0 && method.is_parallel();
        let replicas = if method == Method::Dsi { AUTO_REPLICAS } else { 1 };
        let placement = match &options.placement {
            Some(text) => Placement::parse(text, cores)?,
            None => Placement::automatic(granted, separate, replicas).with_drafters(models),
        };
        placement.check_roles(models, method == Method::Dsi)?;
        if let Some(found) = found.filter(|&found| DrafterKind::of(found) == drafter) {
            check_device(found, &placement)?;
        }
        let draft_model = options.draft_model.filter(|_| drafter.has_model());
        let Options { model, pearl, weight_type, .. } = options;
        Ok(Self {
            model,
            draft_model,
            method,
            drafter,
            further_drafters,
            shape,
            length,
            pearl,
            weight_type,
            placement,
            easyspec,
        })
    }

    /// Whether this plan's method can go with what a checkpoint turns out to be.
    pub(crate) fn check_features(&self, found: SpeculatorKind) -> Result<(), PlanError> {
        check_features(found, self.method)?;
        check_device(found, &self.placement)
    }

    /// How EasySpec computes, where it drafts.
    #[must_use]
    pub fn easyspec(&self) -> Option<&EasySpec> {
        self.easyspec.as_ref()
    }

    /// The target's checkpoint.
    #[must_use]
    pub fn model(&self) -> &std::path::Path {
        &self.model
    }

    /// The drafter's checkpoint, if the drafter is a model.
    #[must_use]
    pub fn draft_model(&self) -> Option<&std::path::Path> {
        self.draft_model.as_deref()
    }

    /// The decoder.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// The drafter.
    #[must_use]
    pub fn drafter(&self) -> DrafterKind {
        self.drafter
    }

    /// The drafters beside that one.
    #[must_use]
    pub fn further_drafters(&self) -> &[FurtherDrafter] {
        &self.further_drafters
    }

    /// The shape of drafts.
    #[must_use]
    pub fn shape(&self) -> &DraftShape {
        &self.shape
    }

    /// Whether the number of draft tokens adapts.
    #[must_use]
    pub fn length(&self) -> DraftLength {
        self.length
    }

    /// What of PEARL is used.
    #[must_use]
    pub fn pearl(&self) -> PearlOptions {
        self.pearl
    }

    /// The type in which matrices are kept; `None` is each checkpoint's own.
    #[must_use]
    pub fn weight_type(&self) -> Option<WeightType> {
        self.weight_type
    }

    /// Which cores do what.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

/// Features exist for tokens that the target has read, so that drafting cannot run ahead of it.
fn check_features(found: SpeculatorKind, method: Method) -> Result<(), PlanError> {
    match method.is_parallel() && found.reads_features() {
        true => Err(PlanError::FeaturesInTurn(found, method)),
        false => Ok(()),
    }
}

/// What reads features has no caches that another device could go on with.
fn check_device(found: SpeculatorKind, placement: &Placement) -> Result<(), PlanError> {
    let moves = placement.drafter(0).is_some_and(Groups::are_several);
    match moves && found.reads_features() {
        true => Err(PlanError::OneDevice(found)),
        false => Ok(()),
    }
}

/// The decoder and the drafter, by what the draft model is `found` to be made for.
fn roles(
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

/// How EasySpec computes, where it drafts; its options are nobody else's.
fn easyspec(
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

fn shape(options: &Options, drafter: DrafterKind) -> Result<(DraftShape, DraftLength), PlanError> {
    let range = |option, found: String, expected| PlanError::Range { option, found, expected };
    let (length, asked) = match options.draft_tokens {
        DraftTokens::Auto => (DraftLength::Auto, None),
        DraftTokens::Assisted => (DraftLength::Assisted, None),
        DraftTokens::Fixed(count) if (1..=MAX_DRAFT_TOKENS).contains(&count) => {
            (DraftLength::Fixed, Some(count))
        }
        DraftTokens::Fixed(count) => {
            return Err(range("--draft-tokens", count.to_string(), "auto, assisted or 1 to 64"));
        }
    };
    let longest = match length {
        DraftLength::Assisted => MAX_DRAFT_TOKENS,
        _ => AUTO_LENGTH,
    };
    let shape = match &options.tree {
        // Its window is a tree in any case.
        Tree::None if drafter == DrafterKind::Lookahead => DraftShape::Top {
            width: LookaheadDrafter::NODES / LookaheadDrafter::DEPTH,
            depth: asked.unwrap_or(LookaheadDrafter::DEPTH),
            budget: Some(LookaheadDrafter::NODES),
        },
        // Its phrases are branches behind what the model drafts.
        Tree::None if drafter == DrafterKind::Ouroboros => DraftShape::Top {
            width: OUROBOROS_PHRASES,
            depth: asked.unwrap_or(AUTO_DEPTH) + PHRASE_TOKENS,
            budget: None,
        },
        Tree::None => DraftShape::Chain { length: asked.unwrap_or(longest) },
        Tree::Top { width, depth, budget } => DraftShape::Top {
            width: *width,
            depth: depth.or(asked).unwrap_or(AUTO_DEPTH),
            budget: *budget,
        },
        Tree::Sampled { branching } => DraftShape::Sampled { branching: branching.clone() },
    };
    let nodes = shape.max_nodes();
    if nodes == 0 || nodes > MAX_NODES || shape.depth() > MAX_DRAFT_TOKENS {
        return Err(range(
            "--tree",
            options.tree.to_string(),
            "a tree of 1 to 512 nodes and at most 64 depths, such as top:4x5 or sampled:3,2,1",
        ));
    }
    Ok((shape, length))
}

impl FromStr for Method {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "autoregressive" => Ok(Self::Autoregressive),
            "speculative" => Ok(Self::Speculative),
            "pearl" => Ok(Self::Pearl),
            "dsi" => Ok(Self::Dsi),
            _ => Err(UnknownValue::new(text, "autoregressive, speculative, pearl, dsi")),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Autoregressive => "autoregressive",
            Self::Speculative => "speculative",
            Self::Pearl => "pearl",
            Self::Dsi => "dsi",
        })
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

impl FromStr for DraftTokens {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "assisted" => Ok(Self::Assisted),
            _ => text
                .parse()
                .map(Self::Fixed)
                .map_err(|_| UnknownValue::new(text, "auto, assisted, 1, 2, … 64")),
        }
    }
}

impl FromStr for Tree {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        const EXPECTED: &str = "none, top:W, top:WxD, top:WxD:N, sampled:B1,B2,…";
        let number = |text: &str| text.parse().map_err(|_| UnknownValue::new(text, EXPECTED));
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some(("top", size)) => {
                let (size, budget) = match size.split_once(':') {
                    None => (size, None),
                    Some((size, budget)) => (size, Some(number(budget)?)),
                };
                let (width, depth) = match size.split_once('x') {
                    None => (size, None),
                    Some((width, depth)) => (width, Some(number(depth)?)),
                };
                Ok(Self::Top { width: number(width)?, depth, budget })
            }
            Some(("sampled", sizes)) => Ok(Self::Sampled {
                branching: sizes.split(',').map(number).collect::<Result<_, _>>()?,
            }),
            _ => Err(UnknownValue::new(text, EXPECTED)),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Top { width, depth, budget } => {
                write!(f, "top:{width}")?;
                depth.map_or(Ok(()), |depth| write!(f, "x{depth}"))?;
                budget.map_or(Ok(()), |budget| write!(f, ":{budget}"))
            }
            Self::Sampled { branching } => {
                let sizes: Vec<String> = branching.iter().map(ToString::to_string).collect();
                write!(f, "sampled:{}", sizes.join(","))
            }
        }
    }
}

impl UnknownValue {
    pub(crate) fn new(found: &str, expected: &'static str) -> Self {
        Self { found: found.to_owned(), expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(change: impl FnOnce(&mut Options)) -> Result<Plan, String> {
        let mut options = Options { model: "target".into(), ..Options::default() };
        change(&mut options);
        Plan::on_cores(options, &[0, 1]).map_err(|error| error.to_string())
    }

    #[test]
    fn sensible_defaults_follow_from_what_is_given() -> Result<(), String> {
        let plain = plan(|_| ())?;
        assert_eq!((plain.method(), plain.drafter()), (Method::Autoregressive, DrafterKind::None));
        let drafted = plan(|options| options.draft_model = Some("drafter".into()))?;
        assert_eq!(drafted.method(), Method::Speculative);
        assert_eq!(drafted.placement().to_string(), "drafter=cpu:0-1,target=cpu:0-1,shared");
        assert_eq!(drafted.length(), DraftLength::Auto);
        let beside = plan(|options| {
            options.draft_model = Some("drafter".into());
            options.method = Some(Method::Pearl);
        })?;
        assert_eq!(beside.placement().to_string(), "drafter=cpu:0,target=cpu:1");
        let lookup = plan(|options| options.drafter = Some(DrafterKind::PromptLookup))?;
        assert_eq!(lookup.method(), Method::Speculative);
        assert_eq!(lookup.placement().devices().len(), 1);
        let easyspec = |options: &mut Options| {
            options.draft_model = Some("drafter".into());
            options.drafter = Some(DrafterKind::EasySpec);
            options.calibration = Some(Calibration::OnMismatch);
        };
        let fuzzy = plan(easyspec)?;
        assert_eq!(fuzzy.placement().to_string(), "drafter=cpu:0-1,target=cpu:0-1,shared");
        let expected =
            EasySpec { calibration: Calibration::OnMismatch, layers: LayerStrategy::Parallel(4) };
        assert_eq!((fuzzy.method(), fuzzy.easyspec()), (Method::Speculative, Some(&expected)));
        let plain = plan(|options| {
            easyspec(options);
            options.method = Some(Method::Autoregressive);
        })?;
        assert_eq!(plain.easyspec(), None);
        let several = plan(|options| {
            (options.method, options.draft_model) = (Some(Method::Dsi), Some("drafter".into()));
            options.further_drafters =
                ["other", "prompt-lookup"].into_iter().flat_map(str::parse).collect();
        })?;
        let expected = [FurtherDrafter::Model("other".into()), FurtherDrafter::PromptLookup];
        assert_eq!(several.further_drafters(), expected);
        let shared = "drafter=cpu:0,drafter=cpu:0,target=cpu:1,shared";
        assert_eq!(several.placement().to_string(), shared);
        // One flag switches a drafted run to its baseline.
        let baseline = plan(|options| {
            options.draft_model = Some("drafter".into());
            options.method = Some(Method::Autoregressive);
        })?;
        assert_eq!((baseline.drafter(), baseline.draft_model()), (DrafterKind::None, None));
        Ok(())
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_with_a_way_out() {
        let refuse = |change: fn(&mut Options), word: &str| {
            let message = plan(change).err().unwrap_or_default();
            assert!(message.contains(word), "{word}: {message}");
        };
        refuse(|o| o.drafter = Some(DrafterKind::Model), "--draft-model DIR");
        refuse(|o| o.drafter = Some(DrafterKind::EasySpec), "\"easyspec\" needs a checkpoint");
        refuse(|o| o.layers = Some(LayerStrategy::Parallel(2)), "--drafter easyspec");
        refuse(|o| o.calibration = Some(Calibration::Never), "leave --calibration out");
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.layers = "0,1-2".parse().ok();
            },
            "--layer-groups",
        );
        refuse(
            |o| {
                (o.drafter, o.draft_model) = (Some(DrafterKind::EasySpec), Some("x".into()));
                o.layers = Some(LayerStrategy::Parallel(0));
            },
            "--lp is 0",
        );
        refuse(|o| o.drafter = Some(DrafterKind::Medusa), "\"medusa\" needs a checkpoint");
        refuse(|o| o.method = Some(Method::Speculative), "needs a drafter");
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.drafter = Some(DrafterKind::PromptLookup);
            },
            "does not use a model",
        );
        refuse(
            |o| {
                (o.drafter, o.method) = (Some(DrafterKind::PromptLookup), Some(Method::Pearl));
                o.draft_tokens = DraftTokens::Assisted;
            },
            "the method pearl has none",
        );
        refuse(
            |o| (o.drafter, o.method) = (Some(DrafterKind::Lookahead), Some(Method::Dsi)),
            "does not wait for",
        );
        refuse(
            |o| {
                (o.drafter, o.method) = (Some(DrafterKind::Ouroboros), Some(Method::Pearl));
                o.draft_model = Some("x".into());
            },
            "the drafter ouroboros learns",
        );
        refuse(|o| o.draft_tokens = DraftTokens::Fixed(0), "1 to 64");
        refuse(|o| o.draft_tokens = DraftTokens::Fixed(65), "65");
        refuse(|o| o.tree = "top:0".parse().unwrap_or_default(), "top:0");
        refuse(|o| o.tree = "top:4x5:0".parse().unwrap_or_default(), "top:4x5:0");
        refuse(|o| o.tree = "top:30x20".parse().unwrap_or_default(), "512 nodes");
        refuse(|o| o.tree = Tree::Sampled { branching: vec![9; 9] }, "512 nodes");
        refuse(|o| o.placement = Some("target=cpu:7".into()), "core 7");
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.further_drafters = vec![FurtherDrafter::PromptLookup];
            },
            "speculative has one drafter",
        );
        refuse(
            |o| {
                o.draft_model = Some("x".into());
                o.placement = Some("target=cpu:1".into());
            },
            "no drafter group",
        );
    }

    #[test]
    fn values_are_read_and_unknown_ones_listed() {
        let top = |depth, budget| Ok(Tree::Top { width: 4, depth, budget });
        assert_eq!("top:4x5".parse(), top(Some(5), None));
        assert_eq!("top:4x5:16".parse(), top(Some(5), Some(16)));
        assert_eq!("top:4:16".parse(), top(None, Some(16)));
        assert_eq!("sampled:3,2".parse(), Ok(Tree::Sampled { branching: vec![3, 2] }));
        for text in ["none", "top:4", "top:4x5", "top:4:9", "top:4x5:9", "sampled:3,2,1"] {
            assert_eq!(text.parse::<Tree>().map(|tree| tree.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("7".parse(), Ok(DraftTokens::Fixed(7)));
        assert_eq!("assisted".parse(), Ok(DraftTokens::Assisted));
        let message = |result: Result<Method, UnknownValue>| {
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(message("magic".parse()).contains("speculative"));
        for text in ["top:x", "top:4x5:", "top:4x", "top:4:2:1", "top:-1"] {
            assert!(text.parse::<Tree>().is_err(), "{text}");
        }
        assert!("".parse::<DraftTokens>().is_err());
        assert!("medusa-2".parse::<DrafterKind>().is_err());
        let kinds = ["none", "model", "easyspec", "prompt-lookup", "lookahead", "medusa", "eagle"];
        for kind in kinds.into_iter().chain(["parallel", "hydra", "ouroboros"]) {
            assert_eq!(kind.parse().map(|own: DrafterKind| own.to_string()), Ok(kind.to_owned()));
        }
    }
}
