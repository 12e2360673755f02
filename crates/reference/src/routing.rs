//! How a row chooses its experts.

use forerun_formats::{Experts, Weighting};
use forerun_vector::{exp, sigmoid};

/// Returns the chosen experts with their weights, in order of the experts. `scores` and
/// `correction` have a number for each expert.
pub(crate) fn choose(experts: &Experts, scores: &[f32], correction: &[f32]) -> Vec<(usize, f32)> {
    let router = experts.router;
    let softmax = |scores: &[f32]| -> Vec<f32> {
        let peak = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| exp(score - peak)).collect();
        let total: f32 = weights.iter().fold(0.0, |sum, weight| sum + weight);
        weights.into_iter().map(|weight| weight / total).collect()
    };
    let weights = match router.weighting {
        Weighting::Softmax => softmax(scores),
        Weighting::SoftmaxOfChosen => scores.to_vec(),
        Weighting::Sigmoid => scores.iter().map(|score| sigmoid(*score)).collect(),
    };
    let ranked = |values: &[f32]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        // Stable, so equal values stay in order.
        order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
        order
    };
    let mut criterion: Vec<f32> = weights.iter().zip(correction).map(|(w, c)| w + c).collect();
    if let Some(groups) = router.groups {
        let size = experts.n_experts / groups.n_groups;
        let score = |group: &[f32]| {
            let best = ranked(group).into_iter().take(groups.experts_scored);
            best.fold(0.0, |sum, expert| sum + group[expert])
        };
        let scores: Vec<f32> = criterion.chunks(size).map(score).collect();
        for group in ranked(&scores).into_iter().skip(groups.groups_per_token) {
            criterion[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
    let mut chosen: Vec<usize> =
        ranked(&criterion).into_iter().take(router.experts_per_token).collect();
    chosen.sort_unstable();
    let mut weights: Vec<f32> = chosen.iter().map(|expert| weights[*expert]).collect();
    if router.weighting == Weighting::SoftmaxOfChosen {
        weights = softmax(&weights);
    }
    if router.normalised {
        let total = weights.iter().fold(0.0, |sum, weight| sum + weight);
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    chosen.into_iter().zip(weights.into_iter().map(|weight| weight * router.scale)).collect()
}
