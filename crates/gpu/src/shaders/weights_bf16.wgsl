@group(0) @binding(0) var<storage, read> weights: array<vec2<u32>>;

// Returns four successive weights.
fn weights4(index: u32) -> vec4<f32> {
  let pairs = weights[index];
  return vec4<f32>(
    from_bf16(pairs.x & 0xffffu),
    from_bf16(pairs.x >> 16u),
    from_bf16(pairs.y & 0xffffu),
    from_bf16(pairs.y >> 16u),
  );
}
