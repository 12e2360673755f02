//! The loss of a drafter's rows under its target's frozen head: cross-entropy, optionally mixed
//! with the divergence from the target's distributions.
//!
//! Medusa (arXiv 2401.10774), EAGLE (arXiv 2401.15077) and ParallelSpec (arXiv 2410.05589,
//! equations 2 to 4) train with it. The head is frozen, so it has no gradient. The target's
//! distribution at a position is computed once for all rows that predict it.

use super::attention_block::row_slice;
use super::elementwise::{exponentials, inner_product, rms_norm_backward, scale_by};
use super::head::{SoftLabel, row_loss};
use super::matrix::{Matrix, MatrixMut, Write, multiply, set_product, transpose};
use super::projection::norm_rows;
use super::{Loss, LossParts, split};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of rows whose logits exist at once.
pub(crate) const LOGIT_ROWS: usize = 256;

/// The target's head, which its drafters share and do not train.
pub(crate) struct FrozenHead {
    /// `[vocabulary, hidden]`.
    pub(super) weights: Vec<f32>,
    /// `[hidden, vocabulary]`.
    transposed: Vec<f32>,
    pub(super) hidden: usize,
}

impl FrozenHead {
    /// Creates a head of weights `[vocabulary, hidden]`.
    pub(crate) fn new(weights: Vec<f32>, hidden: usize) -> Self {
        let transposed = transpose(&weights, hidden);
        Self { weights, transposed, hidden }
    }

    /// Returns the head of some tokens, in the given order.
    pub(crate) fn select(&self, tokens: &[u32]) -> Self {
        let row = |&token: &u32| row_slice(&self.weights, token as usize, 1, self.hidden).to_vec();
        Self::new(tokens.iter().flat_map(row).collect(), self.hidden)
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.weights.len() / self.hidden
    }

    /// Writes the logits, `[rows, vocabulary]`, of rows `[rows, hidden]` that are already
    /// normalised.
    pub(crate) fn logits(&self, rows: &[f32], logits: &mut [f32]) {
        let vocab_size = self.vocab_size();
        let mut out = MatrixMut::new(logits, vocab_size);
        let (rows, head) =
            (Matrix::new(rows, self.hidden), Matrix::new(&self.transposed, vocab_size));
        multiply(&mut out, rows, head, 1.0, Write::Replace);
    }

    /// Computes the distributions of the target's rows, `[target rows, hidden]`.
    pub(crate) fn distributions(&self, rows: &[f32]) -> Distributions {
        let (hidden, vocab_size) = (self.hidden, self.vocab_size());
        let target_rows = rows.len() / hidden;
        let mut probabilities = vec![0.0; target_rows * vocab_size];
        let mut negative_entropies = vec![0.0; target_rows];
        let ranges = split::ranges(target_rows);
        let tasks: Vec<_> = ranges
            .iter()
            .zip(split::parts(&mut probabilities, &ranges, vocab_size))
            .zip(split::parts(&mut negative_entropies, &ranges, 1))
            .collect();
        split::map(tasks, |((range, probabilities), negative_entropies)| {
            self.logits(row_slice(rows, range.start, range.len(), hidden), probabilities);
            let mut logits = vec![0.0; vocab_size];
            let each = probabilities.chunks_exact_mut(vocab_size).zip(negative_entropies);
            for (probabilities, negative_entropy) in each {
                logits.copy_from_slice(probabilities);
                let (largest, sum) = exponentials(probabilities);
                scale_by(probabilities, 1.0 / sum);
                *negative_entropy = inner_product(probabilities, &logits) - (largest + sum.ln());
            }
        });
        Distributions { probabilities, negative_entropies, vocab_size }
    }
}

/// The target's distributions of the next token, for each of its rows.
pub(crate) struct Distributions {
    /// `[target rows, vocabulary]`.
    probabilities: Vec<f32>,
    /// `Σ p ln p` of each distribution.
    negative_entropies: Vec<f32>,
    vocab_size: usize,
}

