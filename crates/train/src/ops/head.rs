//! The final norm, the head and the loss in one: logits exist for a few rows at a time only.

use super::attention_block::part;
use super::elementwise::{add_scaled, exponentials, inner, rms_norm, rms_norm_backward, scale_by};
use super::matrix::{Matrix, MatrixMut, Write, multiply, transpose};
use super::{Operation, split};
use candle_core::{Result, Shape};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows whose logits exist at once.
const LOGIT_ROWS: usize = 256;

/// What rows are to predict.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The tokens that came: `[rows]`.
    pub tokens: Arc<[u32]>,
    /// What each row's loss counts: `[rows]`.
    pub weights: Arc<[f32]>,
    /// A model whose distributions are to be met.
    pub teacher: Option<Teacher>,
}

impl Targets {
    /// Tokens, whose losses' mean is wanted.
    #[must_use]
    pub fn mean_of(tokens: impl Into<Arc<[u32]>>) -> Self {
        let tokens = tokens.into();
        let weights = vec![1.0 / tokens.len() as f32; tokens.len()].into();
        Self { tokens, weights, teacher: None }
    }
}

/// A teacher's rows, of which the head makes logits.
#[derive(Clone, Debug)]
pub struct Teacher {
    /// What its head takes: `[rows, hidden]`, normed.
    pub rows: Arc<[f32]>,
    /// `[vocabulary, hidden]`.
    pub head: Arc<[f32]>,
    /// Size of its rows.
    pub hidden: usize,
    /// The share α of the divergence in the loss: `α · KL(teacher ‖ student) + (1 − α) · NLL`.
    pub share: f32,
}

/// Weighted sums over rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossParts {
    /// What is minimised.
    pub loss: f64,
    /// Negative logarithmic likelihood of the tokens, in nats.
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

/// `x`: `[rows, hidden]`, `norm`: `[hidden]`, `head`: `[vocabulary, hidden]`; the result is the loss.
pub(crate) struct HeadLoss {
    pub(crate) epsilon: f32,
    pub(crate) targets: Targets,
    /// Whether there will be a backward pass.
    pub(crate) train: bool,
    /// Where the parts of the loss go.
    pub(crate) parts: Arc<Mutex<LossParts>>,
}

/// What a thread did.
struct Done {
    parts: LossParts,
    dnorm: Vec<f32>,
    dhead: Vec<f32>,
}

impl HeadLoss {
    /// The loss; the gradients of `x`, `norm` and `head` if there is to be a backward pass.
    fn loss(&self, [x, norm, head]: [&[f32]; 3]) -> (LossParts, [Vec<f32>; 3]) {
        let hidden = norm.len();
        let rows = x.len() / hidden;
        let mut dx = vec![0.0; if self.train { x.len() } else { 0 }];
        let ranges = split::ranges(rows);
        let per_row = if self.train { hidden } else { 0 };
        let tasks: Vec<_> = ranges.iter().zip(split::parts(&mut dx, &ranges, per_row)).collect();
        let turned = transpose(head, hidden);
        let soft = self.targets.teacher.as_ref();
        let soft = soft.map(|teacher| transpose(&teacher.head, teacher.hidden));
        let turned = (&turned[..], soft.as_deref());
        let done = split::all(tasks, |(range, dx)| self.rows(range, [x, norm, head], turned, dx));
        let parts = done.iter().map(|done| done.parts).sum();
        let (dnorm, dhead) = done.into_iter().map(|done| (done.dnorm, done.dhead)).unzip();
        (parts, [dx, split::total(dnorm), split::total(dhead)])
    }

