// As weights_q4_k.wgsl. A unit is two groups of 32 levels, which are in the same bytes. A lane has
// eight of each.
typedef U2 Weights;
struct Stored { U2 factors, scales, levels; u32 first_group; };
constexpr u32 UNIT = 64, GROUPS = 2, STEPS = 2, PIECES = 1, UNITS_AHEAD = 2;
constexpr bool SCALED = true, HAS_MINIMA = true;

DEVICE Stored read(READS(Weights, weights), u32 output, u32 unit, u32 lane, u32 quarters) {
  u32 block = (output * ((quarters + 63) / 64) + unit / 4) * 18;
  U2 levels = weights[block + 2 + unit % 4 * 4 + lane];
  return {weights[block], weights[block + 1], levels, unit % 4 * 2};
}

DEVICE void unpack(const Stored& stored, u32 group, u32 (&pairs)[PIECES][2 * STEPS]) {
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    u32 word = (i < 2 ? stored.levels.x : stored.levels.y) >> 4 * group & 0x0f0f0f0fu;
    pairs[0][i] = subtract_bf16_pair(RAISED | spread_bytes(word, i % 2 == 1), RAISED);
  }
}

// Returns a group's scale or minimum: 6 bits of `word`, or for the later groups its high bits and 4
// low bits of `late`.
DEVICE float six_bits(u32 group, u32 word, u32 late) {
  u32 shift = group % 4 * 8;
  u32 bits = group < 4 ? word >> shift & 63u : (late >> shift & 15u) | (word >> shift >> 2 & 48u);
  return __uint2float_rn(bits);
}

DEVICE float scale(const Stored& stored, u32 group) {
  float bits = six_bits(stored.first_group + group, stored.factors.y, stored.scales.y);
  return __fmul_rn(f16_to_float(stored.factors.x & 0xffffu), bits);
}

DEVICE float minimum(const Stored& stored, u32 group) {
  float bits = six_bits(stored.first_group + group, stored.scales.x, stored.scales.y >> 4);
  return __fmul_rn(f16_to_float(stored.factors.x >> 16), bits);
}
