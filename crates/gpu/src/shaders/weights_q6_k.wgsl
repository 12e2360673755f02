// Blocks of 256 weights as stored, and two bytes that make them whole words: the low 4 bits of quants, their high 2
// bits, a scale of 8 bits for each of 16 groups, then the f16 factor of scales. A weight is
// (factor · scale) · (quant − 32).
@group(0) @binding(0) var<storage, read> weights: array<u32>; // [outputs, blocks, 53]

// Returns four successive weights of an output, `p.quarters` of which are its row.
fn weights4(output: u32, quarter: u32) -> vec4<f32> {
  let blocks = (p.quarters + 63u) / 64u;
  let block = (output * blocks + quarter / 64u) * 53u;
  let half = (quarter % 64u) / 32u;
  // A half has four parts of 32 weights.
  let part = (quarter % 32u) / 8u;
  let word = quarter % 8u;
  let low = weights[block + half * 16u + (part % 2u) * 8u + word] >> (4u * (part / 2u));
  let high = weights[block + 32u + half * 8u + word] >> (2u * part);
  let quants = (low & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u);
  let group = (quarter % 64u) / 4u;
  let stored = weights[block + 48u + group / 4u] >> (8u * (group % 4u));
  let scale = f32(i32(stored << 24u) >> 24u);
  let group_scale = from_f16(weights[block + 52u] & 0xffffu) * scale;
  return group_scale * (unsigned_bytes(quants) - vec4<f32>(32.0f));
}
