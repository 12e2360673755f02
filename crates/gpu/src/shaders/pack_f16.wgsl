// Packs two successive numbers of the head.
fn pack(index: u32) -> Word {
  let low = to_f16(head[index]) & 0xffffu;
  let high = to_f16(head[index + 1u]) & 0xffffu;
  let is_too_large = (low & 0x7fffu) >= 0x7c00u || (high & 0x7fffu) >= 0x7c00u;
  return Word(low | (high << 16u), is_too_large);
}
