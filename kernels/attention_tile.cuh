// What the attention kernels share: fragments of scores and their products, dropout, and the way of results to memory.
#pragma once

#include "attention.h"

#include "bf16.cuh"
#include "philox.cuh"
#include "tile.cuh"

namespace attention {

constexpr int QUERY_ROWS = ATTENTION_QUERY_ROWS, KEY_ROWS = ATTENTION_KEY_ROWS;
constexpr float LN_2 = 0.6931471805599453f, LOG2_E = 1.4426950408889634f;
constexpr float INFINITE = __builtin_huge_valf();

// What a softmax subtracts before it knows a score: lower than scores are, and far enough from infinity for differences not to
// be NaN.
constexpr float LOWEST = -0x1p126f;

__device__ __forceinline__ int divide_up(int a, int b) { return (a + b - 1) / b; }

// Fragments of 16 · TILES rows and COLUMNS columns: lane `lane` holds rows lane/4 (e 0 and 1) and lane/4 + 8 (e 2 and 3)
// of each 16 × 8 results, columns 2·(lane%4) and the next.
template <int TILES, int COLUMNS> using Fragments = float[TILES][COLUMNS / 8][4];

// An entry of a table, by words of 16 bytes.
template <class T> __device__ __forceinline__ T load_entry(const T *at) {
    constexpr int WORDS = sizeof(T) / sizeof(uint4);
    static_assert(WORDS * sizeof(uint4) == sizeof(T), "entries are whole words of 16 bytes");
    uint4 words[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = ptx::load_constant(reinterpret_cast<const uint4 *>(at) + i);
    T entry;
    memcpy(&entry, words, sizeof(entry));
    return entry;
}

// Of a block's warps, those that have a tile's work.
struct Group {
    // log2 of the warps, which of them this one is, and bytes of shared memory of each.
    int log2_warps, member, warp_bytes;
    // Whether there is work, where it stands in the table, and which it is.
    bool busy;
    const AttentionTile *at;
    AttentionTile tile;

    // How much of `all`, in order, the warps before this one and number `of` behind it have.
    __device__ __forceinline__ int share(int all, int of = 0) const { return all * (member + of) >> log2_warps; }
};

// Of the blocks and tiles of forward, or of backward's points.
template <class P> __device__ __forceinline__ Group load_group(const P &p) {
    const AttentionBlock block = load_entry(p.blocks + blockIdx.x);
    static_assert(ATTENTION_FORWARD_WARPS == 4 && ATTENTION_POINTS_WARPS == 4, "groups are of 1, 2 or 4 warps");
    const int log2_warps = block.warps >> 1, warp = threadIdx.x >> 5, number = warp >> log2_warps;
    Group group{log2_warps, warp & (block.warps - 1), block.group_bytes >> log2_warps, number < block.sets,
                p.tiles + block.first_set + number, {}};
    if (group.busy) group.tile = load_entry(group.at);
    return group;
}

// ---------------------------------------------------------------- what warps leave for others

// Four numbers of each lane of a warp: number `i` of what is left from `begin` on, in shared memory.
__device__ __forceinline__ void leave_four(ptx::Shared begin, int i, int lane, float4 four) {
    ptx::store_shared(begin + (i * 32 + lane) * 16, four);
}
__device__ __forceinline__ float4 take_four(ptx::Shared begin, int i, int lane) {
    return ptx::load_shared<float4>(begin + (i * 32 + lane) * 16);
}
// The same in memory, for another kernel.
__device__ __forceinline__ void leave_four(float *begin, int i, int lane, float4 four) {
    ptx::store_global(reinterpret_cast<float4 *>(begin) + (i * 32 + lane), four);
}
__device__ __forceinline__ float4 take_four(const float *begin, int i, int lane) {
    return ptx::load_constant(reinterpret_cast<const float4 *>(begin) + (i * 32 + lane));
}

// What the part with this number in the table leaves in this block's head.
template <int D, class P> __device__ __forceinline__ float *partials_of(const P &p, int part) {
    const size_t number = static_cast<size_t>(part) * p.heads + blockIdx.y;
    return p.partials + number * (ATTENTION_PART_NUMBERS * D);
}

// Two stages of pairs of tiles of ROWS rows, which a block goes over in turn.
template <int D, int ROWS> struct Pairs {
    ptx::Shared begin;

    static constexpr int BYTES = Tile<D>::bytes(2 * 2 * ROWS);

    // The tiles of pair `number`.
    __device__ __forceinline__ Tile<D> first(int number) const {
        return Tile<D>{begin + Tile<D>::bytes(number % 2 * 2 * ROWS)};
    }
    __device__ __forceinline__ Tile<D> second(int number) const {
        return Tile<D>{first(number).begin + Tile<D>::bytes(ROWS)};
    }
};

// The 16 rows of a tile from `row` on, as the left operand of products.
template <int D>
__device__ __forceinline__ void load_operand(uint32_t (&operand)[D / 16][4], Tile<D> tile, int row, int lane) {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) ptx::ldmatrix_x4(operand[d], tile.at(row + (lane & 15), d * 2 + (lane >> 4)));
}

template <int TILES, int J> __device__ __forceinline__ void clear(float (&results)[TILES][J][4]) {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int j = 0; j < J; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) results[m][j][e] = 0.0f;
        }
    }
}

