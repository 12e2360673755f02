// y[row] = the sum of the outputs of the row's experts, each multiplied by its weight, in ascending order of the experts;
// or y[row] += that sum · factor.
struct Parameters {
  width: u32,
  chosen: u32, // experts of a row
  adds: u32,
  factor: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> choices: array<vec2<u32>>; // [rows, chosen]: an expert, and its weight's bits
@group(0) @binding(1) var<storage, read> outputs: array<f32>; // [rows, chosen, width]
@group(0) @binding(2) var<storage, read_write> y: array<f32>; // [rows, width]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = group.x * 64u + thread;
  if (i >= p.width) {
    return;
  }
  let first = group.y * p.chosen;
  var sum = 0.0f;
  for (var c = 0u; c < p.chosen; c += 1u) {
    sum = sum + outputs[(first + c) * p.width + i] * bitcast<f32>(choices[first + c].y);
  }
  let at = group.y * p.width + i;
  if (p.adds != 0u) {
    sum = y[at] + sum * p.factor;
  }
  y[at] = sum;
}
