// What activations of the rbf input are made of: what `rbf` and `rbf_sm90` share.
#pragma once

#include "bf16.cuh"

namespace rbf {

constexpr float SHARPNESS = 100.0f, LOG2_E = 1.4426950408889634f;
// Of any feature, an infinite one too: φ is 0 there.
constexpr float FAR = 1e30f;

// What φ is made of.
struct Basis {
    const uint16_t *x;
    const float *centers;
    int rows;
    int stride;
    int per_feature;
    int columns;

    // A feature of a row; 0 behind the last row.
    __device__ __forceinline__ float feature(int row, int number) const {
        if (row >= rows) return 0.0f;
        return bf16_low(ptx::load_constant(x + static_cast<size_t>(row) * stride + number));
    }

    // The centre of a column; behind the last one that makes φ 0.
    __device__ __forceinline__ float center(int column) const {
        return column < columns ? ptx::load_constant(centers + column) : FAR;
    }
};

// Of a kernel's arguments.
template <class Arguments> __device__ __forceinline__ Basis basis_of(const Arguments &p) {
    return {p.x, p.centers, p.rows, p.stride, p.per_feature, p.columns};
}

// φ at this distance from the centre.
__device__ __forceinline__ float bell(float distance) { return ptx::exp2(-SHARPNESS * LOG2_E * distance * distance); }

} // namespace rbf
