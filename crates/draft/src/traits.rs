//! What drafters need, and which shape they draft by default.

use forerun_core::Need;

/// What a drafter needs of the decoding method, and which shape it drafts if no tree is requested.
///
/// ```
/// use forerun_core::Need;
/// use forerun_draft::DrafterTraits;
///
/// // A drafter that reads the target's hidden states, and drafts chains.
/// let traits = DrafterTraits { needs: &[Need::Features], ..DrafterTraits::ON_TOKENS };
/// assert!(!traits.needs.contains(&Need::Trees));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrafterTraits {
    /// Everything that its method must offer.
    pub needs: &'static [Need],
    /// Its shape if no tree is requested.
    pub shape: DefaultShape,
}

/// The shape of drafts if no tree is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultShape {
    /// A chain.
    Chain,
    /// A tree.
    Tree {
        /// Its depth, unless a number of draft tokens is requested.
        depth: usize,
        /// The number of its nodes.
        nodes: usize,
    },
    /// A chain of the model's tokens, with phrases of [`PHRASE_TOKENS`](crate::PHRASE_TOKENS)
    /// tokens after it. Requested trees also end with phrases (see
    /// [`with_phrases`](crate::with_phrases)).
    ChainWithPhrases {
        /// The number of phrases.
        phrases: usize,
    },
}

impl DrafterTraits {
    /// A drafter that reads only the tokens before its draft, such as
    /// [`PromptLookup`](crate::PromptLookup) or [`ModelDrafter`](crate::ModelDrafter). Every method
    /// supports it.
    pub const ON_TOKENS: Self = Self { needs: &[], shape: DefaultShape::Chain };

    /// A drafter that reads the target's hidden states, and cannot draft after tokens without them,
    /// such as [`MedusaDrafter`](crate::MedusaDrafter).
    pub const ON_FEATURES: Self =
        Self { needs: &[Need::Features, Need::VerifiedPrefix], ..Self::ON_TOKENS };

    /// A drafter that reads the target's hidden states, and goes on with its own predictions of
    /// them after draft tokens, such as [`EagleDrafter`](crate::EagleDrafter).
    pub const ON_PREDICTED_FEATURES: Self = Self { needs: &[Need::Features], ..Self::ON_TOKENS };
}
