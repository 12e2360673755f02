// The bytes of a word as numbers, the lowest first. A number of at most 23 bits, put in the significand of 2²³, is that
// much larger than 2²³: so a subtraction converts it, which is faster than a conversion, and exact.

const SHIFTED: u32 = 0x4b000000u; // 2²³
const SHIFTED_VALUE: f32 = 8388608.0f;

// Bytes below 128, as multiples of 1, 2⁸, 2¹⁶ and 1, minus `less` of the same multiples. LOW_BYTES are the inverse factors.
const LOW_BYTES: vec4<f32> = vec4<f32>(1.0f, 0.00390625f, 0.0000152587890625f, 1.0f);

fn low_bytes(word: u32, less: vec4<f32>) -> vec4<f32> {
  let bytes = vec4<u32>(word & 0xffu, word & 0xff00u, word & 0xff0000u, word >> 24u);
  return bitcast<vec4<f32>>(bytes | vec4<u32>(SHIFTED)) - (vec4<f32>(SHIFTED_VALUE) + less);
}

fn signed_bytes(word: u32) -> vec4<f32> {
  let raised = word ^ 0x80808080u;
  let bytes = (vec4<u32>(raised) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  return bitcast<vec4<f32>>(bytes | vec4<u32>(SHIFTED)) - vec4<f32>(SHIFTED_VALUE + 128.0f);
}
