//! The registry of drafters: what each of them needs, and how it is built.

use crate::drafter_builders::{self as build, BuildModel};
use forerun_core::Need;
use forerun_core::UnknownValue;
use forerun_draft::{
    Drafter, DrafterTraits, LOOKAHEAD_TRAITS, LookaheadDrafter, OUROBOROS_TRAITS, PromptLookup,
    SuffixDrafter,
};
use forerun_formats::SpeculatorKind;
use std::fmt;
use std::str::FromStr;

/// All drafters, in the order of the help.
///
/// To add a drafter on tokens, add its entry here. How drafters with a checkpoint are built stands
/// in [`drafter_builders`](build).
static DRAFTERS: &[DrafterEntry] = &[
    DrafterEntry {
        name: "none",
        help: "No drafts",
        traits: DrafterTraits::ON_TOKENS,
        source: Source::Nothing,
    },
    DrafterEntry {
        name: "model",
        help: "The draft model, one token per forward pass",
        traits: DrafterTraits::ON_TOKENS,
        source: Source::Model { build: build::model, translates: true },
    },
    DrafterEntry {
        name: "easyspec",
        help: "The draft model, several of its layers at a time (EasySpec)",
        traits: DrafterTraits::ON_TOKENS,
        source: Source::Model { build: build::easyspec, translates: false },
    },
    DrafterEntry::on_tokens(
        "prompt-lookup",
        "Continuations of earlier occurrences of the last tokens; needs no model",
        &|| Box::new(PromptLookup),
    ),
    DrafterEntry::on_tokens(
        "suffix",
        "Continuations of everything that matches the end of the text, by how often they occurred \
         (suffix decoding); needs no model",
        &|| Box::new(SuffixDrafter::new()),
    ),
    DrafterEntry::on_tokens(
        "lookahead",
        "N-grams that the target guesses in its own forward passes (lookahead decoding); needs no \
         model",
        &|| Box::new(LookaheadDrafter::new()),
    )
    .with_traits(LOOKAHEAD_TRAITS),
    DrafterEntry {
        name: "ouroboros",
        help: "The draft model, with phrases that save forward passes and lengthen drafts (Ouroboros)",
        traits: OUROBOROS_TRAITS,
        source: Source::Model { build: build::ouroboros, translates: false },
    },
    DrafterEntry {
        name: "medusa",
        help: "Heads on the target's last hidden state (Medusa)",
        traits: DrafterTraits::ON_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::Medusa),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "hydra",
        help: "Heads that also read the tokens drafted before them (Hydra, Hydra++)",
        traits: DrafterTraits::ON_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::Hydra),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "eagle",
        help: "A layer on the target's hidden states (EAGLE, EAGLE-2, EAGLE-3)",
        traits: DrafterTraits::ON_PREDICTED_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::Eagle | SpeculatorKind::Eagle3),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "dflash",
        help: "A block of draft tokens in one forward pass of layers on the target's hidden states (DFlash)",
        traits: DrafterTraits::ON_PREDICTED_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::DFlash),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "dflash2",
        help: "The same with convolutions over the block, and a selector that chooses among the most probable \
               tokens by the token before them (DFlash 2)",
        traits: DrafterTraits::ON_PREDICTED_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::DFlash2),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "dspark",
        help: "DFlash with heads that correct the block token by token, and end it where the target would \
               hardly accept more (DSpark)",
        traits: DrafterTraits::ON_PREDICTED_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::DSpark),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "mtp",
        help: "The layer of the target's own checkpoint that predicts a further token (MTP of DeepSeek-V3, \
               GLM-4.5, Qwen3-Next and Qwen3.5); needs no draft model",
        traits: DrafterTraits::ON_PREDICTED_FEATURES,
        source: Source::Target,
    },
    DrafterEntry {
        name: "assistant",
        help: "Layers that attend to the target's keys and values (the assistants of Gemma 4)",
        traits: DrafterTraits::ON_PREDICTED_FEATURES,
        source: Source::Speculator {
            reads: |layout| matches!(layout, SpeculatorKind::Assistant),
            build_model: None,
        },
    },
    DrafterEntry {
        name: "parallel",
        help: "All draft tokens in one forward pass (ParallelSpec, PARD, PARD-2, P-EAGLE)",
        // Some of its layouts read features.
        traits: DrafterTraits::ON_TOKENS,
        source: Source::Speculator {
            reads: |layout| {
                matches!(
                    layout,
                    SpeculatorKind::ParallelMedusa
                        | SpeculatorKind::ParallelEagle
                        | SpeculatorKind::PEagle
                        | SpeculatorKind::Pard { .. }
                        | SpeculatorKind::Pard2 { .. }
                )
            },
            build_model: Some(build::pard),
        },
    },
];

