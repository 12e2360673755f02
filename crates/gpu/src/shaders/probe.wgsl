// What the driver makes of float arithmetic. Each invocation reads two numbers and writes six results.
@group(0) @binding(0) var<storage, read> pairs: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> results: array<f32>; // [pairs, 8]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  let a = pairs[at.x].x;
  let b = pairs[at.x].y;
  let out = at.x * 8u;
  // Contraction: 0 unless the product is rounded before the subtraction in one place only.
  results[out] = a * b - b;
  // Reordering: a if the sum is reordered.
  results[out + 1u] = (a + 12582912.0f) - 12582912.0f;
  results[out + 2u] = divide(a, b);
  results[out + 3u] = square_root(abs(a));
  results[out + 4u] = exponential(a);
  results[out + 5u] = fma(a, b, -b);
  // Subnormal numbers.
  results[out + 6u] = a * 1e-38f * 0.125f;
  results[out + 7u] = from_f16(to_f16(a)) + from_bf16(to_bf16(b) & 0xffffu);
}
