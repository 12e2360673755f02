@group(0) @binding(0) var<storage, read> weights: array<vec4<f32>>; // [outputs, quarters]

// Returns four successive weights of an output, `p.quarters` of which are its row.
fn weights4(output: u32, quarter: u32) -> vec4<f32> {
  return weights[output * p.quarters + quarter];
}
