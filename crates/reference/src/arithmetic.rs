//! The arithmetic of devices in plain loops, with the order of additions as a parameter.
//!
//! The loops are compiled for several processors ([`vectorize`]), because [`f32::mul_add`] is slow
//! without an instruction for it. Its bits are the same.

use crate::matrix::{Matrix, MatrixRow};
use forerun_formats::blocks::UnpackedBlock;
use forerun_formats::{BlockType, ModelTypes, QUANT_BLOCK as BLOCK, WeightType};
use forerun_vector::{Isa, Lanes, Vectorized, exp, vectorize};
use half::bf16;
use std::cell::OnceCell;

/// How a device adds and rounds. Each device documents its own order, and the reference repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The types of matrices, and of cached keys and values.
    pub types: ModelTypes,
    /// Whether the products of linear layers and of attention are added without being rounded
    /// first.
    pub fused: bool,
    /// How products with bf16 weights are added.
    pub bf16_products: Bf16Products,
    /// Whether products with quantised weights quantise the activations to 8 bits. Otherwise they
    /// are products with the weights that the blocks stand for.
    pub quantizes_activations: bool,
    /// Whether a part of a matrix in blocks is quantised again, which may change its weights a
    /// little. Otherwise its rows are copied.
    pub quantizes_parts_again: bool,
    /// Number of partial sums of a linear layer's products. It is a power of two; 1 adds the
    /// products in ascending order.
    pub product_lanes: usize,
    /// Number of successive products that belong to one partial sum: product `i` belongs to sum
    /// `(i / run) mod lanes`. Any number but 0 if there is one partial sum.
    pub product_run: usize,
    /// Number of partial sums in norms and softmax, a power of two. The upper half of the partial
    /// sums is added to the lower half until one is left.
    pub sum_lanes: usize,
    /// Number of positions in a split of attention: each split has its own largest score and its
    /// own sums, which are combined in ascending order. `None` for one split.
    pub attention_split: Option<usize>,
}

/// How products with bf16 weights are added. Pairs and tiles round the activations to bf16 first,
/// and subnormal numbers are zeros there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Products {
    /// As those with f32 weights.
    Widened,
    /// Two inputs at a time, the second one first (`VDPBF16PS`).
    Pairs,
    /// 32 inputs at a time: the sum of the products of even inputs, plus that of odd inputs
    /// (`TDPBF16PS`).
    Tiles,
}

impl Bf16Products {
    fn of(isa: Isa) -> Self {
        match (isa.has_matrix_unit(), isa.rounds_to_bf16()) {
            (true, _) => Self::Tiles,
            (false, true) => Self::Pairs,
            (false, false) => Self::Widened,
        }
    }
}

impl Arithmetic {
    /// Returns the arithmetic of the CPU's kernels with an instruction set.
    #[must_use]
    pub fn cpu(types: impl Into<ModelTypes>, isa: Isa) -> Self {
        Self {
            types: types.into(),
            fused: isa.is_fused(),
            bf16_products: Bf16Products::of(isa),
            quantizes_activations: true,
            quantizes_parts_again: true,
            product_lanes: 1,
            product_run: usize::MAX,
            sum_lanes: 16,
            attention_split: None,
        }
    }

    /// Returns the arithmetic of GPUs.
    #[must_use]
    pub fn gpu(types: impl Into<ModelTypes>) -> Self {
        Self {
            types: types.into(),
            fused: false,
            bf16_products: Bf16Products::Widened,
            quantizes_activations: false,
            quantizes_parts_again: false,
            product_lanes: 32,
            product_run: 8,
            sum_lanes: 256,
            attention_split: Some(256),
        }
    }

    /// Computes `sum + a · b`.
    #[must_use]
    #[inline(always)]
    pub fn add_product(&self, sum: f32, a: f32, b: f32) -> f32 {
        if self.fused { a.mul_add(b, sum) } else { sum + a * b }
    }

    /// Sums terms in partial sums.
    #[must_use]
    pub fn sum(&self, terms: impl Iterator<Item = f32>) -> f32 {
        let mut sums = vec![0.0_f32; self.sum_lanes];
        for (index, term) in terms.enumerate() {
            sums[index % self.sum_lanes] += term;
        }
        tree_sum(&mut sums)
    }

