//! Methods other than that of the plan.

use crate::engine::Forerun;
use crate::plan::Method;
use crate::registry::DrafterKind;
use crate::request::RequestError;
use forerun_core::{DraftShape, Need};

/// Why an engine cannot use a method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// The method needs a drafter, and the engine has none.
    #[error(
        "the method {0} needs a drafter: restart with `draft_model` or with `drafter = prompt-lookup`"
    )]
    NoDrafter(Method),
    /// The method drafts chains, and the engine was opened for trees.
    #[error("the method {0} drafts chains: restart without `tree`")]
    ChainsOnly(Method),
    /// The method drafts ahead of the target, but the drafter depends on the target's last pass.
    #[error(
        "the drafter depends on the target's last pass, which the method {0} does not wait for: keep \
         the method speculative, or restart with a drafter that reads only tokens"
    )]
    NeedsFeatures(Method),
}

impl Forerun {
    /// Checks the number of draft tokens of one answer ([`Request::draft_tokens`](crate::Request)).
    ///
    /// # Errors
    /// If the engine drafts trees, or shorter drafts.
    pub fn check_draft_tokens(&self, count: usize) -> Result<(), RequestError> {
        let most = match *self.plan().shape() {
            DraftShape::Chain { length } => length,
            _ => 0,
        };
        match (1..=most).contains(&count) {
            true => Ok(()),
            false => Err(RequestError::DraftTokens { count, most }),
        }
    }

    /// Checks that answers can use a method. Nothing is loaded for it, and every device keeps its models. A
    /// drafter's device is idle while a method does not draft.
    ///
    /// # Errors
    /// If the method needs a drafter and the engine has none, if it needs chains and the engine
    /// drafts trees, or if it drafts ahead of the target and the drafter depends on the target's last
    /// pass.
    pub fn check_method(&self, method: Method) -> Result<(), MethodError> {
        let drafter = self.plan().drafter();
        if !method.drafts() {
            return Ok(());
        }
        if drafter == DrafterKind::None {
            return Err(MethodError::NoDrafter(method));
        }
        let reads_features = self.reads_features() && !method.offers(Need::Features);
        let learns = drafter.needs(Need::Feedback) && !method.offers(Need::Feedback);
        if reads_features || learns {
            return Err(MethodError::NeedsFeatures(method));
        }
        let is_chain = matches!(self.plan().shape(), DraftShape::Chain { .. });
        if !is_chain && !method.offers(Need::Trees) {
            return Err(MethodError::ChainsOnly(method));
        }
        Ok(())
    }
}
