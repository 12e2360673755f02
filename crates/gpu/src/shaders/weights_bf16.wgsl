@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>; // [outputs, eighths]

alias Stored = vec4<u32>;

fn pair_of(word: u32) -> vec2<f32> {
  return vec2<f32>(from_bf16(word & 0xffffu), bitcast<f32>(word & 0xffff0000u));
}

// Returns eight successive weights of an output as stored.
fn read8(output: u32, eighth: u32) -> Stored {
  return weights[output * eighths() + eighth];
}

fn unpack8(words: Stored, eighth: u32) -> Eight {
  return Eight(vec4<f32>(pair_of(words.x), pair_of(words.y)), vec4<f32>(pair_of(words.z), pair_of(words.w)));
}
