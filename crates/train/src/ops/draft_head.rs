//! The target's head over a drafter's rows, and their loss: the head is not trained, so it has no
//! gradient, and the target's distribution of a token is computed once for all rows that predict it.

use super::attention_block::part;
use super::elementwise::{exponentials, inner, rms_norm_backward, scale_by};
use super::head::{SoftLabel, of_loss, row_loss};
use super::matrix::{Matrix, MatrixMut, Write, multiply, transpose};
use super::projection::norm_rows;
use super::{LossParts, Operation, split};
use candle_core::{Result, Shape};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows whose logits exist at once.
pub(crate) const LOGIT_ROWS: usize = 256;

/// The target's head, which its drafters share.
pub(crate) struct FrozenHead {
    /// `[vocabulary, hidden]`.
    weights: Vec<f32>,
    /// `[hidden, vocabulary]`.
    turned: Vec<f32>,
    hidden: usize,
}

impl FrozenHead {
    /// `weights`: `[vocabulary, hidden]`.
    pub(crate) fn new(weights: Vec<f32>, hidden: usize) -> Self {
        let turned = transpose(&weights, hidden);
        Self { weights, turned, hidden }
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.weights.len() / self.hidden
    }

    /// `[rows, vocabulary]` of `[rows, hidden]`, normed where the target norms.
    pub(crate) fn logits(&self, rows: &[f32], logits: &mut [f32]) {
        let vocab_size = self.vocab_size();
        let mut out = MatrixMut::new(logits, vocab_size);
        let (rows, head) = (Matrix::new(rows, self.hidden), Matrix::new(&self.turned, vocab_size));
        multiply(&mut out, rows, head, 1.0, Write::Replace);
    }

    /// The distributions of the target's rows, `[places, hidden]`.
    pub(crate) fn distributions(&self, rows: &[f32]) -> Distributions {
        let (hidden, vocab_size) = (self.hidden, self.vocab_size());
        let places = rows.len() / hidden;
        let mut probabilities = vec![0.0; places * vocab_size];
        let mut negative_entropies = vec![0.0; places];
        let ranges = split::ranges(places);
        let tasks: Vec<_> = ranges
            .iter()
            .zip(split::parts(&mut probabilities, &ranges, vocab_size))
            .zip(split::parts(&mut negative_entropies, &ranges, 1))
            .collect();
        split::all(tasks, |((range, probabilities), negative_entropies)| {
            self.logits(part(rows, range.start, range.len(), hidden), probabilities);
            let mut logits = vec![0.0; vocab_size];
            let each = probabilities.chunks_exact_mut(vocab_size).zip(negative_entropies);
            for (probabilities, negative_entropy) in each {
                logits.copy_from_slice(probabilities);
                let (most, sum) = exponentials(probabilities);
                scale_by(probabilities, 1.0 / sum);
                *negative_entropy = inner(probabilities, &logits) - (most + sum.ln());
            }
        });
        Distributions { probabilities, negative_entropies, vocab_size }
    }
}

/// The target's distributions of the tokens behind a text's places.
pub(crate) struct Distributions {
    /// `[places, vocabulary]`.
    probabilities: Vec<f32>,
    /// `Σ p ln p` of each.
    negative_entropies: Vec<f32>,
    vocab_size: usize,
}

impl Distributions {
    /// The probabilities of the token behind a place: `[vocabulary]`.
    pub(crate) fn of(&self, place: usize) -> &[f32] {
        part(&self.probabilities, place, 1, self.vocab_size)
    }
}

/// What a drafter's rows are to predict.
#[derive(Clone)]
pub(crate) struct DraftLabels {
    /// The token that came, for each row.
    pub(crate) tokens: Arc<[u32]>,
    /// The place of the text whose distribution it was of, for each row.
    pub(crate) places: Arc<[u32]>,
    /// What each row's loss counts; of rows that count nothing, the rest means nothing.
    pub(crate) weights: Arc<[f32]>,
    /// The target's distributions, and the share of the divergence from them in the loss.
    pub(crate) soft: Option<(Arc<Distributions>, f32)>,
}

