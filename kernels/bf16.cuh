// bf16 values as f32 and back: pairs in 32 bits, and pieces of 8 in 16 bytes.
#pragma once

#include "ptx.cuh"

// The values of a pair.
__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Values of a piece.
constexpr int PIECE = 8;

__device__ __forceinline__ void unpack(float (&values)[PIECE], uint4 packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = bf16_low(words[i]);
        values[2 * i + 1] = bf16_high(words[i]);
    }
}

__device__ __forceinline__ uint4 pack(const float (&values)[PIECE]) {
    return make_uint4(ptx::pack_bf16(values[0], values[1]), ptx::pack_bf16(values[2], values[3]),
                      ptx::pack_bf16(values[4], values[5]), ptx::pack_bf16(values[6], values[7]));
}
