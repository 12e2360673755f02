// Combines the splits of a head of a row: each is multiplied by the exponential of its peak minus the largest one,
// and added in ascending order. Then comes the attention sink, and the division by the sum of all weights.
struct Parameters {
  query_heads: u32,
  value_dim: u32,
  window: u32,
  splits: u32,
  first_row: u32,
  has_sinks: u32,
  sees_block: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> partials: array<f32>; // [rows, query_heads, splits, 2 + value_dim]
@group(0) @binding(1) var<storage, read> sinks: array<f32>; // [query_heads]
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read_write> attended: array<f32>; // [rows, query_heads, value_dim]

const SPLIT: u32 = 256u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = rows[p.first_row + group.y];
  let before = row.position + 1u;
  let first_split = (before - min(before, p.window)) / SPLIT;
  let seen = select(before, row.block_end, p.sees_block == 1u);
  let used = (seen - 1u) / SPLIT - first_split + 1u;
  let size = 2u + p.value_dim;
  let first = (group.y * p.query_heads + group.x) * p.splits * size;
  var peak = LOWEST;
  for (var s = 0u; s < used; s += 1u) {
    peak = max(peak, partials[first + s * size]);
  }
  if (p.has_sinks == 1u) {
    peak = max(peak, sinks[group.x]);
  }
  var total = 0.0f;
  for (var s = 0u; s < used; s += 1u) {
    total = total + partials[first + s * size + 1u] * exponential(partials[first + s * size] - peak);
  }
  if (p.has_sinks == 1u) {
    total = total + exponential(sinks[group.x] - peak);
  }
  for (var d = thread; d < p.value_dim; d += 64u) {
    var value = 0.0f;
    for (var s = 0u; s < used; s += 1u) {
      let weight = exponential(partials[first + s * size] - peak);
      value = value + partials[first + s * size + 2u + d] * weight;
    }
    attended[((p.first_row + group.y) * p.query_heads + group.x) * p.value_dim + d] = divide(value, total);
  }
}
