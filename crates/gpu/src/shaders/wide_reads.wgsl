// What one read of keys returns: 16 bytes, or four words of 32 bits.
alias Words = vec4<u32>;
const WORDS: u32 = 4u;

fn word(words: Words, index: u32) -> u32 {
  return words[index];
}
