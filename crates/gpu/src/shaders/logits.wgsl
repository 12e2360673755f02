// Divides logits by the model's divisor, and limits them: cap · tanh(logit / cap).
struct Parameters {
  len: u32,
  divisor: f32,
  cap: f32, // 0 for none
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = (group.y * 65535u + group.x) * 64u + thread;
  if (i < p.len) {
    var value = divide(logits[i], p.divisor);
    if (p.cap != 0.0f) {
      value = p.cap * hyperbolic_tangent(divide(value, p.cap));
    }
    logits[i] = value;
  }
}
