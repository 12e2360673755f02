// inner = activation(gate) · up, or activation(up) without a gate.
struct Parameters {
  width: u32, // of `inner`
  gate_stride: u32, // numbers of a row of `gates`
  up_stride: u32, // numbers of a row of `ups`
  up_offset: u32,
  // 0: SiLU. 1: GELU. 2: GELU by tanh. 3: ReLU. 4: gpt-oss's clamped SwiGLU.
  activation: u32,
  is_gated: u32,
  limit: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> gates: array<f32>; // [rows, gate_stride]
@group(0) @binding(1) var<storage, read> ups: array<f32>; // [rows, up_stride]
@group(0) @binding(2) var<storage, read_write> inner: array<f32>; // [rows, width]

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
  var up = ups[row * p.up_stride + p.up_offset + i];
  if (p.is_gated == 0u) {
    value = activate(up);
  } else {
    var gate = gates[row * p.gate_stride + i];
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
