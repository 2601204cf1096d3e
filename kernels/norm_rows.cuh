// LayerNorm of residual sums of rows that a warp has, a piece a lane: in front of products that take whole rows, and behind.
#pragma once

#include "norm.cuh"

namespace layer_norm {

// Rows of a warp's that it has at once, for one does not keep it busy; as many more are on their way.
constexpr int NORM_ROWS = 4;

// COUNT rows of C columns that a warp has: from number `begin` on of `valid` rows, the first of which is number `first` of a
// matrix.
template <int C, int COUNT> struct NormRows {
    static_assert(COUNT % NORM_ROWS == 0);

    int first, valid, begin;

    static __device__ __forceinline__ int lane() { return ptx::thread() & 31; }
    // Where the lane's piece begins; lanes without one are not `inside`.
    static __device__ __forceinline__ int column() { return lane() * PIECE; }
    static __device__ __forceinline__ bool inside() { return column() < C; }

    // A row's number in a matrix; in the place of rows behind the last that one is read.
    __device__ __forceinline__ int number(int row) const { return first + min(row, valid - 1); }
    __device__ __forceinline__ size_t at(int row) const { return static_cast<size_t>(number(row)) * C + column(); }

    // The first row's number among `period` rows that come again.
    __device__ __forceinline__ int repeated(int period) const { return (first + begin) % period; }
};

// A lane's pieces of a row and of what is added to it, as they stand in memory.
struct Pieces {
    uint4 x = {}, added = {};

    __device__ __forceinline__ void add_up(float (&sum)[PIECE]) const {
        float more[PIECE];
        unpack(sum, x);
        unpack(more, added);
#pragma unroll
        for (int e = 0; e < PIECE; ++e) sum[e] += more[e];
    }
};

__device__ __forceinline__ Pieces load_pieces(const uint16_t *x, const uint16_t *added) {
    return {ptx::load_constant(reinterpret_cast<const uint4 *>(x)),
            ptx::load_constant(reinterpret_cast<const uint4 *>(added))};
}

// The lane's pieces of rows that come again after `period` of them, one row after the other, from row `of_added` on.
template <int C> struct Repeated {
    const uint16_t *rows;
    int period, of_added;

    __device__ __forceinline__ const uint16_t *next(int column) {
        const uint16_t *const piece = rows + static_cast<size_t>(of_added) * C + column;
        if (++of_added == period) of_added = 0;
        return piece;
    }
};

// Calls `each(loaded, row)` for NORM_ROWS rows at a time, from `row` on, of what `load(row)` has loaded of each; what is loaded of
// the rows behind them is on its way meanwhile.
template <int C, int COUNT, class Load, class Each>
__device__ __forceinline__ void for_rows(const NormRows<C, COUNT> &rows, const Load &load, const Each &each) {
    const int end = rows.begin + COUNT;
    decltype(load(0)) next[NORM_ROWS];
#pragma unroll
    for (int i = 0; i < NORM_ROWS; ++i) next[i] = load(rows.begin + i);
#pragma unroll 1
    for (int row = rows.begin; row < end; row += NORM_ROWS) {
        decltype(load(0)) now[NORM_ROWS];
#pragma unroll
        for (int i = 0; i < NORM_ROWS; ++i) now[i] = next[i];
        if (row + NORM_ROWS < end) {
#pragma unroll
            for (int i = 0; i < NORM_ROWS; ++i) next[i] = load(row + NORM_ROWS + i);
        }
        each(now, row);
    }
}

// LayerNorm of x + added[i % period], and where what it gives is written: statistics, and the rows unless that is null.
struct Forward {
    const uint16_t *x;
    const uint16_t *added;
    const float *scale;
    const float *shift;
    float *statistics;
    uint16_t *y;
    int period;
    float eps;
};

// LayerNorm of a warp's rows, of which the first `stored` of the block are written to memory: `place(row)` is where the lane's piece
// of a row stands that products read.
template <int C, int COUNT, class Place>
__device__ __forceinline__ void forward_rows(const Forward &p, NormRows<C, COUNT> rows, int stored, const Place &place) {
    const int lane = rows.lane(), column = rows.column();
    const bool inside[1] = {rows.inside()};
    float weight[PIECE] = {}, bias[PIECE] = {};
    if (inside[0]) {
        load_piece(weight, p.scale + column);
        load_piece(bias, p.shift + column);
    }
    Repeated<C> added{p.added, p.period, rows.repeated(p.period)};
    WarpSum sum;
    const auto load = [&](int row) {
        return inside[0] ? load_pieces(p.x + rows.at(row), added.next(column)) : Pieces{};
    };
    for_rows(rows, load, [&](const Pieces(&pieces)[NORM_ROWS], int row) {
        Values<1> values[NORM_ROWS];
        // Each of the first lanes stores those of one of the rows.
        float2 of_lane = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < NORM_ROWS; ++i) {
            pieces[i].add_up(values[i][0]);
            const float2 statistics = center(values[i], inside, 1.0f / C, p.eps, sum);
            if (lane == i) of_lane = statistics;
            scale(values[i][0], statistics.y, weight, bias);
        }
        if (lane < NORM_ROWS && row + lane < stored) {
            ptx::store_global(reinterpret_cast<float2 *>(p.statistics) + rows.first + row + lane, of_lane);
        }
        if (!inside[0]) return;
#pragma unroll
        for (int i = 0; i < NORM_ROWS; ++i) {
            const uint4 packed = pack(values[i][0]);
            ptx::store_shared(place(row + i), packed);
            if (p.y != nullptr && row + i < stored) {
                ptx::store_global(reinterpret_cast<uint4 *>(p.y + rows.at(row + i)), packed);
            }
        }
    });
}

