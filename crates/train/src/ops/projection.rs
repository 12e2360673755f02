//! The norm and the projection that a block begins with, backward.

use super::elementwise::{rms_norm_again, rms_norm_backward};
use super::matrix::{Matrix, MatrixMut, Write, multiply};

/// Rows that were normed and projected.
pub(super) struct Projected<'a> {
    /// `[rows, hidden]`, before the norm.
    pub(super) x: &'a [f32],
    /// The norm's weights.
    pub(super) norm: &'a [f32],
    /// What the norm kept of each row.
    pub(super) r: &'a [f32],
    /// `[outputs, hidden]`.
    pub(super) weights: &'a [f32],
}

impl Projected<'_> {
    /// Adds the gradients of `x`, `norm` and `weights`, given that of what came out, `[rows, outputs]`.
    /// `buffers`: room for `[rows, hidden]` each.
    pub(super) fn backward(
        &self,
        gradient: Matrix<'_>,
        buffers: [&mut [f32]; 2],
        [dx, dnorm, dweights]: [&mut [f32]; 3],
    ) {
        let (size, hidden) = (self.x.len(), self.norm.len());
        let [normed, dnormed] = buffers.map(|buffer| &mut buffer[..size]);
        rms_norm_again(self.x, self.norm, self.r, normed);
        multiply(
            &mut MatrixMut::new(dweights, hidden),
            gradient.transposed(),
            Matrix::new(normed, hidden),
            1.0,
            Write::Add,
        );
        multiply(
            &mut MatrixMut::new(dnormed, hidden),
            gradient,
            Matrix::new(self.weights, hidden),
            1.0,
            Write::Replace,
        );
        rms_norm_backward(dnormed, self.x, self.norm, self.r, dx, dnorm);
    }
}
