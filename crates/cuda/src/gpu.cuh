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
