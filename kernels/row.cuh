// Rows of bf16 values as f32, in pieces of 8 that are 16 bytes in memory, and sums over a warp.
#pragma once

#include "ptx.cuh"

// Values of a piece.
constexpr int PIECE = 8;

__device__ __forceinline__ void unpack(float (&values)[PIECE], uint4 packed) {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint4 pack(const float (&values)[PIECE]) {
    return make_uint4(ptx::pack_bf16(values[0], values[1]), ptx::pack_bf16(values[2], values[3]),
                      ptx::pack_bf16(values[4], values[5]), ptx::pack_bf16(values[6], values[7]));
}

// Loads a piece of bf16 values that nothing writes during the launch.
__device__ __forceinline__ void load_piece(float (&values)[PIECE], const uint16_t *from) {
    unpack(values, ptx::load_constant(reinterpret_cast<const uint4 *>(from)));
}

// The same of f32 values.
__device__ __forceinline__ void load_piece(float (&values)[PIECE], const float *from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 four = ptx::load_constant(reinterpret_cast<const float4 *>(from) + half);
        values[4 * half] = four.x;
        values[4 * half + 1] = four.y;
        values[4 * half + 2] = four.z;
        values[4 * half + 3] = four.w;
    }
}

// Stores a piece, rounded to bf16.
__device__ __forceinline__ void store_piece(uint16_t *to, const float (&values)[PIECE]) {
    ptx::store_global(reinterpret_cast<uint4 *>(to), pack(values));
}

// The sum of all lanes' values, the same bits in each lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value += ptx::shuffle_xor(value, mask);
    return value;
}
