#include "gather.h"

#include "philox.cuh"

// A batch's rows of a matrix that all batches are taken from: features that stay on the GPU. With dropout, features of
// each row become 0.
//
//   to[i, c] = dropped(i, feature of c) ? 0 : from[index[i], c]
//   dropped(i, f) = words 2f and 2f + 1 of document data_rows[i], as a number of 53 bits, are below the threshold
//
//   Feature f has column f, and of those from first_within_set on each that is f + a multiple of F behind it. Those
//   between, indicators of missing values, are no feature's. The host draws the same: src/data/augment.rs.
//
// Shapes      from [any, width], to [rows, width] bf16; index, data_rows [rows]. width a multiple of 64, any rows.
// Checked     by the launcher (src/ops/gather/device.rs): width, lengths, every index below the rows of `from`, no overlap;
//             0 < F ≤ first_within_set ≤ width, F at most 12288.
// Launch      8 threads a row, 256 a block: grid (rows / 32), rounded up. Shared memory with dropout alone: a bit for each
//             feature of a row, 4·32·⌈F/32⌉ bytes.
// Types       bits are copied as they are; what is dropped is +0.
// Determinism nothing is added; draws are a function of place.
// Writes      `=`: to.
// Cost        4·rows·width + 4·rows bytes, with dropout 4·rows more and ⌈F/32⌉·16 draws a row. Bound by memory: each thread
//             has four loads of 16 bytes under way, and 8 of them read 128 neighbouring bytes. Each feature is drawn once,
//             however many columns it has.

namespace {

static_assert(GATHER_VALUES * sizeof(uint16_t) == sizeof(uint4));

// Columns that the threads of a row copy at once.
constexpr int STRIDE = GATHER_LANES * GATHER_VALUES;

// Loads of a thread that are under way.
constexpr int AHEAD = 4;

// Bit i: whether feature `first` + i of a document is dropped; `first` is even.
__device__ __forceinline__ uint32_t draw(const GatherDropout &dropout, uint32_t data_row, int first) {
    uint32_t dropped = 0;
#pragma unroll 1
    for (int pair = 0; pair < 16; ++pair) {
        uint32_t words[4] = {static_cast<uint32_t>(first / 2 + pair), dropout.stream, data_row, dropout.epoch};
        philox(words, dropout.key_low, dropout.key_high);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint64_t number = static_cast<uint64_t>(words[2 * i] >> 5) << 26 | words[2 * i + 1] >> 6;
            dropped |= (number < dropout.threshold ? 1u : 0u) << (2 * pair + i);
        }
    }
    return dropped;
}

// Makes those of eight values from `column` on 0 whose bits are among a row's `dropped` ones.
__device__ __forceinline__ void drop(uint4 &values, const GatherDropout &dropout, ptx::Shared dropped, int column) {
    // Indicators count up to the first feature, below 0.
    const int behind = column - dropout.first_within_set;
    int feature = column < dropout.features ? column : behind < 0 ? behind : behind % dropout.features;
    uint32_t kept[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        kept[pair] = 0xffffffffu;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (feature >= 0 && (ptx::load_shared<uint32_t>(dropped + feature / 32 * 4) >> feature % 32 & 1) != 0) {
                kept[pair] &= half == 0 ? 0xffff0000u : 0x0000ffffu;
            }
            const int next = column + 2 * pair + half + 1;
            if (++feature == dropout.features) {
                feature = next == dropout.features ? next - dropout.first_within_set : 0;
            }
        }
    }
    values.x &= kept[0];
    values.y &= kept[1];
    values.z &= kept[2];
    values.w &= kept[3];
}

template <bool DROPOUT> __device__ __forceinline__ void gather(const GatherRows &p) {
    const int of_block = threadIdx.x / GATHER_LANES, lane = threadIdx.x % GATHER_LANES;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (GATHER_THREADS / GATHER_LANES) + of_block;
    ptx::Shared dropped = 0;
    if constexpr (DROPOUT) {
        const int words = (p.dropout.features + 31) / 32;
        dropped = ptx::shared_base() + of_block * words * 4;
        if (row < p.rows) {
            const uint32_t data_row = ptx::load_constant(p.data_rows + row);
            for (int word = lane; word < words; word += GATHER_LANES) {
                ptx::store_shared(dropped + word * 4, draw(p.dropout, data_row, word * 32));
            }
        }
        // All threads of a row are in one warp.
        ptx::sync_warp();
    }
    if (row >= p.rows) return;
    const int64_t source = ptx::load_constant(p.index + row);
    const uint16_t *const from = p.from + source * p.width;
    uint16_t *const to = p.to + row * p.width;
    for (int first = lane * GATHER_VALUES; first < p.width; first += AHEAD * STRIDE) {
        uint4 held[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int column = first + j * STRIDE;
            if (column < p.width) held[j] = ptx::load_constant(reinterpret_cast<const uint4 *>(from + column));
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int column = first + j * STRIDE;
            if (column >= p.width) continue;
            if constexpr (DROPOUT) drop(held[j], p.dropout, dropped, column);
            ptx::store_global(reinterpret_cast<uint4 *>(to + column), held[j]);
        }
    }
}

} // namespace

#define GATHER_ROWS(NAME, DROPOUT)                                                                                    \
    extern "C" __global__ void __launch_bounds__(GATHER_THREADS) NAME(const __grid_constant__ GatherRows p) {         \
        gather<DROPOUT>(p);                                                                                           \
    }
GATHER_ROWS(gather_rows, false)
GATHER_ROWS(gather_rows_dropout, true)