/// A drafter of the registry, or one of your own.
///
/// A drafter of your own needs no model, as prompt lookup. It works with every method that offers
/// what its traits need. [`DrafterKind::own`] is shorter if it has no traits of its own.
pub struct DrafterEntry {
    name: &'static str,
    help: &'static str,
    traits: DrafterTraits,
    source: Source,
}

/// Makes a drafter on tokens.
type MakeDrafter = &'static (dyn Fn() -> Box<dyn Drafter> + Sync);

/// What a drafter drafts with.
enum Source {
    /// It drafts nothing.
    Nothing,
    /// The tokens so far.
    Tokens(MakeDrafter),
    /// A whole language model.
    Model {
        build: BuildModel,
        /// Whether drafts of a model with another vocabulary are translated.
        translates: bool,
    },
    /// The target's own checkpoint.
    Target,
    /// A checkpoint that is trained for one target.
    Speculator {
        /// Whether it uses a checkpoint of this layout.
        reads: fn(SpeculatorKind) -> bool,
        /// How it drafts if the checkpoint is a whole model, such as PARD's.
        build_model: Option<BuildModel>,
    },
}

impl DrafterEntry {
    /// Returns the entry of a drafter that needs no model. Each engine calls `make` once for each
    /// role that the drafter has.
    #[must_use]
    pub const fn on_tokens(name: &'static str, help: &'static str, make: MakeDrafter) -> Self {
        Self { name, help, traits: DrafterTraits::ON_TOKENS, source: Source::Tokens(make) }
    }

    /// Returns the entry with these traits. By default, a drafter needs nothing of its method, and
    /// drafts chains.
    #[must_use]
    pub const fn with_traits(self, traits: DrafterTraits) -> Self {
        // `..self` would drop `self` in a constant.
        let Self { name, help, traits: _, source } = self;
        Self { name, help, traits, source }
    }
}

