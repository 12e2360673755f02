// The sums of products with matrices. Product i belongs to partial sum (i / 4) mod 16, in ascending order. Then the upper
// half of the partial sums is added to the lower half until one is left.

// Threads write scalars: components of one vector would be a race where vectors are written whole.
var<workgroup> partial: array<f32, ROWS * OUTPUTS * 64u>; // [result, lane]

// Returns four successive partial sums.
fn partial4(first: u32) -> vec4<f32> {
  return vec4<f32>(partial[first], partial[first + 1u], partial[first + 2u], partial[first + 3u]);
}

// Adds four successive products to a partial sum.
fn add_products(sum: f32, v: vec4<f32>, w: vec4<f32>) -> f32 {
  var next = sum + v.x * w.x;
  next = next + v.y * w.y;
  next = next + v.z * w.z;
  return next + v.w * w.w;
}

// Returns a result: the sum of its sixteen lanes.
fn total(index: u32) -> f32 {
  let lanes = index * 16u;
  let eight = partial4(lanes) + partial4(lanes + 8u);
  let other = partial4(lanes + 4u) + partial4(lanes + 12u);
  let four = eight + other;
  let two = four.xy + four.zw;
  return two.x + two.y;
}
