// Norms, limits and rotations of queries and keys; keys and values go to the cache. A workgroup computes a head of
// a row: first the query heads, then those of keys, then those of values.
//
// Order of additions in norms: as in norm.wgsl.
struct Parameters {
  query_heads: u32,
  key_heads: u32,
  head_dim: u32,
  // 1: the mean is subtracted. 2: queries and keys have norms. 4: all heads have one norm together.
  // 8: each head has its own weights. 16: values have a norm. 32: there is a limit.
  flags: u32,
  half_rotated: u32, // number of rotated pairs
  epsilon: f32,
  limit: f32,
  layer: u32,
  // Where the table of the layer's RoPE begins in `tables`.
  table: u32,
  row_width: u32, // of `projected`
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> projected: array<f32>; // [rows, queries, keys, values]
@group(0) @binding(1) var<storage, read> tables: array<f32>; // [tables][rows, 2, rotated pairs]: cosines, then sines
@group(0) @binding(2) var<storage, read> norms: array<f32>; // weights of queries, then of keys
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> queries: array<f32>; // [rows, query_heads, head_dim]
@group(0) @binding(5) var<storage, read_write> keys: array<u32>; // [places, key_heads, head_dim]
@group(0) @binding(6) var<storage, read_write> values: array<u32>; // [places, key_heads, head_dim]
@group(0) @binding(7) var<storage, read_write> overflows: array<atomic<u32>>; // [rows]: 2 · layer + (0: key, 1: value)

var<workgroup> partial: array<f32, 64>;
var<workgroup> head: array<f32, MAX_HEAD_DIM>;

// Adds up 256 partial sums: this thread has the sums `thread`, `thread + 64`, and so on.
fn tree_sum(thread: u32, sums: vec4<f32>) -> f32 {
  let halves = sums.xy + sums.zw;
  workgroupBarrier();
  partial[thread] = halves.x + halves.y;
  workgroupBarrier();
  for (var half = 32u; half > 0u; half = half >> 1u) {
    if (thread < half) {
      partial[thread] = partial[thread] + partial[thread + half];
    }
    workgroupBarrier();
  }
  return partial[0];
}

// Returns the four numbers, 64 apart, of the partial sums of a thread, and which of them there are.
struct Four {
  numbers: vec4<f32>,
  exist: vec4<bool>,
}

fn four(first: u32, start: u32, width: u32) -> Four {
  let i = vec4<u32>(start, start + 64u, start + 128u, start + 192u);
  let at = first + min(i, vec4<u32>(width - 1u));
  let numbers = vec4<f32>(projected[at.x], projected[at.y], projected[at.z], projected[at.w]);
  return Four(numbers, i < vec4<u32>(width));
}

// Returns the norm's mean and scale: of `width` numbers from `first` on.
fn mean_and_scale(thread: u32, first: u32, width: u32) -> vec2<f32> {
  var mean = 0.0f;
  if ((p.flags & 1u) != 0u) {
    var sums = vec4<f32>();
    for (var start = thread; start < width; start += 256u) {
      let read = four(first, start, width);
      sums = select(sums, sums + read.numbers, read.exist);
    }
    mean = divide(tree_sum(thread, sums), f32(width));
  }
  var squares = vec4<f32>();
  for (var start = thread; start < width; start += 256u) {
    let read = four(first, start, width);
    let x = read.numbers - mean;
    squares = select(squares, squares + x * x, read.exist);
  }
  let square = divide(tree_sum(thread, squares), f32(width));
  return vec2<f32>(mean, divide(1.0f, square_root(square + p.epsilon)));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let index = group.x;
  let row = group.y;
  let is_query = index < p.query_heads;
  let is_value = index >= p.query_heads + p.key_heads;
  let is_key = !is_query && !is_value;
  let first = row * p.row_width + index * p.head_dim;
  // The first head of the same kind, the number among them, and how many there are.
  var kind_first = 0u;
  var kind_heads = p.query_heads;
  if (!is_query) {
    kind_first = select(p.query_heads, p.query_heads + p.key_heads, is_value);
    kind_heads = p.key_heads;
  }
  let number = index - kind_first;

  let has_norm = select((p.flags & 2u) != 0u, (p.flags & 16u) != 0u, is_value);
  var mean = 0.0f;
  var scale = 1.0f;
  if (has_norm) {
    let is_whole = (p.flags & 4u) != 0u && !is_value;
    let normed_first = select(first, row * p.row_width + kind_first * p.head_dim, is_whole);
    let normed_width = select(p.head_dim, kind_heads * p.head_dim, is_whole);
    let both = mean_and_scale(thread, normed_first, normed_width);
    mean = both.x;
    scale = both.y;
  }
  // Weights: of one head for all, or of each. Those of keys follow those of queries.
  let has_own = (p.flags & 12u) != 0u;
  let own = select(0u, number * p.head_dim, has_own);
  let of_queries = select(1u, p.query_heads, has_own) * p.head_dim;
  let weights = own + select(0u, of_queries, is_key);
  for (var i = thread; i < p.head_dim; i += 64u) {
    var value = projected[first + i];
    if (has_norm) {
      value = (value - mean) * scale;
      if (!is_value) {
        value = value * norms[weights + i];
      }
    }
    if ((p.flags & 32u) != 0u) {
      value = clamp(value, -p.limit, p.limit);
    }
    head[i] = value;
  }
  workgroupBarrier();
  if (!is_value) {
    let table = p.table + row * 2u * p.half_rotated;
    for (var i = thread; i < p.half_rotated; i += 64u) {
      let cosine = tables[table + i];
      let sine = tables[table + p.half_rotated + i];
      let a = head[i];
      let b = head[i + p.half_rotated];
      head[i] = a * cosine - b * sine;
      head[i + p.half_rotated] = b * cosine + a * sine;
    }
    workgroupBarrier();
  }
  if (is_query) {
    for (var i = thread; i < p.head_dim; i += 64u) {
      queries[(row * p.query_heads + index) * p.head_dim + i] = head[i];
    }
    return;
  }
  let at = (rows[row].place * p.key_heads + number) * p.head_dim;
  var is_too_large = false;
  for (var i = thread * PER_WORD; i < p.head_dim; i += 64u * PER_WORD) {
    let word = pack(i);
    is_too_large = is_too_large || word.is_too_large;
    if (is_key) {
      keys[(at + i) / PER_WORD] = word.bits;
    } else {
      values[(at + i) / PER_WORD] = word.bits;
    }
  }
  if (is_too_large) {
    atomicMin(&overflows[row], 2u * p.layer + select(0u, 1u, is_value));
  }
}
