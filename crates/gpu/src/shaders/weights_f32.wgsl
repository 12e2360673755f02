@group(0) @binding(0) var<storage, read> weights: array<vec4<f32>>; // [outputs, eighths, 2]

alias Stored = Eight;

// Returns eight successive weights of an output as stored.
fn read8(output: u32, eighth: u32) -> Stored {
  let first = (output * eighths() + eighth) * 2u;
  return Eight(weights[first], weights[first + 1u]);
}

fn unpack8(stored: Stored, eighth: u32) -> Eight {
  return stored;
}