/// A kind of drafter: an entry of the registry of drafters, or of your own.
///
/// Parsed from and displayed as its name in lower case, with a hyphen in `prompt-lookup`. Kinds
/// with the same name are equal. Only the registry's own drafters can be parsed.
///
/// The kinds are constants, so that your own can join them. Compare them with `==`; a `match`
/// cannot name them.
#[derive(Clone, Copy)]
pub struct DrafterKind(&'static DrafterEntry);

#[expect(non_upper_case_globals, reason = "kinds of drafters read as the variants of an enum")]
impl DrafterKind {
    /// No drafter.
    pub const None: Self = Self::named("none");
    /// A second, smaller language model.
    pub const Model: Self = Self::named("model");
    /// A second language model that computes several of its layers at a time (EasySpec, arXiv
    /// 2502.02493).
    pub const EasySpec: Self = Self::named("easyspec");
    /// The tokens after earlier occurrences of the last tokens. Needs no model.
    pub const PromptLookup: Self = Self::named("prompt-lookup");
    /// The most frequent tokens after earlier occurrences of the end of the text (suffix decoding,
    /// arXiv 2411.04975). Needs no model.
    pub const Suffix: Self = Self::named("suffix");
    /// N-grams that the target itself generates in the passes that verify (lookahead decoding,
    /// arXiv 2402.02057). Needs no draft model.
    pub const Lookahead: Self = Self::named("lookahead");
    /// A second language model whose drafts are built from, and extended by, phrases (Ouroboros,
    /// arXiv 2402.13720).
    pub const Ouroboros: Self = Self::named("ouroboros");
    /// Heads on the target's last hidden state (Medusa, arXiv 2401.10774).
    pub const Medusa: Self = Self::named("medusa");
    /// Heads on the target's last hidden state and on the tokens that earlier heads drafted (Hydra
    /// and Hydra++, arXiv 2402.05109).
    pub const Hydra: Self = Self::named("hydra");
    /// A layer on the target's hidden states (EAGLE, EAGLE-2 and EAGLE-3, arXiv 2401.15077).
    pub const Eagle: Self = Self::named("eagle");
    /// Layers on the target's hidden states that draft a block in one forward pass (DFlash, arXiv
    /// 2602.06036).
    pub const DFlash: Self = Self::named("dflash");
    /// The same with convolutions over the block and a selector of tokens (DFlash 2, z-lab/dflash).
    pub const DFlash2: Self = Self::named("dflash2");
    /// DFlash with heads that correct the block token by token (DSpark, arXiv 2607.05147).
    pub const DSpark: Self = Self::named("dspark");
    /// The layer of the target's own checkpoint that predicts a further token (MTP, arXiv
    /// 2412.19437).
    pub const Mtp: Self = Self::named("mtp");
    /// Layers that attend to the target's keys and values (Gemma 4's assistants).
    pub const Assistant: Self = Self::named("assistant");
    /// A drafter that predicts all positions in one forward pass (both integrations of
    /// ParallelSpec, arXiv 2410.05589; PARD, arXiv 2504.18583; PARD-2, arXiv 2605.08632).
    pub const Parallel: Self = Self::named("parallel");
}

impl DrafterKind {
    /// Returns the kind of a drafter of your own that needs no model, drafts chains, and needs
    /// nothing of its method. Each engine calls `make` once for each role that the drafter has.
    ///
    /// The kind and what `make` holds stay in memory until the program ends, so make each kind
    /// once. [`DrafterKind::new`] takes an entry with other traits.
    ///
    /// ```
    /// use forerun::draft::{Draft, DraftContext, Drafter, ModelError, SequenceId, TokenTree};
    /// use forerun::{DrafterKind, Engine, Options, RandomPair, Request};
    ///
    /// /// Proposes that the last token repeats, at most `length` times.
    /// struct Repeat {
    ///     length: usize,
    /// }
    ///
    /// impl Drafter for Repeat {
    ///     fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
    ///         let Some(&last) = context.tokens.last() else { return Ok(Draft::empty()) };
    ///         let length = self.length.min(context.shape.depth());
    ///         Ok(Draft::deterministic(TokenTree::chain(&vec![last; length])))
    ///     }
    ///
    ///     fn release(&mut self, _sequence: SequenceId) {}
    /// }
    ///
    /// let length = 3;
    /// let repeat = DrafterKind::own("repeat", move || Box::new(Repeat { length }));
    /// let pair = RandomPair::make()?;
    /// let options = Options { drafter: Some(repeat.into()), ..Options::new(pair.target()) };
    /// let answer = Engine::open(options)?.complete("Once upon", &Request::default())?;
    /// println!("{}", answer.summary());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// As [`DrafterKind::new`].
    #[must_use]
    pub fn own(
        name: &'static str,
        make: impl Fn() -> Box<dyn Drafter> + Send + Sync + 'static,
    ) -> Self {
        let entry =
            DrafterEntry::on_tokens(name, "A drafter of your own", Box::leak(Box::new(make)));
        Self::new(Box::leak(Box::new(entry)))
    }

    /// Returns the kind of an entry of your own.
    ///
    /// # Panics
    /// If a drafter of the registry has its name.
    #[must_use]
    pub const fn new(entry: &'static DrafterEntry) -> Self {
        assert!(
            find(entry.name).is_none(),
            "a drafter of the registry has this name: choose another"
        );
        Self(entry)
    }

    /// Returns all drafters of the registry, `none` first.
    pub fn all() -> impl Iterator<Item = Self> {
        DRAFTERS.iter().map(Self)
    }

    /// Returns the drafter with this name, which must be in the registry.
    const fn named(name: &str) -> Self {
        Self(find(name).expect("the registry has a drafter of this name"))
    }

    /// Returns its name in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns a line of help.
    #[must_use]
    pub fn help(self) -> &'static str {
        self.0.help
    }

    /// Returns what it needs of the method, and its default shape. Its checkpoint may need more.
    #[must_use]
    pub fn traits(self) -> DrafterTraits {
        self.0.traits
    }

    /// Returns whether it needs something of the method.
    #[must_use]
    pub fn needs(self, need: Need) -> bool {
        self.0.traits.needs.contains(&need)
    }

    /// Returns whether it drafts from the tokens alone, without a model.
    #[must_use]
    pub fn is_on_tokens(self) -> bool {
        matches!(self.0.source, Source::Tokens(_))
    }

    /// Makes the drafter, if it needs no model.
    #[must_use]
    pub fn make_on_tokens(self) -> Option<Box<dyn Drafter>> {
        match self.0.source {
            Source::Tokens(make) => Some(make()),
            _ => None,
        }
    }

    /// Returns whether this drafter needs a checkpoint, named by
    /// [`Options::draft_model`](crate::Options::draft_model).
    #[must_use]
    pub fn has_model(self) -> bool {
        matches!(self.0.source, Source::Model { .. } | Source::Speculator { .. })
    }

    /// Returns whether this drafter is a part of the target's checkpoint.
    #[must_use]
    pub fn is_in_target(self) -> bool {
        matches!(self.0.source, Source::Target)
    }

    /// Returns whether this drafter's checkpoint is trained for one target. Such checkpoints are
    /// not models by themselves, except PARD's.
    #[must_use]
    pub fn belongs_to_target(self) -> bool {
        matches!(self.0.source, Source::Speculator { .. })
    }

    /// Returns whether it translates the drafts of a model with another vocabulary.
    pub(crate) fn translates(self) -> bool {
        matches!(self.0.source, Source::Model { translates: true, .. })
    }

    /// Returns how it drafts with a whole model that holds a drafter of the layout `found`, if it
    /// needs no target.
    pub(crate) fn build_model(self, found: Option<SpeculatorKind>) -> Option<BuildModel> {
        match self.0.source {
            Source::Model { build, .. } if is_model(found) => Some(build),
            Source::Speculator { build_model, .. } => {
                build_model.filter(|_| !found.is_some_and(SpeculatorKind::reads_features))
            }
            _ => None,
        }
    }

    /// Returns the kind of drafter that uses a checkpoint of the given layout.
    ///
    /// # Panics
    /// If no drafter of the registry does. A test shows that one does for every layout.
    #[must_use]
    pub fn of(layout: SpeculatorKind) -> Self {
        let mut all = Self::all();
        all.find(|kind| kind.reads(layout)).expect("a drafter for every layout")
    }

    fn reads(self, layout: SpeculatorKind) -> bool {
        match self.0.source {
            Source::Speculator { reads, .. } => reads(layout),
            Source::Target => layout == SpeculatorKind::Mtp,
            _ => false,
        }
    }

    /// Returns whether this drafter can use a checkpoint that holds a drafter of the layout
    /// `found`, or a language model if that is `None`.
    #[must_use]
    pub fn can_use(self, found: Option<SpeculatorKind>) -> bool {
        let takes_models = matches!(self.0.source, Source::Model { .. });
        (takes_models && is_model(found)) || found.is_some_and(|layout| self.reads(layout))
    }
}

