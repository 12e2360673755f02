// Runs generated kernels on the processor. The threads of a block are fibres: each runs until it ends or waits at a
// barrier, in ascending or in descending order, by turns. Indices are checked, and shared memory begins with NaNs.
// There are no headers, so that a kernel compiles in a fraction of a second.

#define DEVICE inline
#define UNROLL
#define __device__
#define KERNEL(threads) static void
#define SHARED_MEMORY(T) \
  static_assert(sizeof(T) <= 48 << 10, "more shared memory than a block has"); \
  static T shared; \
  static void spoil_shared_memory() { __builtin_memset(&shared, 0xff, sizeof shared); }
#define MEMBER_AT(T, member, offset) static_assert(__builtin_offsetof(T, member) == offset, #member);
#define CHECKED(index, length) checked(index, length)
#define READS(T, name) Elements<const T> name
#define WRITES(T, name) Elements<T> name

static char failure[256];

// Notes the first failure.
static void fail(const char* what, unsigned number, unsigned long long limit) {
  if (failure[0] == 0) __builtin_snprintf(failure, sizeof failure, "%s: %u of %llu", what, number, limit);
}

// Returns the index of an array's element, or that of another one if there is no such element.
static inline unsigned checked(unsigned index, unsigned length) {
  if (index < length) return index;
  fail("an index of an array", index, length);
  return 0;
}

// A buffer.
template <class T> struct Elements {
  T* items;
  unsigned long long length;
  T& operator[](unsigned index) const {
    if (index < length) return items[index];
    fail("an index of a buffer", index, length);
    static char none[sizeof(T)];
    return *(T*)none;
  }
};

struct Position { unsigned x, y, z; };
static Position threadIdx, blockIdx, gridDim;

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float rintf(float a) { return __builtin_rintf(a); }
static inline float fabsf(float a) { return __builtin_fabsf(a); }
static inline float __uint_as_float(unsigned bits) { float a; __builtin_memcpy(&a, &bits, 4); return a; }
static inline float __int_as_float(int bits) { float a; __builtin_memcpy(&a, &bits, 4); return a; }
static inline unsigned __float_as_uint(float a) { unsigned bits; __builtin_memcpy(&bits, &a, 4); return bits; }
static inline int __float_as_int(float a) { int bits; __builtin_memcpy(&bits, &a, 4); return bits; }
static inline float __uint2float_rn(unsigned a) { return (float)a; }
static inline float __int2float_rn(int a) { return (float)a; }
static inline unsigned __float2uint_rz(float a) {
  return a >= 4294967296.0f ? 4294967295u : a > 0.0f ? (unsigned)a : 0u;
}
static inline int __float2int_rz(float a) {
  return a >= 2147483648.0f ? 2147483647 : a <= -2147483648.0f ? -2147483647 - 1 : a == a ? (int)a : 0;
}
static inline unsigned atomicMin(unsigned* at, unsigned value) {
  unsigned before = *at;
  if (value < before) *at = value;
  return before;
}
static inline int atomicMin(int* at, int value) {
  int before = *at;
  if (value < before) *at = value;
  return before;
}

// Fibres.
enum { MOST_THREADS = 1024, STACK_BYTES = 64 << 10 };
struct Fibre { void* stack; unsigned barrier; bool has_ended; };
static Fibre fibres[MOST_THREADS];
static void* scheduler;
static unsigned current;
static void (*body)();

// Stores the present stack, and goes on with another one.
extern "C" void switch_stack(void** from, void* to);
#if defined(__x86_64__)
__asm__(
    ".text\n.local switch_stack\n.type switch_stack, @function\nswitch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

static void* new_stack(char* bytes, void (*entry)()) {
  void** top = (void**)(bytes + STACK_BYTES);
  *--top = 0;  // keeps the stack aligned as after a call
  *--top = (void*)entry;
  for (int i = 0; i < 6; i++) *--top = 0;
  return top;
}
#elif defined(__aarch64__)
__asm__(
    ".text\n.local switch_stack\n.type switch_stack, %function\nswitch_stack:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");

static void* new_stack(char* bytes, void (*entry)()) {
  void** top = (void**)(bytes + STACK_BYTES - 160);
  for (int i = 0; i < 20; i++) top[i] = 0;
  top[11] = (void*)entry;
  return top;
}
#else
#error "the emulator knows x86-64 and aarch64"
#endif

static void wait_at_barrier(unsigned line) {
  unsigned own = current;
  fibres[own].barrier = line;
  switch_stack(&fibres[own].stack, scheduler);
  threadIdx = {own, 0, 0};
}
#define __syncthreads() wait_at_barrier(__LINE__)
#define __threadfence_block()

static void begin_fibre() {
  body();
  fibres[current].has_ended = true;
  switch_stack(&fibres[current].stack, scheduler);
}

static void run_block_of_fibres(unsigned threads, bool descends) {
  static char stacks[MOST_THREADS][STACK_BYTES] __attribute__((aligned(16)));
  for (unsigned t = 0; t < threads; t++) fibres[t] = {new_stack(stacks[t], begin_fibre), 0, false};
  for (unsigned ended = 0; ended < threads; descends = !descends) {
    ended = 0;
    for (unsigned i = 0; i < threads; i++) {
      unsigned t = descends ? threads - 1 - i : i;
      current = t;
      threadIdx = {t, 0, 0};
      switch_stack(&scheduler, fibres[t].stack);
      ended += fibres[t].has_ended;
    }
    if (ended == threads) break;
    if (ended > 0) return fail("some threads of a block ended before others' barrier", ended, threads);
    for (unsigned t = 1; t < threads; t++) {
      if (fibres[t].barrier != fibres[0].barrier)
        return fail("threads of a block wait at different barriers", t, threads);
    }
  }
}

struct Binding { void* items; unsigned long long bytes; };

static const char* run(unsigned threads, bool has_barriers, Position grid, void (*kernel)(), void (*spoil)()) {
  failure[0] = 0;
  body = kernel;
  gridDim = grid;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        spoil();
        if (has_barriers) {
          run_block_of_fibres(threads, (x + y + z) % 2 == 1);
        } else {
          for (unsigned t = 0; t < threads; t++) {
            threadIdx = {t, 0, 0};
            kernel();
          }
        }
        if (failure[0] != 0) return failure;
      }
  return 0;
}

// The function that the host calls: `call` calls the kernel with what `bindings` and `immediates` point to.
#define EMULATED(threads, has_barriers, spoil, call) \
  static const Binding* bindings; \
  static const void* immediates; \
  static void call_kernel() { call; } \
  static void spoil_nothing() {} \
  extern "C" __attribute__((visibility("default"))) const char* launch( \
      const Binding* with, const void* numbers, unsigned x, unsigned y, unsigned z) { \
    bindings = with; \
    immediates = numbers; \
    return run(threads, has_barriers, {x, y, z}, call_kernel, spoil); \
  }
#define ELEMENTS(T, index) Elements<T>{(T*)bindings[index].items, bindings[index].bytes / sizeof(T)}