// scores = rows · columnsᵀ for the warp's rows and a tile of 8·J columns.
template <int D, int TILES, int J>
__device__ __forceinline__ void multiply_transposed(float (&scores)[TILES][J][4],
                                                    const uint32_t (&rows)[TILES][D / 16][4], Tile<D> columns,
                                                    int lane) {
    clear(scores);
#pragma unroll
    for (int j = 0; j < J; ++j) {
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            uint32_t fragment[4];
            ptx::ldmatrix_x4(fragment, columns.at(j * 8 + (lane & 7), d * 4 + (lane >> 3)));
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                ptx::mma_m16n8k16_bf16(scores[m][j], rows[m][2 * d], fragment[0], fragment[1]);
                ptx::mma_m16n8k16_bf16(scores[m][j], rows[m][2 * d + 1], fragment[2], fragment[3]);
            }
        }
    }
}

// results += operand · 16 rows of a tile from `row` on, for the first of the results' tiles.
template <int D, int TILES, int COUNT>
__device__ __forceinline__ void add_products(float (&results)[TILES][D / 8][4], const uint32_t (&operand)[COUNT][4],
                                             Tile<D> values, int row, int lane) {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
        uint32_t fragment[4];
        ptx::ldmatrix_x4_transposed(fragment, values.at(row + (lane & 15), d * 2 + (lane >> 4)));
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
            ptx::mma_m16n8k16_bf16(results[m][2 * d], operand[m], fragment[0], fragment[1]);
            ptx::mma_m16n8k16_bf16(results[m][2 * d + 1], operand[m], fragment[2], fragment[3]);
        }
    }
}

// results += weights · values for a tile of 8·J values.
template <int D, int TILES, int J>
__device__ __forceinline__ void multiply_add(float (&results)[TILES][D / 8][4], const float (&weights)[TILES][J][4],
                                             Tile<D> values, int lane) {
#pragma unroll
    for (int j = 0; j < J / 2; ++j) {
        // Two neighbouring fragments of results are one of the operand.
        uint32_t operand[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *pair = &weights[m][2 * j + i / 2][2 * (i % 2)];
                operand[m][i] = ptx::pack_bf16(pair[0], pair[1]);
            }
        }
        add_products(results, operand, values, j * 16, lane);
    }
}

// Columns from number `valid` of the tile on are none of the set.
template <int TILES, int J>
__device__ __forceinline__ void mask_columns(float (&scores)[TILES][J][4], int valid, int lane) {
#pragma unroll
    for (int j = 0; j < J; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const bool inside = j * 8 + 2 * (lane & 3) + (e & 1) < valid;
#pragma unroll
            for (int m = 0; m < TILES; ++m) scores[m][j][e] = inside ? scores[m][j][e] : -INFINITE;
        }
    }
}

