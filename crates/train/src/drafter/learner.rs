//! A drafter as what is trained.

use super::acceptance::Acceptance;
use super::files::DrafterFileError;
use super::forward::Drafter;
use super::objective::{Objective, Pair};
use super::options::DrafterOptions;
use super::target::Target;
use crate::data::{Batch, Dataset, ValidationWindow};
use crate::export::ExportError;
use crate::learner::{Learner, Tested};
use crate::model::Parameter;
use crate::ops::groups::Groups;
use crate::options::{TrainError, TrainOptions};
use candle_core::{Result, Tensor};
use forerun_model::checkpoint::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Of so many places of held-out text, one opens a draft: neighbours tell about the same.
const STRIDE: usize = 4;

/// A drafter that learns from its target.
pub struct DrafterLearner<'a> {
    target: &'a Target,
    options: DrafterOptions,
    drafter: Drafter,
}

impl<'a> DrafterLearner<'a> {
    /// A drafter that has learnt nothing.
    ///
    /// # Errors
    /// Where the library fails.
    pub fn random(target: &'a Target, options: DrafterOptions, seed: u64) -> Result<Self> {
        let drafter = Drafter::random(options.kind, options.draft_tokens, target, seed)?;
        Ok(Self { target, options, drafter })
    }

    /// The drafter in a folder that [`Drafter::export`] wrote in f32.
    ///
    /// # Errors
    /// If it cannot be read, or is for another target.
    pub fn load(
        target: &'a Target,
        options: DrafterOptions,
        folder: &Path,
    ) -> std::result::Result<Self, DrafterFileError> {
        Ok(Self { target, options, drafter: Drafter::load(folder, target)? })
    }

    /// The drafter as it stands.
    #[must_use]
    pub fn drafter(&self) -> &Drafter {
        &self.drafter
    }

    fn pair(&self) -> Pair<'_> {
        Pair { drafter: &self.drafter, target: self.target, options: &self.options }
    }

    /// Tokens of a sequence that open a draft whose labels are all there.
    fn test_anchors(&self, context: usize) -> Vec<usize> {
        let last = self.options.positions() + self.options.kind.label_shift();
        (0..(context + 1).saturating_sub(last)).step_by(STRIDE).collect()
    }
}

impl Learner for DrafterLearner<'_> {
    fn parameters(&self) -> Vec<Parameter> {
        self.drafter.parameters()
    }

    fn description(&self) -> Value {
        json!({ "drafter": self.options, "target": self.target.embedding_sha256() })
    }

    fn check(
        &self,
        options: &TrainOptions,
        dataset: &Dataset,
    ) -> std::result::Result<(), TrainError> {
        options.check_model(self.target.config(), dataset)?;
        let refuse = TrainError::option;
        let DrafterOptions { draft_tokens, group_share, decay, .. } = self.options;
        if draft_tokens == 0 {
            return refuse("the number of draft tokens", &0, "at least 1 is needed");
        }
        let least = self.options.positions() + 1;
        if options.context < least {
            let expected = format!("a draft of {draft_tokens} tokens needs at least {least}");
            return refuse("context", &options.context, &expected);
        }
        let DrafterOptions { classification_weight, feature_noise, .. } = self.options;
        for (option, value) in
            [("classification weight", classification_weight), ("feature noise", feature_noise)]
        {
            if !(value.is_finite() && value >= 0.0) {
                return refuse(option, &value, "it is 0 or more");
            }
        }
        for (option, share) in [("group share", group_share), ("decay", decay)] {
            if !(share > 0.0 && share <= 1.0) {
                return refuse(option, &share, "it goes from 0, which it may not be, to 1");
            }
        }
        Ok(())
    }

    fn loss(&self, batch: &Batch, number: u64, options: &TrainOptions) -> Result<(Tensor, f64)> {
        let objective = Objective {
            pair: self.pair(),
            distillation_share: options.distillation_share,
            weight: options.token_weight(),
            train: true,
        };
        let text = self.target.read(batch)?;
        let key = [options.seed, number];
        let masks = if self.options.kind.has_masks() { self.drafter.size } else { 0 };
        let groups = objective.groups(self.drafter.token_rows(text.context), masks, key);
        let noise = objective.noise(&text, key);
        let distributions = (options.distillation_share > 0.0)
            .then(|| Arc::new(self.target.head().distributions(&text.features)));
        let groups = Arc::new(groups);
        let loss = objective.loss(&text, &groups, noise.as_deref(), distributions.as_ref())?;
        let value = f64::from(loss.to_scalar::<f32>()?);
        Ok((loss, value))
    }

    fn test(&self, windows: &[ValidationWindow], options: &TrainOptions) -> Result<Option<Tested>> {
        /// Windows that are computed at once.
        const AT_ONCE: usize = 4;
        let tokens: usize = windows.iter().map(|window| window.targets.len()).sum();
        if tokens == 0 {
            return Ok(None);
        }
        let objective = Objective {
            pair: self.pair(),
            distillation_share: options.distillation_share,
            weight: 1.0 / tokens as f32,
            train: false,
        };
        let anchors = self.test_anchors(options.context);
        let (mut loss, mut acceptance) = (0.0, Acceptance::default());
        for windows in windows.chunks(AT_ONCE) {
            let text = self.target.read(&Batch::of_windows(windows))?;
            let distributions = Arc::new(self.target.head().distributions(&text.features));
            let masks = if self.options.kind.has_masks() { self.drafter.size } else { 0 };
            let tokens = self.drafter.token_rows(text.context);
            let groups = Arc::new(Groups::new(tokens, masks, anchors.clone()));
            let soft = (options.distillation_share > 0.0).then_some(&distributions);
            loss += f64::from(objective.loss(&text, &groups, None, soft)?.to_scalar::<f32>()?);
            acceptance.add(self.pair(), &text, &anchors, &distributions)?;
        }
        Ok(Some(Tested::Drafts { loss, acceptance: acceptance.rates() }))
    }

    fn write(&self, folder: &Path, dtype: Dtype) -> std::result::Result<(), ExportError> {
        self.drafter.export(self.target, folder, dtype)
    }
}
