#include "partial_sums.h"

#include "ptx.cuh"

// The second step of every sum over rows: what blocks have left in parts is added up.
//
//   into[i] += Σ_p parts[p, i]
//
// Shapes      parts [count, length] f32, into [length] f32; any length, at least one part.
// Checked     by the launcher (src/ops/partial_sums/device.rs): lengths, and that they do not overlap.
// Launch      grid (length / 32, rounded up); a warp for each of up to 8 parts; shared memory: 4 bytes a thread.
// Types       all f32.
// Determinism of W warps, each sums every W-th part in order, and then these sums are added in order; W depends on count
//             alone. No atomics.
// Writes      `+=`: into.
// Cost        4·(count + 2)·length bytes, each once, and as many additions. Bound by memory.

extern "C" __global__ void __launch_bounds__(PARTIAL_SUMS_WARPS * 32)
    partial_sums(const __grid_constant__ PartialSums p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int64_t column = static_cast<int64_t>(blockIdx.x) * PARTIAL_SUMS_COLUMNS + lane;
    const bool inside = column < p.length;
    float sum = 0.0f;
    if (inside) {
        // Unrolled, so that several loads are under way.
#pragma unroll 4
        for (int part = warp; part < p.count; part += warps) {
            sum += ptx::load_constant(p.parts + part * p.length + column);
        }
    }
    const ptx::Shared sums = ptx::shared_base();
    ptx::store_shared(sums + threadIdx.x * 4, sum);
    ptx::barrier();
    if (warp > 0 || !inside) return;
    for (int other = 1; other < warps; ++other) sum += ptx::load_shared<float>(sums + (other * 32 + lane) * 4);
    ptx::store_global(p.into + column, ptx::load_global(p.into + column) + sum);
}
