#include "gather.h"

#include "ptx.cuh"

// A batch's rows of a matrix that all batches are taken from: features that stay on the GPU.
//
//   to[i] = from[index[i]]
//
// Shapes      from [any, width], to [rows, width] bf16; index [rows]. width a multiple of 64, any rows.
// Checked     by the launcher (src/ops/gather/device.rs): width, lengths, every index below the rows of `from`, no overlap.
// Launch      8 threads a row, 256 a block: grid (rows / 32), rounded up. No shared memory.
// Types       bits are copied as they are.
// Determinism nothing is added.
// Writes      `=`: to.
// Cost        4·rows·width + 4·rows bytes. Bound by memory: each thread has four loads of 16 bytes under way, and 8 of them
//             read 128 neighbouring bytes.

namespace {

static_assert(GATHER_VALUES * sizeof(uint16_t) == sizeof(uint4));

// Columns that the threads of a row copy at once.
constexpr int STRIDE = GATHER_LANES * GATHER_VALUES;

// Loads of a thread that are under way.
constexpr int AHEAD = 4;

} // namespace

extern "C" __global__ void __launch_bounds__(GATHER_THREADS) gather_rows(const __grid_constant__ GatherRows p) {
    const int64_t row =
        static_cast<int64_t>(blockIdx.x) * (GATHER_THREADS / GATHER_LANES) + threadIdx.x / GATHER_LANES;
    if (row >= p.rows) return;
    const int64_t source = ptx::load_constant(p.index + row);
    const uint16_t *const from = p.from + source * p.width;
    uint16_t *const to = p.to + row * p.width;
    for (int first = threadIdx.x % GATHER_LANES * GATHER_VALUES; first < p.width; first += AHEAD * STRIDE) {
        uint4 held[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int column = first + j * STRIDE;
            if (column < p.width) held[j] = ptx::load_constant(reinterpret_cast<const uint4 *>(from + column));
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int column = first + j * STRIDE;
            if (column < p.width) ptx::store_global(reinterpret_cast<uint4 *>(to + column), held[j]);
        }
    }
}
