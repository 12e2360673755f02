//! Times by a number of rows or tokens, learned point by point.

use crate::decaying::{DecayingMean, SLOW_DECAY};
use std::collections::BTreeMap;

/// The time of jobs by their number of rows or tokens.
///
/// Each number that occurred is a point. The curve never falls: points that contradict this are
/// averaged (isotonic regression). Between points it is linear; after the last one it goes on with
/// the mean slope. So it can have knees, as the time of a pass has where arithmetic begins to cost
/// more than reading the weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostCurve {
    points: BTreeMap<usize, DecayingMean>,
}

/// The weight below which a point is dropped: that of one measurement after 2,000 others.
const MIN_WEIGHT: f64 = 0.02;

impl CostCurve {
    /// Learns that `count` rows or tokens took `ns` nanoseconds, in place of a time from elsewhere.
    pub(crate) fn add(&mut self, count: usize, ns: f64) {
        // The other points may have changed.
        self.points.values_mut().for_each(|point| point.fade(SLOW_DECAY));
        self.points.retain(|_, point| point.weight() >= MIN_WEIGHT);
        let point = self.points.entry(count).or_default();
        if !point.is_measured() {
            *point = DecayingMean::default();
        }
        point.add(ns);
    }

    /// Takes the times of numbers that have not occurred here from elsewhere, in place of earlier
    /// ones from there.
    pub(crate) fn adopt(&mut self, times: impl Iterator<Item = (usize, f64)>) {
        self.points.retain(|_, point| point.is_measured());
        for (count, ns) in times.filter(|&(count, _)| count > 0) {
            self.points.entry(count).or_default().adopt(ns);
        }
    }

    /// Returns the numbers that are known, with their mean times.
    pub(crate) fn times(&self) -> impl Iterator<Item = (usize, f64)> {
        self.points.iter().map(|(&count, ns)| (count, ns.value_or(0.0)))
    }

    /// Returns whether a number has occurred here.
    pub(crate) fn is_measured(&self) -> bool {
        self.points.values().any(DecayingMean::is_measured)
    }

    pub(crate) fn is_known(&self) -> bool {
        !self.points.is_empty()
    }

    /// Returns the time of so many rows or tokens.
    pub(crate) fn at(&self, count: usize) -> f64 {
        self.up_to(count, false)[count]
    }

    /// Returns the times of 0 to `longest`, in nanoseconds. None takes no time, and a single point
    /// says that time is proportional. `at_best`: the least times that the points allow, those of
    /// the largest number that occurred and is not larger. Times may have steps there.
    pub(crate) fn up_to(&self, longest: usize, at_best: bool) -> Vec<f64> {
        let points = self.monotone();
        let mut times = vec![0.0; longest + 1];
        if at_best {
            for (count, ns) in points {
                times.iter_mut().skip(count).for_each(|time| *time = ns);
            }
            return times;
        }
        let (mut from, mut from_ns) = (0, 0.0);
        for &(count, ns) in &points {
            for (at, time) in times.iter_mut().enumerate().take(count + 1).skip(from + 1) {
                let share = (at - from) as f64 / (count - from) as f64;
                *time = from_ns + share * (ns - from_ns);
            }
            (from, from_ns) = (count, ns);
        }
        let slope = match points.as_slice() {
            [] => 0.0,
            [(count, ns)] => ns / *count as f64,
            [first, .., last] => (last.1 - first.1) / (last.0 - first.0) as f64,
        };
        for (at, time) in times.iter_mut().enumerate().skip(from + 1) {
            *time = from_ns + (at - from) as f64 * slope;
        }
        times
    }

    /// Returns whether only one number occurred.
    pub(crate) fn has_one_point(&self) -> bool {
        self.points.len() == 1
    }

    /// Returns the largest number that occurred; 0 if none did.
    pub(crate) fn largest(&self) -> usize {
        self.points.keys().next_back().copied().unwrap_or(0)
    }

    /// Returns the points after averaging those that would make the curve fall.
    fn monotone(&self) -> Vec<(usize, f64)> {
        // Blocks of points with the same value: the number of points, their weight, and their
        // value.
        let mut blocks: Vec<(usize, f64, f64)> = Vec::new();
        for point in self.points.values() {
            let mut block = (1, point.weight(), point.value_or(0.0));
            while let Some(&(points, weight, ns)) = blocks.last()
                && ns > block.2
            {
                let total = weight + block.1;
                block = (points + block.0, total, (weight * ns + block.1 * block.2) / total);
                blocks.pop();
            }
            blocks.push(block);
        }
        let values = blocks.into_iter().flat_map(|(points, _, ns)| std::iter::repeat_n(ns, points));
        self.points.keys().copied().zip(values).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knees_are_learned_and_the_rest_is_between() {
        let mut curve = CostCurve::default();
        assert_eq!(curve.up_to(2, false), [0.0; 3]);
        curve.add(4, 8.0);
        assert_eq!(curve.up_to(6, false), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        curve.add(6, 28.0);
        assert_eq!(curve.up_to(7, false), [0.0, 2.0, 4.0, 6.0, 8.0, 18.0, 28.0, 38.0]);
        assert_eq!(curve.up_to(1, false), [0.0, 2.0]);
        assert_eq!(curve.up_to(7, true), [0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 28.0, 28.0]);
    }

    #[test]
    fn adopted_times_are_replaced_until_they_are_measured() {
        let mut curve = CostCurve::default();
        curve.adopt([(1, 10.0), (3, 30.0)].into_iter());
        curve.adopt([(1, 20.0), (2, 40.0)].into_iter());
        assert_eq!(
            (curve.times().collect::<Vec<_>>(), curve.is_measured()),
            (vec![(1, 20.0), (2, 40.0)], false)
        );
        curve.add(2, 40.0);
        curve.adopt([(1, 30.0), (2, 900.0)].into_iter());
        let times = curve.up_to(2, false).iter().map(|ns| ns.round()).collect::<Vec<_>>();
        assert_eq!((times, curve.is_measured()), (vec![0.0, 30.0, 40.0], true));
    }

    #[test]
    fn noise_does_not_make_more_rows_cheaper() {
        let mut curve = CostCurve::default();
        curve.add(1, 10.0);
        curve.add(2, 14.0);
        curve.add(3, 12.0);
        let times = curve.up_to(4, false);
        assert!(times.is_sorted() && (times[2] - 13.0).abs() < 0.01, "{times:?}");
    }
}
