// What the lanes of a warp do together that only sm_90 has.
#include "arguments.h"
#include "ptx.cuh"

namespace {

template <bool TRANSPOSED> __device__ __forceinline__ void store_matrices(const TestArguments &p) {
    const uint32_t lane = threadIdx.x;
    const uint4 row = ptx::load_global(reinterpret_cast<const uint4 *>(p.input) + lane);
    const uint32_t words[4] = {row.x, row.y, row.z, row.w};
    const uint32_t at = (lane * static_cast<uint32_t>(p.a) + static_cast<uint32_t>(p.b)) % 32;
    if constexpr (TRANSPOSED) {
        ptx::stmatrix_x4_transposed(ptx::shared_base() + at * 16, words);
    } else {
        ptx::stmatrix_x4(ptx::shared_base() + at * 16, words);
    }
    ptx::sync_warp();
    const uint4 stored = ptx::load_shared<uint4>(ptx::shared_base() + lane * 16);
    ptx::store_global(reinterpret_cast<uint4 *>(p.output) + lane, stored);
}

} // namespace

// ldmatrix the other way: rows stand in shared memory at (lane · a + b) mod 32, and are the output in their order.
extern "C" __global__ void __launch_bounds__(32) stmatrix(const __grid_constant__ TestArguments p) {
    store_matrices<false>(p);
}
extern "C" __global__ void __launch_bounds__(32) stmatrix_transposed(const __grid_constant__ TestArguments p) {
    store_matrices<true>(p);
}
