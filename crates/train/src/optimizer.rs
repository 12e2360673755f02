//! The optimizers AdamW (arXiv 1711.05101, algorithm 2) and Muon, with clipping of the gradients'
//! global norm.

use crate::model::Parameter;
use crate::muon;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result};
use forerun_vector::{Isa, Lanes, Vectorized, vectorize};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// Number of values that a thread processes at once. The gradients' norm is summed chunk by chunk,
/// so it does not depend on the number of threads.
const CHUNK: usize = 1 << 14;

/// How a step moves the matrices of layers. AdamW moves all other parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatrixUpdate {
    /// As AdamW moves all other parameters.
    #[default]
    AdamW,
    /// Along the orthogonalized momentum (Muon).
    Muon,
}

/// The optimizer's options, except for the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerOptions {
    /// How a step moves the matrices of layers.
    #[serde(default)]
    pub matrices: MatrixUpdate,
    /// Decay rate of the mean of the gradients (the first moment).
    pub beta1: f32,
    /// Decay rate of the mean of their squares (the second moment).
    pub beta2: f32,
    /// The constant that is added to the square root of the second moment.
    pub epsilon: f32,
    /// Weight decay: in each step, matrices shrink by this share of the learning rate.
    pub weight_decay: f32,
    /// Maximum global norm of the gradients. Larger gradients are scaled down to it. 0 disables
    /// clipping.
    pub max_gradient_norm: f32,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        Self {
            matrices: MatrixUpdate::AdamW,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            max_gradient_norm: 1.0,
        }
    }
}

/// The optimizer, with the moments of each parameter.
pub struct Optimizer {
    options: OptimizerOptions,
    parameters: Vec<Parameter>,
    pub(crate) moments: Vec<Moments>,
    pub(crate) steps: u64,
}

/// The moving averages of a parameter's gradients and of their squares.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moments {
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
}

impl Optimizer {
    /// Creates an optimizer with moments of 0.
    #[must_use]
    pub fn new(options: OptimizerOptions, parameters: Vec<Parameter>) -> Self {
        let zeros = |parameter: &Parameter| vec![0.0; parameter.values.elem_count()];
        let moments = parameters
            .iter()
            .map(|parameter| Moments { first: zeros(parameter), second: zeros(parameter) })
            .collect();
        Self { options, parameters, moments, steps: 0 }
    }

    /// Returns the parameters that the optimizer updates.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Updates the parameters with their gradients, which must be in the same order. Returns the
    /// global norm of the gradients before clipping.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn step(&mut self, gradients: &[Vec<f32>], learning_rate: f32) -> Result<f64> {
        let norm = global_norm(gradients);
        let limit = f64::from(self.options.max_gradient_norm);
        let scale = if limit > 0.0 && norm > limit { limit / norm } else { 1.0 };
        self.steps += 1;
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(self.steps as f64);
        let update = Update {
            options: self.options,
            gradient_scale: scale as f32,
            learning_rate,
            first_correction: (1.0 / correction(self.options.beta1)) as f32,
            second_correction: (1.0 / correction(self.options.beta2)) as f32,
        };
        let all = self.parameters.iter().zip(&mut self.moments).zip(gradients);
        for ((parameter, moments), gradient) in all {
            let decay = if parameter.decays { self.options.weight_decay } else { 0.0 };
            let update = Update {
                options: OptimizerOptions { weight_decay: decay, ..update.options },
                ..update
            };
            let muon = self.options.matrices == MatrixUpdate::Muon;
            let matrices = if muon { &parameter.matrices[..] } else { &[] };
            let apply = Apply { update, matrices, moments: Mutex::new(moments), gradient };
            parameter.values.inplace_op1(&apply)?;
        }
        Ok(norm)
    }
}

/// Computes the Euclidean norm of all gradients together.
fn global_norm(gradients: &[Vec<f32>]) -> f64 {
    let square = |chunk: &[f32]| f64::from(crate::ops::elementwise::inner_product(chunk, chunk));
    let sum_of_squares = |vector: &Vec<f32>| {
        vector.par_chunks(CHUNK).map(square).collect::<Vec<_>>().iter().sum::<f64>()
    };
    gradients.iter().map(sum_of_squares).sum::<f64>().sqrt()
}

#[derive(Clone, Copy)]
struct Update {
    options: OptimizerOptions,
    gradient_scale: f32,
    learning_rate: f32,
    first_correction: f32,
    second_correction: f32,
}

struct Apply<'a> {
    update: Update,
    /// The shapes of the matrices that the values consist of, if Muon moves them; else empty.
    matrices: &'a [[usize; 2]],
    moments: Mutex<&'a mut Moments>,
    gradient: &'a [f32],
}

impl InplaceOp1 for Apply<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            candle_core::bail!("a parameter must be contiguous and in f32")
        };
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let Moments { first, second } = &mut **moments;
        if !self.matrices.is_empty() {
            self.move_matrices(&mut values[start..end], first);
            return Ok(());
        }
        values[start..end]
            .par_chunks_mut(CHUNK)
            .zip(first.par_chunks_mut(CHUNK))
            .zip(second.par_chunks_mut(CHUNK))
            .zip(self.gradient.par_chunks(CHUNK))
            .for_each(|(((values, first), second), gradient)| {
                let update = self.update;
                vectorize(Isa::best(), Chunk { update, values, first, second, gradient });
            });
        Ok(())
    }
}

impl Apply<'_> {
    fn move_matrices(&self, mut values: &mut [f32], mut momentum: &mut [f32]) {
        let mut gradient = self.gradient;
        let update = self.update;
        rayon::scope(|scope| {
            for &shape in self.matrices {
                let size = shape[0] * shape[1];
                let (its_values, rest) = std::mem::take(&mut values).split_at_mut(size);
                values = rest;
                let (its_momentum, rest) = std::mem::take(&mut momentum).split_at_mut(size);
                momentum = rest;
                let its_gradient;
                (its_gradient, gradient) = gradient.split_at(size);
                scope.spawn(move |_| {
                    let scaled = its_gradient.iter().map(|&g| g * update.gradient_scale);
                    let decay = update.options.weight_decay;
                    let rate = update.learning_rate;
                    muon::update(its_values, its_momentum, scaled, shape, rate, decay);
                });
            }
        });
    }
}

struct Chunk<'a> {
    update: Update,
    values: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    gradient: &'a [f32],
}

impl Vectorized for Chunk<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Update { options, gradient_scale, learning_rate, .. } = self.update;
        let shrink = 1.0 - learning_rate * options.weight_decay;
        let moments = self.first.iter_mut().zip(self.second);
        for ((value, (first, second)), &gradient) in
            self.values.iter_mut().zip(moments).zip(self.gradient)
        {
            let gradient = gradient * gradient_scale;
            *first = options.beta1 * *first + (1.0 - options.beta1) * gradient;
            *second = options.beta2 * *second + (1.0 - options.beta2) * gradient * gradient;
            let mean = *first * self.update.first_correction;
            let root = (*second * self.update.second_correction).sqrt();
            *value = *value * shrink - learning_rate * mean / (root + options.epsilon);
        }
    }
}
