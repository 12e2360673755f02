// The convolution of a recurrent mixer. A thread computes a channel of all rows, in order.
//
// Order of additions: the products from the oldest position to the row's own, then the bias.
struct Parameters {
  rows: u32,
  channels: u32,
  row_width: u32, // of `projected`
  first_factor: u32, // where factors of the inputs begin in a row of `projected`; 0 for none
  // 1: there is a bias. 2: SiLU.
  flags: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> projected: array<f32>; // [rows, row_width]
@group(0) @binding(1) var<storage, read> weights: array<f32>; // [KERNEL, channels]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [channels]
@group(0) @binding(3) var<storage, read> steps: array<Step>; // [rows]
@group(0) @binding(4) var<storage, read_write> states: array<f32>; // [slots, KERNEL - 1, channels]
@group(0) @binding(5) var<storage, read_write> convolved: array<f32>; // [rows, channels]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let channel = group.x * 64u + thread;
  if (channel >= p.channels) {
    return;
  }
  // The inputs, the oldest first; the row's own is the last one.
  var inputs: array<f32, KERNEL>;
  for (var row = 0u; row < p.rows; row += 1u) {
    let step = steps[row];
    if (step.before != RUNNING) {
      for (var j = 0u; j + 1u < KERNEL; j += 1u) {
        inputs[j] = 0.0f;
        if (step.before != ZERO) {
          inputs[j] = states[(step.before * (KERNEL - 1u) + j) * p.channels + channel];
        }
      }
    }
    var own = projected[row * p.row_width + channel];
    if (p.first_factor != 0u) {
      own = own * projected[row * p.row_width + p.first_factor + channel];
    }
    inputs[KERNEL - 1u] = own;
    var sum = 0.0f;
    for (var j = 0u; j < KERNEL; j += 1u) {
      sum = sum + weights[j * p.channels + channel] * inputs[j];
    }
    if ((p.flags & 1u) != 0u) {
      sum = sum + bias[channel];
    }
    if ((p.flags & 2u) != 0u) {
      sum = silu(sum);
    }
    convolved[row * p.channels + channel] = sum;
    for (var j = 1u; j < KERNEL; j += 1u) {
      inputs[j - 1u] = inputs[j];
      if (step.after != NONE) {
        states[(step.after * (KERNEL - 1u) + j - 1u) * p.channels + channel] = inputs[j];
      }
    }
  }
}