/// Returns whether a checkpoint with a drafter of the layout `found` is a whole language model.
pub(crate) fn is_model(found: Option<SpeculatorKind>) -> bool {
    found.is_none_or(SpeculatorKind::is_model)
}

/// Returns the entry of the registry with this name, in constants.
const fn find(name: &str) -> Option<&'static DrafterEntry> {
    let mut index = 0;
    while index < DRAFTERS.len() {
        if is_same(DRAFTERS[index].name, name) {
            return Some(&DRAFTERS[index]);
        }
        index += 1;
    }
    None
}

/// Compares names in constants.
pub(crate) const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

impl PartialEq for DrafterKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for DrafterKind {}

impl FromStr for DrafterKind {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let found = Self::all().find(|kind| kind.name() == text);
        found.ok_or_else(|| UnknownValue::of_names(text, Self::all().map(Self::name)))
    }
}

impl fmt::Display for DrafterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DrafterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrafterKind({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a drafter of the registry has this name")]
    fn drafters_of_ones_own_take_no_name_of_the_registry() {
        let _ = DrafterKind::own("suffix", || Box::new(PromptLookup));
    }

    #[test]
    fn every_layout_has_one_drafter() {
        use SpeculatorKind as L;
        let layouts = [
            (L::Medusa, "medusa"),
            (L::Hydra, "hydra"),
            (L::Eagle, "eagle"),
            (L::Eagle3, "eagle"),
            (L::DFlash, "dflash"),
            (L::DFlash2, "dflash2"),
            (L::DSpark, "dspark"),
            (L::Mtp, "mtp"),
            (L::Assistant, "assistant"),
            (L::ParallelMedusa, "parallel"),
            (L::ParallelEagle, "parallel"),
            (L::PEagle, "parallel"),
            (L::Pard { mask: 1 }, "parallel"),
            (L::Pard2 { mask: 1 }, "parallel"),
        ];
        for (layout, name) in layouts {
            assert_eq!(DrafterKind::of(layout).name(), name);
            assert_eq!(DrafterKind::all().filter(|kind| kind.reads(layout)).count(), 1);
            // A new layout also belongs in the table above.
            match layout {
                L::Medusa | L::Hydra | L::Eagle | L::Eagle3 | L::Mtp => {}
                L::DFlash
                | L::DFlash2
                | L::DSpark
                | L::Assistant
                | L::ParallelMedusa
                | L::ParallelEagle
                | L::PEagle
                | L::Pard { .. }
                | L::Pard2 { .. } => {}
            }
        }
        // Every drafter on features says so, so that options can be refused before a download.
        for kind in DrafterKind::all().filter(|kind| kind.needs(Need::Features)) {
            let layouts = layouts.iter().filter(|(layout, _)| kind.reads(*layout));
            assert!(
                layouts.clone().count() > 0 && layouts.clone().all(|(l, _)| l.reads_features())
            );
        }
    }

    #[test]
    fn checkpoints_fit_the_drafters_that_can_use_them() {
        let pard = Some(SpeculatorKind::Pard { mask: 1 });
        let names = |found| {
            let fitting = DrafterKind::all().filter(move |kind| kind.can_use(found));
            fitting.map(DrafterKind::name).collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["model", "easyspec", "ouroboros"]);
        assert_eq!(names(pard), ["model", "easyspec", "ouroboros", "parallel"]);
        let pard2 = Some(SpeculatorKind::Pard2 { mask: 1 });
        assert_eq!(names(pard2), names(pard));
        // It reads the target's features unless it drafts as a model.
        assert!(DrafterKind::Parallel.build_model(pard).is_some());
        assert!(DrafterKind::Parallel.build_model(pard2).is_none());
        assert!(DrafterKind::Model.build_model(pard2).is_some());
        assert_eq!(names(Some(SpeculatorKind::Eagle3)), ["eagle"]);
    }

    #[test]
    fn names_are_unique() {
        for kind in DrafterKind::all() {
            let same = DrafterKind::all().filter(|other| other.name() == kind.name());
            assert_eq!(same.count(), 1, "{kind}");
            assert!(!kind.help().is_empty());
        }
    }
}
