// The inputs of layers next to the hidden state: inputs = (norm(projected · scale) + inputs) / √2, with a norm for each layer.
// A workgroup computes a layer's input of a row.
//
// Order of additions: as in norm.wgsl.
struct Parameters {
  width: u32, // of a layer's input
  layers: u32,
  scale: f32,
  epsilon: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> projected: array<f32>; // [rows, layers, width]
@group(0) @binding(1) var<storage, read> norm: array<f32>; // [width]
@group(0) @binding(2) var<storage, read_write> inputs: array<f32>; // [rows, layers, width]: before, those of tokens

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = (group.y * p.layers + group.x) * p.width;
  var squares = 0.0f;
  for (var i = thread; i < p.width; i += 256u) {
    let x = projected[first + i] * p.scale;
    squares = squares + x * x;
  }
  let square = divide(tree_sum(thread, squares), f32(p.width));
  let scale = divide(1.0f, square_root(square + p.epsilon));
  for (var i = thread; i < p.width; i += 256u) {
    let normed = projected[first + i] * p.scale * scale * norm[i];
    inputs[first + i] = (normed + inputs[first + i]) * 0.70710678f;
  }
}
