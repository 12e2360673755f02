// The recurrence of a mixer's heads: the gated delta rule, or that of a state space. A thread computes a column of a head's
// state for all rows, in order.
//
// Order of additions: sums over keys are in ascending order of their dimensions.
struct Parameters {
  rows: u32,
  channels: u32,
  row_width: u32, // of `projected`
  key_heads: u32,
  value_heads: u32,
  value_dim: u32,
  first_beta: u32, // in a row of `projected`
  first_decay: u32,
  // 1: the gated delta rule. 2: value heads are in turn those of all key heads.
  flags: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> convolved: array<f32>; // [rows, channels]: queries, keys, values
@group(0) @binding(1) var<storage, read> projected: array<f32>; // [rows, row_width]
@group(0) @binding(2) var<storage, read> heads: array<f32>; // [3, value_heads]: rates, biases of decays, factors of values
@group(0) @binding(3) var<storage, read> steps: array<Step>; // [rows]
@group(0) @binding(4) var<storage, read_write> states: array<f32>; // [slots, value_heads, KEY_DIM, value_dim]
@group(0) @binding(5) var<storage, read_write> out: array<f32>; // [rows, value_heads, value_dim]

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = group.x * 32u + thread;
  let head = group.y;
  if (column >= p.value_dim) {
    return;
  }
  let is_delta = (p.flags & 1u) != 0u;
  let is_tiled = (p.flags & 2u) != 0u;
  let key_head = select(head / (p.value_heads / p.key_heads), head % p.key_heads, is_tiled);
  let key_width = p.key_heads * KEY_DIM;
  var state: array<f32, KEY_DIM>;
  for (var row = 0u; row < p.rows; row += 1u) {
    let step = steps[row];
    if (step.before != RUNNING) {
      let first = (step.before * p.value_heads + head) * KEY_DIM;
      for (var k = 0u; k < KEY_DIM; k += 1u) {
        state[k] = 0.0f;
        if (step.before != ZERO) {
          state[k] = states[(first + k) * p.value_dim + column];
        }
      }
    }
    let first_query = row * p.channels + key_head * KEY_DIM;
    let first_key = first_query + key_width;
    let value = convolved[row * p.channels + 2u * key_width + head * p.value_dim + column];
    let growth = softplus(projected[row * p.row_width + p.first_decay + head] + heads[p.value_heads + head]);
    let decay = exponential(heads[head] * growth);
    var memory = 0.0f;
    for (var k = 0u; k < KEY_DIM; k += 1u) {
      state[k] = state[k] * decay;
      memory = memory + state[k] * convolved[first_key + k];
    }
    var added = value * growth;
    if (is_delta) {
      let beta = projected[row * p.row_width + p.first_beta + head];
      added = (value - memory) * divide(1.0f, 1.0f + exponential(-beta));
    }
    var read = 0.0f;
    for (var k = 0u; k < KEY_DIM; k += 1u) {
      state[k] = state[k] + convolved[first_key + k] * added;
      read = read + state[k] * convolved[first_query + k];
    }
    if (!is_delta) {
      read = read + heads[2u * p.value_heads + head] * value;
    }
    out[(row * p.value_heads + head) * p.value_dim + column] = read;
    if (step.after != NONE) {
      let first = (step.after * p.value_heads + head) * KEY_DIM;
      for (var k = 0u; k < KEY_DIM; k += 1u) {
        states[(first + k) * p.value_dim + column] = state[k];
      }
    }
  }
}
