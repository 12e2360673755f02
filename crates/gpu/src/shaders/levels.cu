// Returns the lower or the upper two bytes of a word, each in the lower byte of a half.
DEVICE u32 spread_bytes(u32 word, bool upper) {
  u32 pair = upper ? word >> 16 : word;
  return (pair & 0xffu) | (pair << 8 & 0xff0000u);
}

// 128 as a pair of bf16. Numbers of at most 7 bits, put in its significands, are that much more.
constexpr u32 RAISED = 0x43004300u;
