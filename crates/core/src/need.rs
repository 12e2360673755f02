//! What drafting can need of a decoding method.

/// Something that not every decoding method offers. Drafters and draft options need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The target's hidden states of all verified tokens but the last.
    Features,
    /// Drafts begin after verified tokens, never after draft tokens.
    VerifiedPrefix,
    /// How the target verified the last draft, with the rows of all its nodes.
    Feedback,
    /// Trees. Every method that drafts verifies chains.
    Trees,
    /// The outcome of each whole draft.
    WholeDrafts,
    /// Several drafters.
    SeveralDrafters,
}
