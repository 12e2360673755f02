//! The lookup of earlier text in addition to a drafter.

use super::{Method, Options, PlanError};
use crate::registry::DrafterKind;
use forerun_core::Need;
use forerun_core::UnknownValue;
use std::fmt;
use std::str::FromStr;

/// A lookup of earlier text, whose guesses take the place of the drafter's draft in the rounds
/// where they are expected to be better.
///
/// ```
/// use forerun::Lookup;
///
/// assert_eq!("suffix".parse(), Ok(Lookup::Suffix));
/// assert_eq!(Lookup::None.to_string(), "none");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// `none`: the drafter drafts in every round.
    #[default]
    None,
    /// `suffix`: suffix decoding, as [`DrafterKind::Suffix`].
    Suffix,
}

impl Lookup {
    /// All lookups, `none` first.
    pub const ALL: [Self; 2] = [Self::None, Self::Suffix];

    /// Returns its name in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Suffix => "suffix",
        }
    }
}

impl FromStr for Lookup {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let found = Self::ALL.into_iter().find(|lookup| lookup.name() == text);
        found.ok_or_else(|| UnknownValue::of_names(text, Self::ALL.map(Self::name).into_iter()))
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the lookup of a plan. Methods without drafts have none.
pub(super) fn lookup(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<Lookup, PlanError> {
    if !method.drafts() || options.lookup == Lookup::None {
        return Ok(Lookup::None);
    }
    if drafter.needs(Need::Feedback) {
        return Err(PlanError::conflict(
            format!(
                "`lookup` takes the place of some drafts, but the drafter {drafter} learns from all \
                 of its own"
            ),
            "use another drafter, or leave `lookup` out",
        ));
    }
    if !method.offers(Need::WholeDrafts) {
        return Err(PlanError::conflict(
            format!("`lookup` takes the place of whole drafts, and the method {method} has none"),
            "set `method = speculative` or `method = ssd`, or leave `lookup` out",
        ));
    }
    Ok(options.lookup)
}
