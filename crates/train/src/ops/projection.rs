//! The norm and the projection that a block begins with. Without a norm's weights there is no norm.

use super::elementwise::{add, rms_norm, rms_norm_again, rms_norm_backward};
use super::matrix::{Matrix, MatrixMut, Write, multiply};

/// Norms rows, `[rows, hidden]`, and keeps of each what the backward pass needs; without a norm's
/// weights they are copied.
pub(super) fn norm_rows(x: &[f32], norm: &[f32], epsilon: f32, out: &mut [f32], r: &mut [f32]) {
    if norm.is_empty() {
        out.copy_from_slice(x);
    } else {
        rms_norm(x, norm, epsilon, out, r);
    }
}

/// Rows that were normed and projected.
pub(super) struct Projected<'a> {
    /// `[rows, hidden]`, before the norm.
    pub(super) x: &'a [f32],
    pub(super) hidden: usize,
    /// The norm's weights: `[hidden]`, or none.
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
        let (size, hidden) = (self.x.len(), self.hidden);
        let [normed, dnormed] = buffers.map(|buffer| &mut buffer[..size]);
        if self.norm.is_empty() {
            normed.copy_from_slice(self.x);
        } else {
            rms_norm_again(self.x, self.norm, self.r, normed);
        }
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
        if self.norm.is_empty() {
            add(dx, dnormed);
        } else {
            rms_norm_backward(dnormed, self.x, self.norm, self.r, dx, dnorm);
        }
    }
}
