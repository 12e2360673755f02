// As weights_q8_0.wgsl. A lane has eight successive levels of a block, which are exact in bf16.
typedef u32 Weights;
struct Stored { u32 words[3], scale; };
constexpr u32 UNIT = 32, GROUPS = 1, STEPS = 2, PIECES = 1, UNITS_AHEAD = 4;
constexpr bool SCALED = true, HAS_MINIMA = false;

DEVICE Stored read(READS(Weights, weights), u32 output, u32 unit, u32 lane, u32 quarters) {
  u32 block = (output * ((quarters + 7) / 8) + unit) * 9, first = block + lane * 2;
  return {{weights[first], weights[first + 1], weights[first + 2]}, weights[block]};
}

DEVICE void unpack(const Stored& stored, u32, u32 (&pairs)[PIECES][2 * STEPS]) {
  UNROLL
  for (u32 i = 0; i < 4; i++) {
    u32 word = stored.words[i / 2] >> 16 | stored.words[i / 2 + 1] << 16;
    u32 bytes = spread_bytes(word, i % 2 == 1);
    // The lower 7 bits minus 128 times the sign: 128 with a sign in the significand's highest bit
    // is 256.
    u32 sign = RAISED | (bytes & 0x00800080u);
    pairs[0][i] = subtract_bf16_pair(RAISED | (bytes & 0x007f007fu), sign);
  }
}

DEVICE float scale(const Stored& stored, u32) { return f16_to_float(stored.scale & 0xffffu); }
DEVICE float minimum(const Stored&, u32) { return 0.0f; }
