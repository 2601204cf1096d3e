// What blocks of a cluster do together, which only sm_90 has.
#include "arguments.h"
#include "ptx.cuh"

namespace {

// Each of two blocks copies a box of two panels of 8 rows of WIDTH values to both, the first from panel `b` on, row `a`; what a
// block then has, its threads write, 16 bytes each.
template <uint32_t WIDTH> __device__ __forceinline__ void copy_panels(const TensorArguments &p) {
    constexpr uint32_t BLOCKS = 2, PANELS = 2, ROWS = 8, PANEL = ROWS * WIDTH * 2, BOX = PANELS * PANEL, PIECES = WIDTH / 8;
    const uint32_t block = ptx::cluster_rank(), thread = threadIdx.x;
    const ptx::Shared base = ptx::shared_base(), full = base + BLOCKS * BOX;
    if (thread == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::fence_mbarrier_init();
    }
    ptx::cluster_barrier();
    if (thread == 0) {
        ptx::mbarrier_arrive_expect(full, BLOCKS * BOX);
        ptx::tensor_load(base + block * BOX, p.map, 0, p.a, p.b + block * PANELS, full, (1 << BLOCKS) - 1);
    }
    ptx::mbarrier_wait(full, 0);
    constexpr uint32_t ALL = BLOCKS * BOX / 16;
    for (uint32_t i = thread; i < ALL; i += blockDim.x) {
        const uint32_t row = i / PIECES % ROWS, turn = WIDTH == 32 ? row / 2 : row;
        const ptx::Shared from = base + i / PIECES * WIDTH * 2 + ((i % PIECES ^ turn) << 4);
        ptx::store_global(reinterpret_cast<uint4 *>(p.output) + block * ALL + i, ptx::load_shared<uint4>(from));
    }
    // The other block may still copy into this one.
    ptx::cluster_barrier();
}

} // namespace

extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(128)
    panels_of_32(const __grid_constant__ TensorArguments p) {
    copy_panels<32>(p);
}
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(128)
    panels_of_64(const __grid_constant__ TensorArguments p) {
    copy_panels<64>(p);
}

// Each of two blocks copies a box of 8 rows of 64 values to both, the first from row `b` on, column `a`, and tells the other
// block that it has; what a block then has, its threads write, 16 bytes each.
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(128) boxes(const __grid_constant__ TensorArguments p) {
    constexpr uint32_t BLOCKS = 2, ROWS = 8, BOX = ROWS * 128;
    const uint32_t block = ptx::cluster_rank(), thread = threadIdx.x;
    const ptx::Shared base = ptx::shared_base(), full = base + BLOCKS * BOX, told = full + 8;
    if (thread == 0) {
        ptx::mbarrier_init(full, 1);
        ptx::mbarrier_init(told, 1);
        ptx::fence_mbarrier_init();
    }
    ptx::cluster_barrier();
    if (thread == 0) {
        ptx::mbarrier_arrive_expect(full, BLOCKS * BOX);
        ptx::tensor_load(base + block * BOX, p.map, p.a, p.b + block * ROWS, full, (1 << BLOCKS) - 1);
        ptx::mbarrier_arrive_at(told, block ^ 1);
    }
    ptx::mbarrier_wait(full, 0);
    ptx::mbarrier_wait(told, 0);
    const uint32_t row = thread / 8, piece = thread % 8;
    const uint4 value = ptx::load_shared<uint4>(base + row * 128 + ((piece ^ row % 8) << 4));
    ptx::store_global(reinterpret_cast<uint4 *>(p.output) + block * 128 + thread, value);
    // The other block may still tell this one.
    ptx::cluster_barrier();
}
