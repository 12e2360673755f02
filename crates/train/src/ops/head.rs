//! The final norm, the head and the loss as one operation, so that logits exist only for a few rows
//! at a time.
//!
//! The loss is cross-entropy, optionally mixed with knowledge distillation from a teacher's
//! distributions (arXiv 1503.02531): `α · KL(teacher ‖ student) + (1 − α) · NLL`.

use super::attention_block::row_slice;
use super::elementwise::{
    add_scaled, exponentials, inner_product, rms_norm, rms_norm_backward, scale_by,
};
use super::matrix::{Matrix, MatrixMut, Write, multiply, set_product, transpose};
use super::{Loss, split};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of rows whose logits exist at once.
const LOGIT_ROWS: usize = 256;

/// The labels of rows.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The next token of each row: `[rows]`.
    pub tokens: Arc<[u32]>,
    /// The weight of each row's loss: `[rows]`.
    pub weights: Arc<[f32]>,
    /// A teacher, with distributions to match.
    pub teacher: Option<Teacher>,
}

impl Targets {
    /// Creates labels without a teacher and with equal weights, so that the loss is the mean over
    /// the tokens.
    #[must_use]
    pub fn mean_of(tokens: impl Into<Arc<[u32]>>) -> Self {
        let tokens = tokens.into();
        let weights = vec![1.0 / tokens.len() as f32; tokens.len()].into();
        Self { tokens, weights, teacher: None }
    }
}

/// A teacher's hidden rows and head, which give its distributions.
#[derive(Clone, Debug)]
pub struct Teacher {
    /// The inputs of its head, after the final norm: `[rows, hidden]`.
    pub rows: Arc<[f32]>,
    /// The weights of its head: `[vocabulary, hidden]`.
    pub head: Arc<[f32]>,
    /// Width of its rows.
    pub hidden: usize,
    /// The share α of the divergence in the loss, `α · KL(teacher ‖ student) + (1 − α) · NLL`.
    pub share: f32,
}

/// A loss and its parts: weighted sums over rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossParts {
    /// The loss that is minimised.
    pub loss: f64,
    /// Negative log-likelihood of the tokens, in nats.
    pub nll: f64,
    /// `KL(teacher ‖ student)`, in nats.
    pub divergence: f64,
}

impl std::iter::Sum for LossParts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, part| Self {
            loss: sum.loss + part.loss,
            nll: sum.nll + part.nll,
            divergence: sum.divergence + part.divergence,
        })
    }
}

/// The loss of a head as an operation. The result is a scalar.
///
/// Inputs: `x`, `[rows, hidden]`; `norm`, `[hidden]`; `head`, `[vocabulary, hidden]`.
pub(crate) struct HeadLoss {
    pub(crate) epsilon: f32,
    pub(crate) targets: Targets,
    /// Whether there will be a backward pass.
    pub(crate) train: bool,
    /// Receives the parts of the loss.
    pub(crate) parts: Arc<Mutex<LossParts>>,
}

/// The loss of a range of rows, and their contribution to the gradients of the weights.
struct RangeResult {
    parts: LossParts,
    dnorm: Vec<f32>,
    dhead: Vec<f32>,
}

impl HeadLoss {
    /// Computes the loss and, if there will be a backward pass, the gradients of `x`, `norm` and
    /// `head`.
    fn loss(&self, [x, norm, head]: [&[f32]; 3]) -> (LossParts, [Vec<f32>; 3]) {
        let hidden = norm.len();
        let rows = x.len() / hidden;
        let mut dx = vec![0.0; if self.train { x.len() } else { 0 }];
        let ranges = split::ranges(rows);
        let per_row = if self.train { hidden } else { 0 };
        let tasks: Vec<_> = ranges.iter().zip(split::parts(&mut dx, &ranges, per_row)).collect();
        let transposed = transpose(head, hidden);
        let teacher = self.targets.teacher.as_ref();
        let teacher_head = teacher.map(|teacher| transpose(&teacher.head, teacher.hidden));
        let heads = (&transposed[..], teacher_head.as_deref());
        let results = split::map(tasks, |(range, dx)| self.rows(range, [x, norm, head], heads, dx));
        let parts = results.iter().map(|result| result.parts).sum();
        let (dnorm, dhead) = results.into_iter().map(|result| (result.dnorm, result.dhead)).unzip();
        (parts, [dx, split::sum(dnorm), split::sum(dhead)])
    }

