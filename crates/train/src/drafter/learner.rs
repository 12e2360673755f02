//! Training of a drafter: the [`Learner`] of Medusa (arXiv 2401.10774), Hydra (arXiv 2402.05109),
//! EAGLE (arXiv 2401.15077), ParallelSpec (arXiv 2410.05589), DFlash (arXiv 2602.06036) and DSpark
//! (arXiv 2607.05147).

use super::acceptance::Acceptance;
use super::files::DrafterFileError;
use super::forward::{Drafter, MOST_DRAFT_TOKENS};
use super::objective::{Objective, Pair};
use super::options::{DrafterOptions, TrainedDrafterKind};
use super::shape::DrafterShape;
use super::target::Target;
use crate::data::{Batch, Dataset, ValidationWindow};
use crate::export::ExportError;
use crate::learner::{Evaluation, Learner};
use crate::model::Parameter;
use crate::ops::draft_head::Distributions;
use crate::options::{TrainError, TrainOptions};
use candle_core::{Result, Tensor};
use forerun_formats::checkpoint::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Distance between the positions of held-out text that open a draft in evaluations. Neighbouring
/// positions give about the same result.
const STRIDE: usize = 4;

/// The weight of the loss of DSpark's confidence head.
const CONFIDENCE_WEIGHT: f32 = 1.0;

/// A drafter in training, with its target.
pub struct DrafterLearner<'a> {
    target: &'a Target,
    options: DrafterOptions,
    drafter: Drafter,
}

impl<'a> DrafterLearner<'a> {
    /// Creates an untrained drafter. `vocabulary` are the tokens that it can draft, in ascending
    /// order; `None` for all.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn random(
        target: &'a Target,
        options: DrafterOptions,
        vocabulary: Option<Arc<[u32]>>,
        seed: u64,
    ) -> Result<Self> {
        let drafter = Drafter::random(&options, target, seed)?;
        Ok(Self { target, options, drafter: drafter.with_vocabulary(vocabulary, target)? })
    }

    /// Starts with the weights of a drafter in a folder that [`Drafter::export`] wrote.
    /// `vocabulary` replaces its tokens; `None` keeps them.
    ///
    /// # Errors
    /// If the files cannot be read, or the drafter is of another kind or was trained for another
    /// target.
    pub fn continued(
        target: &'a Target,
        options: DrafterOptions,
        vocabulary: Option<Arc<[u32]>>,
        folder: &Path,
    ) -> std::result::Result<Self, DrafterFileError> {
        let drafter = Drafter::load(folder, target)?;
        let shape = DrafterShape::of(&options, target);
        if drafter.shape != shape {
            return Err(DrafterFileError::OtherKind {
                folder: folder.to_owned(),
                found: drafter.shape.to_string(),
                expected: shape.to_string(),
            });
        }
        let drafter = drafter.with_vocabulary(vocabulary, target)?;
        Ok(Self { target, options, drafter })
    }

    /// Loads the drafter from a folder that [`Drafter::export`] wrote.
    ///
    /// # Errors
    /// If the files cannot be read, or the drafter was trained for another target.
    pub fn load(
        target: &'a Target,
        options: DrafterOptions,
        folder: &Path,
    ) -> std::result::Result<Self, DrafterFileError> {
        Ok(Self { target, options, drafter: Drafter::load(folder, target)? })
    }

    /// Returns the drafter in its current state.
    #[must_use]
    pub fn drafter(&self) -> &Drafter {
        &self.drafter
    }

    fn pair(&self) -> Pair<'_> {
        Pair { drafter: &self.drafter, target: self.target, options: &self.options }
    }

    /// Checks the options of a block drafter.
    fn check_block(&self) -> std::result::Result<(), TrainError> {
        if self.options.layers == Some(0) {
            return TrainError::option("`layers`", &0, "at least 1 is required");
        }
        let Some(markov_rank) = self.options.markov_rank else { return Ok(()) };
        let num_hidden_layers = self.target.config().num_hidden_layers;
        if self.target.feature_layers().contains(&num_hidden_layers) {
            let layers = format!("{:?}", self.target.feature_layers());
            let expected = format!(
                "the layout of DSpark's authors has no hidden state after the target's last layer, which is {num_hidden_layers}"
            );
            return TrainError::option("`target_layers`", &layers, &expected);
        }
        if self.options.draft_tokens < 2 {
            let expected = "a block has the last token and at least one mask";
            return TrainError::option("`draft_tokens`", &self.options.draft_tokens, expected);
        }
        if markov_rank == 0 {
            return TrainError::option("`markov_rank`", &0, "at least 1 is required");
        }
        Ok(())
    }

    /// Returns the distributions that the loss needs, if it needs any. `all` are those of all the
    /// target's tokens if they have been computed.
    fn label_distributions(
        &self,
        features: &[f32],
        options: &TrainOptions,
        all: Option<&Arc<Distributions>>,
    ) -> Option<Arc<Distributions>> {
        // DSpark learns how probable an acceptance is, which depends on all tokens.
        let of_all = self.options.markov_rank.is_some();
        if !of_all && options.distillation_share == 0.0 {
            return None;
        }
        match (&self.drafter.vocabulary, all) {
            (Some(vocabulary), _) if !of_all => {
                Some(Arc::new(vocabulary.head().distributions(features)))
            }
            (_, Some(all)) => Some(Arc::clone(all)),
            (_, None) => Some(Arc::new(self.target.head().distributions(features))),
        }
    }

    /// Returns the token rows that open a draft in evaluations. All labels of their drafts exist.
    fn evaluation_anchors(&self, context: usize) -> Vec<usize> {
        (0..(context + 1).saturating_sub(self.least_window())).step_by(STRIDE).collect()
    }
}

