//! A language model as what is trained, alone or from a teacher.

use crate::data::{Batch, Dataset, ValidationWindow};
use crate::export::{ExportError, export};
use crate::learner::{Learner, Tested};
use crate::model::{Llama, Parameter};
use crate::ops::{Targets, Teacher};
use crate::options::{TrainError, TrainOptions};
use candle_core::{Result, Tensor};
use forerun_model::checkpoint::Dtype;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model, and a teacher whose distributions it is to learn.
pub struct LanguageLearner<'a> {
    pub(crate) model: Llama,
    /// A teacher and its head's weights.
    teacher: Option<(&'a Llama, Arc<[f32]>)>,
    tokenizer: PathBuf,
}

impl<'a> LanguageLearner<'a> {
    /// A model with the tokenizer that is written beside it.
    ///
    /// # Errors
    /// Where the library fails.
    pub fn new(model: Llama, teacher: Option<&'a Llama>, tokenizer: &Path) -> Result<Self> {
        let with_head = |teacher: &'a Llama| {
            let head = teacher.head_weights().flatten_all()?.to_vec1::<f32>()?;
            Result::Ok((teacher, head.into()))
        };
        let teacher = teacher.map(with_head).transpose()?;
        Ok(Self { model, teacher, tokenizer: tokenizer.to_owned() })
    }
}

impl Learner for LanguageLearner<'_> {
    fn parameters(&self) -> Vec<Parameter> {
        self.model.parameters()
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
        let own = self.model.config().vocab_size;
        match teacher.map(|teacher| teacher.config().vocab_size) {
            Some(vocab_size) if vocab_size != own => {
                TrainError::option("vocab_size", &own, &format!("the teacher has {vocab_size}"))
            }
            _ => Ok(()),
        }
    }

    fn loss(&self, batch: &Batch, _: u64, options: &TrainOptions) -> Result<(Tensor, f64)> {
        let teacher = match &self.teacher {
            Some((teacher, head)) => {
                let hidden = teacher.hidden(&batch.inputs, batch.context)?;
                Some(Teacher {
                    rows: teacher.normed(&hidden.detach())?.into(),
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

    fn test(&self, windows: &[ValidationWindow], _: &TrainOptions) -> Result<Option<Tested>> {
        let targets = windows.iter().map(|window| window.targets.len()).sum();
        let tested = evaluate(&self.model, windows)?;
        Ok(tested.map(|(nll, bytes)| Tested::Text { nll, targets, bytes }))
    }

    fn write(&self, folder: &Path, dtype: Dtype) -> std::result::Result<(), ExportError> {
        export(&self.model, &self.tokenizer, folder, dtype)
    }
}

/// The negative logarithmic likelihood of the windows' targets, in nats, and their bytes of text;
/// `None` for no windows.
///
/// # Errors
/// Where the library fails.
pub fn evaluate(model: &Llama, windows: &[ValidationWindow]) -> Result<Option<(f64, u64)>> {
    /// Windows that are computed at once.
    const AT_ONCE: usize = 8;
    let mut sum: Option<(f64, u64)> = None;
    for windows in windows.chunks(AT_ONCE) {
        let batch = Batch::of_windows(windows);
        let weights: Arc<[f32]> = vec![1.0; batch.targets.len()].into();
        let hidden = model.hidden(&batch.inputs, batch.context)?.detach();
        let targets = Targets { tokens: batch.targets.into(), weights, teacher: None };
        let (_, parts) = model.loss(&hidden, targets, false)?;
        let bytes: u64 = windows.iter().map(|window| window.target_bytes).sum();
        let (nll, before) = sum.unwrap_or_default();
        sum = Some((nll + parts.nll, before + bytes));
    }
    Ok(sum)
}
