//! The distance of predicted features from the target's (EAGLE, arXiv 2401.15077, eq. 4's regression).

use super::{Operation, split};
use candle_core::{Result, Shape};
use std::ops::Range;
use std::sync::Arc;

/// The mean over a row's numbers of `SmoothL1(x − feature)`, summed over rows by their weights.
/// SmoothL1 is `d²/2` up to a distance of 1, `|d| − 1/2` beyond (PyTorch's, with β = 1).
///
/// `x`: `[rows, hidden]`; the result is the loss.
pub(crate) struct FeatureLoss {
    /// The target's features, `[places, hidden]`.
    pub(crate) features: Arc<[f32]>,
    pub(crate) hidden: usize,
    /// The place of the feature that each row predicts.
    pub(crate) places: Arc<[u32]>,
    /// What each row counts; of rows that count nothing, the place means nothing.
    pub(crate) weights: Arc<[f32]>,
}

impl FeatureLoss {
    /// The loss of rows; puts their gradients into `dx`.
    fn rows(&self, range: &Range<usize>, x: &[f32], dx: &mut [f32]) -> f64 {
        let hidden = self.hidden;
        let mut loss = 0.0;
        for (row, dx) in range.clone().zip(dx.chunks_exact_mut(hidden)) {
            let weight = self.weights[row];
            if weight == 0.0 {
                continue;
            }
            let feature = &self.features[self.places[row] as usize * hidden..][..hidden];
            let x = &x[row * hidden..][..hidden];
            let mut sum = 0.0;
            for ((dx, x), feature) in dx.iter_mut().zip(x).zip(feature) {
                let slope = (x - feature).clamp(-1.0, 1.0);
                // Within 1 the slope is the distance itself, beyond it is ±1.
                sum += slope * ((x - feature) - 0.5 * slope);
                *dx = weight / hidden as f32 * slope;
            }
            loss += f64::from(weight) * f64::from(sum) / hidden as f64;
        }
        loss
    }
}

/// The gradients are computed with the loss.
impl Operation for FeatureLoss {
    const NAME: &'static str = "feature-loss";
    type Saved = Vec<f32>;

    fn forward(&self, [x, _, _]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        let mut dx = vec![0.0; x.len()];
        let ranges = split::ranges(x.len() / self.hidden);
        let tasks: Vec<_> =
            ranges.iter().zip(split::parts(&mut dx, &ranges, self.hidden)).collect();
        let losses = split::all(tasks, |(range, dx)| self.rows(range, x, dx));
        (vec![losses.iter().sum::<f64>() as f32], dx)
    }

    fn shape(&self, _: &Shape) -> Shape {
        Shape::from(())
    }

    fn backward(
        &self,
        mut dx: Vec<f32>,
        _: [&[f32]; 3],
        gradient: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let [factor] = gradient else { candle_core::bail!("a loss is one number") };
        super::elementwise::scale_by(&mut dx, *factor);
        Ok([dx, Vec::new(), Vec::new()])
    }
}
