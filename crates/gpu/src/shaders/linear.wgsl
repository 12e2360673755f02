// y[row] = weights · x[row] + bias, or y[row] += (weights · x[row] + bias) · factor.
// Sixteen threads compute OUTPUTS outputs for ROWS rows, and a workgroup four times as many. The order of additions is that
// of product.wgsl, whatever these numbers are.
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
  let first_output = (group.x * 4u + thread / 16u) * OUTPUTS;
  let first_row = group.y * ROWS;
  var sums: array<f32, ROWS * OUTPUTS>; // [row, output]
  for (var s = 0u; s < ROWS * OUTPUTS; s += 1u) {
    sums[s] = 0.0f;
  }
  var i = lane;
  // Reads of several weights are in progress at once.
  while (i + 16u * (DEPTH - 1u) < p.quarters) {
    var w: array<vec4<f32>, DEPTH * OUTPUTS>;
    for (var d = 0u; d < DEPTH; d += 1u) {
      for (var o = 0u; o < OUTPUTS; o += 1u) {
        // Outputs after the last one repeat it, and are not written. So do rows.
        w[d * OUTPUTS + o] = weights4(min(first_output + o, p.outputs - 1u), i + 16u * d);
      }
    }
    for (var d = 0u; d < DEPTH; d += 1u) {
      for (var r = 0u; r < ROWS; r += 1u) {
        let v = x[min(first_row + r, p.rows - 1u) * p.quarters + i + 16u * d];
        for (var o = 0u; o < OUTPUTS; o += 1u) {
          let s = r * OUTPUTS + o;
          sums[s] = add_products(sums[s], v, w[d * OUTPUTS + o]);
        }
      }
    }
    i += 16u * DEPTH;
  }
  while (i < p.quarters) {
    for (var o = 0u; o < OUTPUTS; o += 1u) {
      let w = weights4(min(first_output + o, p.outputs - 1u), i);
      for (var r = 0u; r < ROWS; r += 1u) {
        let v = x[min(first_row + r, p.rows - 1u) * p.quarters + i];
        let s = r * OUTPUTS + o;
        sums[s] = add_products(sums[s], v, w);
      }
    }
    i += 16u;
  }
  for (var s = 0u; s < ROWS * OUTPUTS; s += 1u) {
    partial[s * 64u + thread] = sums[s];
  }
  workgroupBarrier();
  // Each result is added up by one thread.
  for (var s = thread; s < ROWS * OUTPUTS * 4u; s += 64u) {
    // [row, output of a team, team]
    let row = first_row + s / (OUTPUTS * 4u);
    let result = (group.x * 4u + s % 4u) * OUTPUTS + s / 4u % OUTPUTS;
    if (row < p.rows && result < p.outputs) {
      var value = total(s);
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
}