    fn rows(
        &self,
        range: &Range<usize>,
        [x, norm, head]: [&[f32]; 3],
        (turned, soft_head): (&[f32], Option<&[f32]>),
        dx: &mut [f32],
    ) -> Done {
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
            let x = part(x, first, rows, hidden);
            let (normed, r) = (&mut normed[..rows * hidden], &mut r[..rows]);
            rms_norm(x, norm, self.epsilon, normed, r);
            let logits = &mut logits[..rows * vocab_size];
            let head = Matrix::new(head, hidden);
            let from = Matrix::new(normed, hidden);
            let mut out = MatrixMut::new(logits, vocab_size);
            multiply(&mut out, from, Matrix::new(turned, vocab_size), 1.0, Write::Replace);
            let soft = &mut soft[..if self.targets.teacher.is_some() { logits.len() } else { 0 }];
            if let (Some(teacher), Some(head)) = (&self.targets.teacher, soft_head) {
                let from =
                    Matrix::new(part(&teacher.rows, first, rows, teacher.hidden), teacher.hidden);
                let head = Matrix::new(head, vocab_size);
                multiply(&mut MatrixMut::new(soft, vocab_size), from, head, 1.0, Write::Replace);
            }
            for (row, logits) in (first..).zip(logits.chunks_exact_mut(vocab_size)) {
                let own = (row - first) * vocab_size;
                let soft = soft.get_mut(own..own + vocab_size);
                self.row(row, logits, soft, &mut parts);
            }
            if !self.train {
                continue;
            }
            // Gradients stand where the logits stood.
            let dlogits = Matrix::new(logits, vocab_size);
            let mut dhead = MatrixMut::new(&mut dhead, hidden);
            multiply(&mut dhead, dlogits.transposed(), from, 1.0, Write::Add);
            let dnormed = &mut dnormed[..rows * hidden];
            multiply(&mut MatrixMut::new(dnormed, hidden), dlogits, head, 1.0, Write::Replace);
            let own = (first - range.start) * hidden..(first - range.start + rows) * hidden;
            rms_norm_backward(dnormed, x, norm, r, &mut dx[own], &mut dnorm);
        }
        Done { parts, dnorm, dhead }
    }

    /// Adds a row's loss and puts its gradient in the logits' place. `soft`: the teacher's logits.
    fn row(&self, row: usize, logits: &mut [f32], soft: Option<&mut [f32]>, parts: &mut LossParts) {
        let (token, weight) = (self.targets.tokens[row] as usize, self.targets.weights[row]);
        let (Some(soft), Some(teacher)) = (soft, &self.targets.teacher) else {
            return row_loss(logits, token, weight, None, parts);
        };
        let mut probabilities = soft.to_vec();
        let (most, sum) = exponentials(&mut probabilities);
        scale_by(&mut probabilities, 1.0 / sum);
        let negative_entropy = inner(&probabilities, soft) - (most + sum.ln());
        let probabilities = &probabilities;
        let soft = SoftLabel { probabilities, negative_entropy, share: teacher.share };
        row_loss(logits, token, weight, Some(soft), parts);
    }
}

/// A distribution that a row is to meet.
#[derive(Clone, Copy)]
pub(super) struct SoftLabel<'a> {
    pub(super) probabilities: &'a [f32],
    /// `Σ p ln p`.
    pub(super) negative_entropy: f32,
    /// The share of the divergence in the loss.
    pub(super) share: f32,
}

/// Adds a row's loss, `share · KL + (1 − share) · NLL`, and puts its gradient in the logits' place.
pub(super) fn row_loss(
    logits: &mut [f32],
    token: usize,
    weight: f32,
    soft: Option<SoftLabel<'_>>,
    parts: &mut LossParts,
) {
    let of_token = logits[token];
    let crossed = soft.map(|soft| inner(soft.probabilities, logits));
    let (most, sum) = exponentials(logits);
    let level = most + sum.ln();
    let nll = f64::from(level - of_token);
    let mut share = 0.0;
    let mut divergence = 0.0;
    scale_by(logits, weight / sum);
    if let (Some(soft), Some(crossed)) = (soft, crossed) {
        share = soft.share;
        divergence = f64::from(soft.negative_entropy - crossed + level);
        add_scaled(logits, soft.probabilities, -weight * share);
    }
    logits[token] -= weight * (1.0 - share);
    let (weight, share) = (f64::from(weight), f64::from(share));
    parts.nll += weight * nll;
    parts.divergence += weight * divergence;
    parts.loss += weight * (share * divergence + (1.0 - share) * nll);
}

/// The gradients are computed with the loss, while there are logits.
impl Operation for HeadLoss {
    const NAME: &'static str = "head-loss";
    type Saved = [Vec<f32>; 3];

    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Self::Saved) {
        let (parts, gradients) = self.loss(inputs);
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        (vec![parts.loss as f32], gradients)
    }

    fn shape(&self, _: &Shape) -> Shape {
        Shape::from(())
    }

    fn backward(
        &self,
        saved: Self::Saved,
        _: [&[f32]; 3],
        gradient: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        of_loss(saved, self.train, gradient)
    }
}

/// The gradients that a loss's forward pass made, times the loss's own.
pub(super) fn of_loss(
    mut saved: [Vec<f32>; 3],
    train: bool,
    gradient: &[f32],
) -> Result<[Vec<f32>; 3]> {
    let ([factor], true) = (gradient, train) else {
        candle_core::bail!("a loss that was not to be trained on has no gradient")
    };
    if *factor != 1.0 {
        saved.iter_mut().for_each(|values| scale_by(values, *factor));
    }
    Ok(saved)
}
