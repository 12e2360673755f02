alias Words = vec4<u32>;
const WORDS: u32 = 4u;

fn word(words: Words, index: u32) -> u32 {
  return words[index];
}
