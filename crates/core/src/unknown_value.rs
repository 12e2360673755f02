//! The error of an option whose value does not parse.

use std::borrow::Cow;

/// A text is none of an option's possible values.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{found:?} is not one of {expected}")]
pub struct UnknownValue {
    found: String,
    expected: Cow<'static, str>,
}

impl UnknownValue {
    /// Returns the error for a text that is none of the values that `expected` lists.
    #[must_use]
    pub fn new(found: &str, expected: &'static str) -> Self {
        Self { found: found.to_owned(), expected: expected.into() }
    }

    /// Returns the error for a text that is none of these names.
    #[must_use]
    pub fn of_names(found: &str, names: impl Iterator<Item = &'static str>) -> Self {
        let expected = names.collect::<Vec<_>>().join(", ");
        Self { found: found.to_owned(), expected: expected.into() }
    }
}
