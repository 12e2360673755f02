//! Scales and minima for the weights of one group. They minimise the squared error, in which each
//! weight counts with its importance.

use super::peak_of;

/// A group's weights with their importance. The numbers are of ordinary magnitude, so that no sum
/// of squares overflows.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) weights: &'a [f32],
    pub(super) importance: &'a [f32],
}

/// The numbers to which weights are rounded, once they are divided by the scale.
pub(super) trait LevelSet: Copy {
    /// Returns the nearest level.
    fn nearest(&self, value: f32) -> f32;

    /// Returns the lowest and the highest level.
    fn ends(&self) -> [f32; 2];

    /// Returns the mean distance of neighbouring levels.
    fn spacing(&self) -> f32;
}

/// By how many levels the peak goes beyond the last level with the first scales that are tried.
const SHIFTS: [f32; 7] = [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0];

/// How often a scale is computed again from the levels that it gives.
const REFINEMENTS: usize = 3;

/// All integers from the first to the second.
#[derive(Clone, Copy)]
pub(super) struct Integers(pub(super) f32, pub(super) f32);

impl LevelSet for Integers {
    #[inline(always)]
    fn nearest(&self, value: f32) -> f32 {
        // Adding 1.5 · 2²³ leaves no fractional bits.
        const SHIFT: f32 = 12_582_912.0;
        // `clamp` checks its limits, which prevents vectorisation.
        let value = if value > self.0 { value } else { self.0 };
        let value = if value < self.1 { value } else { self.1 };
        (value + SHIFT) - SHIFT
    }

    fn ends(&self) -> [f32; 2] {
        [self.0, self.1]
    }

    fn spacing(&self) -> f32 {
        1.0
    }
}

#[derive(Clone, Copy)]
pub(super) struct Table {
    lowest: f32,
    highest: f32,
    /// Values above which a level is the next one, with the difference of the two levels.
    steps: [(f32, f32); 15],
}

impl Table {
    pub(super) fn new(levels: &[i8; 16]) -> Self {
        let mut sorted = levels.map(f32::from);
        sorted.sort_by(f32::total_cmp);
        // Equal levels make a step of zero.
        let step = |index: usize| {
            let [low, high] = [sorted[index], sorted[index + 1]];
            (0.5 * (low + high), high - low)
        };
        Self { lowest: sorted[0], highest: sorted[15], steps: std::array::from_fn(step) }
    }
}

impl LevelSet for Table {
    #[inline(always)]
    fn nearest(&self, value: f32) -> f32 {
        let step = |level, &(above, step)| level + if value > above { step } else { 0.0 };
        self.steps.iter().fold(self.lowest, step)
    }

    fn ends(&self) -> [f32; 2] {
        [self.lowest, self.highest]
    }

    fn spacing(&self) -> f32 {
        (self.highest - self.lowest) / 15.0
    }
}

/// The parameters of a group: its weights are about `scale · level − minimum`.
#[derive(Clone, Copy, Default)]
pub(super) struct Fit {
    pub(super) scale: f32,
    pub(super) minimum: f32,
}

impl Fit {
    /// Returns the parameters of a group that has these factors of the block's.
    pub(super) fn times(self, [scale, minimum]: [i16; 2]) -> Self {
        let (scale, minimum) = (self.scale * f32::from(scale), self.minimum * f32::from(minimum));
        Self { scale, minimum }
    }

    #[inline(always)]
    pub(super) fn level(self, levels: impl LevelSet, weight: f32) -> f32 {
        levels.nearest((weight + self.minimum) * inverse(self.scale))
    }
}

/// Returns 1 / `scale`, or zero for scales that are as good as zero.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale.abs() >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 }
}

