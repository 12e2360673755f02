// 16-bit floats in the low bits of a u32, by integers: drivers may flush the subnormal ones.

fn from_f16(half: u32) -> f32 {
  let sign = (half & 0x8000u) << 16u;
  let magnitude = half & 0x7fffu;
  let subnormal = bitcast<u32>(f32(magnitude) * 5.9604645e-8f);
  let normal = (magnitude << 13u) + 0x38000000u;
  return bitcast<f32>(sign | select(normal, subnormal, magnitude < 0x400u));
}

fn from_bf16(half: u32) -> f32 {
  return bitcast<f32>(half << 16u);
}

// Rounds to the nearest f16, ties to even. The result is infinite if the number is too large.
fn to_f16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) {
    return sign | 0x7c00u;
  }
  if (magnitude >= 0x38800000u) {
    let rounded = magnitude + 0xfffu + ((magnitude >> 13u) & 1u);
    return sign | ((rounded >> 13u) - 0x1c000u);
  }
  let exponent = magnitude >> 23u;
  if (exponent < 102u) {
    return sign;
  }
  let significand = (magnitude & 0x7fffffu) | 0x800000u;
  let shift = 126u - exponent;
  var half = significand >> shift;
  let rest = significand & ((1u << shift) - 1u);
  let middle = 1u << (shift - 1u);
  if (rest > middle || (rest == middle && (half & 1u) == 1u)) {
    half += 1u;
  }
  return sign | half;
}

// Rounds to the nearest bf16, ties to even.
fn to_bf16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
