// linear.wgsl on tensor cores: y[row] = weights · x[row] + bias, or y[row] += (weights · x[row] +
// bias) · factor.
//
// The tensor cores multiply 16 outputs by 16 inputs with 8 rows of x, rounded to bf16 here or by
// round.cu. Columns without a row are zero. A row's bits do not depend on the number of rows,
// because these never change:
//
// * the inputs are in PARTS parts of as many units each; a part starts at zero, and parts are added
//   in ascending order;
// * a part adds its inputs in ascending order, 16 at a time, by the same instruction;
// * where weights have scales, the products of a group are summed up first, and then multiplied by
//   the scale and added.
//
// What may change is which warp computes which part, and how many outputs and rows it has. The sums
// of an instruction have the order of the GPU, which must be the same for all columns: a probe
// examines that.
struct Parameters {
  u32 quarters, outputs, x_offset, x_stride, x_head, y_offset, y_stride, y_head, rows, flags;
  float factor;
};

constexpr u32 PARTS = 8, WARPS = 8, THREADS = 256;
// Warps of a block that share rows and outputs, if each computes all parts.
constexpr u32 OUTPUT_WARPS = SPREADS_PARTS ? 1 : 4, ROW_WARPS = SPREADS_PARTS ? 1 : 2;
constexpr u32 TILE_OUTPUTS = 16 * OUTPUT_TILES, TILE_ROWS = 8 * ROW_TILES;
constexpr u32 DEPTH = UNITS_AHEAD > OUTPUT_TILES ? UNITS_AHEAD / OUTPUT_TILES : 1;

// The parts of eight rows. Columns are so wide that no two lanes that write at the same time use
// the same bank.
struct Shared { float parts[PARTS][8][TILE_OUTPUTS + 4]; };
SHARED_MEMORY(Shared)

// Where x is, in quarters.
struct Inputs { u32 first, stride, rows, quarters; };

DEVICE U2 rounded(const F4& v) { return {bf16_pair(v.x, v.y), bf16_pair(v.z, v.w)}; }
DEVICE U2 rounded(const U2& v) { return v; }

// Returns four numbers of a row as bf16; zeros after the last row and the last number.
DEVICE void read4(READS(X, x), const Inputs& from, u32 row, u32 quarter, u32 (&to)[2]) {
  bool is_there = row < from.rows && quarter < from.quarters;
  U2 v = rounded(x[is_there ? from.first + row * from.stride + quarter : from.first]);
  to[0] = is_there ? v.x : 0u;
  to[1] = is_there ? v.y : 0u;
}

