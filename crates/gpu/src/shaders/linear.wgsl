// y[row] = weights · x[row] + bias, or y[row] += (weights · x[row] + bias) · factor; with several heads, each has its own
// weights, and its own part of x and y.
// A team computes OUTPUTS outputs for ROWS rows. The order of additions is that of product.wgsl, whatever these numbers
// are.
struct Parameters {
  quarters: u32, // inputs / 4
  outputs: u32, // of a head
  // In quarters: the first one, those of a row, and those of a head.
  x_offset: u32,
  x_stride: u32,
  x_head: u32,
  y_offset: u32,
  y_stride: u32,
  y_head: u32,
  rows: u32,
  // 1: there is a bias. 2: add to y.
  flags: u32,
  factor: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [rows, x_stride]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [outputs]
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [rows, y_stride]

// Returns eight successive inputs of a row. Rows after the last one repeat it, and are not written.
fn inputs8(first: u32, row: u32, eighth: u32) -> Eight {
  return eight_of(first + min(row, p.rows - 1u) * p.x_stride, eighth * 2u);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % 32u;
  let team = thread / 32u;
  let first_output = (group.x * 2u + team) * OUTPUTS;
  let first_row = group.y * ROWS;
  let first_weights = group.z * p.outputs;
  let first_x = p.x_offset + group.z * p.x_head;
  let first_y = p.y_offset + group.z * p.y_head;
  var sums: array<f32, ROWS * OUTPUTS>; // [row, output]
  for (var s = 0u; s < ROWS * OUTPUTS; s += 1u) {
    sums[s] = 0.0f;
  }
  let end = eighths();
  var i = lane;
  // Several reads of weights are in progress at once.
  while (i + 32u * (DEPTH - 1u) < end) {
    var w: array<Eight, DEPTH * OUTPUTS>;
    for (var d = 0u; d < DEPTH; d += 1u) {
      for (var o = 0u; o < OUTPUTS; o += 1u) {
        // Outputs after the last one repeat it, and are not written.
        w[d * OUTPUTS + o] = weights8(first_weights + min(first_output + o, p.outputs - 1u), i + 32u * d);
      }
    }
    for (var d = 0u; d < DEPTH; d += 1u) {
      for (var r = 0u; r < ROWS; r += 1u) {
        let v = inputs8(first_x, first_row + r, i + 32u * d);
        for (var o = 0u; o < OUTPUTS; o += 1u) {
          let s = r * OUTPUTS + o;
          sums[s] = add_products(sums[s], v, w[d * OUTPUTS + o]);
        }
      }
    }
    i += 32u * DEPTH;
  }
  while (i < end) {
    for (var o = 0u; o < OUTPUTS; o += 1u) {
      let w = weights8(first_weights + min(first_output + o, p.outputs - 1u), i);
      for (var r = 0u; r < ROWS; r += 1u) {
        let s = r * OUTPUTS + o;
        sums[s] = add_products(sums[s], inputs8(first_x, first_row + r, i), w);
      }
    }
    i += 32u;
  }
  for (var o = 0u; o < OUTPUTS; o += 1u) {
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r += 1u) {
      partial[(r * 2u + team) * STRIDE + lane] = sums[r * OUTPUTS + o];
    }
    workgroupBarrier();
    // Each result is added up by one thread.
    let row = first_row + thread / 2u;
    let result = (group.x * 2u + thread % 2u) * OUTPUTS + o;
    if (thread < ROWS * 2u && row < p.rows && result < p.outputs) {
      var value = total(thread);
      if ((p.flags & 1u) != 0u) {
        value = value + bias[result];
      }
      let at = first_y + row * p.y_stride + result;
      if ((p.flags & 2u) != 0u) {
        value = y[at] + value * p.factor;
      }
      y[at] = value;
    }
  }
}
