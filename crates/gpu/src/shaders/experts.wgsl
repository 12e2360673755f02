// y[choice] = weights[expert] · x[input] + bias[expert], for the choices of a tile. A team computes OUTPUTS outputs for
// ROWS choices. Additions have the order of product.wgsl.
struct Parameters {
  quarters: u32, // inputs / 4
  first_expert: u32, // of the matrix's part
  experts: u32, // of the part
  outputs: u32, // of an expert in the part
  y_offset: u32,
  y_stride: u32,
  // Successive choices that have the same input: the experts of a row, or 1.
  sharing: u32,
  has_bias: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [choices / sharing, inputs]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [experts, outputs]
@group(0) @binding(3) var<storage, read> members: array<u32>;
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>; // [choices, y_stride]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let tile = tiles[group.y];
  let first_member = tile.y;
  let count = tile.z;
  // Experts before the part have a large number.
  let expert = tile.x - p.first_expert;
  if (count == 0u || expert >= p.experts) {
    return;
  }
  let lane = thread % 32u;
  let team = thread / 32u;
  let first_output = (group.x * TEAMS + team) * OUTPUTS;
  var sums: array<f32, ROWS * OUTPUTS>; // [choice, output]
  var inputs: array<u32, ROWS>; // where each choice's input begins
  for (var r = 0u; r < ROWS; r += 1u) {
    inputs[r] = members[first_member + min(r, count - 1u)] / p.sharing * p.quarters;
  }
  for (var s = 0u; s < ROWS * OUTPUTS; s += 1u) {
    sums[s] = 0.0f;
  }
  for (var i = lane; i < eighths(); i += 32u) {
    var w: array<Eight, OUTPUTS>;
    for (var o = 0u; o < OUTPUTS; o += 1u) {
      // Outputs after the last one repeat it, and are not written.
      let output = expert * p.outputs + min(first_output + o, p.outputs - 1u);
      w[o] = unpack8(read8(output, i), i);
    }
    for (var r = 0u; r < ROWS; r += 1u) {
      if (r < count) {
        let v = eight_of(inputs[r], i * 2u);
        for (var o = 0u; o < OUTPUTS; o += 1u) {
          sums[r * OUTPUTS + o] = add_products(sums[r * OUTPUTS + o], v, w[o]);
        }
      }
    }
  }
  for (var o = 0u; o < OUTPUTS; o += 1u) {
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r += 1u) {
      partial[(r * TEAMS + team) * STRIDE + lane] = sums[r * OUTPUTS + o];
    }
    workgroupBarrier();
    let row = thread / TEAMS;
    let result = (group.x * TEAMS + thread % TEAMS) * OUTPUTS + o;
    if (row < min(count, ROWS) && result < p.outputs) {
      var value = total(thread);
      if (p.has_bias != 0u) {
        value = value + bias[expert * p.outputs + result];
      }
      y[members[first_member + row] * p.y_stride + p.y_offset + result] = value;
    }
  }
}
