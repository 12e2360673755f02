// Blocks of 32 weights as stored, and two bytes that make them whole words: an f16 scale, then the levels.
// A weight is scale · level.
@group(0) @binding(0) var<storage, read> weights: array<u32>; // [outputs, blocks, 9]

// Returns eight successive weights of an output.
fn weights8(output: u32, eighth: u32) -> Eight {
  let blocks = (eighths() + 3u) / 4u;
  let block = (output * blocks + eighth / 4u) * 9u;
  let first = block + eighth % 4u * 2u;
  let scale = from_f16(weights[block] & 0xffffu);
  let middle = weights[first + 1u];
  let a = (weights[first] >> 16u) | (middle << 16u);
  let b = (middle >> 16u) | (weights[first + 2u] << 16u);
  return Eight(scale * signed_bytes(a), scale * signed_bytes(b));
}
