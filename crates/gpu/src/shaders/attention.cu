// attention.wgsl on tensor cores: a block computes up to eight heads that share keys, of one row
// over one split.
//
// The rows of an instruction are 16 keys, or 16 numbers of the values, and its columns are heads.
// Queries, and the weights of softmax, are rounded to bf16. Scores add their products in ascending
// order. The weights of 8 successive keys are added in ascending order, and then these sums; so are
// the values of 32 successive keys, and then these. No other row takes part.
struct Parameters {
  u32 query_heads, key_heads, head_dim, window;
  float score_scale, score_cap;
  u32 splits, first_row, value_first, value_dim, sees_block;
};
struct Row { u32 token, position, table, chain, rest, place, output, block_end, in_block; };

constexpr u32 SPLIT = 256, HEADS = 8, WARPS = 8, THREADS = 256, DIMS = 64;
constexpr float LOWEST = -3.4028235e38f;

// Rows are so wide that lanes use different banks.
struct Shared {
  u32 at[SPLIT];  // places
  float scores[HEADS][SPLIT + 8];
  u32 weights[HEADS][SPLIT / 2 + 4];  // of pairs of keys
  float lanes[HEADS][33];
  float parts[WARPS][DIMS][HEADS + 1];
};
SHARED_MEMORY(Shared)

// Returns the exponential of a number, to a few units in the last place.
DEVICE float exponential(float v) {
  if (v < -80.0f) return 0.0f;
  float x = smaller(v, 88.0f), whole = rintf(__fmul_rn(x, 1.4426950408889634f));
  float rest = __fmaf_rn(whole, 2.1219444e-4f, __fmaf_rn(whole, -0.693359375f, x));
  float power = 1.9875691e-4f;
  power = __fmaf_rn(power, rest, 1.3981999e-3f);
  power = __fmaf_rn(power, rest, 8.333452e-3f);
  power = __fmaf_rn(power, rest, 4.1665796e-2f);
  power = __fmaf_rn(power, rest, 0.16666665f);
  power = __fmaf_rn(power, rest, 0.5f);
  power = __fadd_rn(__fmaf_rn(power, __fmul_rn(rest, rest), rest), 1.0f);
  return __uint_as_float(__float_as_uint(power) + ((u32)__float2int_rz(whole) << 23));
}

// Returns a row's place of a position of its path.
DEVICE u32 place_of(READS(u32, places), const Row& row, u32 position) {
  return position < row.chain ? places[row.table + position / 64] * 64 + position % 64
                              : places[row.rest + position - row.chain];
}

