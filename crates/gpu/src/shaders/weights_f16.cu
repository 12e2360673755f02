// As weights_f16.wgsl. A lane has eight successive weights. Each is exactly the sum of two numbers
// in bf16.
typedef U4 Weights;
typedef U4 Stored;
constexpr u32 UNIT = 32, GROUPS = 1, STEPS = 2, PIECES = 2, UNITS_AHEAD = 4;
constexpr bool SCALED = false, HAS_MINIMA = false;

DEVICE Stored read(READS(Weights, weights), u32 output, u32 unit, u32 lane, u32 quarters) {
  u32 eighths = (quarters + 1) / 2, eighth = unit * 4 + lane;
  return weights[output * eighths + (eighth < eighths ? eighth : eighths - 1)];
}

DEVICE void unpack(const Stored& stored, u32, u32 (&pairs)[PIECES][2 * STEPS]) {
  const u32 words[4] = {stored.x, stored.y, stored.z, stored.w};
  UNROLL
  for (u32 i = 0; i < 4; i++) split_f16_pair(words[i], pairs[0][i], pairs[1][i]);
}

DEVICE float scale(const Stored&, u32) { return 1.0f; }
DEVICE float minimum(const Stored&, u32) { return 0.0f; }
