// What a warp of attention forward gathers: query rows, their softmax and their results.
#pragma once

#include "attention_keys.cuh"
#include "attention_tile.cuh"

namespace attention {

// How far scores, in units of log2, may be above a row's reference before it is raised: weights are at most 2^8, and what
// was summed has to be brought to a new scale hardly ever.
constexpr float RISE = 8.0f;

// Of TILES tiles of 16 query rows.
template <int D, int TILES> struct Softmax {
    uint32_t query[TILES][D / 16][4];
    // What is subtracted from the scores in units of log2, and the sum of the powers of two, of the lane's columns.
    float reference[TILES][2], sum[TILES][2];
    // Σ p·v, not yet divided by the sum.
    Fragments<TILES, D> output;

    // Of no keys yet.
    __device__ __forceinline__ void reset() {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                reference[m][half] = LOWEST;
                sum[m][half] = 0.0f;
            }
        }
    }

    // Of `rows` query rows from `from` on.
    __device__ __forceinline__ void start(const uint16_t *from, int rows, int lane) {
        // Of the lane's pieces; and how many of the rows from its first on there are.
        from += (lane >> 2) * D + (lane & 3) * 8;
        rows -= lane >> 2;
        reset();
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = m * 16 + half * 8;
#pragma unroll
                for (int d = 0; d < D / 32; ++d) {
                    uint4 piece = make_uint4(0, 0, 0, 0);
                    if (row < rows) {
                        const uint16_t *at = from + (row * D + d * 32);
                        piece = ptx::load_constant(reinterpret_cast<const uint4 *>(at));
                    }
                    uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
                    transpose(words, lane);
#pragma unroll
                    for (int i = 0; i < 4; ++i) query[m][2 * d + i / 2][2 * (i % 2) + half] = words[i];
                }
            }
        }
        clear(output);
    }

    // Has the first COUNT tiles attend to a step's keys, the first `valid` of which are of the set. The lane's pieces of
    // the keys are at `key`, of the values at `value`; `kept` has 8 bits for each tile.
    template <int COUNT, bool DROPOUT>
    __device__ __forceinline__ void attend(ptx::Shared key, ptx::Shared value, int valid, bool first,
                                           float scale_log2e, uint32_t kept, int lane) {
        Fragments<COUNT, STEP> scores;
        clear(scores);
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            if (j == 0 || j * 8 < valid) multiply(scores, j, key);
        }
        if (valid < STEP) mask_columns(scores, valid, lane);
        float shrink[COUNT][2];
        if (adjust(scores, shrink, first, scale_log2e)) rescale(shrink);
        uint32_t weights[COUNT][4];
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            if (j == 0 || j * 8 < valid) {
#pragma unroll
                for (int m = 0; m < COUNT; ++m) {
                    float(&row)[4] = scores[m][j];
                    weigh(row, m, scale_log2e, DROPOUT ? kept >> (8 * m + 4 * j) : ~0u);
                    weights[m][2 * j] = ptx::pack_bf16(row[0], row[1]);
                    weights[m][2 * j + 1] = ptx::pack_bf16(row[2], row[3]);
                }
            } else {
#pragma unroll
                for (int m = 0; m < COUNT; ++m) weights[m][2 * j] = weights[m][2 * j + 1] = 0;
            }
        }
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            uint32_t fragment[4];
            ptx::ldmatrix_x4_transposed(fragment, value ^ d * 32);
