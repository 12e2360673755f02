//! Decoding methods with their options, and what they must offer to drafters.

use super::{DraftTokens, Lookup, Options, PlanError, Tree};
use crate::registry::{DrafterKind, is_same};
use forerun_core::Need;
use forerun_core::UnknownValue;
use forerun_decode::{AnswerDecoder, DecoderOptions, Drafting, METHODS, MethodEntry, PearlOptions};
use forerun_formats::SpeculatorKind;
use std::fmt;
use std::str::FromStr;

/// A decoding method: when tokens are drafted, and when they are verified.
///
/// Parsed from and displayed as `autoregressive`, `speculative`, `pearl`, `dsi`, `ssd` and `auto`.
/// Methods with the same name are equal. A method of your own cannot be parsed.
///
/// The methods are constants, so that your own can join them. Compare them with `==`; a `match`
/// cannot name them.
#[derive(Clone, Copy)]
pub struct Method(&'static MethodEntry);

#[expect(non_upper_case_globals, reason = "methods read as the variants of an enum")]
impl Method {
    /// Plain decoding: one forward pass of the target per token.
    pub const Autoregressive: Self = Self::named("autoregressive");
    /// Speculative decoding: draft, verify, repeat (Leviathan et al., arXiv 2211.17192).
    pub const Speculative: Self = Self::named("speculative");
    /// Draft and verify at the same time (PEARL, arXiv 2408.11850).
    pub const Pearl: Self = Self::named("pearl");
    /// Verify on several replicas of the target while drafting continues (DSI, arXiv 2405.14105).
    pub const Dsi: Self = Self::named("dsi");
    /// Prepare drafts for the likely verdicts during verification (SSD, arXiv 2603.03251).
    pub const Ssd: Self = Self::named("ssd");
    /// The fastest of speculative decoding, PEARL and DSI, as measured while decoding.
    pub const Auto: Self = Self::named("auto");
}

impl Method {
    /// Returns a method of your own, which must have a name of its own.
    #[must_use]
    pub const fn new(entry: &'static MethodEntry) -> Self {
        Self(entry)
    }

    /// Returns all methods of the registry, plain decoding first.
    pub fn all() -> impl Iterator<Item = Self> {
        METHODS.iter().map(Self)
    }

    /// Returns the method with this name, which must be in the registry.
    const fn named(name: &str) -> Self {
        let mut index = 0;
        while index < METHODS.len() {
            if is_same(METHODS[index].name, name) {
                return Self(&METHODS[index]);
            }
            index += 1;
        }
        panic!("the registry has no method of this name")
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

    /// Returns when it drafts.
    #[must_use]
    pub fn drafting(self) -> Drafting {
        self.0.drafting
    }

    /// Returns whether it needs a drafter.
    #[must_use]
    pub fn drafts(self) -> bool {
        self.0.drafting != Drafting::None
    }

    /// Returns whether the drafter works while the target does.
    #[must_use]
    pub fn is_parallel(self) -> bool {
        self.0.drafting == Drafting::DuringVerification
    }

    /// Returns whether it uses several replicas of the target.
    #[must_use]
    pub fn has_replicas(self) -> bool {
        self.0.several_targets
    }

    /// Returns whether it offers what a drafter or an option needs.
    #[must_use]
    pub fn offers(self, need: Need) -> bool {
        self.0.offers.contains(&need)
    }

    /// Returns the decoder of an engine that has not answered yet.
    pub(crate) fn decoder(self, options: &DecoderOptions) -> Box<dyn AnswerDecoder> {
        forerun_decode::new_decoder(self.0, options)
    }
}

/// A method with the options that it alone has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MethodOptions {
    /// A method with its defaults.
    Default(Method),
    /// [`Method::Speculative`].
    Speculative {
        /// The shape of drafts: a chain or a tree.
        tree: Tree,
        /// What guesses tokens in place of the drafter.
        lookup: Lookup,
    },
    /// [`Method::Pearl`].
    Pearl(PearlOptions),
    /// [`Method::Ssd`].
    Ssd {
        /// What guesses tokens in place of the drafter.
        lookup: Lookup,
    },
    /// A method of your own.
    Own {
        /// The method, which must offer what the other options need.
        method: Method,
        /// The shape of drafts: a chain or a tree.
        tree: Tree,
        /// What guesses tokens in place of the drafter.
        lookup: Lookup,
    },
}

impl MethodOptions {
    /// Returns a method with the options of all methods, of which it must have those that are not
    /// the default. With a tree or a lookup, no method and [`Method::Auto`] are speculative
    /// decoding. Plain decoding ignores all of them, so that one option switches between a method
    /// and its baseline.
    ///
    /// # Errors
    /// If the method does not have an option that is set.
    pub fn of(
        method: Option<Method>,
        tree: Tree,
        lookup: Lookup,
        pearl: PearlOptions,
    ) -> Result<Option<Self>, PlanError> {
        if method.is_some_and(|method| !method.drafts()) {
            return Ok(method.map(Self::Default));
        }
        let is_pearl = method == Some(Method::Pearl);
        if pearl != PearlOptions::default() && !is_pearl {
            return Err(PlanError::no_effect("pearl", "`method = pearl`"));
        }
        if tree == Tree::None && lookup == Lookup::None {
            return Ok(if is_pearl { Some(Self::Pearl(pearl)) } else { method.map(Self::Default) });
        }
        match method.filter(|method| ![Method::Auto, Method::Speculative].contains(method)) {
            None => Ok(Some(Self::Speculative { tree, lookup })),
            Some(method) => {
                check_offers(method, &tree, lookup)?;
                Ok(Some(match method == Method::Ssd {
                    true => Self::Ssd { lookup },
                    false => Self::Own { method, tree, lookup },
                }))
            }
        }
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> Method {
        match self {
            Self::Default(method) | Self::Own { method, .. } => *method,
            Self::Speculative { .. } => Method::Speculative,
            Self::Pearl(_) => Method::Pearl,
            Self::Ssd { .. } => Method::Ssd,
        }
    }
}

impl From<Method> for MethodOptions {
    fn from(method: Method) -> Self {
        Self::Default(method)
    }
}

/// Returns the method of options with this drafter. `found` is the kind of drafter that the draft
/// model holds.
///
/// Models on the same devices take turns, so nothing gains from drafting during verification. On
/// devices of their own, it depends on the text, which [`Method::Auto`] measures. A fixed number of
/// draft tokens means something else to each method. If no other method supports the drafter and
/// the draft length, [`Method::Auto`] is [`Method::Speculative`].
pub(super) fn method_of(
    options: &Options,
    drafter: DrafterKind,
    found: Option<SpeculatorKind>,
) -> Method {
    let has_own_devices = options.placement.as_ref().is_some_and(|given| !given.is_shared());
    // What a drafter reads that is not on disk yet is known only if it is a whole model.
    let is_known = found.is_some() || drafter.can_use(None);
    let method = match &options.method {
        Some(given) => given.method(),
        None if drafter == DrafterKind::None => Method::Autoregressive,
        None if has_own_devices && is_known && options.draft_tokens == DraftTokens::Auto => {
            Method::Auto
        }
        None => Method::Speculative,
    };
    let has_choice = check_needs(options, method, drafter).is_ok()
        && found.is_none_or(|layout| check_layout(layout, method).is_ok());
    match method == Method::Auto && !has_choice {
        true => Method::Speculative,
        false => method,
    }
}

/// Refuses a tree or a lookup for a method that drafts without what it needs.
fn check_offers(method: Method, tree: &Tree, lookup: Lookup) -> Result<(), PlanError> {
    let lacks = |need| method.drafts() && !method.offers(need);
    if *tree != Tree::None && lacks(Need::Trees) {
        return Err(PlanError::chains_only(method));
    }
    if lookup != Lookup::None && lacks(Need::WholeDrafts) {
        return Err(PlanError::no_whole_drafts(method));
    }
    Ok(())
}

/// Refuses drafters and draft lengths that need something that the method does not offer.
pub(super) fn check_needs(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<(), PlanError> {
    check_drafter(drafter, method)?;
    check_offers(method, options.tree(), options.lookup())?;
    match options.draft_tokens {
        // Plain decoding ignores all options of drafts.
        DraftTokens::Assisted if method.drafts() && !method.offers(Need::WholeDrafts) => {
            Err(PlanError::conflict(
                format!(
                    "`draft_tokens = assisted` follows the outcome of whole drafts, and the method \
                     {method} has none"
                ),
                "set `method = speculative`, or `draft_tokens = auto`",
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses a drafter that needs something that the method does not offer.
pub(crate) fn check_drafter(drafter: DrafterKind, method: Method) -> Result<(), PlanError> {
    let missing = drafter.traits().needs.iter().find(|need| !method.offers(**need));
    match missing {
        None => Ok(()),
        Some(&need) => {
            Err(PlanError::drafter_needs(format_args!("the drafter {drafter}"), need, method))
        }
    }
}

/// Refuses layouts that read the target's features for methods that do not offer them. Features
/// exist only for tokens that the target has processed, so not every drafter can run ahead of it.
pub(super) fn check_layout(layout: SpeculatorKind, method: Method) -> Result<(), PlanError> {
    let needs =
        [(Need::Features, layout.reads_features()), (Need::VerifiedPrefix, !layout.drafts_ahead())];
    let missing = needs.into_iter().find(|&(need, has)| has && !method.offers(need));
    match missing.filter(|_| method.drafts()) {
        Some((need, _)) => Err(PlanError::drafter_needs(layout, need, method)),
        None => Ok(()),
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Method {}

impl FromStr for Method {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let found = Self::all().find(|method| method.name() == text);
        found.ok_or_else(|| UnknownValue::of_names(text, Self::all().map(Self::name)))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method({})", self.name())
    }
}
