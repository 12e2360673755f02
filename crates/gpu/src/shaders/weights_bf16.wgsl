@group(0) @binding(0) var<storage, read> weights: array<vec2<u32>>; // [outputs, quarters]

// Returns four successive weights of an output, `p.quarters` of which are its row.
fn weights4(output: u32, quarter: u32) -> vec4<f32> {
  let pairs = weights[output * p.quarters + quarter];
  return vec4<f32>(
    from_bf16(pairs.x & 0xffffu),
    from_bf16(pairs.x >> 16u),
    from_bf16(pairs.y & 0xffffu),
    from_bf16(pairs.y >> 16u),
  );
}
