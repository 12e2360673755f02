// Runs kernels on the processor. The threads of a block are fibres: each runs until it ends, waits at a barrier or
// multiplies together with its warp, in ascending or in descending order, by turns. Indices are checked, and shared
// memory begins with NaNs. There are no headers, so that a kernel compiles in a fraction of a second.

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
// A fibre waits in a line for the block or, while `multiplies`, for its warp.
struct Fibre { void* stack; unsigned line; bool multiplies, has_ended; };
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

static void wait(unsigned line, bool multiplies) {
  unsigned own = current;
  fibres[own].line = line;
  fibres[own].multiplies = multiplies;
  switch_stack(&fibres[own].stack, scheduler);
  threadIdx = {own, 0, 0};
}
#define __syncthreads() wait(__LINE__, false)
#define __threadfence_block()

// Tensor cores: PTX ISA, "Matrix Fragments for mma.m16n8k16". A lane has two numbers of 16 bits in a word.
enum { WARP = 32, ADDENDS = 17 };
struct Fragments { float* c; const unsigned *a, *b; };
static Fragments fragments[MOST_THREADS];

// The order in which an output adds 16 products and what is there (addend 16). It is one of many: PTX leaves it open.
// MMA_ORDER chooses it for each of the 16 rows, and from 2^31 on for each column, too, which hardware should not do.
#ifndef MMA_ORDER
#define MMA_ORDER 0u
#endif
static void shuffle(unsigned char* order, unsigned row, unsigned column) {
  unsigned state = MMA_ORDER * 2654435761u + row * 97u + (MMA_ORDER >> 31) * column * 1013u;
  for (unsigned i = 0; i < ADDENDS; i++) {
    state = state * 1664525u + 1013904223u;
    unsigned at = (state >> 8) % (i + 1);
    order[i] = order[at];
    order[at] = i;
  }
}

static float upper_half(unsigned word) { return __uint_as_float(word & 0xffff0000u); }

static void multiply_warp(unsigned first) {
  static unsigned char orders[16][8][ADDENDS];
  static bool has_orders;
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < WARP; lane++) {
    const Fragments& own = fragments[first + lane];
    for (unsigned i = 0; i < 4; i++)
      for (unsigned half = 0; half < 2; half++) {
        unsigned k = lane % 4 * 2 + i / 2 * 8 + half;
        a[lane / 4 + i % 2 * 8][k] = upper_half(own.a[i] << (half ? 0 : 16));
        if (i % 2 == 0) b[k][lane / 4] = upper_half(own.b[i / 2] << (half ? 0 : 16));
      }
  }
  for (unsigned row = 0; row < 16; row++)
    for (unsigned column = 0; column < 8; column++) {
      unsigned char* order = orders[row][column];
      if (!has_orders) shuffle(order, row, column);
      float* c = fragments[first + row % 8 * 4 + column / 2].c + (row / 8 * 2 + column % 2);
      float sum = 0.0f;
      for (unsigned i = 0; i < ADDENDS; i++) {
        unsigned k = order[i];
        sum += k == 16 ? *c : a[row][k] * b[k][column];
      }
      *c = sum;
    }
  has_orders = true;
}

static void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], unsigned line) {
  fragments[current] = {c, a, b};
  wait(line, true);
}
#define MULTIPLY_BF16(c, a, b) multiply(c, a, b, __LINE__)

// Rounds to the nearest, ties to even.
static unsigned bf16_bits(float a) {
  unsigned bits = __float_as_uint(a);
  return a != a ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
static unsigned bf16_pair(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
static unsigned subtract_bf16_pair(unsigned a, unsigned b) {
  return bf16_pair(upper_half(a << 16) - upper_half(b << 16), upper_half(a) - upper_half(b));
}
static float f16_to_float(unsigned half) {
  unsigned sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  float normal = __uint_as_float((magnitude << 13) + 0x38000000u);
  float value = magnitude < 0x400u ? magnitude * 0x1p-24f : normal;
  return __uint_as_float(sign | __float_as_uint(value));
}

static void begin_fibre() {
  body();
  fibres[current].has_ended = true;
  switch_stack(&fibres[current].stack, scheduler);
}

// Runs fibre t until it waits or ends.
static void resume(unsigned t) {
  current = t;
  threadIdx = {t, 0, 0};
  switch_stack(&scheduler, fibres[t].stack);
}

// Runs the lanes of a warp until each waits for the block or has ended.
static void run_warp(unsigned first, unsigned lanes, bool descends) {
  for (;;) {
    unsigned multiplying = 0;
    for (unsigned i = 0; i < lanes; i++) {
      unsigned t = first + (descends ? lanes - 1 - i : i);
      if (!fibres[t].has_ended) resume(t);
      multiplying += !fibres[t].has_ended && fibres[t].multiplies;
    }
    if (multiplying == 0) return;
    for (unsigned t = first; t < first + lanes; t++) {
      multiplying -= fibres[t].line != fibres[first].line;
    }
    if (multiplying != WARP) return fail("not all lanes of a warp multiply", multiplying, WARP);
    multiply_warp(first);
  }
}

static void run_block_of_fibres(unsigned threads, bool descends) {
  static char stacks[MOST_THREADS][STACK_BYTES] __attribute__((aligned(16)));
  for (unsigned t = 0; t < threads; t++) fibres[t] = {new_stack(stacks[t], begin_fibre), 0, false, false};
  for (unsigned ended = 0; ended < threads; descends = !descends) {
    ended = 0;
    for (unsigned i = 0; i < threads; i += WARP) {
      unsigned last = (threads - 1) / WARP * WARP, first = descends ? last - i : i;
      run_warp(first, threads - first < WARP ? threads - first : WARP, descends);
    }
    if (failure[0] != 0) return;
    for (unsigned t = 0; t < threads; t++) ended += fibres[t].has_ended;
    if (ended == threads) break;
    if (ended > 0) return fail("some threads of a block ended before others' barrier", ended, threads);
    for (unsigned t = 1; t < threads; t++) {
      if (fibres[t].line != fibres[0].line)
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
