@group(0) @binding(0) var<storage, read> weights: array<vec4<f32>>;

// Returns four successive weights.
fn weights4(index: u32) -> vec4<f32> {
  return weights[index];
}
