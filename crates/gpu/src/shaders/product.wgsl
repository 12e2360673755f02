// The sums of products with matrices. Product i belongs to partial sum (i / 8) mod 32, in ascending order. Then the upper
// half of the partial sums is added to the lower half until one is left. Thirty-two threads, a team, compute an output; a
// workgroup has TEAMS teams.

// Eight successive numbers.
struct Eight {
  a: vec4<f32>,
  b: vec4<f32>,
}

// Returns the eighths of a row of the matrix, of which the last may be half.
fn eighths() -> u32 {
  return (p.quarters + 1u) / 2u;
}

// Threads write scalars: components of one vector would be a race where vectors are written whole. A result has one number
// more than lanes, so that threads that add up different results use different banks of memory.
const STRIDE: u32 = 33u;
// PARTIAL_ROWS rows are added up at once.
var<workgroup> partial: array<f32, PARTIAL_ROWS * TEAMS * STRIDE>; // [row, team, lane]

// Returns four successive partial sums.
fn partial4(first: u32) -> vec4<f32> {
  return vec4<f32>(partial[first], partial[first + 1u], partial[first + 2u], partial[first + 3u]);
}

// Returns eight successive numbers of x from a quarter of a row on. Those after the end of the row are zero.
fn eight_of(row_start: u32, quarter: u32) -> Eight {
  let is_half = quarter + 1u == p.quarters;
  let second = x[row_start + quarter + select(1u, 0u, is_half)];
  return Eight(x[row_start + quarter], select(second, vec4<f32>(0.0f), is_half));
}

// Adds eight successive products to a partial sum.
fn add_products(sum: f32, v: Eight, w: Eight) -> f32 {
  var next = sum + v.a.x * w.a.x;
  next = next + v.a.y * w.a.y;
  next = next + v.a.z * w.a.z;
  next = next + v.a.w * w.a.w;
  next = next + v.b.x * w.b.x;
  next = next + v.b.y * w.b.y;
  next = next + v.b.z * w.b.z;
  return next + v.b.w * w.b.w;
}

// Returns a result: the sum of its lanes.
fn total(index: u32) -> f32 {
  let lanes = index * STRIDE;
  let a = partial4(lanes) + partial4(lanes + 16u);
  let b = partial4(lanes + 4u) + partial4(lanes + 20u);
  let c = partial4(lanes + 8u) + partial4(lanes + 24u);
  let d = partial4(lanes + 12u) + partial4(lanes + 28u);
  let four = (a + c) + (b + d);
  let two = four.xy + four.zw;
  return two.x + two.y;
}
