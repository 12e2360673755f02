//! Training of a language model: the [`Learner`] for plain cross-entropy, and for knowledge
//! distillation from a teacher (arXiv 1503.02531), with the loss
//! `α · KL(teacher ‖ student) + (1 − α) · NLL`.

use crate::data::{Batch, Dataset, ValidationWindow};
use crate::export::{ExportError, export};
use crate::learner::{Evaluation, Learner};
use crate::model::{Llama, Parameter};
use crate::ops::{Targets, Teacher};
use crate::options::{TrainError, TrainOptions};
use candle_core::{Result, Tensor};
use forerun_formats::checkpoint::Dtype;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A language model in training, optionally with a teacher.
pub struct LanguageLearner<'a> {
    pub(crate) model: Llama,
    /// The teacher, and the weights of its head.
    teacher: Option<(&'a Llama, Arc<[f32]>)>,
    tokenizer: PathBuf,
    origin: Value,
}

impl<'a> LanguageLearner<'a> {
    /// Creates a learner. `tokenizer` is the path of the `tokenizer.json` that is written with the
    /// model, and `origin` describes what the model was made of.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn new(
        model: Llama,
        teacher: Option<&'a Llama>,
        tokenizer: &Path,
        origin: Value,
    ) -> Result<Self> {
        let with_head = |teacher: &'a Llama| {
            let head = teacher.head_weights().flatten_all()?.to_vec1::<f32>()?;
            Result::Ok((teacher, head.into()))
        };
        let teacher = teacher.map(with_head).transpose()?;
        Ok(Self { model, teacher, tokenizer: tokenizer.to_owned(), origin })
    }
}

impl Learner for LanguageLearner<'_> {
    fn parameters(&self) -> Vec<Parameter> {
        self.model.parameters()
    }

    fn description(&self) -> Value {
        self.origin.clone()
    }

    fn check(
        &self,
        options: &TrainOptions,
        dataset: &Dataset,
    ) -> std::result::Result<(), TrainError> {
        let teacher = self.teacher.as_ref().map(|(teacher, _)| *teacher);
        for model in [Some(&self.model), teacher].into_iter().flatten() {
            options.check_model(model.config(), dataset)?;
        }
        let vocab_size = self.model.config().vocab_size;
        match teacher.map(|teacher| teacher.config().vocab_size) {
            Some(expected) if expected != vocab_size => TrainError::option(
                "the vocabulary size of the model",
                &vocab_size,
                &format!("that of the teacher is {expected}"),
            ),
            _ => Ok(()),
        }
    }

    fn loss(&self, batch: &Batch, _: u64, options: &TrainOptions) -> Result<(Tensor, f64)> {
        let teacher = match &self.teacher {
            Some((teacher, head)) => {
                let hidden = teacher.hidden(&batch.inputs, batch.context)?;
                Some(Teacher {
                    rows: teacher.apply_final_norm(&hidden.detach())?.into(),
                    head: Arc::clone(head),
                    hidden: teacher.config().hidden_size,
                    share: options.distillation_share,
                })
            }
            None => None,
        };
        let hidden = self.model.hidden(&batch.inputs, batch.context)?;
        let weights: Arc<[f32]> = vec![options.token_weight(); batch.targets.len()].into();
        let targets = Targets { tokens: batch.targets.clone().into(), weights, teacher };
        let (loss, parts) = self.model.loss(&hidden, targets, true)?;
        Ok((loss, parts.loss))
    }

    fn evaluate(
        &self,
        windows: &[ValidationWindow],
        _: &TrainOptions,
    ) -> Result<Option<Evaluation>> {
        let targets = windows.iter().map(|window| window.targets.len()).sum();
        let result = evaluate_language_model(&self.model, windows)?;
        Ok(result.map(|(nll, bytes)| Evaluation::Text { nll, targets, bytes }))
    }

    fn write(&self, folder: &Path, dtype: Dtype) -> std::result::Result<(), ExportError> {
        export(&self.model, &self.tokenizer, folder, dtype)
    }
}

/// Computes the negative log-likelihood of the windows' targets, in nats (a sum), and the number of
/// bytes of text that they represent; `None` if there are no windows.
///
/// # Errors
/// If a tensor operation fails.
pub fn evaluate_language_model(
    model: &Llama,
    windows: &[ValidationWindow],
) -> Result<Option<(f64, u64)>> {
    /// Windows that are processed at once.
    const BATCH_WINDOWS: usize = 8;
    let mut sum: Option<(f64, u64)> = None;
    for windows in windows.chunks(BATCH_WINDOWS) {
        let batch = Batch::from_windows(windows);
        let weights: Arc<[f32]> = vec![1.0; batch.targets.len()].into();
        let hidden = model.hidden(&batch.inputs, batch.context)?.detach();
        let targets = Targets { tokens: batch.targets.into(), weights, teacher: None };
        let (_, parts) = model.loss(&hidden, targets, false)?;
        let bytes: u64 = windows.iter().map(|window| window.target_bytes).sum();
        let (previous_nll, previous_bytes) = sum.unwrap_or_default();
        sum = Some((previous_nll + parts.nll, previous_bytes + bytes));
    }
    Ok(sum)
}
