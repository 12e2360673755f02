//! Splits work on rows among threads.

use rayon::prelude::*;
use std::ops::Range;

/// Splits `0..count` into contiguous ranges of about equal length, at most one per thread.
pub(super) fn ranges(count: usize) -> Vec<Range<usize>> {
    let parts = rayon::current_num_threads().clamp(1, count.max(1));
    (0..parts).map(|part| count * part / parts..count * (part + 1) / parts).collect()
}

/// Splits a vector of `width` values per row into the parts that belong to ranges of rows.
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

/// Runs all tasks in parallel and returns their results in order.
pub(super) fn map<T: Send, R: Send>(tasks: Vec<T>, work: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    tasks.into_par_iter().map(work).collect()
}

/// Adds vectors up, in order.
pub(super) fn sum(vectors: Vec<Vec<f32>>) -> Vec<f32> {
    let mut vectors = vectors.into_iter();
    let mut sum = vectors.next().unwrap_or_default();
    for vector in vectors {
        super::elementwise::add(&mut sum, &vector);
    }
    sum
}