    /// Adds the products in ascending order.
    #[must_use]
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        let mut sum = 0.0;
        vectorize(Isa::best(), Dot { arithmetic: self, a, b, sum: &mut sum });
        sum
    }

    /// Returns the average of values with the softmax of scores as weights: `[value width]`. Both
    /// belong to successive positions from `first` on. `sink` is a score that takes part without a
    /// value.
    #[must_use]
    pub fn softmax_average(
        &self,
        scores: &[f32],
        values: &[&[f32]],
        (first, sink): (usize, Option<f32>),
    ) -> Vec<f32> {
        let split = self.attention_split.unwrap_or(usize::MAX);
        let mut splits = Vec::new();
        let mut start = 0;
        while start < scores.len() {
            // Splits begin at multiples of their size.
            let end = (start + split.saturating_sub((first + start) % split)).min(scores.len());
            let (scores, values) = (&scores[start..end], &values[start..end]);
            // A single split knows the sink.
            let sink = sink.filter(|_| self.attention_split.is_none());
            splits.push(self.split_sums(scores, values, (first + start, sink)));
            start = end;
        }
        let peaks = splits.iter().map(|split| split.peak).chain(sink);
        let peak = peaks.fold(f32::NEG_INFINITY, f32::max);
        let width = values.first().map_or(0, |value| value.len());
        let (mut total, mut out) = (0.0, vec![0.0; width]);
        for split in splits {
            let factor = exp(split.peak - peak);
            total += split.total * factor;
            out.iter_mut().zip(split.out).for_each(|(out, value)| *out += value * factor);
        }
        let total = sink.map_or(total, |sink| total + exp(sink - peak));
        out.into_iter().map(|value| value / total).collect()
    }

    /// Adds the weights and the weighted values of a split, which begins at position `first`.
    fn split_sums(
        &self,
        scores: &[f32],
        values: &[&[f32]],
        (first, sink): (usize, Option<f32>),
    ) -> SplitSums {
        let peak = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| exp(score - peak)).collect();
        // The partial sum of a weight depends on its absolute position.
        let padding = std::iter::repeat_n(0.0, first % self.sum_lanes);
        let total = self.sum(padding.chain(weights.iter().copied()));
        let mut out = vec![0.0; values.first().map_or(0, |value| value.len())];
        let weights = &weights;
        vectorize(Isa::best(), WeightedSum { arithmetic: self, weights, values, out: &mut out });
        SplitSums { peak, total, out }
    }

    /// Computes `weights · x` for every row of `x`: `[rows, inputs]`.
    #[must_use]
    pub fn linear(&self, weights: &Matrix, x: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(x.len() / weights.inputs() * weights.outputs());
        vectorize(Isa::best(), Linear { arithmetic: self, weights, x, out: &mut out });
        out
    }

    /// Adds the products in the given partial sums. A single one adds a product of zeros if their
    /// number is odd.
    #[inline(always)]
    fn float_dot(&self, weights: &[f32], x: &[f32], sums: &mut [f32]) -> f32 {
        let (lanes, run) = (self.product_lanes, self.product_run);
        sums.fill(0.0);
        for (number, (weights, x)) in weights.chunks(run).zip(x.chunks(run)).enumerate() {
            let sum = &mut sums[number % lanes];
            for (&weight, &x) in weights.iter().zip(x) {
                *sum = self.add_product(*sum, x, weight);
            }
        }
        if lanes == 1 && x.len() % 2 == 1 {
            sums[0] = self.add_product(sums[0], 0.0, 0.0);
        }
        tree_sum(sums)
    }

    /// Adds the groups of weights that share a scale in ascending order: each is the integer sum of
    /// its products, times the product of both scales; then, minus its minimum times the sum of the
    /// activations.
    #[inline(always)]
    fn block_dot(&self, block_type: BlockType, bytes: &[u8], x: &[(Vec<i32>, f32)]) -> f32 {
        let group = block_type.group();
        let levels = block_type.levels();
        let mut block = UnpackedBlock::new(block_type);
        let mut sum = 0.0;
        for (index, bytes) in bytes.chunks(block_type.bytes()).enumerate() {
            block.read(bytes);
            let factors = block.scales().iter().zip(block.minima());
            let groups = block.quants().chunks(group).zip(factors).enumerate();
            for (part, (quants, (&scale, &minimum))) in groups {
                let input = index * block_type.weights() + part * group;
                // A row's last block may be padded.
                let Some((x, x_scale)) = x.get(input / BLOCK) else { break };
                let x = &x[input % BLOCK..][..group];
                let products = quants.iter().zip(x).map(|(q, x)| i32::from(levels.level(*q)) * x);
                let dot = products.sum::<i32>() as f32;
                sum = self.add_product(sum, dot, block.scale() * f32::from(scale) * x_scale);
                let x_sum = x.iter().sum::<i32>() as f32 * x_scale;
                sum = self.add_product(sum, -(block.minimum() * f32::from(minimum)), x_sum);
            }
        }
        sum
    }
}

/// The loops of [`Arithmetic::dot`].
struct Dot<'a> {
    arithmetic: &'a Arithmetic,
    a: &'a [f32],
    b: &'a [f32],
    sum: &'a mut f32,
}

impl Vectorized for Dot<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (a, b) in self.a.iter().zip(self.b) {
            *self.sum = self.arithmetic.add_product(*self.sum, *a, *b);
        }
    }
}

