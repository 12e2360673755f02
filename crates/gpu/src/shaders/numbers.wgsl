// Functions with the bits of IEEE 754 and of the crate `vector`. Drivers may round division, square roots and
// exponentials as they like; here they are made of additions, products and integers, which are exact or
// correctly rounded everywhere.

// Returns a / b, correctly rounded. A driver's quotient is off by a few units; the exact remainder, in integers,
// corrects it. Operands and results that are zero, subnormal or not finite are the driver's.
fn divide(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  let x_exponent = (x >> 23u) & 255u;
  let y_exponent = (y >> 23u) & 255u;
  let x_significand = (x & 0x7fffffu) | 0x800000u;
  let y_significand = (y & 0x7fffffu) | 0x800000u;
  let is_below = x_significand < y_significand;
  let exponent = i32(x_exponent) - i32(y_exponent) + select(127, 126, is_below);
  let is_special = x_exponent == 0u || y_exponent == 0u || x_exponent == 255u || y_exponent == 255u;
  if (is_special || exponent < 1 || exponent > 254) {
    return a / b;
  }
  let shift = select(23u, 24u, is_below);
  let estimate = f32(x_significand) / f32(y_significand) * f32(1u << shift);
  var quotient = u32(estimate);
  // The difference is small, so its low 32 bits are all of it.
  var rest = i32((x_significand << shift) - quotient * y_significand);
  let divisor = i32(y_significand);
  while (rest < 0) {
    quotient -= 1u;
    rest += divisor;
  }
  while (rest >= divisor) {
    quotient += 1u;
    rest -= divisor;
  }
  if (2 * rest > divisor) {
    quotient += 1u;
  }
  let magnitude = (u32(exponent) << 23u) + (quotient - 0x800000u);
  return bitcast<f32>(((x ^ y) & 0x80000000u) | magnitude);
}

// Returns the square root of a positive number, correctly rounded, by the same method. Zero and subnormal
// numbers are the driver's.
fn square_root(v: f32) -> f32 {
  let bits = bitcast<u32>(v);
  let exponent = bits >> 23u;
  if (exponent == 0u || exponent >= 255u) {
    return sqrt(v);
  }
  let significand = (bits & 0x7fffffu) | 0x800000u;
  let is_odd = (exponent & 1u) == 0u;
  let shift = select(23u, 24u, is_odd);
  let scaled = f32(significand) * select(1.0f, 2.0f, is_odd) * 1.1920929e-7f;
  var root = u32(sqrt(scaled) * 8388608.0f);
  var rest = i32((significand << shift) - root * root);
  while (rest < 0) {
    root -= 1u;
    rest += i32(2u * root + 1u);
  }
  while (rest > i32(2u * root)) {
    rest -= i32(2u * root + 1u);
    root += 1u;
  }
  if (rest > i32(root)) {
    root += 1u;
  }
  let half_exponent = (exponent + select(127u, 126u, is_odd)) / 2u;
  return bitcast<f32>((half_exponent << 23u) + (root - 0x800000u));
}

// `vector::exp`.
fn exponential(v: f32) -> f32 {
  let vanishes = v < -80.0f;
  var x = select(v, -80.0f, vanishes);
  x = select(x, 88.3f, x > 88.3f);
  // To even. `vector::exp` adds and subtracts a large number, which compilers that reorder sums remove.
  let whole = round(x * 1.4426950408889634f);
  let rest = x - whole * 0.6933594f - whole * -2.1219444e-4f;
  var power = 1.9875691e-4f;
  power = power * rest + 1.3981999e-3f;
  power = power * rest + 8.333452e-3f;
  power = power * rest + 4.1665796e-2f;
  power = power * rest + 0.16666665f;
  power = power * rest + 0.5f;
  power = power * (rest * rest) + rest + 1.0f;
  let exponent = u32(i32(whole)) << 23u;
  return select(bitcast<f32>(bitcast<u32>(power) + exponent), 0.0f, vanishes);
}

// `vector::tanh`.
fn hyperbolic_tangent(x: f32) -> f32 {
  return 1.0f - divide(2.0f, exponential(2.0f * x) + 1.0f);
}

// The reference's SiLU: `x / (1 + exp(−x))`.
fn silu(x: f32) -> f32 {
  return divide(x, 1.0f + exponential(-x));
}

// `vector::softplus`.
fn softplus(x: f32) -> f32 {
  let y = exponential(-abs(x));
  let ratio = divide(y, 2.0f + y);
  let square = ratio * ratio;
  var sum = 0.06666667f;
  sum = sum * square + 0.07692308f;
  sum = sum * square + 0.09090909f;
  sum = sum * square + 0.11111111f;
  sum = sum * square + 0.14285715f;
  sum = sum * square + 0.2f;
  sum = sum * square + 0.33333334f;
  let twice = 2.0f * ratio;
  return select(x, 0.0f, x < 0.0f) + (twice + twice * square * sum);
}

// `vector::gelu`.
fn gelu(x: f32) -> f32 {
  let z = abs(x) * 0.70710678118654752f;
  let t = divide(1.0f, 1.0f + 0.3275911f * z);
  var sum = 1.0614054f;
  sum = sum * t - 1.453152f;
  sum = sum * t + 1.4214137f;
  sum = sum * t - 0.28449674f;
  sum = sum * t + 0.2548296f;
  let positive = 1.0f - sum * t * exponential(-z * z);
  let error_function = select(positive, -positive, x < 0.0f);
  return 0.5f * x * (1.0f + error_function);
}

// `vector::gelu_tanh`.
fn gelu_tanh(x: f32) -> f32 {
  return 0.5f * x * (1.0f + hyperbolic_tangent(0.7978846f * (x + 0.044715f * x * x * x)));
}