// ---------------------------------------------------------------- dropout: src/ops/dropout.rs draws the same

// Where weights stand, but for their query and key.
struct Place {
    uint32_t head, set;
};

// Bit i: whether the weight of this query and of key 4·group + i is kept.
__device__ __forceinline__ uint32_t draw(const AttentionDropout &dropout, Place place, uint32_t query,
                                         uint32_t group) {
    uint32_t words[4] = {group, query, dropout.attention << 16 | place.head, place.set};
    philox(words, dropout.key_low, dropout.key_high);
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) kept |= (words[i] >= dropout.threshold ? 1u : 0u) << i;
    return kept;
}

// Which weights of 16 rows and 8·J columns are kept: bit 4·j of word e for fragment j and value e.
template <int J> struct Kept {
    static_assert(J <= 8);
    uint32_t words[4];

    __device__ __forceinline__ bool of(int j, int e) const { return (words[e] >> (4 * j) & 1) != 0; }

    // The same in one word: bit 4·j + e.
    __device__ __forceinline__ uint32_t packed() const {
        uint32_t all = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) all |= (words[e] & 0x11111111u) << e;
        return all;
    }

    // Rows are queries, from `query` on, columns keys, from `key` on.
    __device__ __forceinline__ void draw_for_queries(const AttentionDropout &dropout, Place place, int query, int key,
                                                     int lane) {
        // Two lanes hold four neighbouring keys of the same two queries: each draws for one of the queries.
        const int odd = lane & 1;
        uint32_t own = 0;
#pragma unroll 1
        for (int j = 0; j < J; ++j) {
            const int group = key / 4 + 2 * j + (lane >> 1 & 1);
            own |= draw(dropout, place, query + (lane >> 2) + 8 * odd, group) << (4 * j);
        }
        const uint32_t other = ptx::shuffle_xor(own, 1);
        const uint32_t halves[2] = {odd == 0 ? own : other, odd == 0 ? other : own};
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] = halves[e / 2] >> (2 * odd + e % 2);
    }

    // Rows are keys, from `key` on, columns queries, from `query` on.
    __device__ __forceinline__ void draw_for_keys(const AttentionDropout &dropout, Place place, int query, int key,
                                                  int lane) {
        // Four lanes hold four neighbouring keys of the same two queries, in both halves: each draws for one value of e.
        const int own = lane >> 2 & 3;
        words[0] = 0;
#pragma unroll 1
        for (int j = 0; j < J; ++j) {
            const int group = key / 4 + 2 * (own >> 1) + (lane >> 4);
            words[0] |= draw(dropout, place, query + 8 * j + 2 * (lane & 3) + (own & 1), group) << (4 * j);
        }
        // What the lane draws for e = own ^ i stands in word i.
#pragma unroll
        for (int i = 1; i < 4; ++i) words[i] = ptx::shuffle_xor(words[0], i << 2);
        exchange(words[0], words[1], (own & 1) != 0);
        exchange(words[2], words[3], (own & 1) != 0);
        exchange(words[0], words[2], (own & 2) != 0);
        exchange(words[1], words[3], (own & 2) != 0);
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] >>= own;
    }

    // weights *= m
    __device__ __forceinline__ void scale(float (&weights)[J][4], float keep) const {
#pragma unroll
        for (int j = 0; j < J; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) weights[j][e] = of(j, e) ? weights[j][e] * keep : 0.0f;
        }
    }

  private:
    static __device__ __forceinline__ void exchange(uint32_t &a, uint32_t &b, bool really) {
        const uint32_t first = really ? b : a, second = really ? a : b;
        a = first;
        b = second;
    }
};

// ---------------------------------------------------------------- results

// sum + the products of two pairs of bf16.
__device__ __forceinline__ float add_pairs(float sum, uint32_t a, uint32_t b) {
    sum = fmaf(bf16_low(a), bf16_low(b), sum);
    return fmaf(bf16_high(a), bf16_high(b), sum);
}

