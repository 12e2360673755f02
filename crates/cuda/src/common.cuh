// What generated kernels need on GPUs and in the emulator.

typedef unsigned int u32;
typedef int i32;

struct alignas(8) F2 { float x, y; };
struct F3 { float x, y, z; };
struct alignas(16) F4 { float x, y, z, w; };
struct alignas(8) U2 { u32 x, y; };
struct U3 { u32 x, y, z; };
struct alignas(16) U4 { u32 x, y, z, w; };
struct alignas(8) I2 { i32 x, y; };
struct I3 { i32 x, y, z; };
struct alignas(16) I4 { i32 x, y, z, w; };
struct B2 { bool x, y; };
struct B3 { bool x, y, z; };
struct B4 { bool x, y, z, w; };

// An array that can be assigned and returned.
template <class T, u32 N> struct Array {
  T items[N];
  DEVICE T& operator[](u32 index) { return items[CHECKED(index, N)]; }
  DEVICE const T& operator[](u32 index) const { return items[CHECKED(index, N)]; }
};

// Integer division as WGSL defines it: x / 0 is x, x % 0 is 0, and the quotient that does not fit wraps.
DEVICE u32 quotient(u32 a, u32 b) { return b == 0u ? a : a / b; }
DEVICE u32 rest(u32 a, u32 b) { return b == 0u ? 0u : a % b; }
DEVICE i32 quotient(i32 a, i32 b) { return b == 0 || (b == -1 && a == i32(0x80000000u)) ? a : a / b; }
DEVICE i32 rest(i32 a, i32 b) { return b == 0 || b == -1 ? 0 : a % b; }

// The smaller and the larger number as WGSL defines them. Comparisons leave no choice for zeros of both signs.
template <class T> DEVICE T smaller(T a, T b) { return b < a ? b : a; }
template <class T> DEVICE T larger(T a, T b) { return a < b ? b : a; }

// The component of a vector of two or four with a number that is not constant. It is a value, not a place.
template <class V> DEVICE auto component(const V& v, u32 index) -> decltype(v.w) {
  return index == 0u ? v.x : index == 1u ? v.y : index == 2u ? v.z : v.w;
}
DEVICE float component(const F2& v, u32 index) { return index == 0u ? v.x : v.y; }
DEVICE u32 component(const U2& v, u32 index) { return index == 0u ? v.x : v.y; }
DEVICE i32 component(const I2& v, u32 index) { return index == 0u ? v.x : v.y; }
