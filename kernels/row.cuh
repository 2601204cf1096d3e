// Rows of bf16 or f32 values in memory, read and written in pieces of 8, and sums over a warp.
#pragma once

#include "bf16.cuh"

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

// Loads a piece of bf16 values whose place the launch writes to.
__device__ __forceinline__ void load_changing_piece(float (&values)[PIECE], const uint16_t *from) {
    unpack(values, ptx::load_global(reinterpret_cast<const uint4 *>(from)));
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

// As LayerNorm takes it.
struct WarpSum {
    __device__ __forceinline__ float of(float value) const { return warp_sum(value); }
};
