// Adds up 256 partial sums, one of each thread: the upper half is added to the lower half until one is left.
var<workgroup> partial: array<f32, 256>;

fn tree_sum(thread: u32, sum: f32) -> f32 {
  workgroupBarrier();
  partial[thread] = sum;
  workgroupBarrier();
  for (var half = 128u; half > 0u; half = half >> 1u) {
    if (thread < half) {
      partial[thread] = partial[thread] + partial[thread + half];
    }
    workgroupBarrier();
  }
  return partial[0];
}

