// CUDA C++ as plain C++17: qualifiers, built-in variables and vectors, and the small functions that kernels use.
#pragma once

#include "emulator/machine.hpp"

#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#ifdef SETRANK_DEBUGGED // where a function is called, a debugger can stop
#define __forceinline__ inline
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (::emu::thread().index)
#define blockIdx (::emu::block().index)
#define blockDim (::emu::block().threads_in_block)
#define gridDim (::emu::block().blocks_in_grid)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) { return float2{x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
inline int2 make_int2(int x, int y) { return int2{x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return int4{x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }

inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __int_as_float(int32_t bits) { return __uint_as_float(static_cast<uint32_t>(bits)); }
inline int32_t __float_as_int(float value) { return static_cast<int32_t>(__float_as_uint(value)); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

// As <cmath> has them, which takes longer to read than most kernels to compile.
extern "C" {
float copysignf(float, float) noexcept;
float exp2f(float) noexcept;
float fabsf(float) noexcept;
float floorf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float log2f(float) noexcept;
double sqrt(double) noexcept;
float sqrtf(float) noexcept;
float truncf(float) noexcept;
}
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }

template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
