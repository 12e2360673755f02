//! The loss of a block's rows after the heads of DSpark (arXiv 2607.05147, §3): a Markov head,
//! which adds a bias to the logits of the target's frozen head, and a confidence head.
//!
//! With `n` the row after the final norm, `e` the Markov head's embedding of the token before the
//! row's position, `p` the target's distribution and `q = softmax(head n + W e)` the drafter's, the
//! loss of a row is
//!
//! `(1 − share) · −ln q(token) + share · Σ |p − q| + weight · BCE(confidence, Σ min(p, q))`.
//!
//! The confidence is `sigmoid(c (n, e) + b)`. Its label is the probability that the target accepts
//! a token that is drawn from `q`. The label is a constant: the drafter does not learn to be
//! predictable.

use super::attention_block::row_slice;
use super::draft_head::{Distributions, FrozenHead, LOGIT_ROWS};
use super::elementwise::{
    add, add_scaled, exponentials, inner_product, rms_norm, rms_norm_backward, scale_by,
};
use super::matrix::{Matrix, MatrixMut, Write, add_product, multiply, transpose};
use super::{Loss, split};
use std::ops::Range;
use std::sync::Arc;

/// The bias that a Markov head adds to logits. It depends on the token before a position.
pub(crate) struct MarkovBias<'a> {
    /// `[vocabulary, rank]`.
    embeddings: &'a [f32],
    /// `[rank, outputs]`.
    transposed: Vec<f32>,
    rank: usize,
}

impl<'a> MarkovBias<'a> {
    /// Creates the bias of embeddings `[vocabulary, rank]` and weights `[outputs, rank]`.
    pub(crate) fn new(embeddings: &'a [f32], weights: &[f32], rank: usize) -> Self {
        Self { embeddings, transposed: transpose(weights, rank), rank }
    }

    /// Returns the embeddings of tokens: `[tokens, rank]`.
    fn embeddings_of(&self, tokens: &[u32]) -> Vec<f32> {
        let of_token = |&token: &u32| row_slice(self.embeddings, token as usize, 1, self.rank);
        tokens.iter().flat_map(of_token).copied().collect()
    }

    /// Adds the bias after the given tokens to logits, `[tokens, outputs]`.
    pub(crate) fn add(&self, tokens: &[u32], logits: &mut [f32]) {
        self.add_for(&self.embeddings_of(tokens), logits);
    }

    fn add_for(&self, embeddings: &[f32], logits: &mut [f32]) {
        let outputs = self.transposed.len() / self.rank;
        let (embeddings, weights) =
            (Matrix::new(embeddings, self.rank), Matrix::new(&self.transposed, outputs));
        add_product(logits, embeddings, weights);
    }
}

/// The labels of a block's rows.
#[derive(Clone)]
pub(crate) struct BlockLabels {
    /// The token before each row's position.
    pub(crate) previous: Arc<[u32]>,
    /// The output of the head for the token that each row predicts; `None` if the drafter cannot
    /// draft it.
    pub(crate) tokens: Arc<[Option<u32>]>,
    /// For each row, the target row with the distribution of that token.
    pub(crate) target_rows: Arc<[u32]>,
    /// The weight of each row's loss. A row of weight 0 has no label: its other entries are
    /// ignored.
    pub(crate) weights: Arc<[f32]>,
    /// The target's distributions over all its tokens.
    pub(crate) distributions: Arc<Distributions>,
    /// The target's tokens in the order of the head's outputs; `None` if they are all tokens.
    pub(crate) outputs: Option<Arc<[u32]>>,
}

impl BlockLabels {
    /// Returns the target's probability of one of the head's outputs, from its distribution of all
    /// tokens.
    fn probability(&self, target: &[f32], output: usize) -> f32 {
        target[self.outputs.as_ref().map_or(output, |tokens| tokens[output] as usize)]
    }
}

/// The loss of a block's rows as an operation. The result is a scalar.
///
/// Inputs: `x`, `[rows, hidden]`; `norm`, `[hidden]`; the weights of the heads, one after another:
/// the Markov head's embeddings, `[vocabulary, rank]`, and its bias, `[outputs, rank]`; the
/// confidence head's weights, `[hidden + rank]`, and its bias, `[1]`.
pub(crate) struct BlockHeadLoss {
    pub(crate) epsilon: f32,
    pub(crate) head: Arc<FrozenHead>,
    /// Width of the Markov head's embeddings.
    pub(crate) rank: usize,
    pub(crate) labels: BlockLabels,
    /// The share of the distance between the distributions in the token loss.
    pub(crate) distance_share: f32,
    /// The weight of the confidence's loss.
    pub(crate) confidence_weight: f32,
    /// Whether there will be a backward pass.
    pub(crate) train: bool,
}

/// The weights of the heads, or their gradients.
struct HeadWeights<T> {
    embeddings: T,
    logit_bias: T,
    confidence: T,
    confidence_bias: T,
}