// The gradients of two values where those are positive, else 0.
__device__ __forceinline__ uint32_t where_positive(uint32_t gradients, uint32_t values) {
    // Neither 0, nor negative, nor NaN.
    const bool low = (values & 0xFFFFu) - 1 < 0x7F80u, high = (values >> 16) - 1 < 0x7F80u;
    return gradients & ((low ? 0xFFFFu : 0) | (high ? 0xFFFF0000u : 0));
}

__device__ __forceinline__ uint4 where_positive(uint4 gradients, uint4 values) {
    return make_uint4(where_positive(gradients.x, values.x), where_positive(gradients.y, values.y),
                      where_positive(gradients.z, values.z), where_positive(gradients.w, values.w));
}

// Copies 16 rows, those of them before `rows`, from the rows from `first` on of a tile to rows `stride` values apart, the
// tile's first at `to`. Where `relu` is not null, those are gradients of its values, which are `D` wide rows without gaps.
template <int D>
__device__ __forceinline__ void copy_rows(Tile<D> from, int first, int rows, uint16_t *to, size_t stride,
                                          const uint16_t *relu, int lane) {
    constexpr int PIECES = Tile<D>::PIECES;
#pragma unroll
    for (int i = 0; i < 16 * PIECES / 32; ++i) {
        const int row = first + (i * 32 + lane) / PIECES, piece = lane % PIECES;
        if (row < rows) {
            uint4 values = ptx::load_shared<uint4>(from.at(row, piece));
            if (relu != nullptr) {
                const uint16_t *beside = relu + (row * D + piece * 8);
                values = where_positive(values, ptx::load_constant(reinterpret_cast<const uint4 *>(beside)));
            }
            ptx::store_global(reinterpret_cast<uint4 *>(to + row * stride + piece * 8), values);
        }
    }
}

// Writes 16 rows of results, each half times its factor, as bf16: through rows of a tile that only this warp uses, and
// from there as `copy_rows` does.
template <int D>
__device__ __forceinline__ void store_rows(const float (&results)[D / 8][4], const float (&factors)[2],
                                           Tile<D> through, int first, int rows, uint16_t *to, size_t stride,
                                           const uint16_t *relu, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
            const float *pair = &results[d][2 * half];
            const uint32_t both = ptx::pack_bf16(pair[0] * factors[half], pair[1] * factors[half]);
            ptx::store_shared(through.at(first + half * 8 + (lane >> 2), d) + (lane & 3) * 4, both);
        }
    }
    ptx::sync_warp();
    copy_rows(through, first, rows, to, stride, relu, lane);
}

// Word i of lane q of four neighbouring lanes becomes word q of lane i.
__device__ __forceinline__ void transpose(uint32_t (&words)[4], int lane) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = (lane & bit) != 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((i & bit) != 0) continue;
            const uint32_t other = ptx::shuffle_xor(upper ? words[i] : words[i | bit], bit);
            words[i] = upper ? other : words[i];
            words[i | bit] = upper ? words[i | bit] : other;
        }
    }
}

// Writes half `half` of a lane's results, a row of which four neighbouring lanes have a fourth each, times `factor`, as bf16:
// the lane's pieces of the row begin at `to`. Where `relu` is not null, those are gradients of its values.
template <int D>
__device__ __forceinline__ void store_row(const float (&results)[D / 8][4], int half, float factor, uint16_t *to,
                                          const uint16_t *relu, bool inside, int lane) {
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *pair = &results[4 * d + i][2 * half];
            words[i] = ptx::pack_bf16(pair[0] * factor, pair[1] * factor);
        }
        transpose(words, lane);
        if (inside) {
            uint4 values = make_uint4(words[0], words[1], words[2], words[3]);
            if (relu != nullptr) {
                values = where_positive(values, ptx::load_constant(reinterpret_cast<const uint4 *>(relu + d * 32)));
            }
            ptx::store_global(reinterpret_cast<uint4 *>(to + d * 32), values);
        }
    }
}

} // namespace attention
