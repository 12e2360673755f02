//! What can be simulated: the production decoders.

use forerun_core::DraftShape;
use forerun_decode::{Autoregressive, Controller, Decoder, DraftLength, Speculative};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// When tokens are drafted and verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// One target forward a token.
    Autoregressive,
    /// Draft, then verify, in turn.
    #[default]
    Speculative,
}

impl Method {
    /// All methods with their names.
    pub const NAMES: [(Self, &str); 2] =
        [(Self::Autoregressive, "autoregressive"), (Self::Speculative, "speculative")];

    /// The decoder, which drafts chains of so many tokens.
    pub(crate) fn decoder(self, draft_tokens: usize) -> Box<dyn Decoder> {
        let chain = DraftShape::Chain { length: draft_tokens };
        match self {
            Self::Autoregressive => Box::new(Autoregressive),
            Self::Speculative => {
                Box::new(Speculative::new(Controller::new(chain, DraftLength::Fixed)))
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(method, _)| method == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let method = Self::NAMES.iter().find(|(_, name)| *name == text);
        method.map(|(method, _)| *method).ok_or_else(|| {
            let names = Self::NAMES.map(|(_, name)| name).join(", ");
            format!("{text:?} is not one of {names}")
        })
    }
}
