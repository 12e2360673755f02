fn pack(index: u32) -> Word {
  return Word(bitcast<u32>(head[index]), false);
}
