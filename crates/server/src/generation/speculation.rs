//! How one answer is decoded, as its request asks.

use forerun::{Engine, Method, PlanError, Request, Tree};
use serde::Deserialize;

/// How an answer is decoded, instead of as the engine's plan says. It does not change the
/// distribution of the text.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Speculation {
    /// The method by its name; `off` is `autoregressive`.
    pub method: Option<String>,
    /// The drafter by its name, which must be the engine's.
    pub drafter: Option<String>,
    /// The number of tokens of a draft.
    pub draft_tokens: Option<usize>,
    /// The shape of a draft, as in `top:4x5`.
    pub tree: Option<String>,
}

/// Returns why an engine cannot use a method. Its options are spelt as on the command line.
pub(crate) fn reason(error: &PlanError) -> String {
    let message = error.to_string();
    // Options are in backticks.
    let spelt = |(index, part): (usize, &str)| match index % 2 {
        0 => part.to_owned(),
        _ => format!("--{}", part.replace(" = ", " ").replace('_', "-")),
    };
    message.split('`').enumerate().map(spelt).collect()
}

/// An engine that cannot decode an answer as its request asks.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct SpeculationError {
    option: &'static str,
    message: String,
}

impl SpeculationError {
    /// Returns the field of [`Speculation`] that the engine cannot follow.
    #[must_use]
    pub fn option(&self) -> &'static str {
        self.option
    }
}

impl Speculation {
    /// Returns the method of the answer, and writes the shape of drafts to its request.
    ///
    /// # Errors
    /// If the engine does not have the method or the drafter, or cannot draft so.
    pub fn apply(
        &self,
        forerun: &Engine,
        request: &mut Request,
    ) -> Result<Method, SpeculationError> {
        let wrong = |option, message| SpeculationError { option, message };
        let method = match self.method.as_deref() {
            None => forerun.plan().method(),
            Some("off") => Method::Autoregressive,
            Some(name) => {
                let method: Result<Method, _> = name.parse();
                let method = method.map_err(|error| wrong("method", error.to_string()))?;
                let checked = forerun.check_method(method);
                checked.map_err(|error| wrong("method", reason(&error)))?;
                method
            }
        };
        let drafter = forerun.plan().drafter();
        if let Some(name) = self.drafter.as_ref().filter(|name| **name != drafter.name()) {
            let message = format!("this server has the drafter {drafter}, not {name:?}");
            return Err(wrong("drafter", message));
        }
        request.draft_tokens = self.draft_tokens;
        if let Some(tree) = &self.tree {
            let tree: Result<Tree, _> = tree.parse();
            request.tree = tree.map_err(|error| wrong("tree", error.to_string()))?;
        }
        let option = match request.tree {
            Tree::None => "draft_tokens",
            _ => "tree",
        };
        let shape = forerun.draft_shape(method, request);
        shape.map_err(|error| wrong(option, error.to_string()))?;
        Ok(method)
    }
}
