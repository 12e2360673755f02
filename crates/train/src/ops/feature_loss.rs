//! The feature regression loss `L_reg` of EAGLE (arXiv 2401.15077): the distance of predicted
//! features from the target's. It is also the first term of ParallelSpec's equation 4 (arXiv
//! 2410.05589).

use super::{Loss, split};
use std::ops::Range;
use std::sync::Arc;

/// The feature regression loss as an operation: the mean of `SmoothL1(x − feature)` over the values
/// of a row, summed over the rows by their weights. The result is a scalar.
///
/// `SmoothL1(d)` is `d²/2` for `|d| ≤ 1` and `|d| − 1/2` beyond (PyTorch's, with β = 1).
///
/// Input: `x`, `[rows, hidden]`.
pub(crate) struct FeatureLoss {
    /// The target's features, `[target rows, hidden]`.
    pub(crate) features: Arc<[f32]>,
    pub(crate) hidden: usize,
    /// The target row of the feature that each row predicts.
    pub(crate) target_rows: Arc<[u32]>,
    /// The weight of each row's loss. A row of weight 0 has no label: its target row is ignored.
    pub(crate) weights: Arc<[f32]>,
}

impl FeatureLoss {
    /// Computes the loss of a range of rows and writes their gradients to `dx`.
    fn rows(&self, range: &Range<usize>, x: &[f32], dx: &mut [f32]) -> f64 {
        let hidden = self.hidden;
        let mut loss = 0.0;
        for (row, dx) in range.clone().zip(dx.chunks_exact_mut(hidden)) {
            let weight = self.weights[row];
            if weight == 0.0 {
                continue;
            }
            let feature = &self.features[self.target_rows[row] as usize * hidden..][..hidden];
            let x = &x[row * hidden..][..hidden];
            let mut sum = 0.0;
            for ((dx, x), feature) in dx.iter_mut().zip(x).zip(feature) {
                let slope = (x - feature).clamp(-1.0, 1.0);
                // The slope is the distance itself up to 1, and ±1 beyond.
                sum += slope * ((x - feature) - 0.5 * slope);
                *dx = weight / hidden as f32 * slope;
            }
            loss += f64::from(weight) * f64::from(sum) / hidden as f64;
        }
        loss
    }
}

impl Loss for FeatureLoss {
    const NAME: &'static str = "feature-loss";

    fn compute(&self, [x, _, _]: [&[f32]; 3]) -> (f32, [Vec<f32>; 3]) {
        let mut dx = vec![0.0; x.len()];
        let ranges = split::ranges(x.len() / self.hidden);
        let tasks: Vec<_> =
            ranges.iter().zip(split::parts(&mut dx, &ranges, self.hidden)).collect();
        let losses = split::map(tasks, |(range, dx)| self.rows(range, x, dx));
        (losses.iter().sum::<f64>() as f32, [dx, Vec::new(), Vec::new()])
    }

    fn has_gradients(&self) -> bool {
        true
    }
}