    /// Computes the loss of a range of rows and writes their gradient to `dx`. `transposed` and
    /// `teacher_head` are the transposed heads of the model and of the teacher.
    fn rows(
        &self,
        range: &Range<usize>,
        [x, norm, head]: [&[f32]; 3],
        (transposed, teacher_head): (&[f32], Option<&[f32]>),
        dx: &mut [f32],
    ) -> RangeResult {
        let hidden = norm.len();
        let vocab_size = head.len() / hidden;
        let gradients = |size| vec![0.0; if self.train { size } else { 0 }];
        let (mut dnorm, mut dhead) = (gradients(hidden), gradients(head.len()));
        let mut normed = vec![0.0; LOGIT_ROWS * hidden];
        let mut dnormed = normed.clone();
        let mut r = vec![0.0; LOGIT_ROWS];
        let mut logits = vec![0.0; LOGIT_ROWS * vocab_size];
        let mut soft = vec![0.0; if self.targets.teacher.is_some() { logits.len() } else { 0 }];
        let mut parts = LossParts::default();
        for first in range.clone().step_by(LOGIT_ROWS) {
            let rows = LOGIT_ROWS.min(range.end - first);
            let x = row_slice(x, first, rows, hidden);
            let (normed, r) = (&mut normed[..rows * hidden], &mut r[..rows]);
            rms_norm(x, norm, self.epsilon, normed, r);
            let logits = &mut logits[..rows * vocab_size];
            let head = Matrix::new(head, hidden);
            let from = Matrix::new(normed, hidden);
            let mut out = MatrixMut::new(logits, vocab_size);
            multiply(&mut out, from, Matrix::new(transposed, vocab_size), 1.0, Write::Replace);
            let soft = &mut soft[..if self.targets.teacher.is_some() { logits.len() } else { 0 }];
            if let (Some(teacher), Some(head)) = (&self.targets.teacher, teacher_head) {
                let from = Matrix::new(
                    row_slice(&teacher.rows, first, rows, teacher.hidden),
                    teacher.hidden,
                );
                let head = Matrix::new(head, vocab_size);
                set_product(soft, from, head);
            }
            for (row, logits) in (first..).zip(logits.chunks_exact_mut(vocab_size)) {
                let start = (row - first) * vocab_size;
                let soft = soft.get_mut(start..start + vocab_size);
                self.row(row, logits, soft, &mut parts);
            }
            if !self.train {
                continue;
            }
            // From here on, `logits` holds the gradients of the logits.
            let dlogits = Matrix::new(logits, vocab_size);
            let mut dhead = MatrixMut::new(&mut dhead, hidden);
            multiply(&mut dhead, dlogits.transposed(), from, 1.0, Write::Add);
            let dnormed = &mut dnormed[..rows * hidden];
            set_product(dnormed, dlogits, head);
            let values = (first - range.start) * hidden..(first - range.start + rows) * hidden;
            rms_norm_backward(dnormed, x, norm, r, &mut dx[values], &mut dnorm);
        }
        RangeResult { parts, dnorm, dhead }
    }

    /// Adds a row's loss to `parts` and replaces its logits with their gradients. `soft` holds the
    /// teacher's logits.
    fn row(&self, row: usize, logits: &mut [f32], soft: Option<&mut [f32]>, parts: &mut LossParts) {
        let (token, weight) = (self.targets.tokens[row] as usize, self.targets.weights[row]);
        let (Some(soft), Some(teacher)) = (soft, &self.targets.teacher) else {
            return row_loss(logits, token, weight, None, parts);
        };
        let mut probabilities = soft.to_vec();
        let (largest, sum) = exponentials(&mut probabilities);
        scale_by(&mut probabilities, 1.0 / sum);
        let negative_entropy = inner_product(&probabilities, soft) - (largest + sum.ln());
        let probabilities = &probabilities;
        let soft = SoftLabel { probabilities, negative_entropy, share: teacher.share };
        row_loss(logits, token, weight, Some(soft), parts);
    }
}

/// A distribution that a row is to match.
#[derive(Clone, Copy)]
pub(super) struct SoftLabel<'a> {
    /// `[vocabulary]`.
    pub(super) probabilities: &'a [f32],
    /// `Σ p ln p`.
    pub(super) negative_entropy: f32,
    /// The share of the divergence in the loss.
    pub(super) share: f32,
}

/// Adds a row's loss, `share · KL + (1 − share) · NLL`, to `parts` and replaces its logits with
/// their gradients.
pub(super) fn row_loss(
    logits: &mut [f32],
    token: usize,
    weight: f32,
    soft: Option<SoftLabel<'_>>,
    parts: &mut LossParts,
) {
    let token_logit = logits[token];
    let cross_term = soft.map(|soft| inner_product(soft.probabilities, logits));
    let (largest, sum) = exponentials(logits);
    let log_sum_exp = largest + sum.ln();
    let nll = f64::from(log_sum_exp - token_logit);
    let mut share = 0.0;
    let mut divergence = 0.0;
    scale_by(logits, weight / sum);
    if let (Some(soft), Some(cross_term)) = (soft, cross_term) {
        share = soft.share;
        divergence = f64::from(soft.negative_entropy - cross_term + log_sum_exp);
        add_scaled(logits, soft.probabilities, -weight * share);
    }
    logits[token] -= weight * (1.0 - share);
    let (weight, share) = (f64::from(weight), f64::from(share));
    parts.nll += weight * nll;
    parts.divergence += weight * divergence;
    parts.loss += weight * (share * divergence + (1.0 - share) * nll);
}

impl Loss for HeadLoss {
    const NAME: &'static str = "head-loss";

    fn compute(&self, inputs: [&[f32]; 3]) -> (f32, [Vec<f32>; 3]) {
        let (parts, gradients) = self.loss(inputs);
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        (parts.loss as f32, gradients)
    }

    fn has_gradients(&self) -> bool {
        self.train
    }
}
