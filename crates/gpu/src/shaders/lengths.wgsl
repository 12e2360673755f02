// Divides queries and keys of a recurrent mixer by their lengths; queries are multiplied by a factor. A workgroup computes a
// head of a row.
//
// Order of additions: as in norm.wgsl.
struct Parameters {
  channels: u32,
  key_dim: u32,
  query_heads: u32,
  scale: f32, // of queries
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read_write> convolved: array<f32>; // [rows, channels]: queries, keys, values

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = group.y * p.channels + group.x * p.key_dim;
  var squares = 0.0f;
  for (var i = thread; i < p.key_dim; i += 256u) {
    squares = squares + convolved[first + i] * convolved[first + i];
  }
  let inverse = divide(1.0f, square_root(tree_sum(thread, squares) + 1e-6f));
  for (var i = thread; i < p.key_dim; i += 256u) {
    var value = convolved[first + i] * inverse;
    if (group.x < p.query_heads) {
      value = value * p.scale;
    }
    convolved[first + i] = value;
  }
}