impl Group<'_> {
    /// Returns sums over the weights, each with its importance.
    #[inline(always)]
    pub(super) fn sums<const N: usize>(self, terms: impl Fn(f32, f32) -> [f32; N]) -> [f32; N] {
        // Independent sums can be vectorised.
        const LANES: usize = 8;
        let mut sums = [[0.0; LANES]; N];
        let weights = self.weights.as_chunks::<LANES>().0;
        for (weights, importance) in weights.iter().zip(self.importance.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let terms = terms(weights[lane], importance[lane]);
                for (sums, term) in sums.iter_mut().zip(terms) {
                    sums[lane] += term;
                }
            }
        }
        sums.map(|lanes| lanes.iter().sum())
    }

    /// Returns the squared error if the weights are rounded to the nearest levels.
    #[inline(always)]
    pub(super) fn error(self, levels: impl LevelSet, fit: Fit) -> f32 {
        let [error] = self.sums(|weight, importance| {
            let difference = fit.scale * fit.level(levels, weight) - fit.minimum - weight;
            [importance * difference * difference]
        });
        error
    }

    /// Returns the scale with the least error, if the minimum is zero.
    pub(super) fn fit_scale(self, levels: impl LevelSet) -> Fit {
        let peak = peak_of(self.weights.iter().copied());
        // The best scale for given levels is a quotient of sums.
        let attempt = |inverse: f32| {
            let [products, squares] = self.sums(|weight, importance| {
                let level = levels.nearest(weight * inverse);
                [importance * level * weight, importance * level * level]
            });
            (squares > 0.0).then(|| Attempt {
                fit: Fit { scale: products / squares, minimum: 0.0 },
                error: -products * products / squares,
            })
        };
        // The peak becomes about the lowest or the highest level.
        let firsts = levels
            .ends()
            .into_iter()
            .flat_map(|end| SHIFTS.map(|shift| end + end.signum() * shift * levels.spacing()));
        let mut best = Attempt::default();
        for reached in firsts {
            best.improve(attempt(reached * inverse(peak)));
        }
        for _ in 0..REFINEMENTS {
            best.improve(attempt(inverse(best.fit.scale)));
        }
        best.fit
    }

    /// Returns the scale and the minimum with the least error. The levels begin at zero. If
    /// `below_zero`, the minimum is not negative.
    pub(super) fn fit_scale_and_minimum(self, levels: Integers, below_zero: bool) -> Fit {
        let ends = self
            .weights
            .iter()
            .fold([f32::MAX, f32::MIN], |[low, high], weight| [weight.min(low), weight.max(high)]);
        let [low, high] = if below_zero { [ends[0].min(0.0), ends[1]] } else { ends };
        let all_lowest = Fit { scale: 0.0, minimum: -low };
        if high <= low {
            return all_lowest;
        }
        // Differences from the lowest weight lose no digits in the sums.
        let [total, first, second] = self.sums(|weight, importance| {
            let above = weight - low;
            [importance, importance * above, importance * above * above]
        });
        // The best scale and minimum for given levels solve two linear equations.
        let attempt = |fit: Fit| {
            let [ones, squares, products] = self.sums(|weight, importance| {
                let level = fit.level(levels, weight);
                let part = importance * level;
                [part, part * level, part * (weight - low)]
            });
            if squares <= 0.0 {
                return None;
            }
            let determinant = total * squares - ones * ones;
            let mut start = (squares * first - ones * products) / determinant;
            // If all levels are equal, the equations say nothing about the minimum.
            if determinant < 1.0e-5 * total * squares {
                start = 0.0;
            }
            if below_zero {
                start = start.min(-low);
            }
            let scale = (products - start * ones) / squares;
            let error = second - 2.0 * (scale * products + start * first)
                + scale * scale * squares
                + 2.0 * scale * start * ones
                + start * start * total;
            Some(Attempt { fit: Fit { scale, minimum: -low - start }, error })
        };
        let mut best = Attempt { fit: all_lowest, error: second };
        // The highest weight becomes about the highest level, and the lowest becomes level 0, −1/2
        // or −1.
        for shift in SHIFTS {
            let scale = (high - low) / (levels.1 + shift);
            for below in [0.0, 0.5, 1.0] {
                best.improve(attempt(Fit { scale, minimum: -low - below * scale }));
            }
        }
        for _ in 0..REFINEMENTS {
            best.improve(attempt(best.fit));
        }
        best.fit
    }
}

/// A fit and its squared error, up to a constant.
#[derive(Default)]
struct Attempt {
    fit: Fit,
    error: f32,
}

impl Attempt {
    fn improve(&mut self, other: Option<Self>) {
        if let Some(other) = other
            && other.error < self.error
        {
            *self = other;
        }
    }
}
