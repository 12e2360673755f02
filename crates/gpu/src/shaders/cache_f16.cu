// Numbers of the cache as sums of two pairs of bf16.
constexpr u32 PIECES = 2;
DEVICE void split(u32 pair, u32 (&pieces)[PIECES]) { split_f16_pair(pair, pieces[0], pieces[1]); }
