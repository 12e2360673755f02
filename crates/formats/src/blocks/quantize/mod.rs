//! Making blocks of weights.
//!
//! The search for scales follows the ideas of llama.cpp: try scales around the one that uses all
//! levels, compute the best scale for the levels that result, and keep the scale with the least
//! error.

mod fit;
mod reference;

use super::{IQ4_LEVELS, MAX_WEIGHTS, MXFP4_FINITE, MXFP4_LEVELS, UnpackedBlock, half_power};
use crate::BlockType;
use fit::{Fit, Group, Integers, LevelSet, Table};
use half::f16;
use std::ops::RangeInclusive;

/// How often the steps of a block are computed again for the factors of its groups.
const STEP_REFINEMENTS: usize = 4;

/// Appends the blocks of `weights` to `out`. The weights must be finite.
///
/// The squared error is as small as a search finds it. In it, each weight counts with the
/// importance of its input: `importance[i]` is the mean of the squared activations of input i, as
/// in an importance matrix of llama.cpp, finite and not negative. The expected squared error of the
/// outputs is then least. llama.cpp also counts large weights more.
///
/// Without importance all weights count equally, but blocks of [`BlockType::Q4_0`],
/// [`BlockType::Q4_1`], [`BlockType::Q5_0`], [`BlockType::Q5_1`] and [`BlockType::Q8_0`] are ggml's
/// reference blocks, which are made without a search.
///
/// Blocks depend only on their own weights and the importance of these, and are the same on every
/// processor. Weights that are too large for the type become its largest, so scales are always
/// finite.
///
/// # Panics
/// If the weights or the importance are not of whole blocks, or if the weights are not whole rows
/// of inputs with importance.
pub fn quantize(
    block_type: BlockType,
    weights: &[f32],
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    let size = block_type.weights();
    assert!(weights.len().is_multiple_of(size), "whole blocks of {block_type}");
    if let Some(row) = importance {
        assert!(row.len().is_multiple_of(size), "a row of whole blocks of {block_type}");
        assert!(weights.len().is_multiple_of(row.len().max(1)), "weights of whole rows");
    }
    let mut block = UnpackedBlock::new(block_type);
    for (index, weights) in weights.chunks_exact(size).enumerate() {
        let importance = importance.map(|row| &row[index * size % row.len()..][..size]);
        quantize_block(&mut block, weights, importance);
        let start = out.len();
        out.resize(start + block_type.bytes(), 0);
        block.write(&mut out[start..]);
    }
}

fn quantize_block(block: &mut UnpackedBlock, weights: &[f32], importance: Option<&[f32]>) {
    match block.block_type {
        BlockType::Q8_0 if importance.is_none() => reference::from_magnitude(block, weights),
        BlockType::Q4_0 if importance.is_none() => reference::from_peak(block, weights, 8),
        BlockType::Q5_0 if importance.is_none() => reference::from_peak(block, weights, 16),
        BlockType::Q4_1 if importance.is_none() => reference::from_range(block, weights, 15),
        BlockType::Q5_1 if importance.is_none() => reference::from_range(block, weights, 31),
        _ => search_block(block, weights, importance),
    }
}

fn search_block(block: &mut UnpackedBlock, weights: &[f32], importance: Option<&[f32]>) {
    let (mut scaled, mut relative) = ([0.0; MAX_WEIGHTS], [1.0; MAX_WEIGHTS]);
    let (scaled, relative) = (&mut scaled[..weights.len()], &mut relative[..weights.len()]);
    let unit = power_of_two(peak(weights));
    for (scaled, weight) in scaled.iter_mut().zip(weights) {
        *scaled = weight / unit;
    }
    if let Some(importance) = importance {
        set_relative_importance(importance, relative);
    }
    let block_type = block.block_type;
    let search = Search { block, whole: Group { weights: scaled, importance: relative }, unit };
    match block_type {
        BlockType::Q4_0 => search.scale(Integers(-8.0, 7.0)),
        BlockType::Q4_1 => search.scale_and_minimum(Integers(0.0, 15.0)),
        BlockType::Q5_0 => search.scale(Integers(-16.0, 15.0)),
        BlockType::Q5_1 => search.scale_and_minimum(Integers(0.0, 31.0)),
        BlockType::Q8_0 => search.scale(Integers(-127.0, 127.0)),
        BlockType::Q2_K => search.scales_and_minima(Integers(0.0, 3.0), 15),
        BlockType::Q3_K => search.scales(Integers(-4.0, 3.0), -32),
        BlockType::Q4_K => search.scales_and_minima(Integers(0.0, 15.0), 63),
        BlockType::Q5_K => search.scales_and_minima(Integers(0.0, 31.0), 63),
        BlockType::Q6_K => search.scales(Integers(-32.0, 31.0), -128),
        BlockType::IQ4_NL => search.scale(Table::new(&IQ4_LEVELS)),
        BlockType::IQ4_XS => search.scales(Table::new(&IQ4_LEVELS), -32),
        BlockType::MXFP4 => search.exponent(Table::new(&MXFP4_LEVELS)),
    }
}

