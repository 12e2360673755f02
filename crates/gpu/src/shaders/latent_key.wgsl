// The cached row of compressed keys and values: the part of the key with RoPE, then the normed latent vector. A workgroup
// computes a row.
//
// Order of additions in the norm: as in norm.wgsl.
struct Parameters {
  rank: u32,
  rope_dim: u32,
  half_rotated: u32, // number of rotated pairs
  table: u32, // where the table of the layer's RoPE begins in `tables`
  epsilon: f32,
  layer: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> input: array<f32>; // [rows, rank + rope_dim]: the latent vector comes first
@group(0) @binding(1) var<storage, read> tables: array<f32>; // [tables][rows, 2, rotated pairs]: cosines, then sines
@group(0) @binding(2) var<storage, read> norm: array<f32>; // [rank]
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> keys: array<u32>; // [places, rope_dim + rank]
@group(0) @binding(5) var<storage, read_write> overflows: array<atomic<u32>>; // [rows]: 2 · layer

var<workgroup> head: array<f32, MAX_HEAD_DIM>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.x;
  let width = p.rope_dim + p.rank;
  let first = row * width;
  var squares = 0.0f;
  for (var i = thread; i < p.rank; i += 256u) {
    squares = squares + input[first + i] * input[first + i];
  }
  let square = divide(tree_sum(thread, squares), f32(p.rank));
  let scale = divide(1.0f, square_root(square + p.epsilon));
  for (var i = thread; i < p.rank; i += 256u) {
    head[p.rope_dim + i] = input[first + i] * scale * norm[i];
  }
  let table = p.table + row * 2u * p.half_rotated;
  for (var i = thread; i < p.rope_dim; i += 256u) {
    head[i] = rotated(first + p.rank, table, i);
  }
  workgroupBarrier();
  let at = rows[row].place * width;
  var is_too_large = false;
  for (var i = thread * PER_WORD; i < width; i += 256u * PER_WORD) {
    let word = pack(i);
    is_too_large = is_too_large || word.is_too_large;
    keys[(at + i) / PER_WORD] = word.bits;
  }
  if (is_too_large) {
    atomicMin(&overflows[row], 2u * p.layer);
  }
}
