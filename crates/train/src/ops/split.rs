//! Work on rows, split among threads.

use rayon::prelude::*;
use std::ops::Range;

/// Contiguous, about equal ranges of `0..count`, at most one for each thread.
pub(super) fn ranges(count: usize) -> Vec<Range<usize>> {
    let parts = rayon::current_num_threads().clamp(1, count.max(1));
    (0..parts).map(|part| count * part / parts..count * (part + 1) / parts).collect()
}

/// The parts of a vector with `width` numbers for each of what is counted.
pub(super) fn parts<'a>(
    mut values: &'a mut [f32],
    ranges: &[Range<usize>],
    width: usize,
) -> Vec<&'a mut [f32]> {
    let part = |range: &Range<usize>| {
        let (part, rest) = std::mem::take(&mut values).split_at_mut(range.len() * width);
        values = rest;
        part
    };
    ranges.iter().map(part).collect()
}

/// Does all tasks, each on a thread of its own, and returns the results in order.
pub(super) fn all<T: Send, R: Send>(tasks: Vec<T>, work: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    tasks.into_par_iter().map(work).collect()
}

/// The sum of vectors, in order.
pub(super) fn total(vectors: Vec<Vec<f32>>) -> Vec<f32> {
    let mut vectors = vectors.into_iter();
    let mut total = vectors.next().unwrap_or_default();
    for vector in vectors {
        super::elementwise::add(&mut total, &vector);
    }
    total
}
