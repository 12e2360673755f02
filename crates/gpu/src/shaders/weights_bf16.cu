// As weights_bf16.wgsl. A lane has eight successive weights.
typedef U4 Weights;
typedef U4 Stored;
constexpr u32 UNIT = 32, GROUPS = 1, STEPS = 2, PIECES = 1, UNITS_AHEAD = 4;
constexpr bool SCALED = false, HAS_MINIMA = false;

// Returns the weights of a lane (0 to 3) in a unit of an output. Those after the last ones are
// repeated: x is zero there.
DEVICE Stored read(READS(Weights, weights), u32 output, u32 unit, u32 lane, u32 quarters) {
  u32 eighths = (quarters + 1) / 2, eighth = unit * 4 + lane;
  return weights[output * eighths + (eighth < eighths ? eighth : eighths - 1)];
}

// Returns the numbers of a group as pairs of bf16.
DEVICE void unpack(const Stored& stored, u32, u32 (&pairs)[PIECES][2 * STEPS]) {
  pairs[0][0] = stored.x;
  pairs[0][1] = stored.y;
  pairs[0][2] = stored.z;
  pairs[0][3] = stored.w;
}

DEVICE float scale(const Stored&, u32) { return 1.0f; }
DEVICE float minimum(const Stored&, u32) { return 0.0f; }
