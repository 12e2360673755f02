// Blocks of 32 weights as stored, and two bytes that make them whole words: an f16 scale, then the levels.
// A weight is scale · level.
@group(0) @binding(0) var<storage, read> weights: array<u32>; // [outputs, blocks, 9]

// Three words with eight levels, and the word with the scale.
alias Stored = vec4<u32>;

// Returns eight successive weights of an output as stored.
fn read8(output: u32, eighth: u32) -> Stored {
  let blocks = (eighths() + 3u) / 4u;
  let block = (output * blocks + eighth / 4u) * 9u;
  let first = block + eighth % 4u * 2u;
  return vec4<u32>(weights[first], weights[first + 1u], weights[first + 2u], weights[block]);
}

fn unpack8(words: Stored, eighth: u32) -> Eight {
  let scale = from_f16(words.w & 0xffffu);
  let a = (words.x >> 16u) | (words.y << 16u);
  let b = (words.y >> 16u) | (words.z << 16u);
  return Eight(scale * signed_bytes(a), scale * signed_bytes(b));
}
