//! The tokens of a distribution.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// Tokens in ascending order. Rows of a whole vocabulary need no list of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Support {
    /// Every token below this number.
    Below(usize),
    /// These, which are not the lowest ones without a gap.
    Listed(Vec<TokenId>),
}

impl Default for Support {
    fn default() -> Self {
        Self::Below(0)
    }
}

impl Support {
    /// From ascending tokens.
    pub(crate) fn new(tokens: Vec<TokenId>) -> Self {
        debug_assert!(tokens.is_sorted_by(|a, b| a < b));
        match tokens.last() {
            Some(&last) if last as usize + 1 != tokens.len() => Self::Listed(tokens),
            // Ascending without a gap: they need no list.
            _ => Self::Below(tokens.len()),
        }
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Below(count) => *count,
            Self::Listed(tokens) => tokens.len(),
        }
    }

    /// The token at an index.
    pub(crate) fn token(&self, index: usize) -> TokenId {
        match self {
            Self::Below(_) => index as TokenId,
            Self::Listed(tokens) => tokens[index],
        }
    }

    /// The index of a token.
    pub(crate) fn index(&self, token: TokenId) -> Option<usize> {
        match self {
            Self::Below(count) => Some(token as usize).filter(|index| index < count),
            Self::Listed(tokens) => tokens.binary_search(&token).ok(),
        }
    }

    /// All tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..self.len()).map(|index| self.token(index))
    }

    /// All tokens but that at an index.
    pub(crate) fn without(&self, index: usize) -> Self {
        let mut tokens = self.clone().into_list();
        tokens.remove(index);
        Self::new(tokens)
    }

    /// The tokens as a list.
    pub(crate) fn into_list(self) -> Vec<TokenId> {
        match self {
            Self::Below(count) => (0..count as TokenId).collect(),
            Self::Listed(tokens) => tokens,
        }
    }
}
