const PER_WORD: u32 = 2u;

fn unpack(word: u32, index: u32) -> f32 {
  return from_bf16((word >> (16u * (index & 1u))) & 0xffffu);
}
