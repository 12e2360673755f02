//! Methods other than that of the plan.

use crate::engine::Engine;
use crate::plan::method::check_drafter;
use crate::plan::{DraftTokens, Lookup, Method, PlanError, Tree, drafts};
use crate::registry::DrafterKind;
use crate::request::{Request, RequestError};
use forerun_core::{DraftShape, Need};

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
        let drafts = drafts::drafts(draft_tokens, &request.tree, drafter);
        drafts.map(|drafts| drafts.shape).map_err(|error| refused(error.to_string()))
    }

    /// Checks that answers can use a method. Nothing is loaded for it, and every device keeps its
    /// models. A drafter's device is idle while a method does not draft.
    ///
    /// # Errors
    /// If the method needs a drafter and the engine has none, or does not offer what the engine's
    /// drafter, tree or lookup needs.
    pub fn check_method(&self, method: Method) -> Result<(), PlanError> {
        let (plan, drafter) = (self.plan(), self.plan().drafter());
        if !method.drafts() {
            return Ok(());
        }
        if drafter == DrafterKind::None {
            return Err(PlanError::NoDrafter(method));
        }
        check_drafter(drafter, method)?;
        // Checkpoints of one kind of drafter may differ in what they read.
        let need = match drafter.needs(Need::Features) {
            true => Need::Features,
            false => Need::VerifiedPrefix,
        };
        if self.reads_features() && !method.offers(need) {
            let drafter = format_args!("the drafter {drafter}");
            return Err(PlanError::drafter_needs(drafter, need, method));
        }
        let is_chain = matches!(plan.shape(), DraftShape::Chain { .. });
        if !is_chain && !method.offers(Need::Trees) {
            return Err(PlanError::chains_only(method));
        }
        match plan.lookup() == Lookup::None || method.offers(Need::WholeDrafts) {
            true => Ok(()),
            false => Err(PlanError::no_whole_drafts(method)),
        }
    }
}
