//! Methods other than that of the plan.

use crate::engine::Engine;
use crate::plan::{DraftTokens, Lookup, Method, Options, Tree, drafts};
use crate::registry::DrafterKind;
use crate::request::{Request, RequestError};
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
    /// A lookup needs a method with whole drafts, and this one has none.
    #[error(
        "`lookup` works with the methods speculative and ssd only, not with {0}: use one of them, or restart without \
         `lookup`"
    )]
    Lookup(Method),
}

impl Engine {
    /// Returns the shape of one answer's drafts ([`Request::draft_tokens`] and [`Request::tree`]);
    /// `None` is the engine's. `method` is that of the answer.
    ///
    /// # Errors
    /// If the engine or the method drafts no trees, or if a draft would be too large.
    pub fn draft_shape(
        &self,
        method: Method,
        request: &Request,
    ) -> Result<Option<DraftShape>, RequestError> {
        let method = request.decoded_by(method);
        if !method.drafts() {
            return Ok(None);
        }
        if request.tree != Tree::None {
            return self.tree_shape(method, request).map(Some);
        }
        let Some(length) = request.draft_tokens else { return Ok(None) };
        let most = match *self.plan().shape() {
            DraftShape::Chain { length } => length,
            _ => 0,
        };
        match (1..=most).contains(&length) {
            true => Ok(Some(DraftShape::Chain { length })),
            false => Err(RequestError::DraftTokens { count: length, most }),
        }
    }

    fn tree_shape(&self, method: Method, request: &Request) -> Result<DraftShape, RequestError> {
        let refused =
            |reason: String| RequestError::Tree { tree: request.tree.to_string(), reason };
        if !method.offers(Need::Trees) {
            return Err(refused(format!("the method {method} drafts chains")));
        }
        if self.translates_drafts() {
            return Err(refused(
                "drafts are translated between vocabularies, which are chains".into(),
            ));
        }
        if request.tree == Tree::Auto {
            return Err(refused(
                "trees that grow are an option of the engine: restart with `tree = auto`".into(),
            ));
        }
        let drafter = self.plan().drafter();
        let draft_tokens = request.draft_tokens.map_or(DraftTokens::Auto, DraftTokens::Fixed);
        let options = Options { draft_tokens, tree: request.tree.clone(), ..Options::default() };
        let drafts = drafts::drafts(&options, drafter);
        drafts.map(|drafts| drafts.shape).map_err(|error| refused(error.to_string()))
    }

    /// Checks that answers can use a method. Nothing is loaded for it, and every device keeps its
    /// models. A drafter's device is idle while a method does not draft.
    ///
    /// # Errors
    /// If the method needs a drafter and the engine has none, if it needs chains and the engine
    /// drafts trees, if it drafts ahead of the target and the drafter depends on the target's last
    /// pass, or if it has no whole drafts and the engine has a lookup.
    pub fn check_method(&self, method: Method) -> Result<(), MethodError> {
        let drafter = self.plan().drafter();
        if !method.drafts() {
            return Ok(());
        }
        if drafter == DrafterKind::None {
            return Err(MethodError::NoDrafter(method));
        }
        let drafts_ahead = drafter.needs(Need::Features) && !drafter.needs(Need::VerifiedPrefix);
        let is_offered =
            method.offers(Need::Features) && (drafts_ahead || method.offers(Need::VerifiedPrefix));
        let reads_features = self.reads_features() && !is_offered;
        let learns = drafter.needs(Need::Feedback) && !method.offers(Need::Feedback);
        if reads_features || learns {
            return Err(MethodError::NeedsFeatures(method));
        }
        if self.plan().lookup() != Lookup::None && !method.offers(Need::WholeDrafts) {
            return Err(MethodError::Lookup(method));
        }
        let is_chain = matches!(self.plan().shape(), DraftShape::Chain { .. });
        if !is_chain && !method.offers(Need::Trees) {
            return Err(MethodError::ChainsOnly(method));
        }
        Ok(())
    }
}
