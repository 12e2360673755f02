// Numbers of the cache as pairs of bf16.
constexpr u32 PIECES = 1;
DEVICE void split(u32 pair, u32 (&pieces)[PIECES]) { pieces[0] = pair; }
