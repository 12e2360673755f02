//! How the rows of a pass choose their experts.

use forerun_formats::{ExpertGroups, Experts, Weighting};
use forerun_vector::{exp, sigmoid};

/// The choices of a pass's rows, and buffers that are kept between passes.
#[derive(Default)]
pub(super) struct Routing {
    /// The chosen experts of all rows with their weights, ordered by expert and then by row.
    choices: Vec<Choice>,
    weights: Vec<f32>,      // [experts]
    criterion: Vec<f32>,    // [experts]
    group_scores: Vec<f32>, // [groups]
    order: Vec<usize>,
}

/// An expert that a row has chosen.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) expert: usize,
    pub(super) row: usize,
    /// The factor of the expert's output.
    pub(super) weight: f32,
}

impl Routing {
    /// Chooses the experts of all rows. `scores`: `[rows, experts]`, `correction` and `scales`:
    /// `[experts]`. Returns the choices, ordered by expert and then by row.
    pub(super) fn choose(
        &mut self,
        experts: &Experts,
        scores: &[f32],
        correction: Option<&[f32]>,
        scales: Option<&[f32]>,
    ) -> &[Choice] {
        self.choices.clear();
        for (row, scores) in scores.chunks_exact(experts.n_experts).enumerate() {
            self.choose_for_row(experts, row, scores, correction);
        }
        if let Some(scales) = scales {
            self.choices.iter_mut().for_each(|choice| choice.weight *= scales[choice.expert]);
        }
        self.choices.sort_unstable_by_key(|choice| (choice.expert, choice.row));
        &self.choices
    }

    fn choose_for_row(
        &mut self,
        experts: &Experts,
        row: usize,
        scores: &[f32],
        correction: Option<&[f32]>,
    ) {
        let Self { choices, weights, criterion, group_scores, order } = self;
        let router = experts.router;
        weights.clear();
        match router.weighting {
            Weighting::Softmax => {
                weights.extend_from_slice(scores);
                softmax(weights);
            }
            Weighting::SoftmaxOfChosen => weights.extend_from_slice(scores),
            Weighting::Sigmoid => weights.extend(scores.iter().map(|score| sigmoid(*score))),
        }
        criterion.clone_from(weights);
        if let Some(correction) = correction {
            criterion.iter_mut().zip(correction).for_each(|(value, term)| *value += term);
        }
        if let Some(groups) = router.groups {
            hide_other_groups(criterion, groups, (group_scores, order));
        }
        rank(criterion, order);
        order.truncate(router.experts_per_token);
        order.sort_unstable();
        let first = choices.len();
        let choice = |&expert: &usize| Choice { expert, row, weight: weights[expert] };
        choices.extend(order.iter().map(choice));
        let chosen = &mut choices[first..];
        if router.weighting == Weighting::SoftmaxOfChosen {
            weights.clear();
            weights.extend(chosen.iter().map(|choice| choice.weight));
            softmax(weights);
            chosen.iter_mut().zip(&*weights).for_each(|(choice, weight)| choice.weight = *weight);
        }
        if router.normalised {
            let total = chosen.iter().fold(0.0, |sum, choice| sum + choice.weight);
            chosen.iter_mut().for_each(|choice| choice.weight /= total);
        }
        chosen.iter_mut().for_each(|choice| choice.weight *= router.scale);
    }
}

/// Orders indices by their values, the largest first, and equal ones by index.
fn rank(values: &[f32], order: &mut Vec<usize>) {
    order.clear();
    order.extend(0..values.len());
    order.sort_unstable_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
}

/// Hides the experts that are not in the best groups.
fn hide_other_groups(
    criterion: &mut [f32],
    groups: ExpertGroups,
    (scores, order): (&mut Vec<f32>, &mut Vec<usize>),
) {
    let size = criterion.len() / groups.n_groups;
    scores.clear();
    for group in criterion.chunks_exact(size) {
        rank(group, order);
        let best = order.iter().take(groups.experts_scored);
        scores.push(best.fold(0.0, |sum, expert| sum + group[*expert]));
    }
    rank(scores, order);
    for group in order.iter().skip(groups.groups_per_token) {
        criterion[group * size..][..size].fill(f32::NEG_INFINITY);
    }
}

fn softmax(scores: &mut [f32]) {
    let peak = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = exp(*score - peak));
    let total = scores.iter().fold(0.0, |sum, weight| sum + weight);
    scores.iter_mut().for_each(|weight| *weight /= total);
}