impl Learner for DrafterLearner<'_> {
    fn parameters(&self) -> Vec<Parameter> {
        self.drafter.parameters()
    }

    fn description(&self) -> Value {
        let mut description =
            json!({ "drafter": self.options, "target": self.target.embedding_sha256() });
        if self.options.layers.is_some() {
            description["target_layers"] = json!(self.target.feature_layers());
        }
        description
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
            return refuse("`draft_tokens`", &0, "at least 1 is required");
        }
        if draft_tokens > MOST_DRAFT_TOKENS {
            let expected = format!("at most {MOST_DRAFT_TOKENS} are possible");
            return refuse("`draft_tokens`", &draft_tokens, &expected);
        }
        self.check_block()?;
        if let Some(size) = self.options.draft_vocab {
            let vocab_size = self.target.config().vocab_size;
            if !(1..vocab_size).contains(&size) {
                let expected =
                    format!("it must be at least 1 and less than the target's {vocab_size}");
                return refuse("`draft_vocab`", &size, &expected);
            }
        }
        let kind = self.options.kind;
        if self.options.drafted_positions > 0 && kind != TrainedDrafterKind::Eagle {
            let expected = "only EAGLE drafts from its own features";
            return refuse("`drafted_positions`", &self.options.drafted_positions, expected);
        }
        let least = self.options.positions().max(self.options.masks() + 1) + 1;
        if options.context < least {
            let expected = format!("a draft of {draft_tokens} tokens requires at least {least}");
            return refuse("`context`", &options.context, &expected);
        }
        let DrafterOptions { classification_weight, feature_noise, .. } = self.options;
        for (option, value) in
            [("`classification_weight`", classification_weight), ("`feature_noise`", feature_noise)]
        {
            if !(value.is_finite() && value >= 0.0) {
                return refuse(option, &value, "it must be 0 or more");
            }
        }
        for (option, share) in [("`group_share`", group_share), ("`decay`", decay)] {
            if !(share > 0.0 && share <= 1.0) {
                return refuse(option, &share, "it must be above 0 and at most 1");
            }
        }
        Ok(())
    }

    /// Returns the length of the shortest text in which a draft has labels for all its tokens.
    fn least_window(&self) -> usize {
        self.options.positions() + self.options.kind.label_shift()
    }

    fn loss(&self, batch: &Batch, number: u64, options: &TrainOptions) -> Result<(Tensor, f64)> {
        let objective = Objective {
            pair: self.pair(),
            distillation_share: options.distillation_share,
            confidence_weight: CONFIDENCE_WEIGHT,
            weight: options.token_weight(),
            train: true,
        };
        let text = self.target.read(batch)?;
        let key = [options.seed, number];
        let anchors = objective.sample_anchors(self.drafter.token_rows(text.context), key);
        let groups = self.drafter.groups(text.context, self.options.masks(), anchors);
        let noise = objective.sample_noise(&text, key);
        let distributions = self.label_distributions(&text.features, options, None);
        let groups = Arc::new(groups);
        let loss = objective.loss(&text, &groups, noise.as_deref(), distributions.as_ref())?;
        let value = f64::from(loss.to_scalar::<f32>()?);
        Ok((loss, value))
    }

    fn evaluate(
        &self,
        windows: &[ValidationWindow],
        options: &TrainOptions,
    ) -> Result<Option<Evaluation>> {
        /// Windows that are processed at once.
        const BATCH_WINDOWS: usize = 4;
        let tokens: usize = windows.iter().map(|window| window.targets.len()).sum();
        if tokens == 0 {
            return Ok(None);
        }
        let objective = Objective {
            pair: self.pair(),
            distillation_share: options.distillation_share,
            confidence_weight: CONFIDENCE_WEIGHT,
            weight: 1.0 / tokens as f32,
            train: false,
        };
        // Windows are shorter than the context if there is little held-out text.
        let context = windows.first().map_or(0, |window| window.inputs.len());
        let anchors = self.evaluation_anchors(context);
        let (mut loss, mut acceptance) = (0.0, Acceptance::default());
        for windows in windows.chunks(BATCH_WINDOWS) {
            let text = self.target.read(&Batch::from_windows(windows))?;
            let distributions = Arc::new(self.target.head().distributions(&text.features));
            let groups = self.drafter.groups(text.context, self.options.masks(), anchors.clone());
            let groups = Arc::new(groups);
            let labels = self.label_distributions(&text.features, options, Some(&distributions));
            let labels = labels.as_ref();
            loss += f64::from(objective.loss(&text, &groups, None, labels)?.to_scalar::<f32>()?);
            acceptance.add(self.pair(), &text, &anchors, &distributions)?;
        }
        Ok(Some(Evaluation::Drafts { loss, acceptance: acceptance.rates() }))
    }

    fn write(&self, folder: &Path, dtype: Dtype) -> std::result::Result<(), ExportError> {
        self.drafter.export(self.target, folder, dtype)
    }
}
