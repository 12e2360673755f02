// y[row] = weights · x[row] + bias, or y[row] += (weights · x[row] + bias) · factor.
// A workgroup computes four outputs for ROWS rows: sixteen threads an output. The order of additions is that of
// product.wgsl, whatever the number of rows.
struct Parameters {
  quarters: u32, // inputs / 4
  outputs: u32,
  y_offset: u32,
  y_stride: u32,
  rows: u32,
  // 1: there is a bias. 2: add to y.
  flags: u32,
  factor: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [rows, inputs]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [outputs]
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [rows, y_stride]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % 16u;
  let output = group.x * 4u + thread / 16u;
  let first_row = group.y * ROWS;
  var sums: array<f32, ROWS>;
  for (var r = 0u; r < ROWS; r += 1u) {
    sums[r] = 0.0f;
  }
  if (output < p.outputs) {
    for (var i = lane; i < p.quarters; i += 16u) {
      let w = weights4(output, i);
      for (var r = 0u; r < ROWS; r += 1u) {
        // Rows after the last one repeat it, and are not written.
        let v = x[min(first_row + r, p.rows - 1u) * p.quarters + i];
        sums[r] = add_products(sums[r], v, w);
      }
    }
  }
  for (var r = 0u; r < ROWS; r += 1u) {
    partial[r * 64u + thread] = sums[r];
  }
  workgroupBarrier();
  // Each result is added up by one thread.
  let row = first_row + thread / 4u;
  let result = group.x * 4u + thread % 4u;
  if (thread < ROWS * 4u && row < p.rows && result < p.outputs) {
    var value = total(thread);
    if ((p.flags & 1u) != 0u) {
      value = value + bias[result];
    }
    let at = row * p.y_stride + p.y_offset + result;
    if ((p.flags & 2u) != 0u) {
      value = y[at] + value * p.factor;
    }
    y[at] = value;
  }
}