// What backward of a LayerNorm loads of a row: what it is of, the gradient, if that is in memory, mean and 1/√(variance + eps).
struct Row {
    Pieces of;
    uint4 d = {};
    float2 statistics = {};
};

// Backward of a LayerNorm, but for sums over rows, which `own` goes on with: `load(at)` loads what is to be had of a row but for
// its statistics, `at` being where the lane's piece stands in a matrix; `gradient(loaded, row)` gives that of the row, and
// `store(packed, row, at)` takes that of what the row is of.
template <int C, int COUNT, class Load, class Gradient, class Store>
__device__ __forceinline__ void backward_rows(Columns<1> &own, const float *gamma, const float *statistics,
                                              NormRows<C, COUNT> rows, const Load &load, const Gradient &gradient,
                                              const Store &store) {
    const bool inside = rows.inside();
    if (inside) load_piece(own.weight[0], gamma + rows.column());
    WarpSum sum;
    const auto load_row = [&](int row) {
        Row loaded = inside ? load(rows.at(row)) : Row{};
        loaded.statistics = ptx::load_constant(reinterpret_cast<const float2 *>(statistics) + rows.number(row));
        return loaded;
    };
    for_rows(rows, load_row, [&](const Row(&loaded)[NORM_ROWS], int row) {
        Values<1> values[NORM_ROWS], d[NORM_ROWS] = {};
#pragma unroll
        for (int i = 0; i < NORM_ROWS; ++i) {
            loaded[i].of.add_up(values[i][0]);
            if (!inside) continue;
            const uint4 packed = gradient(loaded[i], row + i);
            // Of rows behind the last there is none.
            unpack(d[i][0], row + i < rows.valid ? packed : make_uint4(0, 0, 0, 0));
        }
#pragma unroll
        for (int i = 0; i < NORM_ROWS; ++i) own.backward(d[i], values[i], loaded[i].statistics, 1.0f / C, sum);
        if (!inside) return;
#pragma unroll
        for (int i = 0; i < NORM_ROWS; ++i) store(pack(d[i][0]), row + i, rows.at(row + i));
    });
}

} // namespace layer_norm
