// Blocks of 256 weights as stored: f16 factors of scales and of minima, a scale and a minimum of 6 bits for each of 8
// groups, then the levels of 4 bits. A weight is (factor · scale) · level − factor · minimum.
@group(0) @binding(0) var<storage, read> weights: array<vec2<u32>>; // [outputs, blocks, 18]

struct Stored {
  factors: vec2<u32>, // the factors, and the first word of the scales
  scales: vec2<u32>, // the other words of the scales
  levels: vec2<u32>,
}

// Returns eight successive weights of an output as stored.
fn read8(output: u32, eighth: u32) -> Stored {
  let blocks = (eighths() + 31u) / 32u;
  let block = (output * blocks + eighth / 32u) * 18u;
  let group = eighth % 32u / 4u;
  let levels = weights[block + 2u + group / 2u * 4u + eighth % 4u];
  return Stored(weights[block], weights[block + 1u], levels);
}

fn unpack8(stored: Stored, eighth: u32) -> Eight {
  let group = eighth % 32u / 4u;
  let levels = stored.levels >> vec2<u32>(4u * (group % 2u));
  // The bytes of the scales are three words: of groups 0 to 3, of their minima, and the low bits of groups 4 to 7, whose
  // high bits are those of the first two words.
  let byte = 8u * (group % 4u);
  let a = stored.factors.y >> byte;
  let b = stored.scales.x >> byte;
  let c = stored.scales.y >> byte;
  let is_late = group >= 4u;
  let scale = select(a & 63u, (c & 15u) | ((a >> 2u) & 48u), is_late);
  let minimum = select(b & 63u, ((c >> 4u) & 15u) | ((b >> 2u) & 48u), is_late);
  let group_scale = from_f16(stored.factors.x & 0xffffu) * f32(scale);
  let group_minimum = vec4<f32>(from_f16(stored.factors.x >> 16u) * f32(minimum));
  // The levels of low_bytes are multiples of these powers of two, which change no bits of the product.
  let scales = group_scale * LOW_BYTES;
  let levels_x = low_bytes(levels.x & 0x0f0f0f0fu, vec4<f32>(0.0f));
  let levels_y = low_bytes(levels.y & 0x0f0f0f0fu, vec4<f32>(0.0f));
  return Eight(scales * levels_x - group_minimum, scales * levels_y - group_minimum);
}