/// The search for a block's parts. Weights, scales and minima are divided by `unit`, a power of
/// two, so that they are of ordinary magnitude.
struct Search<'a> {
    block: &'a mut UnpackedBlock,
    whole: Group<'a>,
    unit: f32,
}

/// The integers that groups may have.
struct Ranges {
    scales: RangeInclusive<i16>,
    minima: RangeInclusive<i16>,
}

/// The integer scale and minimum of a group.
type Factors = [i16; 2];

impl Search<'_> {
    /// For types with one scale.
    fn scale(self, levels: impl LevelSet) {
        let fit = self.representable(self.whole.fit_scale(levels));
        self.set(levels, fit, &[[1, 1]]);
    }

    /// For types with one scale and one minimum.
    fn scale_and_minimum(self, levels: Integers) {
        let fit = self.representable(self.whole.fit_scale_and_minimum(levels, false));
        self.set(levels, fit, &[[1, 1]]);
    }

    /// For types whose groups have signed scales from `lowest` to −`lowest` − 1.
    fn scales(self, levels: impl LevelSet, lowest: i16) {
        let fits: Vec<Fit> = self.groups().map(|group| group.fit_scale(levels)).collect();
        let ranges = Ranges { scales: lowest..=-1 - lowest, minima: 0..=0 };
        // The largest scale becomes the lowest integer, because there is one more of these.
        let largest = peak_of(fits.iter().map(|fit| fit.scale));
        let steps = Fit { scale: largest / f32::from(lowest), minimum: 0.0 };
        self.factors(levels, &fits, steps, &ranges);
    }

    /// For types whose groups have scales and minima up to `highest`.
    fn scales_and_minima(self, levels: Integers, highest: i16) {
        let fit = |group: Group<'_>| group.fit_scale_and_minimum(levels, true);
        let fits: Vec<Fit> = self.groups().map(fit).collect();
        let ranges = Ranges { scales: 0..=highest, minima: 0..=highest };
        let steps = Fit {
            scale: peak_of(fits.iter().map(|fit| fit.scale)) / f32::from(highest),
            minimum: peak_of(fits.iter().map(|fit| fit.minimum)) / f32::from(highest),
        };
        self.factors(levels, &fits, steps, &ranges);
    }

    /// For types whose scale is a power of two. The exponent of ggml and its neighbours are tried.
    fn exponent(self, levels: impl LevelSet) {
        let peak = peak(self.whole.weights) * self.unit;
        let usual = (peak.to_bits() >> 23) as u8;
        let fit = |exponent| Fit { scale: half_power(exponent) / self.unit, minimum: 0.0 };
        let exponents = usual.saturating_sub(3)..=usual.saturating_sub(1).min(MXFP4_FINITE);
        let fits = exponents.map(fit);
        let error = |fit: &Fit| self.whole.error(levels, *fit);
        let best = fits.min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or_default();
        self.set(levels, best, &[[1, 1]]);
    }

    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let size = self.block.block_type.group();
        let importance = self.whole.importance.chunks_exact(size);
        let groups = self.whole.weights.chunks_exact(size).zip(importance);
        groups.map(|(weights, importance)| Group { weights, importance })
    }

    /// Rounds the steps of a block to f16.
    fn representable(&self, steps: Fit) -> Fit {
        let round = |value| to_half(value * self.unit) / self.unit;
        Fit { scale: round(steps.scale), minimum: round(steps.minimum) }
    }

    /// Chooses each group's factors of `steps`, then the steps for these, as long as that helps.
    fn factors(self, levels: impl LevelSet, fits: &[Fit], steps: Fit, ranges: &Ranges) {
        let mut steps = self.representable(steps);
        let (mut factors, mut error) = self.nearest_factors(levels, fits, steps, ranges);
        for _ in 0..STEP_REFINEMENTS {
            let next_steps = self.representable(self.best_steps(levels, steps, &factors));
            let (next, next_error) = self.nearest_factors(levels, fits, next_steps, ranges);
            if next_error >= error {
                break;
            }
            (steps, factors, error) = (next_steps, next, next_error);
        }
        self.set(levels, steps, &factors);
    }

    /// Returns the factors of each group with the least error, and the sum of these errors. The
    /// factors nearest to the group's own scale and minimum and their neighbours are tried.
    fn nearest_factors(
        &self,
        levels: impl LevelSet,
        fits: &[Fit],
        steps: Fit,
        ranges: &Ranges,
    ) -> (Vec<Factors>, f32) {
        let mut total = 0.0;
        let nearest = |(group, fit): (Group<'_>, &Fit)| {
            let (mut best, mut least) = ([0, 0], f32::INFINITY);
            for scale in neighbours(fit.scale / steps.scale, &ranges.scales) {
                for minimum in neighbours(fit.minimum / steps.minimum, &ranges.minima) {
                    let error = group.error(levels, steps.times([scale, minimum]));
                    if error < least {
                        (best, least) = ([scale, minimum], error);
                    }
                }
            }
            total += least;
            best
        };
        (self.groups().zip(fits).map(nearest).collect(), total)
    }

    /// Returns the steps with the least error for the levels and factors that result from `steps`.
    fn best_steps(&self, levels: impl LevelSet, steps: Fit, factors: &[Factors]) -> Fit {
        let mut sums = [0.0; 5];
        for (group, factors) in self.groups().zip(factors) {
            let fit = steps.times(*factors);
            let [scale, minimum] = factors.map(f32::from);
            let terms = group.sums(|weight, importance| {
                let level = scale * fit.level(levels, weight);
                let part = importance * level;
                let below = importance * minimum;
                [part * level, part * minimum, below * minimum, part * weight, below * weight]
            });
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum += term;
            }
        }
        let [squares, mixed, minima, products, below] = sums;
        let determinant = squares * minima - mixed * mixed;
        if determinant > 0.0 {
            Fit {
                scale: (products * minima - below * mixed) / determinant,
                minimum: (products * mixed - below * squares) / determinant,
            }
        } else if squares > 0.0 {
            Fit { scale: products / squares, minimum: steps.minimum }
        } else {
            steps
        }
    }

    /// Sets the parts of the block. The quants are those of the nearest levels.
    fn set(self, levels: impl LevelSet, steps: Fit, factors: &[Factors]) {
        let mut quants = [0; MAX_WEIGHTS];
        let stored = self.block.block_type.levels();
        let group = self.block.block_type.group();
        for ((group, quants), factors) in
            self.groups().zip(quants.chunks_exact_mut(group)).zip(factors)
        {
            let fit = steps.times(*factors);
            for (quant, weight) in quants.iter_mut().zip(group.weights) {
                *quant = stored.quant(fit.level(levels, *weight) as i8);
            }
        }
        self.block.scale = steps.scale * self.unit;
        self.block.minimum = steps.minimum * self.unit;
        for (group, [scale, minimum]) in factors.iter().enumerate() {
            self.block.scales[group] = *scale as i8;
            self.block.minima[group] = *minimum as u8;
        }
        self.block.quants = quants;
    }
}

