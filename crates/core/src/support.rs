//! The support of a distribution: its tokens of positive probability.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// A set of tokens in ascending order. Rows over the whole vocabulary need no list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Support {
    /// All tokens below this number.
    Below(usize),
    /// The listed tokens. There is a gap, else `Below` represents the set.
    Listed(Vec<TokenId>),
}

impl Default for Support {
    fn default() -> Self {
        Self::Below(0)
    }
}

impl Support {
    /// Creates a support from tokens in ascending order.
    pub(crate) fn new(tokens: Vec<TokenId>) -> Self {
        debug_assert!(tokens.is_sorted_by(|a, b| a < b));
        match tokens.last() {
            Some(&last) if last as usize + 1 != tokens.len() => Self::Listed(tokens),
            // Ascending without a gap, so no list is needed.
            _ => Self::Below(tokens.len()),
        }
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Below(count) => *count,
            Self::Listed(tokens) => tokens.len(),
        }
    }

    /// Returns the token at an index.
    pub(crate) fn token(&self, index: usize) -> TokenId {
        match self {
            Self::Below(_) => index as TokenId,
            Self::Listed(tokens) => tokens[index],
        }
    }

    /// Returns the index of a token, if it is in the set.
    pub(crate) fn index(&self, token: TokenId) -> Option<usize> {
        match self {
            Self::Below(count) => Some(token as usize).filter(|index| index < count),
            Self::Listed(tokens) => tokens.binary_search(&token).ok(),
        }
    }

    /// Iterates over the tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..self.len()).map(|index| self.token(index))
    }

    /// Returns the set without the token at an index.
    pub(crate) fn without(&self, index: usize) -> Self {
        let mut tokens = self.clone().into_list();
        tokens.remove(index);
        Self::new(tokens)
    }

    /// Returns the tokens as a list.
    pub(crate) fn into_list(self) -> Vec<TokenId> {
        match self {
            Self::Below(count) => (0..count as TokenId).collect(),
            Self::Listed(tokens) => tokens,
        }
    }
}
