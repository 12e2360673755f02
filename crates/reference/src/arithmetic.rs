//! The arithmetic of devices in plain loops, with the order of additions as a parameter.

use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType, quantize_weights};
use forerun_vector::Isa;
use half::{bf16, f16};

/// How a device adds and rounds. Each device documents its own order, and the reference repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The type of weights. Keys and values are rounded to f16, unless it is f32.
    pub weight_type: WeightType,
    /// Whether the products of linear layers and of attention are added without being rounded first.
    pub fused: bool,
    /// Number of partial sums of a linear layer's products: product `i` belongs to sum `i mod n`. It is a
    /// power of two; 1 adds the products in ascending order.
    pub product_lanes: usize,
    /// Number of partial sums in norms and softmax, a power of two. The upper half of the partial sums is
    /// added to the lower half until one is left.
    pub sum_lanes: usize,
}

impl Arithmetic {
    /// Returns the arithmetic of the CPU's kernels with an instruction set.
    #[must_use]
    pub fn cpu(weight_type: WeightType, isa: Isa) -> Self {
        Self { weight_type, fused: isa.is_fused(), product_lanes: 1, sum_lanes: 16 }
    }

    /// Computes `sum + a · b`.
    #[must_use]
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
        tree_sum(sums)
    }

    /// Computes `weights · x` for every row of `x`. `weights`: `[outputs, inputs]`, already [`rounded`],
    /// except for int8.
    #[must_use]
    pub fn linear(&self, weights: &[f32], x: &[f32], inputs: usize) -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| match self.weight_type {
            WeightType::Int8 => self.int8_dot(w, x),
            _ => self.float_dot(w, x),
        };
        x.chunks(inputs)
            .flat_map(|x| weights.chunks(inputs).map(move |w| dot(x, w)).collect::<Vec<_>>())
            .collect()
    }

    /// Adds the products. A single partial sum adds a product of zeros if their number is odd.
    fn float_dot(&self, weights: &[f32], x: &[f32]) -> f32 {
        let lanes = self.product_lanes;
        let mut sums = vec![0.0_f32; lanes];
        for (index, (&weight, &x)) in weights.iter().zip(x).enumerate() {
            sums[index % lanes] = self.add_product(sums[index % lanes], x, weight);
        }
        if lanes == 1 && x.len() % 2 == 1 {
            sums[0] = self.add_product(sums[0], 0.0, 0.0);
        }
        tree_sum(sums)
    }

    /// Adds the blocks in ascending order: each is the integer sum of its products, times the product of
    /// both scales.
    fn int8_dot(&self, weights: &[f32], x: &[f32]) -> f32 {
        weights.chunks(BLOCK).zip(x.chunks(BLOCK)).fold(0.0, |sum, (weights, x)| {
            let (x, x_scale) = quantized(x);
            let (weights, scale) = quantize_weights(weights);
            let products = weights.zip(x).map(|(w, x)| i32::from(w) * x);
            self.add_product(sum, products.sum::<i32>() as f32, scale.to_f32() * x_scale)
        })
    }
}

/// Adds the upper half of partial sums to the lower half until one is left.
fn tree_sum(mut sums: Vec<f32>) -> f32 {
    while sums.len() > 1 {
        let upper = sums.split_off(sums.len() / 2);
        sums.iter_mut().zip(upper).for_each(|(sum, upper)| *sum += upper);
    }
    sums[0]
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

/// Returns weights `[outputs, inputs]`, rounded to the values that a weight type can hold.
#[must_use]
pub fn rounded(weight_type: WeightType, weights: &[f32], inputs: usize) -> Vec<f32> {
    match weight_type {
        WeightType::F32 => weights.to_vec(),
        WeightType::Bf16 => weights.iter().map(|&w| bf16::from_f32(w).to_f32()).collect(),
        WeightType::F16 => weights.iter().map(|&w| f16::from_f32(w).to_f32()).collect(),
        WeightType::Int8 => {
            let block = |weights: &[f32]| {
                let (quants, scale) = quantize_weights(weights);
                quants.map(|quant| f32::from(quant) * scale.to_f32()).collect::<Vec<_>>()
            };
            weights.chunks(inputs).flat_map(|row| row.chunks(BLOCK)).flat_map(block).collect()
        }
    }
}
