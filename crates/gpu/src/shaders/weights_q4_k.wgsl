// Blocks of 256 weights as stored: f16 factors of scales and of minima, a scale and a minimum of 6 bits for each of 8
// groups, then the levels of 4 bits. A weight is (factor · scale) · level − factor · minimum.
@group(0) @binding(0) var<storage, read> weights: array<u32>; // [outputs, blocks, 36]

// Returns four successive weights of an output, `p.quarters` of which are its row.
fn weights4(output: u32, quarter: u32) -> vec4<f32> {
  let blocks = (p.quarters + 63u) / 64u;
  let block = (output * blocks + quarter / 64u) * 36u;
  let group = (quarter % 64u) / 8u;
  // The bytes of the scales are three words: of groups 0 to 3, of their minima, and the low bits of groups 4 to 7, whose
  // high bits are those of the first two words.
  let byte = 8u * (group % 4u);
  let a = (weights[block + 1u] >> byte) & 0xffu;
  let b = (weights[block + 2u] >> byte) & 0xffu;
  let c = (weights[block + 3u] >> byte) & 0xffu;
  let is_late = group >= 4u;
  let scale = select(a & 63u, (c & 15u) | ((a >> 6u) << 4u), is_late);
  let minimum = select(b & 63u, (c >> 4u) | ((b >> 6u) << 4u), is_late);
  let factors = weights[block];
  let group_scale = from_f16(factors & 0xffffu) * f32(scale);
  let group_minimum = from_f16(factors >> 16u) * f32(minimum);
  let nibbles = weights[block + 4u + (group / 2u) * 8u + quarter % 8u] >> (4u * (group % 2u));
  return group_scale * unsigned_bytes(nibbles & 0x0f0f0f0fu) - vec4<f32>(group_minimum);
}
