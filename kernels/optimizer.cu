#include "optimizer.h"

#include "ptx.cuh"

// Adam (Kingma and Ba, algorithm 1) with global-norm clipping, decoupled weight decay and a running average.
//
//   norm = √Σ g²,   g' = g·min(1, clip / norm),   m = β₁·m + (1 − β₁)·g',   v = β₂·v + (1 − β₂)·g'²,
//   w = w − lr·((m / c₁) / (√(v / c₂) + ε) + decay·w),   average += towards·(w − average),   rounded = w in bf16
//
// Shapes      all [length], a multiple of 64; the norm is one value, and has a part for each 16384 gradients before.
// Checked     by the launcher (src/ops/optimizer/device.rs): lengths, no overlap, steps counted from 1.
// Launch      256 threads; gradient_squares: grid (length / 16384), gradient_norm: one block, both with 8 bytes of shared
//             memory a thread; adam_update, round_parameters: grid (length / 1024), four values a thread.
// Types       f32, the copy bf16; squares and their sums f64, so that no gradient is too large or too small for them.
// Determinism a thread sums every 256th group of four of its part, threads are added as a tree. No atomics.
// Writes      `=`: parts, norm, rounded; in place: parameters, moments, average. A norm that is not finite changes nothing.
// Cost        bytes a value: norm 4, Adam 30, 38 with an average, rounding 6. Bound by memory.

namespace {

// The sum of a value of each thread, in thread 0.
__device__ __forceinline__ double sum_of_block(double sum) {
    const ptx::Shared own = ptx::shared_base() + threadIdx.x * 8;
    ptx::store_shared(own, sum);
    for (uint32_t half = OPTIMIZER_THREADS / 2; half > 0; half /= 2) {
        ptx::barrier();
        if (threadIdx.x < half) {
            sum += ptx::load_shared<double>(own + half * 8);
            ptx::store_shared(own, sum);
        }
    }
    return sum;
}

__device__ __forceinline__ double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

__device__ __forceinline__ uint2 rounded(float4 values) {
    return make_uint2(ptx::pack_bf16(values.x, values.y), ptx::pack_bf16(values.z, values.w));
}

// The first of a thread's four values.
__device__ __forceinline__ int64_t first_of_thread() {
    return static_cast<int64_t>(blockIdx.x) * OPTIMIZER_BLOCK + threadIdx.x * 4;
}

__device__ __forceinline__ float4 load_four(const float *from) {
    return ptx::load_global(reinterpret_cast<const float4 *>(from));
}

__device__ __forceinline__ void store_four(float *to, float4 values) {
    ptx::store_global(reinterpret_cast<float4 *>(to), values);
}

// One parameter's step.
__device__ __forceinline__ void step(const AdamUpdate &p, float gradient, float &w, float &m, float &v) {
    m = p.beta1 * m + (1.0f - p.beta1) * gradient;
    v = p.beta2 * v + (1.0f - p.beta2) * gradient * gradient;
    const float change = (m / p.correction1) / (sqrtf(v / p.correction2) + p.eps);
    w -= p.lr * (change + p.weight_decay * w);
}

} // namespace

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS)
    gradient_squares(const __grid_constant__ GradientSquares p) {
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * OPTIMIZER_PART;
    const int values = static_cast<int>(min(static_cast<int64_t>(OPTIMIZER_PART), p.length - begin));
    double sum = 0.0;
    // Unrolled, so that several loads are under way.
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < values; i += OPTIMIZER_THREADS * 4) {
        const float4 g = ptx::load_constant(reinterpret_cast<const float4 *>(p.gradients + begin + i));
        sum += (square(g.x) + square(g.y)) + (square(g.z) + square(g.w));
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) ptx::store_global(p.parts + blockIdx.x, sum);
}

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS) gradient_norm(const __grid_constant__ GradientNorm p) {
    double sum = 0.0;
#pragma unroll 4
    for (int part = threadIdx.x; part < p.count; part += OPTIMIZER_THREADS) sum += ptx::load_constant(p.parts + part);
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) ptx::store_global(p.norm, static_cast<float>(sqrt(sum)));
}

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS) adam_update(const __grid_constant__ AdamUpdate p) {
    const int64_t at = first_of_thread();
    const float norm = ptx::load_constant(p.norm);
    // Neither an infinity nor a NaN is so small.
    const bool finite = norm <= 3.402823466e38f;
    if (at >= p.length || !finite) return;
    const float scale = p.clip > 0.0f && norm > p.clip ? p.clip / norm : 1.0f;
    const float4 g = ptx::load_constant(reinterpret_cast<const float4 *>(p.gradients + at));
    float4 w = load_four(p.parameters + at), m = load_four(p.first + at), v = load_four(p.second + at);
    float4 average = {};
    if (p.averages != 0) average = load_four(p.average + at);
    step(p, g.x * scale, w.x, m.x, v.x);
    step(p, g.y * scale, w.y, m.y, v.y);
    step(p, g.z * scale, w.z, m.z, v.z);
    step(p, g.w * scale, w.w, m.w, v.w);
    store_four(p.parameters + at, w);
    store_four(p.first + at, m);
    store_four(p.second + at, v);
    ptx::store_global(reinterpret_cast<uint2 *>(p.rounded + at), rounded(w));
    if (p.averages == 0) return;
    average.x += p.towards * (w.x - average.x);
    average.y += p.towards * (w.y - average.y);
    average.z += p.towards * (w.z - average.z);
    average.w += p.towards * (w.w - average.w);
    store_four(p.average + at, average);
}

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS)
    round_parameters(const __grid_constant__ RoundParameters p) {
    const int64_t at = first_of_thread();
    if (at >= p.length) return;
    const float4 w = ptx::load_constant(reinterpret_cast<const float4 *>(p.parameters + at));
    ptx::store_global(reinterpret_cast<uint2 *>(p.rounded + at), rounded(w));
}
