const PER_WORD: u32 = 1u;

fn unpack(word: u32, index: u32) -> f32 {
  return bitcast<f32>(word);
}
