// inner = activation(gate) · up, or activation(up) without a gate.
struct Parameters {
  width: u32, // of `inner`
  rows: u32,
  // 0: SiLU. 1: GELU. 2: GELU by tanh. 3: ReLU. 4: gpt-oss's clamped SwiGLU.
  activation: u32,
  is_gated: u32,
  limit: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> projected: array<f32>; // [rows, gate, up], or [rows, up]
@group(0) @binding(1) var<storage, read_write> inner: array<f32>; // [rows, width]

fn activate(x: f32) -> f32 {
  switch p.activation {
    case 1u: { return gelu(x); }
    case 2u: { return gelu_tanh(x); }
    case 3u: { return select(x, 0.0f, x < 0.0f); }
    default: { return silu(x); }
  }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = group.x * 64u + thread;
  let row = group.y;
  if (i >= p.width) {
    return;
  }
  var value: f32;
  if (p.is_gated == 0u) {
    value = activate(projected[row * p.width + i]);
  } else {
    var gate = projected[row * 2u * p.width + i];
    var up = projected[row * 2u * p.width + p.width + i];
    if (p.activation == 4u) {
      gate = select(gate, p.limit, gate > p.limit);
      up = clamp(up, -p.limit, p.limit);
      value = divide(gate, 1.0f + exponential(-1.702f * gate)) * (up + 1.0f);
    } else {
      value = activate(gate) * up;
    }
  }
  inner[row * p.width + i] = value;
}
