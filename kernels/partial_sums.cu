#include "partial_sums.h"

#include "ptx.cuh"

// The second step of every sum over rows: what blocks have left in parts is added up, of several sums at once.
//
//   into[i] += Σ_p parts[p, i]
//
// Shapes      of up to 32 sums parts [count, length] f32, into [length] f32; any length, at least one part.
// Checked     by the launcher (src/ops/partial_sums/device.rs): lengths, and that they do not overlap.
// Launch      grid (Σ length / 32, rounded up); a warp for each of up to 8 parts of the sum that has most; shared memory: 4
//             bytes a thread.
// Types       all f32.
// Determinism of W warps, each sums every W-th part in order, and then these sums are added in order; W depends on the sum's
//             own count alone. No atomics.
// Writes      `+=`: into.
// Cost        4·(count + 2)·length bytes, each once, and as many additions. Bound by memory.

extern "C" __global__ void __launch_bounds__(PARTIAL_SUMS_WARPS * 32)
    partial_sums(const __grid_constant__ PartialSums p) {
    int number = 0;
    for (int i = 1; i < p.count; ++i) number = static_cast<int>(blockIdx.x) >= p.sums[i].first_block ? i : number;
    const PartialSum &of = p.sums[number];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int warps = min(of.count, static_cast<int32_t>(PARTIAL_SUMS_WARPS));
    const int64_t column = static_cast<int64_t>(blockIdx.x - of.first_block) * PARTIAL_SUMS_COLUMNS + lane;
    const bool inside = column < of.length;
    float sum = 0.0f;
    if (inside && warp < warps) {
        // Unrolled, so that several loads are under way.
#pragma unroll 4
        for (int part = warp; part < of.count; part += warps) {
            sum += ptx::load_constant(of.parts + part * of.length + column);
        }
    }
    const ptx::Shared sums = ptx::shared_base();
    ptx::store_shared(sums + threadIdx.x * 4, sum);
    ptx::barrier();
    if (warp > 0 || !inside) return;
    for (int other = 1; other < warps; ++other) sum += ptx::load_shared<float>(sums + (other * 32 + lane) * 4);
    ptx::store_global(of.into + column, ptx::load_global(of.into + column) + sum);
}
