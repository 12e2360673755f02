// y *= factor.
struct Parameters {
  len: u32,
  factor: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = (group.y * 65535u + group.x) * 64u + thread;
  if (i < p.len) {
    y[i] = y[i] * p.factor;
  }
}
