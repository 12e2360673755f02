// Rounds to bf16 for linear.cu, four numbers a thread.
struct Parameters {
  u32 first, quarters;
};

KERNEL(64) kernel(READS(F4, x), WRITES(U2, y), const Parameters p) {
  u32 quarter = (blockIdx.y * 65535 + blockIdx.x) * 64 + threadIdx.x;
  if (quarter < p.quarters) {
    F4 v = x[p.first + quarter];
    y[quarter] = {bf16_pair(v.x, v.y), bf16_pair(v.z, v.w)};
  }
}
EMULATED(64, false, spoil_nothing,
         kernel(ELEMENTS(const F4, 0), ELEMENTS(U2, 1), *(const Parameters*)immediates))
