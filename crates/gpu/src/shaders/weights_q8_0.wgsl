// Blocks of 32 weights as stored, and two bytes that make them whole words: an f16 scale, then the levels.
// A weight is scale · level.
@group(0) @binding(0) var<storage, read> weights: array<u32>; // [outputs, blocks, 9]

// Returns four successive weights of an output, `p.quarters` of which are its row.
fn weights4(output: u32, quarter: u32) -> vec4<f32> {
  let blocks = (p.quarters + 7u) / 8u;
  let block = (output * blocks + quarter / 8u) * 9u;
  let scale = from_f16(weights[block] & 0xffffu);
  let first = block + quarter % 8u;
  let levels = (weights[first] >> 16u) | (weights[first + 1u] << 16u);
  return scale * signed_bytes(levels);
}
