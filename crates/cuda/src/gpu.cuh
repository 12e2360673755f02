// The names of generated kernels on GPUs.

#define DEVICE __device__ __forceinline__
#define CHECKED(index, length) (index)
// Nothing else writes what a kernel only reads.
#define READS(T, name) const T* __restrict__ name
#define WRITES(T, name) T* name
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define SHARED_MEMORY(T) __shared__ T shared;
#define EMULATED(...)
#define UNROLL _Pragma("unroll")
// CUDA lays structures out as the host's compiler does, which checks this in the emulator. NVRTC has no `offsetof`.
#define MEMBER_AT(T, member, offset)

// Tensor cores. c: 16 rows of weights and 8 columns; see "Matrix Fragments for mma.m16n8k16" of the PTX ISA.
#define MULTIPLY_BF16(c, a, b) multiply(c, a, b)
DEVICE void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE unsigned bf16_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// a - b, rounded once.
DEVICE unsigned subtract_bf16_pair(unsigned a, unsigned b) {
  unsigned difference;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(difference) : "r"(b), "r"(0xbf80bf80u), "r"(a));
  return difference;
}
DEVICE float f16_to_float(unsigned half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)half));
  return value;
}