/// Returns the integer nearest to `value` and its neighbours, within the range.
fn neighbours(value: f32, range: &RangeInclusive<i16>) -> impl Iterator<Item = i16> + use<> {
    // A quotient of zeros is NaN and becomes zero.
    let nearest = (value.round() as i16).clamp(*range.start(), *range.end());
    (nearest - 1).max(*range.start())..=(nearest + 1).min(*range.end())
}

/// Returns the weight of the largest magnitude, as a magnitude.
fn peak(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |peak, weight| weight.abs().max(peak))
}

/// Returns the first value of the largest magnitude, with its sign.
fn peak_of(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |peak: f32, value| if value.abs() > peak.abs() { value } else { peak })
}

/// Returns the largest power of two up to `value`, but no subnormal one.
fn power_of_two(value: f32) -> f32 {
    const EXPONENT: u32 = 0x7F80_0000;
    f32::from_bits(value.to_bits() & EXPONENT).max(f32::MIN_POSITIVE)
}

/// Sets the importance relative to the largest of the block. It is not zero, so weights of inputs
/// without activations are kept if that costs nothing.
fn set_relative_importance(importance: &[f32], relative: &mut [f32]) {
    const LEAST: f32 = 1.0e-6;
    let peak = peak(importance);
    for (relative, importance) in relative.iter_mut().zip(importance) {
        *relative = if peak > 0.0 { (importance / peak).max(LEAST) } else { 1.0 };
    }
}

/// Rounds a finite number to f16. The largest f16 replaces larger ones.
fn to_half(value: f32) -> f32 {
    let largest = f16::MAX.to_f32();
    f16::from_f32(value.clamp(-largest, largest)).to_f32()
}