#pragma unroll
            for (int m = 0; m < COUNT; ++m) {
                ptx::mma_m16n8k16_bf16(output[m][2 * d], weights[m], fragment[0], fragment[1]);
                ptx::mma_m16n8k16_bf16(output[m][2 * d + 1], weights[m], fragment[2], fragment[3]);
            }
        }
    }

    // Raises references where scores are far above, and brings sums to their scale; whether it did so to any of the warp's
    // that is not the first: then results are yet to be brought to it too, by `rescale`.
    template <int COUNT, int J>
    __device__ __forceinline__ bool adjust(const float (&scores)[COUNT][J][4], float (&shrink)[COUNT][2], bool first,
                                           float scale_log2e) {
        float most[COUNT][2];
        bool rises = false;
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                most[m][half] = fmaxf(scores[m][0][2 * half], scores[m][0][2 * half + 1]);
#pragma unroll
                for (int j = 1; j < J; ++j) {
                    const float *pair = &scores[m][j][2 * half];
                    most[m][half] = fmaxf(most[m][half], fmaxf(pair[0], pair[1]));
                }
                rises |= fmaf(most[m][half], scale_log2e, -reference[m][half]) > RISE;
            }
        }
        if (ptx::ballot(rises) == 0) return false;
        raise(most, shrink, first, scale_log2e);
        return !first;
    }

    template <int COUNT> __device__ __forceinline__ void rescale(const float (&shrink)[COUNT][2]) {
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
#pragma unroll
                for (int e = 0; e < 4; ++e) output[m][d][e] *= shrink[m][e / 2];
            }
        }
    }

    // Makes weights of the scores of 16 rows and eight keys; those whose bit of `kept` is 0 are dropped, but for the sum.
    __device__ __forceinline__ void weigh(float (&scores)[4], int m, float scale_log2e, uint32_t kept) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float weight = ptx::exp2(fmaf(scores[e], scale_log2e, -reference[m][e / 2]));
            sum[m][e / 2] += weight;
            scores[e] = (kept >> e & 1) != 0 ? weight : 0.0f;
        }
    }

    // Adds what another warp gathered of the same queries and left from `begin` on, in shared memory or not.
    template <class Begin> __device__ __forceinline__ void merge(Begin begin, int lane) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            const float4 state = take_four(begin, place(m, 0), lane);
            const float references[2] = {state.x, state.y}, sums[2] = {state.z, state.w};
            float own[2], other[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float top = fmaxf(reference[m][half], references[half]);
                own[half] = ptx::exp2(reference[m][half] - top);
                other[half] = ptx::exp2(references[half] - top);
                reference[m][half] = top;
                sum[m][half] = fmaf(sum[m][half], own[half], sums[half] * other[half]);
            }
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const float4 added = take_four(begin, place(m, d + 1), lane);
                const float values[4] = {added.x, added.y, added.z, added.w};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    output[m][d][e] = fmaf(output[m][d][e], own[e / 2], values[e] * other[e / 2]);
                }
            }
        }
    }

    // Leaves it for another warp.
    template <class Begin> __device__ __forceinline__ void leave(Begin begin, int lane) const {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            const float4 state = make_float4(reference[m][0], reference[m][1], sum[m][0], sum[m][1]);
            leave_four(begin, place(m, 0), lane, state);
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const auto &values = output[m][d];
                leave_four(begin, place(m, d + 1), lane, make_float4(values[0], values[1], values[2], values[3]));
            }
        }
    }

    // Writes the results of `rows` rows.
    __device__ __forceinline__ void store(uint16_t *to, size_t stride, float *log_sum_exp, int rows, float keep,
                                          int lane) const {
        to += (lane >> 2) * stride + (lane & 3) * 8;
        log_sum_exp += lane >> 2;
        const int below = rows - (lane >> 2);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            if (m * 16 >= rows) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float total = sum[m][half];
                total += ptx::shuffle_xor(total, 1);
                total += ptx::shuffle_xor(total, 2);
                const float share = keep / total;
                const int row = m * 16 + half * 8;
                if (row < below && (lane & 3) == 0) {
                    ptx::store_global(log_sum_exp + row, (reference[m][half] + ptx::log2(total)) * LN_2);
                }
                store_row<D>(output[m], half, share, to + row * stride, nullptr, row < below, lane);
            }
        }
    }

  private:
    // The scores of column j of 8.
    template <int COUNT>
    __device__ __forceinline__ void multiply(Fragments<COUNT, STEP> &scores, int j, ptx::Shared key) const {
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            uint32_t fragment[4];
            ptx::ldmatrix_x4(fragment, (key ^ d * 64) + Tile<D>::bytes(j * 8));
#pragma unroll
            for (int m = 0; m < COUNT; ++m) {
                ptx::mma_m16n8k16_bf16(scores[m][j], query[m][2 * d], fragment[0], fragment[1]);
                ptx::mma_m16n8k16_bf16(scores[m][j], query[m][2 * d + 1], fragment[2], fragment[3]);
            }
        }
    }

    // A row's reference depends on its own scores alone, not on the rows that share the warp.
    template <int COUNT>
    __device__ __forceinline__ void raise(const float (&most)[COUNT][2], float (&shrink)[COUNT][2], bool first,
                                          float scale_log2e) {
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = fmaxf(most[m][half], ptx::shuffle_xor(most[m][half], 1));
                top = fmaxf(top, ptx::shuffle_xor(top, 2));
                const float before = reference[m][half];
                const bool rises = fmaf(top, scale_log2e, -before) > RISE;
                reference[m][half] = rises ? top * scale_log2e : before;
                // There is nothing yet to be brought to a new scale.
                if (first) continue;
                shrink[m][half] = ptx::exp2(before - reference[m][half]);
                sum[m][half] *= shrink[m][half];
            }
        }
    }

    // Number of part `part` of tile m in what a warp leaves.
    static __device__ __forceinline__ constexpr int place(int m, int part) { return m * (D / 8 + 1) + part; }
};

} // namespace attention