// Adds the products of a unit of inputs.
DEVICE void add_unit(float (&sums)[OUTPUT_TILES][ROW_TILES][4],
                     const Stored (&stored)[OUTPUT_TILES][2], u32 unit, READS(X, x),
                     const Inputs& from, u32 first_row, u32 lane) {
  UNROLL
  for (u32 group = 0; group < GROUPS; group++) {
    u32 a[OUTPUT_TILES][PIECES][STEPS][4];
    float scales[OUTPUT_TILES][2], minima[OUTPUT_TILES][2];
    UNROLL
    for (u32 o = 0; o < OUTPUT_TILES; o++) {
      UNROLL
      for (u32 half = 0; half < 2; half++) {
        u32 words[PIECES][2 * STEPS];
        unpack(stored[o][half], group, words);
        UNROLL
        for (u32 piece = 0; piece < PIECES; piece++) {
          UNROLL
          for (u32 step = 0; step < STEPS; step++) {
            a[o][piece][step][half] = words[piece][2 * step];
            a[o][piece][step][2 + half] = words[piece][2 * step + 1];
          }
        }
        scales[o][half] = SCALED ? scale(stored[o][half], group) : 1.0f;
        minima[o][half] = HAS_MINIMA ? minimum(stored[o][half], group) : 0.0f;
      }
    }
    UNROLL
    for (u32 r = 0; r < ROW_TILES; r++) {
      u32 b[STEPS][2];
      UNROLL
      for (u32 step = 0; step < STEPS; step++) {
        u32 quarter = unit * (UNIT / 4) + group * 4 * STEPS + lane % 4 * STEPS + step;
        read4(x, from, first_row + 8 * r + lane / 4, quarter, b[step]);
      }
      // The sums of x for minima, as the products with ones.
      float of_x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (HAS_MINIMA) {
        const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        UNROLL
        for (u32 step = 0; step < STEPS; step++) MULTIPLY_BF16(of_x, ones, b[step]);
      }
      UNROLL
      for (u32 o = 0; o < OUTPUT_TILES; o++) {
        float of_group[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        UNROLL
        for (u32 step = 0; step < STEPS; step++) {
          UNROLL
          for (u32 piece = 0; piece < PIECES; piece++) {
            if (SCALED) {
              MULTIPLY_BF16(of_group, a[o][piece][step], b[step]);
            } else {
              MULTIPLY_BF16(sums[o][r], a[o][piece][step], b[step]);
            }
          }
        }
        if (SCALED) {
          UNROLL
          for (u32 i = 0; i < 4; i++) {
            float sum = __fmaf_rn(scales[o][i / 2], of_group[i], sums[o][r][i]);
            sums[o][r][i] = HAS_MINIMA ? __fmaf_rn(-minima[o][i / 2], of_x[i], sum) : sum;
          }
        }
      }
    }
  }
}

// Stores a result.
DEVICE void finish(READS(float, bias), WRITES(float, y), const Parameters& p, u32 row, u32 output,
                   float value) {
  if (row >= p.rows || output >= p.outputs) return;
  if ((p.flags & 1u) != 0u) value = __fadd_rn(value, bias[output]);
  u32 at = p.y_offset + blockIdx.z * p.y_head + row * p.y_stride + output;
  y[at] = (p.flags & 2u) != 0u ? __fadd_rn(y[at], __fmul_rn(value, p.factor)) : value;
}

KERNEL(256) kernel(READS(Weights, weights), READS(X, x), READS(float, bias), WRITES(float, y),
                   const Parameters p) {
  u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  u32 first_output = (blockIdx.y * OUTPUT_WARPS + warp % OUTPUT_WARPS) * TILE_OUTPUTS;
  u32 first_row = (blockIdx.x * ROW_WARPS + warp / OUTPUT_WARPS % ROW_WARPS) * TILE_ROWS;
  Inputs from = {p.x_offset + blockIdx.z * p.x_head, p.x_stride, p.rows, p.quarters};
  u32 units = (4 * p.quarters + UNIT - 1) / UNIT, of_part = (units + PARTS - 1) / PARTS;
  u32 begin = SPREADS_PARTS && warp * of_part < units ? warp * of_part : SPREADS_PARTS ? units : 0;
  u32 end = SPREADS_PARTS && begin + of_part < units ? begin + of_part : units;

  float sums[OUTPUT_TILES][ROW_TILES][4] = {}, totals[OUTPUT_TILES][ROW_TILES][4] = {};
  // Weights are read ahead. The last outputs and units are read again in place of those after them.
  Stored stored[DEPTH][OUTPUT_TILES][2];
  auto read_ahead = [&](Stored (&to)[DEPTH][OUTPUT_TILES][2], u32 unit) {
    UNROLL
    for (u32 d = 0; d < DEPTH; d++) {
      UNROLL
      for (u32 n = 0; n < 2 * OUTPUT_TILES; n++) {
        u32 output = first_output + 8 * n + lane / 4;
        output = blockIdx.z * p.outputs + (output < p.outputs ? output : p.outputs - 1);
        u32 own = unit + d < end ? unit + d : end - 1;
        to[d][n / 2][n % 2] = read(weights, output, own, lane % 4, p.quarters);
      }
    }
  };
  if (begin < end) read_ahead(stored, begin);
  for (u32 first = begin; first < end; first += DEPTH) {
    Stored next[DEPTH][OUTPUT_TILES][2];
    read_ahead(next, first + DEPTH);
    UNROLL
    for (u32 d = 0; d < DEPTH; d++) {
      u32 unit = first + d;
      if (unit >= end) continue;
      add_unit(sums, stored[d], unit, x, from, first_row, lane);
      if (!SPREADS_PARTS && ((unit + 1) % of_part == 0 || unit + 1 == end)) {
        UNROLL
        for (u32 n = 0; n < OUTPUT_TILES * ROW_TILES * 4; n++) {
          u32 o = n / (ROW_TILES * 4), r = n / 4 % ROW_TILES;
          totals[o][r][n % 4] = __fadd_rn(totals[o][r][n % 4], sums[o][r][n % 4]);
          sums[o][r][n % 4] = 0.0f;
        }
      }
    }
    UNROLL
    for (u32 n = 0; n < DEPTH * OUTPUT_TILES * 2; n++) {
      u32 d = n / (2 * OUTPUT_TILES), o = n / 2 % OUTPUT_TILES;
      stored[d][o][n % 2] = next[d][o][n % 2];
    }
  }

  // A lane has the outputs lane / 4 and lane / 4 + 8 of a tile for the rows lane % 4 · 2 and the
  // next one.
  UNROLL
  for (u32 r = 0; r < ROW_TILES; r++) {
    if (SPREADS_PARTS) __syncthreads();
    UNROLL
    for (u32 n = 0; n < OUTPUT_TILES * 4; n++) {
      u32 output = n / 4 * 16 + n % 4 / 2 * 8 + lane / 4, column = lane % 4 * 2 + n % 2;
      if (SPREADS_PARTS) {
        shared.parts[warp][column][output] = sums[n / 4][r][n % 4];
      } else {
        float total = totals[n / 4][r][n % 4];
        finish(bias, y, p, first_row + 8 * r + column, first_output + output, total);
      }
    }
    if (SPREADS_PARTS) {
      __syncthreads();
      for (u32 n = thread; n < 8 * TILE_OUTPUTS; n += THREADS) {
        u32 output = n % TILE_OUTPUTS, column = n / TILE_OUTPUTS;
        float total = 0.0f;
        for (u32 part = 0; part < PARTS; part++) {
          total = __fadd_rn(total, shared.parts[part][column][output]);
        }
        finish(bias, y, p, first_row + 8 * r + column, first_output + output, total);
      }
    }
  }
}
EMULATED(THREADS, true, spoil_shared_memory,
         kernel(ELEMENTS(const Weights, 0), ELEMENTS(const X, 1), ELEMENTS(const float, 2),
                ELEMENTS(float, 3), *(const Parameters*)immediates))