// Returns a word of four.
DEVICE u32 word(const U4& words, u32 index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

KERNEL(256) kernel(READS(F4, queries), READS(U4, keys), READS(U4, values), READS(Row, rows),
                   READS(u32, places), WRITES(float, partials), const Parameters p) {
  u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  u32 outer = lane / 4, inner = lane % 4;
  Row row = rows[p.first_row + blockIdx.y];
  u32 before = row.position + 1, window_start = before - smaller(before, p.window);
  u32 seen = p.sees_block == 1 ? row.block_end : before;
  u32 split_start = (window_start / SPLIT + blockIdx.z) * SPLIT;
  if (split_start >= seen) return;
  u32 start = larger(split_start, window_start) - split_start;
  u32 end = smaller(split_start + SPLIT, seen) - split_start;

  u32 of_key = p.query_heads / p.key_heads, tiles = (of_key + HEADS - 1) / HEADS;
  u32 key_head = blockIdx.x / tiles, first_of_key = blockIdx.x % tiles * HEADS;
  u32 heads = smaller(of_key - first_of_key, HEADS);
  u32 first_head = key_head * of_key + first_of_key;
  u32 first_query = (p.first_row + blockIdx.y) * p.query_heads + first_head;
  u32 first_partial = blockIdx.y * p.query_heads + first_head, partial_size = 2 + p.value_dim;

  // Keys outside the window are others, without weight.
  shared.at[thread] = place_of(places, row, split_start + smaller(larger(thread, start), end - 1));
  __syncthreads();

  // Each warp computes the scores of 32 keys.
  u32 first_key = warp * 32, eighths = p.head_dim / 8;
  float scores[2][4] = {};
  for (u32 first = 0; first < eighths; first += 4) {
    bool is_there = first + inner < eighths;
    u32 eighth = is_there ? first + inner : eighths - 1;
    u32 query = ((first_query + (outer < heads ? outer : 0)) * eighths + eighth) * 2;
    F4 q[2] = {queries[query], queries[query + 1]};
    u32 b[2][2];
    UNROLL
    for (u32 step = 0; step < 2; step++) {
      is_there = is_there && outer < heads;
      b[step][0] = is_there ? bf16_pair(q[step].x, q[step].y) : 0u;
      b[step][1] = is_there ? bf16_pair(q[step].z, q[step].w) : 0u;
    }
    UNROLL
    for (u32 tile = 0; tile < 2; tile++) {
      u32 a[2][PIECES][4];
      UNROLL
      for (u32 half = 0; half < 2; half++) {
        u32 place = shared.at[first_key + tile * 16 + half * 8 + outer];
        U4 read = keys[(place * p.key_heads + key_head) * eighths + eighth];
        UNROLL
        for (u32 i = 0; i < 4; i++) {
          u32 pieces[PIECES];
          split(word(read, i), pieces);
          UNROLL
          for (u32 piece = 0; piece < PIECES; piece++) {
            a[i / 2][piece][i % 2 * 2 + half] = pieces[piece];
          }
        }
      }
      UNROLL
      for (u32 step = 0; step < 2; step++) {
        UNROLL
        for (u32 piece = 0; piece < PIECES; piece++) {
          MULTIPLY_BF16(scores[tile], a[step][piece], b[step]);
        }
      }
    }
  }
  UNROLL
  for (u32 n = 0; n < 8; n++) {
    u32 key = first_key + n / 4 * 16 + n % 4 / 2 * 8 + outer, head = inner * 2 + n % 2;
    float score = __fmul_rn(scores[n / 4][n % 4], p.score_scale);
    if (p.score_cap != 0.0f) {
      float twice = __fmul_rn(2.0f, __fdiv_rn(score, p.score_cap));
      float rest = __fdiv_rn(2.0f, __fadd_rn(exponential(twice), 1.0f));
      score = __fmul_rn(p.score_cap, __fsub_rn(1.0f, rest));
    }
    shared.scores[head][key] = start <= key && key < end ? score : LOWEST;
  }
  __syncthreads();

  // Each warp computes the weights of a head, and a lane those of eight keys.
  const float* own = &shared.scores[warp][lane * 8];
  float peak = own[0];
  for (u32 i = 1; i < 8; i++) peak = larger(peak, own[i]);
  shared.lanes[warp][lane] = peak;
  __syncthreads();
  for (u32 i = 0; i < 32; i++) peak = larger(peak, shared.lanes[warp][i]);
  __syncthreads();
  float sum = 0.0f;
  for (u32 i = 0; i < 4; i++) {
    float weight = exponential(__fsub_rn(own[2 * i], peak));
    u32 pair = bf16_pair(weight, exponential(__fsub_rn(own[2 * i + 1], peak)));
    shared.weights[warp][lane * 4 + i] = pair;
    sum = __fadd_rn(sum, __uint_as_float(pair << 16));
    sum = __fadd_rn(sum, __uint_as_float(pair & 0xffff0000u));
  }
  shared.lanes[warp][lane] = sum;
  __syncthreads();
  if (lane == 0 && warp < heads) {
    float total = 0.0f;
    for (u32 i = 0; i < 32; i++) total = __fadd_rn(total, shared.lanes[warp][i]);
    u32 out = ((first_partial + warp) * p.splits + blockIdx.z) * partial_size;
    partials[out] = peak;
    partials[out + 1] = total;
  }

  // Each warp adds the values of 32 keys: a lane has eight numbers of four keys.
  for (u32 first = 0; first < p.value_dim; first += DIMS) {
    u32 eighth = (p.value_first + smaller(first + outer * 8, p.value_dim - 8)) / 8;
    float sums[4][4] = {};
    UNROLL
    for (u32 step = 0; step < 2; step++) {
      u32 key = first_key + step * 16 + inner * 4;
      U4 read[4];
      UNROLL
      for (u32 i = 0; i < 4; i++) {
        read[i] = values[(shared.at[key + i] * p.key_heads + key_head) * eighths + eighth];
      }
      const u32 b[2] = {shared.weights[outer][key / 2], shared.weights[outer][key / 2 + 1]};
      UNROLL
      for (u32 tile = 0; tile < 4; tile++) {
        u32 a[PIECES][4];
        UNROLL
        for (u32 i = 0; i < 4; i++) {
          u32 one = word(read[i / 2 * 2], tile), other = word(read[i / 2 * 2 + 1], tile);
          u32 pair = i % 2 == 0 ? (one & 0xffffu) | other << 16 : one >> 16 | (other & 0xffff0000u);
          u32 pieces[PIECES];
          split(pair, pieces);
          UNROLL
          for (u32 piece = 0; piece < PIECES; piece++) a[piece][i] = pieces[piece];
        }
        UNROLL
        for (u32 piece = 0; piece < PIECES; piece++) MULTIPLY_BF16(sums[tile], a[piece], b);
      }
    }
    UNROLL
    for (u32 n = 0; n < 16; n++) {
      shared.parts[warp][outer * 8 + n / 4 * 2 + n % 4 / 2][inner * 2 + n % 2] = sums[n / 4][n % 4];
    }
    __syncthreads();
    for (u32 n = thread; n < DIMS * heads; n += THREADS) {
      u32 head = n / DIMS, d = first + n % DIMS;
      float value = 0.0f;
      for (u32 i = 0; i < WARPS; i++) value = __fadd_rn(value, shared.parts[i][n % DIMS][head]);
      u32 out = ((first_partial + head) * p.splits + blockIdx.z) * partial_size;
      if (d < p.value_dim) partials[out + 2 + d] = value;
    }
    __syncthreads();
  }
}
EMULATED(THREADS, true, spoil_shared_memory,
         kernel(ELEMENTS(const F4, 0), ELEMENTS(const U4, 1), ELEMENTS(const U4, 2),
                ELEMENTS(const Row, 3), ELEMENTS(const u32, 4), ELEMENTS(float, 5),
                *(const Parameters*)immediates))
