// A word of the cache, and whether a number was too large for its type.
struct Word {
  bits: u32,
  is_too_large: bool,
}
