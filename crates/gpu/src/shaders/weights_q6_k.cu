// As weights_q6_k.wgsl. A unit is half a block: four parts of two groups of 16 weights. A lane has
// four of each group.
typedef u32 Weights;
struct Stored { u32 low[4], high[2], scales[2], factor; };
constexpr u32 UNIT = 128, GROUPS = 8, STEPS = 1, PIECES = 1, UNITS_AHEAD = 1;
constexpr bool SCALED = true, HAS_MINIMA = false;

DEVICE Stored read(READS(Weights, weights), u32 output, u32 unit, u32 lane, u32 quarters) {
  u32 block = (output * ((quarters + 63) / 64) + unit / 2) * 53, half = unit % 2;
  u32 low = block + half * 16 + lane, high = block + 32 + half * 8 + lane;
  u32 scales = block + 48 + half * 2;
  return {
      {weights[low], weights[low + 4], weights[low + 8], weights[low + 12]},
      {weights[high], weights[high + 4]},
      {weights[scales], weights[scales + 1]},
      weights[block + 52],
  };
}

DEVICE void unpack(const Stored& stored, u32 group, u32 (&pairs)[PIECES][2 * STEPS]) {
  u32 part = group / 2, side = group % 2;
  u32 low = stored.low[part % 2 * 2 + side] >> 4 * (part / 2) & 0x0f0f0f0fu;
  u32 quants = low | (stored.high[side] >> 2 * part & 0x03030303u) << 4;
  UNROLL
  for (u32 i = 0; i < 2; i++) {
    // 160: the levels are 32 less.
    pairs[0][i] = subtract_bf16_pair(RAISED | spread_bytes(quants, i == 1), 0x43204320u);
  }
}

DEVICE float scale(const Stored& stored, u32 group) {
  i32 bits = (i32)(stored.scales[group / 4] << (24 - group % 4 * 8)) >> 24;
  return __fmul_rn(f16_to_float(stored.factor & 0xffffu), __int2float_rn(bits));
}
DEVICE float minimum(const Stored&, u32) { return 0.0f; }
