// The norm and the gate of a recurrent mixer. A workgroup computes a part of a row that has a norm of its own.
//
// Order of additions: as in norm.wgsl.
struct Parameters {
  width: u32, // of a part
  values: u32, // of a row
  row_width: u32, // of `projected`
  first_gate: u32, // in a row of `projected`
  epsilon: f32,
  // 0: gate · x. 1: norm(x) · silu(gate). 2: norm(x · silu(gate)).
  rule: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> input: array<f32>; // [rows, values]
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [rows, row_width]
@group(0) @binding(2) var<storage, read> norm: array<f32>; // [width]
@group(0) @binding(3) var<storage, read_write> output: array<f32>; // [rows, values]

// Returns what has the norm.
fn normed(at: u32, gate: u32) -> f32 {
  let x = input[at];
  if (p.rule == 2u) {
    return x * silu(projected[gate]);
  }
  return x;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = group.y * p.values + group.x * p.width;
  let gates = group.y * p.row_width + p.first_gate + group.x * p.width;
  if (p.rule == 0u) {
    for (var i = thread; i < p.width; i += 256u) {
      output[first + i] = projected[gates + i] * input[first + i];
    }
    return;
  }
  var squares = 0.0f;
  for (var i = thread; i < p.width; i += 256u) {
    let x = normed(first + i, gates + i);
    squares = squares + x * x;
  }
  let square = divide(tree_sum(thread, squares), f32(p.width));
  let scale = divide(1.0f, square_root(square + p.epsilon));
  for (var i = thread; i < p.width; i += 256u) {
    var value = normed(first + i, gates + i) * scale * norm[i];
    if (p.rule == 1u) {
      value = value * silu(projected[gates + i]);
    }
    output[first + i] = value;
  }
}