/// What all rows read.
struct Inputs<'a> {
    x: &'a [f32],
    norm: &'a [f32],
    heads: HeadWeights<&'a [f32]>,
    bias: MarkovBias<'a>,
}

/// The loss of a range of rows, and the gradients of the norm and of the heads' weights.
struct RangeResult {
    loss: f64,
    dnorm: Vec<f32>,
    dweights: Vec<f32>,
}

/// What the heads compute for some rows, and then gradients.
struct Rows<'a> {
    range: Range<usize>,
    x: &'a [f32],
    normed: Vec<f32>,
    r: Vec<f32>,
    embeddings: Vec<f32>,
    /// Gradients of the logits.
    dlogits: Vec<f32>,
    /// Gradients of the logits of confidences.
    dconfidences: Vec<f32>,
}

impl BlockHeadLoss {
    /// Returns the sizes of the heads' weights, given that of all.
    fn sizes(&self, count: usize) -> [usize; 3] {
        let confidence = self.head.hidden + self.rank;
        let logit_bias = self.head.vocab_size() * self.rank;
        [count - logit_bias - confidence - 1, logit_bias, confidence]
    }

    fn split<'a>(&self, weights: &'a [f32]) -> HeadWeights<&'a [f32]> {
        let sizes = self.sizes(weights.len());
        let (embeddings, rest) = weights.split_at(sizes[0]);
        let (logit_bias, rest) = rest.split_at(sizes[1]);
        let (confidence, confidence_bias) = rest.split_at(sizes[2]);
        HeadWeights { embeddings, logit_bias, confidence, confidence_bias }
    }

    fn split_mut<'a>(&self, weights: &'a mut [f32]) -> HeadWeights<&'a mut [f32]> {
        let sizes = self.sizes(weights.len());
        let (embeddings, rest) = weights.split_at_mut(sizes[0]);
        let (logit_bias, rest) = rest.split_at_mut(sizes[1]);
        let (confidence, confidence_bias) = rest.split_at_mut(sizes[2]);
        HeadWeights { embeddings, logit_bias, confidence, confidence_bias }
    }

    /// Computes the loss of a range of rows and the gradients of the weights, and writes the
    /// gradient of the rows to `dx`.
    fn range(
        &self,
        range: &Range<usize>,
        inputs: &Inputs<'_>,
        count: usize,
        dx: &mut [f32],
    ) -> RangeResult {
        let hidden = self.head.hidden;
        let gradients = |size: usize| vec![0.0; if self.train { size } else { 0 }];
        let mut result = RangeResult {
            loss: 0.0,
            dnorm: gradients(inputs.norm.len()),
            dweights: gradients(count),
        };
        for first in range.clone().step_by(LOGIT_ROWS) {
            let rows = first..range.end.min(first + LOGIT_ROWS);
            let values = (rows.start - range.start) * hidden..(rows.end - range.start) * hidden;
            let rows = self.rows(rows, inputs, &mut result.loss);
            if self.train {
                self.backward_rows(rows, inputs, &mut dx[values], &mut result);
            }
        }
        result
    }

    /// Computes a few rows, adds their loss, and returns the gradients of the logits.
    fn rows<'a>(&self, range: Range<usize>, inputs: &Inputs<'a>, loss: &mut f64) -> Rows<'a> {
        let (hidden, outputs) = (self.head.hidden, self.head.vocab_size());
        let x = row_slice(inputs.x, range.start, range.len(), hidden);
        let (mut normed, mut r) = (vec![0.0; x.len()], vec![0.0; range.len()]);
        rms_norm(x, inputs.norm, self.epsilon, &mut normed, &mut r);
        let embeddings = inputs.bias.embeddings_of(&self.labels.previous[range.clone()]);
        let mut logits = vec![0.0; range.len() * outputs];
        self.head.logits(&normed, &mut logits);
        inputs.bias.add_for(&embeddings, &mut logits);
        let (of_row, of_token) = inputs.heads.confidence.split_at(hidden);
        let gradient = |(at, row)| {
            let confidence = inner_product(of_row, row_slice(&normed, at, 1, hidden))
                + inner_product(of_token, row_slice(&embeddings, at, 1, self.rank))
                + inputs.heads.confidence_bias[0];
            self.row(row, &mut logits[at * outputs..][..outputs], confidence, loss)
        };
        let dconfidences = range.clone().enumerate().map(gradient).collect();
        Rows { range, x, normed, r, embeddings, dlogits: logits, dconfidences }
    }

    /// Adds a row's loss, replaces its logits with their gradients, and returns the gradient of the
    /// logit of its confidence.
    fn row(&self, row: usize, logits: &mut [f32], confidence: f32, loss: &mut f64) -> f32 {
        let labels = &self.labels;
        let weight = labels.weights[row];
        if weight == 0.0 {
            logits.fill(0.0);
            return 0.0;
        }
        let target = labels.distributions.of(labels.target_rows[row] as usize);
        let token = labels.tokens[row].map(|token| token as usize);
        let token_logit = token.map(|token| logits[token]);
        let (largest, sum) = exponentials(logits);
        let nll = token_logit.map_or(0.0, |logit| largest + sum.ln() - logit);
        // From here on, `logits` holds the drafter's probabilities.
        scale_by(logits, 1.0 / sum);
        // `below` is the drafter's probability of all tokens that the target prefers more.
        let (mut acceptance, mut below) = (0.0_f32, 0.0_f32);
        for (output, &q) in logits.iter().enumerate() {
            let p = labels.probability(target, output);
            acceptance += q.min(p);
            below += if q < p { q } else { 0.0 };
        }
        let acceptance = acceptance.min(1.0);
        let hard = if token.is_some() { weight * (1.0 - self.distance_share) } else { 0.0 };
        let soft = 2.0 * weight * self.distance_share;
        // Σ |p − q| is 2 − 2 · acceptance.
        for (output, q) in logits.iter_mut().enumerate() {
            let is_below = if *q < labels.probability(target, output) { 1.0 } else { 0.0 };
            *q *= hard - soft * (is_below - below);
        }
        if let Some(token) = token {
            logits[token] -= hard;
        }
        let softplus = confidence.max(0.0) + (-confidence.abs()).exp().ln_1p();
        let entropy = softplus - acceptance * confidence;
        let of_confidence = weight * self.confidence_weight;
        *loss += f64::from(hard * nll)
            + f64::from(soft * (1.0 - acceptance))
            + f64::from(of_confidence * entropy);
        of_confidence * (1.0 / (1.0 + (-confidence).exp()) - acceptance)
    }

    /// Adds the gradients of a few rows.
    fn backward_rows(
        &self,
        rows: Rows<'_>,
        inputs: &Inputs<'_>,
        dx: &mut [f32],
        result: &mut RangeResult,
    ) {
        let (hidden, rank) = (self.head.hidden, self.rank);
        let Rows { range, x, normed, r, embeddings, dlogits, dconfidences } = rows;
        let dlogits = Matrix::new(&dlogits, self.head.vocab_size());
        let (mut dnormed, mut dembeddings) = (vec![0.0; x.len()], vec![0.0; embeddings.len()]);
        let products = [
            (&mut dnormed, &self.head.weights[..], hidden),
            (&mut dembeddings, inputs.heads.logit_bias, rank),
        ];
        for (out, weights, columns) in products {
            let mut out = MatrixMut::new(out, columns);
            multiply(&mut out, dlogits, Matrix::new(weights, columns), 1.0, Write::Replace);
        }
        let gradients = self.split_mut(&mut result.dweights);
        let mut dbias = MatrixMut::new(gradients.logit_bias, rank);
        let read = Matrix::new(&embeddings, rank);
        multiply(&mut dbias, dlogits.transposed(), read, 1.0, Write::Add);
        let (of_row, of_token) = inputs.heads.confidence.split_at(hidden);
        let (d_of_row, d_of_token) = gradients.confidence.split_at_mut(hidden);
        for (row, &gradient) in dconfidences.iter().enumerate() {
            let (values, latent) = (row * hidden..(row + 1) * hidden, row * rank..(row + 1) * rank);
            add_scaled(&mut dnormed[values.clone()], of_row, gradient);
            add_scaled(&mut dembeddings[latent.clone()], of_token, gradient);
            add_scaled(d_of_row, &normed[values], gradient);
            add_scaled(d_of_token, &embeddings[latent.clone()], gradient);
            gradients.confidence_bias[0] += gradient;
            let previous = self.labels.previous[range.start + row] as usize;
            add(&mut gradients.embeddings[previous * rank..][..rank], &dembeddings[latent]);
        }
        rms_norm_backward(&dnormed, x, inputs.norm, &r, dx, &mut result.dnorm);
    }
}

impl Loss for BlockHeadLoss {
    const NAME: &'static str = "block-head-loss";

    fn compute(&self, [x, norm, weights]: [&[f32]; 3]) -> (f32, [Vec<f32>; 3]) {
        let heads = self.split(weights);
        let bias = MarkovBias::new(heads.embeddings, heads.logit_bias, self.rank);
        let inputs = Inputs { x, norm, heads, bias };
        let ranges = split::ranges(x.len() / self.head.hidden);
        let (size, per_row) = if self.train { (x.len(), self.head.hidden) } else { (0, 0) };
        let mut dx = vec![0.0; size];
        let tasks: Vec<_> = ranges.iter().zip(split::parts(&mut dx, &ranges, per_row)).collect();
        let results =
            split::map(tasks, |(range, dx)| self.range(range, &inputs, weights.len(), dx));
        let loss: f64 = results.iter().map(|result| result.loss).sum();
        let gradients = results.into_iter().map(|result| (result.dnorm, result.dweights));
        let (dnorm, dweights) = gradients.unzip();
        (loss as f32, [dx, split::sum(dnorm), split::sum(dweights)])
    }

    fn has_gradients(&self) -> bool {
        self.train
    }
}
