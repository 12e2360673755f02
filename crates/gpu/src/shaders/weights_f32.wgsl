@group(0) @binding(0) var<storage, read> weights: array<vec4<f32>>; // [outputs, eighths, 2]

// Returns eight successive weights of an output.
fn weights8(output: u32, eighth: u32) -> Eight {
  let first = (output * eighths() + eighth) * 2u;
  return Eight(weights[first], weights[first + 1u]);
}
