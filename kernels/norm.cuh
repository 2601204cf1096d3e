// LayerNorm of a row whose values a warp's lanes hold, in pieces of 8; outside of the row they are 0.
#pragma once

#include "row.cuh"

namespace layer_norm {

// A lane's values of a row.
template <int PIECES> using Values = float[PIECES][PIECE];

// Takes the mean away from a row, and gives it and 1/√(variance + eps). `sum` adds up the lanes' values over the row, of whose
// pieces a lane has those that are `inside`; `share` is one over its width.
template <int PIECES, class Sum>
__device__ __forceinline__ float2 center(Values<PIECES> &value, const bool (&inside)[PIECES], float share, float eps,
                                         Sum &sum) {
    float mean = 0.0f;
    // What is left of the mean is taken away as well.
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
        float values = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
#pragma unroll
            for (int e = 0; e < PIECE; ++e) values += value[i][e];
        }
        const float rest = sum.of(values) * share;
        mean += rest;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (inside[i]) {
#pragma unroll
                for (int e = 0; e < PIECE; ++e) value[i][e] -= rest;
            }
        }
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
#pragma unroll
        for (int e = 0; e < PIECE; ++e) squares = fmaf(value[i][e], value[i][e], squares);
    }
    // The approximate root with a step of Newton's: as good as the exact one and a division, whose calls need a stack.
    const float variance = fmaf(sum.of(squares), share, eps), near = rsqrtf(variance);
    return make_float2(mean, fmaf(0.5f * near, fmaf(-variance * near, near, 1.0f), near));
}

// y of a centered piece.
__device__ __forceinline__ void scale(float (&value)[PIECE], float inverse, const float (&weight)[PIECE],
                                      const float (&bias)[PIECE]) {
#pragma unroll
    for (int e = 0; e < PIECE; ++e) value[e] = fmaf(value[e] * inverse, weight[e], bias[e]);
}

// Where number `at` of [2, C] f32 in shared memory stands, in fours: those of pieces of 8 are swapped in every second 32, so that
// neither lanes that put pieces nor those that read fours meet in a bank.
__device__ __forceinline__ int swapped(int at) { return at ^ (at >> 3 & 4); }

// What a lane has of γ, and sums of its gradient and of that of β, over the rows that it has been through.
template <int PIECES> struct Columns {
    Values<PIECES> weight, d_weight, d_bias;

    // Takes the gradient of a row of y, of which `value` is the row in front of LayerNorm, and gives that of this one.
    template <class Sum>
    __device__ __forceinline__ void backward(Values<PIECES> &d, Values<PIECES> &value, float2 statistics, float share,
                                             Sum &sum) {
        const float mean = statistics.x, inverse = statistics.y;
        float gradients = 0.0f, products = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
#pragma unroll
            for (int e = 0; e < PIECE; ++e) {
                value[i][e] = (value[i][e] - mean) * inverse;
                d_weight[i][e] = fmaf(d[i][e], value[i][e], d_weight[i][e]);
                d_bias[i][e] += d[i][e];
                d[i][e] *= weight[i][e];
                gradients += d[i][e];
                products = fmaf(d[i][e], value[i][e], products);
            }
        }
        const float mean_gradient = sum.of(gradients) * share, mean_product = sum.of(products) * share;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
#pragma unroll
            for (int e = 0; e < PIECE; ++e) {
                d[i][e] = inverse * (d[i][e] - mean_gradient - value[i][e] * mean_product);
            }
        }
    }

    // Puts the sums of piece `piece`, whose first column is `column`, into [2, C] f32: γ's, then β's.
    __device__ __forceinline__ void put(ptx::Shared sums, int piece, int column, int width) const {
#pragma unroll
        for (int e = 0; e < PIECE; e += 4) {
            const float *w = &d_weight[piece][e];
            const float *b = &d_bias[piece][e];
            ptx::store_shared(sums + swapped(column + e) * 4, make_float4(w[0], w[1], w[2], w[3]));
            ptx::store_shared(sums + swapped(width + column + e) * 4, make_float4(b[0], b[1], b[2], b[3]));
        }
    }
};

// Threads from number 0 to THREADS − 1 add up `count` neighbouring [2, C] in order, into the block's part of [2, blocks, C].
template <int THREADS>
__device__ __forceinline__ void store_sums(float *parts, ptx::Shared sums, int count, int width, int thread, int blocks) {
    for (int at = thread * 4; at < 2 * width; at += THREADS * 4) {
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int i = 0; i < count; ++i) {
            const auto more = ptx::load_shared<float4>(sums + (i * 2 * width + swapped(at)) * 4);
            total.x += more.x;
            total.y += more.y;
            total.z += more.z;
            total.w += more.w;
        }
        const bool is_bias = at >= width;
        const size_t part = blockIdx.x + (is_bias ? blocks : 0);
        ptx::store_global(reinterpret_cast<float4 *>(parts + part * width + (is_bias ? at - width : at)), total);
    }
}

// The same by all THREADS threads of every block.
template <int THREADS>
__device__ __forceinline__ void store_sums(float *parts, ptx::Shared sums, int count, int width) {
    store_sums<THREADS>(parts, sums, count, width, threadIdx.x, gridDim.x);
}

} // namespace layer_norm