impl Distributions {
    /// Returns the probabilities of the token after a target row: `[vocabulary]`.
    pub(crate) fn of(&self, target_row: usize) -> &[f32] {
        row_slice(&self.probabilities, target_row, 1, self.vocab_size)
    }
}

/// The labels of a drafter's rows.
#[derive(Clone)]
pub(crate) struct DraftLabels {
    /// The token that each row predicts.
    pub(crate) tokens: Arc<[u32]>,
    /// For each row, the target row with the distribution of that token.
    pub(crate) target_rows: Arc<[u32]>,
    /// The weight of each row's loss. A row of weight 0 has no label: its other entries are
    /// ignored.
    pub(crate) weights: Arc<[f32]>,
    /// The target's distributions, and the share of the divergence from them in the loss; `None`
    /// for cross-entropy alone.
    pub(crate) soft: Option<(Arc<Distributions>, f32)>,
}

/// The loss of a drafter's rows as an operation. The result is a scalar.
///
/// Inputs: `x`, `[rows, hidden]`; `norm`, `[hidden]` or none.
pub(crate) struct DraftHeadLoss {
    pub(crate) epsilon: f32,
    pub(crate) head: Arc<FrozenHead>,
    pub(crate) labels: DraftLabels,
    /// Whether there will be a backward pass.
    pub(crate) train: bool,
    /// Receives the parts of the loss.
    pub(crate) parts: Arc<Mutex<LossParts>>,
}

impl DraftHeadLoss {
    /// Computes the loss of a range of rows and the gradient of the norm's weights, and writes the
    /// gradient of the rows to `dx`.
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
            let x = row_slice(x, first, rows, hidden);
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
            // From here on, `logits` holds the gradients of the logits.
            let dlogits = Matrix::new(logits, vocab_size);
            let head = Matrix::new(&self.head.weights, hidden);
            let values = (first - range.start) * hidden..(first - range.start + rows) * hidden;
            let dx = &mut dx[values];
            if norm.is_empty() {
                set_product(dx, dlogits, head);
                continue;
            }
            let dnormed = &mut dnormed[..rows * hidden];
            set_product(dnormed, dlogits, head);
            rms_norm_backward(dnormed, x, norm, r, dx, &mut dnorm);
        }
        (parts, dnorm)
    }

    /// Adds a row's loss to `parts` and replaces its logits with their gradients.
    fn row(&self, row: usize, logits: &mut [f32], parts: &mut LossParts) {
        let weight = self.labels.weights[row];
        if weight == 0.0 {
            return logits.fill(0.0);
        }
        let target_row = self.labels.target_rows[row] as usize;
        let soft = self.labels.soft.as_ref().map(|(distributions, share)| SoftLabel {
            probabilities: distributions.of(target_row),
            negative_entropy: distributions.negative_entropies[target_row],
            share: *share,
        });
        row_loss(logits, self.labels.tokens[row] as usize, weight, soft, parts);
    }
}

impl Loss for DraftHeadLoss {
    const NAME: &'static str = "draft-head-loss";

    fn compute(&self, [x, norm, _]: [&[f32]; 3]) -> (f32, [Vec<f32>; 3]) {
        let ranges = split::ranges(x.len() / self.head.hidden);
        let (size, per_row) = if self.train { (x.len(), self.head.hidden) } else { (0, 0) };
        let mut dx = vec![0.0; size];
        let tasks: Vec<_> = ranges.iter().zip(split::parts(&mut dx, &ranges, per_row)).collect();
        let results = split::map(tasks, |(range, dx)| self.rows(range, (x, norm), dx));
        let (parts, dnorm): (Vec<LossParts>, _) = results.into_iter().unzip();
        let parts: LossParts = parts.into_iter().sum();
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        (parts.loss as f32, [dx, split::sum(dnorm), Vec::new()])
    }

    fn has_gradients(&self) -> bool {
        self.train
    }
}
