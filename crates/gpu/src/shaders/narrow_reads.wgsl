alias Words = u32;
const WORDS: u32 = 1u;

fn word(words: Words, index: u32) -> u32 {
  return words;
}