/// Adds weighted values in ascending order.
struct WeightedSum<'a> {
    arithmetic: &'a Arithmetic,
    weights: &'a [f32],
    values: &'a [&'a [f32]],
    out: &'a mut [f32],
}

impl Vectorized for WeightedSum<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (weight, value) in self.weights.iter().zip(self.values) {
            for (out, value) in self.out.iter_mut().zip(*value) {
                *out = self.arithmetic.add_product(*out, *weight, *value);
            }
        }
    }
}

/// The loops of [`Arithmetic::linear`].
struct Linear<'a> {
    arithmetic: &'a Arithmetic,
    weights: &'a Matrix,
    x: &'a [f32],
    out: &'a mut Vec<f32>,
}

impl Vectorized for Linear<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { arithmetic, weights, x, out } = self;
        let mut sums = vec![0.0; arithmetic.product_lanes];
        for x in x.chunks(weights.inputs()) {
            let quantized = OnceCell::new();
            for output in 0..weights.outputs() {
                out.push(match weights.row(output) {
                    MatrixRow::Floats(row) => {
                        match (weights.weight_type(), arithmetic.bf16_products) {
                            (WeightType::Bf16, Bf16Products::Pairs) => bf16_pairs_dot(row, x),
                            (WeightType::Bf16, Bf16Products::Tiles) => bf16_tiles_dot(row, x),
                            _ => arithmetic.float_dot(row, x, &mut sums),
                        }
                    }
                    MatrixRow::Blocks(block_type, bytes) if arithmetic.quantizes_activations => {
                        let x = quantized.get_or_init(|| quantized_blocks(x));
                        arithmetic.block_dot(block_type, bytes, x)
                    }
                    MatrixRow::Blocks(..) => {
                        arithmetic.float_dot(&weights.weights(output), x, &mut sums)
                    }
                });
            }
        }
    }
}

/// What a split of attention adds.
struct SplitSums {
    /// The largest score.
    peak: f32,
    /// The sum of the weights.
    total: f32,
    /// The weighted values.
    out: Vec<f32>,
}

/// Adds the products of bf16 numbers, two inputs at a time.
#[inline(always)]
fn bf16_pairs_dot(weights: &[f32], x: &[f32]) -> f32 {
    weights.chunks(2).zip(x.chunks(2)).fold(0.0, |sum, (weights, x)| {
        let sum = add_bf16_product(sum, weights.get(1), x.get(1));
        add_bf16_product(sum, weights.first(), x.first())
    })
}

/// Adds the products of bf16 numbers, 32 inputs at a time. Missing inputs are zeros.
#[inline(always)]
fn bf16_tiles_dot(weights: &[f32], x: &[f32]) -> f32 {
    weights.chunks(32).zip(x.chunks(32)).fold(0.0, |sum, (weights, x)| {
        let every_second = |first: usize| {
            (first..32)
                .step_by(2)
                .fold(0.0, |sum, input| add_bf16_product(sum, weights.get(input), x.get(input)))
        };
        let products = without_subnormals(every_second(0) + every_second(1));
        without_subnormals(sum + products)
    })
}

/// Adds the product of a bf16 weight and an activation that is rounded to bf16. A missing one is
/// zero.
#[inline(always)]
fn add_bf16_product(sum: f32, weight: Option<&f32>, x: Option<&f32>) -> f32 {
    let x = bf16::from_f32(*x.unwrap_or(&0.0)).to_f32();
    let weight = *weight.unwrap_or(&0.0);
    without_subnormals(without_subnormals(x).mul_add(without_subnormals(weight), sum))
}

#[inline(always)]
fn without_subnormals(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

/// Adds the upper half of partial sums to the lower half until one is left.
fn tree_sum(mut sums: &mut [f32]) -> f32 {
    while sums.len() > 1 {
        let (lower, upper) = sums.split_at_mut(sums.len() / 2);
        lower.iter_mut().zip(upper).for_each(|(sum, upper)| *sum += *upper);
        sums = lower;
    }
    sums[0]
}

/// Quantises activations in blocks, and fills the last block up with zeros.
fn quantized_blocks(x: &[f32]) -> Vec<(Vec<i32>, f32)> {
    let filled = |(mut quants, scale): (Vec<i32>, f32)| {
        quants.resize(BLOCK, 0);
        (quants, scale)
    };
    x.chunks(BLOCK).map(quantized).map(filled).collect()
}

/// Quantises a block of activations to −127…127. Returns them with the scale that restores them.
fn quantized(x: &[f32]) -> (Vec<i32>, f32) {
    let peak = x.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    if x.iter().any(|x| !x.is_finite()) {
        return (vec![0; x.len()], f32::NAN);
    }
    if peak == 0.0 {
        return (vec![0; x.len()], 0.0);
    }
    let inverse = 127.0 / peak;
    (x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect(), peak / 127.0)
}
