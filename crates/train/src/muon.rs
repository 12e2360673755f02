//! Muon: matrices move along their orthogonalized momentum (Jordan et al.,
//! <https://kellerjordan.github.io/posts/muon>).

use crate::ops::matrix::{Matrix, MatrixMut, Write, multiply, set_product};

/// Decay rate of the momentum.
const MOMENTUM: f32 = 0.95;
/// Number of Newton–Schulz iterations.
const ITERATIONS: usize = 5;
/// Coefficients of `aX + bXXᵀX + cXXᵀXXᵀX`, which moves all singular values towards 1.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// Root mean square of AdamW's typical updates. With it, both optimizers use the same learning
/// rates (arXiv 2502.16982, equation 4).
const ADAMW_SCALE: f32 = 0.2;

/// Updates the momentum of a matrix and moves the matrix, `[rows, columns]`, against it. `decay` is
/// the share of the learning rate by which the values shrink.
pub(crate) fn update(
    values: &mut [f32],
    momentum: &mut [f32],
    gradient: impl Iterator<Item = f32>,
    [rows, columns]: [usize; 2],
    learning_rate: f32,
    decay: f32,
) {
    // Nesterov's momentum.
    let mut direction = vec![0.0; values.len()];
    for ((direction, momentum), gradient) in direction.iter_mut().zip(momentum).zip(gradient) {
        *momentum = MOMENTUM * *momentum + (1.0 - MOMENTUM) * gradient;
        *direction = MOMENTUM * *momentum + (1.0 - MOMENTUM) * gradient;
    }
    orthogonalize(&mut direction, [rows, columns]);
    let rate = learning_rate * ADAMW_SCALE * (rows.max(columns) as f32).sqrt();
    let shrink = 1.0 - learning_rate * decay;
    for (value, direction) in values.iter_mut().zip(direction) {
        *value = *value * shrink - rate * direction;
    }
}

/// Replaces a matrix by an approximation of `UVᵀ`, where `USVᵀ` is its singular value
/// decomposition.
fn orthogonalize(matrix: &mut [f32], [rows, columns]: [usize; 2]) {
    let square: f64 = matrix.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = 1.0 / (square.sqrt() as f32).max(f32::MIN_POSITIVE.sqrt());
    matrix.iter_mut().for_each(|x| *x *= scale);

    let side = rows.min(columns);
    let [a, b, c] = COEFFICIENTS;
    let (mut gram, mut factor) = (vec![0.0; side * side], vec![0.0; side * side]);
    let mut next = vec![0.0; matrix.len()];
    for _ in 0..ITERATIONS {
        let x = Matrix::new(matrix, columns);
        let [left, right] = if rows <= columns { [x, x.transposed()] } else { [x.transposed(), x] };
        set_product(&mut gram, left, right);
        // factor = aI + bG + cG²
        let g = Matrix::new(&gram, side);
        multiply(&mut MatrixMut::new(&mut factor, side), g, g, c, Write::Replace);
        factor.iter_mut().zip(&gram).for_each(|(factor, gram)| *factor += b * gram);
        factor.iter_mut().step_by(side + 1).for_each(|diagonal| *diagonal += a);
        let f = Matrix::new(&factor, side);
        let [left, right] = if rows <= columns { [f, x] } else { [x, f] };
        set_product(&mut next, left, right);
        matrix.copy_from_slice(&next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Singular values of the result are near 1: `X Xᵀ` is near the identity in the smaller
    /// dimension.
    #[test]
    fn orthogonalized_matrices_have_singular_values_near_one() {
        for [rows, columns] in [[8, 8], [5, 16], [24, 6], [1, 7]] {
            let mut random = StdRng::seed_from_u64(rows as u64);
            let mut matrix: Vec<f32> =
                (0..rows * columns).map(|_| random.random_range(-3.0..3.0)).collect();
            let original = matrix.clone();
            orthogonalize(&mut matrix, [rows, columns]);
            let square: f32 = matrix.iter().map(|x| x * x).sum();
            let mean = square / rows.min(columns) as f32;
            assert!((0.4..1.5).contains(&mean), "{rows} × {columns}: mean square {mean}");
            // The result points in the direction of the matrix.
            let inner: f32 = matrix.iter().zip(&original).map(|(a, b)| a * b).sum();
            assert!(inner > 0.0);
        }
    }

    #[test]
    fn a_zero_gradient_moves_nothing() {
        let (mut values, mut momentum) = (vec![1.0; 6], vec![0.0; 6]);
        update(&mut values, &mut momentum, [0.0; 6].into_iter(), [2, 3], 0.1, 0.0);
        assert_eq!(values, [1.0; 6]);
    }
}
