//! Draft heads on the reference device.

use crate::arithmetic::Arithmetic;
use crate::matrix::Matrix;
use crate::weights::{ReferenceModel, add_assign, silu};
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{DraftHeads, HeadTensor, LoadError, MatrixTypes, TensorSource};
use forerun_model::{ForwardHeads, HeadOutput, HeadRow, PassError};
use std::collections::HashMap;
use std::sync::Arc;

/// Draft heads on the reference device.
pub struct ReferenceHeads {
    architecture: DraftHeads,
    arithmetic: Arithmetic,
    matrices: HashMap<(usize, HeadTensor), Matrix>,
    biases: HashMap<(usize, HeadTensor), Vec<f32>>,
    target: Arc<ReferenceModel>,
    logits: Vec<f32>, // [rows, outputs]
}

impl ReferenceHeads {
    /// Reads the tensors of heads for `target`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, or a value is not finite.
    pub fn load(
        architecture: DraftHeads,
        source: &dyn TensorSource,
        arithmetic: Arithmetic,
        target: Arc<ReferenceModel>,
    ) -> Result<Self, LoadError> {
        let types = MatrixTypes::of_heads(arithmetic.types.weights, &architecture, source)?;
        let (mut matrices, mut biases) = (HashMap::new(), HashMap::new());
        for tensor in architecture.tensors() {
            let Tensor::DraftHead(head, part) = tensor else { continue };
            let shape = architecture.shape(head, part);
            let rows = source.rows(tensor, &shape)?;
            matrices.insert((head, part), Matrix::read(&rows, types.of(tensor))?);
            let bias = Tensor::DraftHead(head, part.bias());
            if source.has(bias) {
                biases.insert((head, part), source.rows(bias, &shape[..1])?.read_all()?);
            }
        }
        let target = match &architecture.head_tokens {
            Some(tokens) => Arc::new(target.with_head_tokens(tokens)),
            None => target,
        };
        Ok(Self { architecture, arithmetic, matrices, biases, target, logits: Vec::new() })
    }

    /// Applies a linear layer of a head, with its bias if it has one.
    fn project(&self, head: usize, part: HeadTensor, x: &[f32]) -> Vec<f32> {
        let mut out = self.arithmetic.linear(&self.matrices[&(head, part)], x);
        if let Some(bias) = self.biases.get(&(head, part)) {
            add_assign(&mut out, bias);
        }
        out
    }

    fn row_logits(&self, row: &HeadRow<'_>) -> Vec<f32> {
        let add_activated = |x: &mut [f32], y: Vec<f32>| {
            x.iter_mut().zip(y).for_each(|(x, y)| *x += silu(y));
        };
        let mut x = row.state.to_vec();
        if self.architecture.reads_tokens {
            let tokens = row.tokens.iter().flat_map(|&token| self.target.stored_embedding(token));
            let inputs: Vec<f32> = row.state.iter().copied().chain(tokens).collect();
            x = self.project(row.head, HeadTensor::FirstResidual, &inputs);
            add_activated(&mut x, self.project(row.head, HeadTensor::First, &inputs));
        }
        for layer in 0..self.architecture.n_layers {
            let y = self.project(row.head, HeadTensor::Layer(layer), &x);
            add_activated(&mut x, y);
        }
        match self.architecture.own_matrices {
            true => self.project(row.head, HeadTensor::Matrix, &x),
            false => self.target.head(&x),
        }
    }
}

impl ForwardHeads for ReferenceHeads {
    fn architecture(&self) -> &DraftHeads {
        &self.architecture
    }

    fn forward(&mut self, rows: &[HeadRow<'_>]) -> Result<HeadOutput<'_>, PassError> {
        self.logits = rows.iter().flat_map(|row| self.row_logits(row)).collect();
        Ok(HeadOutput { logits: &self.logits, best: &[] })
    }
}
