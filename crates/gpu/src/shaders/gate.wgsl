// y[row] *= sigmoid(gates[row]), with one gate for a row, or one for each number.
struct Parameters {
  width: u32,
  gates: u32, // of a row: 1 or width
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> gates: array<f32>; // [rows, gates]
@group(0) @binding(1) var<storage, read_write> y: array<f32>; // [rows, width]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = group.x * 64u + thread;
  if (i < p.width) {
    let at = group.y * p.width + i;
    y[at] = y[at] * divide(1.0f, 1.0f + exponential(-gates[group.y * p.gates + min(i, p.gates - 1u)]));
  }
}
