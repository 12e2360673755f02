// Divides the query of a head of a row. The part without RoPE goes to `plain`, filled up with zeros to whole vectors; its
// product with the head's expansion of keys is a part of the query of cached rows. The part with RoPE is the other one, and
// comes first.
struct Parameters {
  heads: u32,
  plain_dim: u32,
  plain_stride: u32, // of a head in `plain`
  rope_dim: u32,
  key_dim: u32,
  half_rotated: u32, // number of rotated pairs
  table: u32, // where the table of the layer's RoPE begins in `tables`
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> input: array<f32>; // [rows, heads, plain_dim + rope_dim]
@group(0) @binding(1) var<storage, read> tables: array<f32>; // [tables][rows, 2, rotated pairs]: cosines, then sines
@group(0) @binding(2) var<storage, read_write> plain: array<f32>; // [rows, heads, plain_stride]
@group(0) @binding(3) var<storage, read_write> queries: array<f32>; // [rows, heads, key_dim]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = group.y * p.heads + group.x;
  let first = head * (p.plain_dim + p.rope_dim);
  for (var i = thread; i < p.plain_stride; i += 64u) {
    let value = input[first + min(i, p.plain_dim - 1u)];
    plain[head * p.plain_stride + i] = select(0.0f, value, i < p.plain_dim);
  }
  let table = p.table + group.y * 2u * p.half_rotated;
  for (var i = thread; i < p.rope_dim; i += 64u) {
    queries[head * p.key_dim + i] = rotated(first + p.plain_dim, table, i);
  }
}
