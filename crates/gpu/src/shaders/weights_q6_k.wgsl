// Blocks of 256 weights as stored, and two bytes that make them whole words: the low 4 bits of quants, their high 2
// bits, a scale of 8 bits for each of 16 groups, then the f16 factor of scales. A weight is
// (factor · scale) · (quant − 32).
@group(0) @binding(0) var<storage, read> weights: array<u32>; // [outputs, blocks, 53]

struct Stored {
  low: vec2<u32>,
  high: vec2<u32>,
  scales: vec2<u32>, // a word of the scales, and the one with the factor
}

// Returns eight successive weights of an output as stored.
fn read8(output: u32, eighth: u32) -> Stored {
  let blocks = (eighths() + 31u) / 32u;
  let block = (output * blocks + eighth / 32u) * 53u;
  let half = eighth % 32u / 16u;
  // A half has four parts of 32 weights.
  let part = eighth % 16u / 4u;
  let word = eighth % 4u * 2u;
  let low = block + half * 16u + part % 2u * 8u + word;
  let high = block + 32u + half * 8u + word;
  let scales = block + 48u + eighth % 32u / 8u;
  return Stored(
    vec2<u32>(weights[low], weights[low + 1u]),
    vec2<u32>(weights[high], weights[high + 1u]),
    vec2<u32>(weights[scales], weights[block + 52u]),
  );
}

fn unpack8(stored: Stored, eighth: u32) -> Eight {
  let part = eighth % 16u / 4u;
  let low = stored.low >> vec2<u32>(4u * (part / 2u));
  let high = stored.high >> vec2<u32>(2u * part);
  let quants = (low & vec2<u32>(0x0f0f0f0fu)) | ((high & vec2<u32>(0x03030303u)) << vec2<u32>(4u));
  let group = eighth % 32u / 2u;
  let bits = stored.scales.x >> (8u * (group % 4u));
  let scale = f32(i32(bits << 24u) >> 24u);
  let group_scale = from_f16(stored.scales.y & 0xffffu) * scale;
  let scales = group_scale * LOW_BYTES;
  let less = vec4<f32>(32.0f, 8192.0f, 2097152.0f, 32.0f);
  return Eight(scales * low_bytes(quants.x, less), scales * low_bytes(quants.y, less));
}
