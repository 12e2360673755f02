//! The norm and the projection that a block starts with. If the norm has no weights, the rows are
//! not normalised.

use super::elementwise::{add, rms_norm, rms_norm_backward, rms_norm_recompute};
use super::matrix::{Matrix, add_product, set_product};

/// Normalises rows, `[rows, hidden]`, into `out` and writes each row's reciprocal root mean square,
/// which the backward pass needs, to `r`. If `norm` is empty, copies the rows.
pub(super) fn norm_rows(x: &[f32], norm: &[f32], epsilon: f32, out: &mut [f32], r: &mut [f32]) {
    if norm.is_empty() {
        out.copy_from_slice(x);
    } else {
        rms_norm(x, norm, epsilon, out, r);
    }
}

/// The inputs of a norm followed by a projection.
pub(super) struct Projected<'a> {
    /// `[rows, hidden]`, before the norm.
    pub(super) x: &'a [f32],
    pub(super) hidden: usize,
    /// The norm's weights: `[hidden]`, or empty without a norm.
    pub(super) norm: &'a [f32],
    /// The reciprocal root mean square of each row.
    pub(super) r: &'a [f32],
    /// `[outputs, hidden]`.
    pub(super) weights: &'a [f32],
}

impl Projected<'_> {
    /// Adds the gradients of `x`, `norm` and `weights`, given the gradient of the result,
    /// `[rows, outputs]`. Each of `buffers` has room for `[rows, hidden]`.
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
            rms_norm_recompute(self.x, self.norm, self.r, normed);
        }
        add_product(dweights, gradient.transposed(), Matrix::new(normed, hidden));
        set_product(dnormed, gradient, Matrix::new(self.weights, hidden));
        if self.norm.is_empty() {
            add(dx, dnormed);
        } else {
            rms_norm_backward(dnormed, self.x, self.norm, self.r, dx, dnorm);
        }
    }
}
