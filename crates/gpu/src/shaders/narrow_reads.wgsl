// What one read of keys returns: a word of 32 bits.
alias Words = u32;
const WORDS: u32 = 1u;

// `index` is 0.
fn word(words: Words, index: u32) -> u32 {
  return words;
}