/// `x`: `[rows, hidden]`, `norm`: `[hidden]`, or none; the result is the loss.
pub(crate) struct DraftHeadLoss {
    pub(crate) epsilon: f32,
    pub(crate) head: Arc<FrozenHead>,
    pub(crate) labels: DraftLabels,
    /// Whether there will be a backward pass.
    pub(crate) train: bool,
    /// Where the parts of the loss go.
    pub(crate) parts: Arc<Mutex<LossParts>>,
}

impl DraftHeadLoss {
    /// The loss of rows, and the gradient of the norm's weights; that of `x` goes into `dx`.
    fn rows(
        &self,
        range: &Range<usize>,
        (x, norm): (&[f32], &[f32]),
        dx: &mut [f32],
    ) -> (LossParts, Vec<f32>) {
        let (hidden, vocab_size) = (self.head.hidden, self.head.vocab_size());
        let mut dnorm = vec![0.0; norm.len()];
        let mut normed = vec![0.0; LOGIT_ROWS * hidden];
        let mut dnormed = normed.clone();
        let mut r = vec![0.0; LOGIT_ROWS];
        let mut logits = vec![0.0; LOGIT_ROWS * vocab_size];
        let mut parts = LossParts::default();
        for first in range.clone().step_by(LOGIT_ROWS) {
            let rows = LOGIT_ROWS.min(range.end - first);
            let x = part(x, first, rows, hidden);
            let (normed, r) = (&mut normed[..rows * hidden], &mut r[..rows]);
            norm_rows(x, norm, self.epsilon, normed, r);
            let logits = &mut logits[..rows * vocab_size];
            self.head.logits(normed, logits);
            for (row, logits) in (first..).zip(logits.chunks_exact_mut(vocab_size)) {
                self.row(row, logits, &mut parts);
            }
            if !self.train {
                continue;
            }
            // Gradients stand where the logits stood.
            let dlogits = Matrix::new(logits, vocab_size);
            let head = Matrix::new(&self.head.weights, hidden);
            let own = (first - range.start) * hidden..(first - range.start + rows) * hidden;
            let dx = &mut dx[own];
            if norm.is_empty() {
                multiply(&mut MatrixMut::new(dx, hidden), dlogits, head, 1.0, Write::Replace);
                continue;
            }
            let dnormed = &mut dnormed[..rows * hidden];
            multiply(&mut MatrixMut::new(dnormed, hidden), dlogits, head, 1.0, Write::Replace);
            rms_norm_backward(dnormed, x, norm, r, dx, &mut dnorm);
        }
        (parts, dnorm)
    }

    /// Adds a row's loss and puts its gradient in the logits' place.
    fn row(&self, row: usize, logits: &mut [f32], parts: &mut LossParts) {
        let weight = self.labels.weights[row];
        if weight == 0.0 {
            return logits.fill(0.0);
        }
        let place = self.labels.places[row] as usize;
        let soft = self.labels.soft.as_ref().map(|(distributions, share)| SoftLabel {
            probabilities: distributions.of(place),
            negative_entropy: distributions.negative_entropies[place],
            share: *share,
        });
        row_loss(logits, self.labels.tokens[row] as usize, weight, soft, parts);
    }
}

/// The gradients are computed with the loss, while there are logits.
impl Operation for DraftHeadLoss {
    const NAME: &'static str = "draft-head-loss";
    type Saved = [Vec<f32>; 3];

    fn forward(&self, [x, norm, _]: [&[f32]; 3]) -> (Vec<f32>, Self::Saved) {
        let ranges = split::ranges(x.len() / self.head.hidden);
        let (size, per_row) = if self.train { (x.len(), self.head.hidden) } else { (0, 0) };
        let mut dx = vec![0.0; size];
        let tasks: Vec<_> = ranges.iter().zip(split::parts(&mut dx, &ranges, per_row)).collect();
        let done = split::all(tasks, |(range, dx)| self.rows(range, (x, norm), dx));
        let (parts, dnorm): (Vec<LossParts>, _) = done.into_iter().unzip();
        let parts: LossParts = parts.into_iter().sum();
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        (vec![parts.loss as f32], [dx, split::total(dnorm), Vec::new()])
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
