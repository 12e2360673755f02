// Attention of a head of a row over one split: 256 successive positions of the row's own path, anchored to
// position 0. Positions before the window are left out.
//
// Order of additions: a score adds its products in ascending order. The weight of position j belongs to partial sum
// j mod 256, as in norm.wgsl. Values are added in ascending order of positions. So nothing depends on slots, pages or
// other rows.
struct Parameters {
  query_heads: u32,
  key_heads: u32,
  head_dim: u32,
  window: u32, // number of positions that a row sees
  score_scale: f32,
  score_cap: f32, // 0 for none
  splits: u32, // in `partials`
  first_row: u32, // the row of the first workgroup
  // The place of a head's values in its row of `values`, which is as wide as the keys, and their number.
  value_first: u32,
  value_dim: u32,
  sees_block: u32, // whether rows see the later rows of their block
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> queries: array<f32>; // [rows, query_heads, head_dim]
@group(0) @binding(1) var<storage, read> keys: array<Words>; // [places, key_heads, head_dim]
@group(0) @binding(2) var<storage, read> values: array<u32>; // [places, key_heads, head_dim]; compressed values are a part of the keys
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read> places: array<u32>; // page tables, and places of nodes of trees
@group(0) @binding(5) var<storage, read_write> partials: array<f32>; // [rows, query_heads, splits, 2 + value_dim]

const SPLIT: u32 = 256u; // also the number of threads
// Reads in progress at once. Their loops have no other end, so that compilers unroll them.
const AT_ONCE: u32 = 32u;
const PER_READ: u32 = PER_WORD * WORDS; // numbers of keys
var<workgroup> partial: array<f32, SPLIT>;
var<workgroup> query: array<f32, MAX_HEAD_DIM>;
var<workgroup> weights: array<f32, SPLIT>;
var<workgroup> at: array<u32, SPLIT>; // places

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = rows[p.first_row + group.y];
  let head = group.x;
  let before = row.position + 1u;
  let window_start = before - min(before, p.window);
  let seen = select(before, row.block_end, p.sees_block == 1u);
  let split = window_start / SPLIT + group.z;
  let split_start = split * SPLIT;
  if (split_start >= seen) {
    return;
  }
  let start = max(split_start, window_start) - split_start;
  let end = min(split_start + SPLIT, seen) - split_start;
  let first_query = ((p.first_row + group.y) * p.query_heads + head) * p.head_dim;
  let key_head = head / (p.query_heads / p.key_heads);

  for (var d = thread; d < p.head_dim; d += 256u) {
    query[d] = queries[first_query + d];
  }
  workgroupBarrier();
  // A thread computes the score of a position.
  let has_position = start <= thread && thread < end;
  var score = LOWEST;
  if (has_position) {
    let position = split_start + thread;
    var place: u32;
    if (position < row.chain) {
      place = places[row.table + position / 64u] * 64u + position % 64u;
    } else {
      place = places[row.rest + position - row.chain];
    }
    at[thread] = place;
    let key = (place * p.key_heads + key_head) * p.head_dim;
    score = 0.0f;
    for (var d = 0u; d < p.head_dim; d += AT_ONCE) {
      var read: array<Words, AT_ONCE / PER_READ>;
      for (var j = 0u; j < AT_ONCE / PER_READ; j += 1u) {
        read[j] = keys[(key + min(d + j * PER_READ, p.head_dim - PER_READ)) / PER_READ];
      }
      for (var j = 0u; j < AT_ONCE; j += 1u) {
        let i = min(d + j, p.head_dim - 1u);
        score = select(score, score + query[i] * unpack(word(read[j / PER_READ], j / PER_WORD % WORDS), j), d + j < p.head_dim);
      }
    }
    score = score * p.score_scale;
    if (p.score_cap != 0.0f) {
      score = p.score_cap * hyperbolic_tangent(divide(score, p.score_cap));
    }
  }
  partial[thread] = score;
  workgroupBarrier();
  for (var half = SPLIT / 2u; half > 0u; half = half >> 1u) {
    if (thread < half) {
      partial[thread] = max(partial[thread], partial[thread + half]);
    }
    workgroupBarrier();
  }
  let peak = partial[0];
  workgroupBarrier();

  let weight = select(0.0f, exponential(score - peak), has_position);
  weights[thread] = weight;
  partial[thread] = weight;
  workgroupBarrier();
  for (var half = SPLIT / 2u; half > 0u; half = half >> 1u) {
    if (thread < half) {
      partial[thread] = partial[thread] + partial[thread + half];
    }
    workgroupBarrier();
  }
  let out = ((group.y * p.query_heads + head) * p.splits + group.z) * (2u + p.value_dim);
  if (thread == 0u) {
    partials[out] = peak;
    partials[out + 1u] = partial[0];
  }
  for (var d = thread; d < p.value_dim; d += 256u) {
    var value = 0.0f;
    for (var first = start; first < end; first += AT_ONCE) {
      var read: array<u32, AT_ONCE>;
      for (var j = 0u; j < AT_ONCE; j += 1u) {
        let index = (at[min(first + j, end - 1u)] * p.key_heads + key_head) * p.head_dim + p.value_first + d;
        read[j] = values[index / PER_WORD];
      }
      for (var j = 0u; j < AT_ONCE; j += 1u) {
        let i = min(first + j, end - 1u);
        value = select(value, value + weights[i] * unpack(read[j], d), first + j < end);
      }
    }
    partials[out + 2u + d] = value;
  }
}
