// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "feed_forward_backward.h"

#include "feed_forward_backward_sm90.h"

#include "feed_forward_sm90.cuh"

// Backward of the row-wise network of a block, of the LayerNorm behind it and of the one before it, by matrix instructions of
// warpgroups (wgmma), but for the gradients of the network's parameters; in front of it, of a projection of the rows behind.
//
//   d = d + dp·weight,   dy = LayerNorm₂'(d),
//   h = ReLU(fc1(x)),   dh = dy·weight2 where h > 0, else 0,   d = LayerNorm₁'(dh·weight1 + dy),
//
// as feed_forward_backward.cu has it.
//
// Shapes      as there.
// Checked     as there. Plans take it on compute capability 9.0, if asked to.
// Launch      as feed_forward_sm90.cu. Shared memory: x and dy (256·C bytes each), three slots for the weights of 64 inner
//             columns in one of the layers (128·C bytes each), their mbarriers: 224 KiB at C = 256. Sums over rows of the
//             LayerNorm behind stand in the slot before that of the network's first weights, which is loaded when they are no
//             longer needed, those of the one before in the place of x. A projection's weights come through the slots before
//             the network's, d meanwhile to the place of dy; dp, 64 columns at a time, stays in registers. Registers, of 168
//             at the launch: 24 where it loads, 240 where it multiplies: 128 of dx at C = 256, 32 each of 64 inner columns
//             and their gradient.
// Order       fc1's weights serve the inner columns and, turned, dx; fc2's, turned, the gradient of the inner columns: each
//             is read once for 256 rows. A warp has four rows of a LayerNorm at a time, and four more on their way; the next
//             columns of dp come while it multiplies these.
// Types       as there.
// Determinism sums over inner dimensions in order, 16 a step, and over rows of LayerNorm as `layer_norm_backward` has them:
//             dy has the same bits where d has. A row has the same bits in any batch. A part sums its rows in a fixed order,
//             that of feed_forward_backward.cu's blocks of as many rows, whose bits differ where a card's wgmma adds otherwise
//             than its mma. No atomics.
// Writes      as there. Four lanes swap pairs of inner rows, so that each writes 16 bytes of a row; so do they with those of
//             dp that they have read.
// Cost        as there, but for what shared memory takes: 1.06 cycles a product (counters.txt). By the rates that
//             feed_forward_sm90.cu has, a row of C = 256, G = 1024 is to take 2.57 ns of bytes, which bound it, 1.97 of
//             products, 1.82 of wavefronts; it asks L2 for 4096 bytes of weights. A projection to 3·C columns takes 0.51 ns
//             of bytes more, 0.49 of products, 0.39 of wavefronts, and 1536 bytes of weights. A block's products wait for one
//             LayerNorm, and the other for them, which is not in these figures. No card has run it.

namespace feed_forward::wgmma {
namespace {

// Tiles of dy behind those of x.
template <int C> constexpr int DY = C / 64;
// Weights come in the order in which they are multiplied: a projection's, then of each chunk fc1's and fc2's. Sums over the rows
// of the LayerNorm behind are passed on in the slot before the network's first, whatever a projection had there.
template <int C> using BackwardRing = Ring<C, 2 * C / 64, FEED_FORWARD_BACKWARD_SM90_SLOTS, true>;
// Barriers of all warpgroups of a block that have rows, behind those of each: what they have summed is there, and they are done
// with what products read.
constexpr int SUMMED = MULTIPLIERS + 1, MULTIPLIED = MULTIPLIERS + 2;

// A thread loads all weights.
template <int C>
__device__ __forceinline__ void load_weights(const FeedForwardBackwardWgmma &p, BackwardRing<C> ring) {
#pragma unroll 1
    for (int column = 0; column < p.network.projected.outputs; column += CHUNK) ring.load1(p.projection, column);
#pragma unroll 1
    for (int chunk = 0; chunk < p.network.inner; chunk += CHUNK) {
        ring.load1(p.weight1, chunk);
        ring.load2(p.weight2, chunk);
    }
}

// A warpgroup's rows on their way back through the network.
template <int C> struct Multiplier : Rows<C> {
    using Rows<C>::first, Rows<C>::valid, Rows<C>::lane, Rows<C>::group, Rows<C>::warp_row;
    using Rows<C>::tile, Rows<C>::at_pair, Rows<C>::norm_rows, Rows<C>::show;
    using Rows<C>::store_chunk, Rows<C>::load_chunk;

    const FeedForwardBackward &p;
    BackwardRing<C> ring = BackwardRing<C>::lent();
    // A chunk of the inner rows and of their gradient, in front of the ReLU and behind it, or the latter of a projection's; what
    // is made of them: d without what is given, dx without dy.
    float inner[CHUNK / 8][4], d_inner[CHUNK / 8][4];
    Chunk hidden, d_hidden;
    float results[C / 8][4];
    // fc1's bias of the chunk.
    float2 bias[CHUNK / 8];

    __device__ __forceinline__ Multiplier(const FeedForwardBackward &p, int first)
        : Rows<C>{first, p.rows - first}, p(p) {}

    __device__ __forceinline__ void run() {
        if (is_projected()) add_projected();
        behind_backward();
        show();
        // Copies may write where its sums were.
        ring.release();
        ring.advance();
        clear();
#pragma unroll 1
        for (int chunk = 0; chunk < p.inner; chunk += CHUNK) {
            BackwardRing<C> second = ring;
            second.advance();
            ring.wait();
            second.wait();
            ptx::wgmma_fence(inner);
            ptx::wgmma_fence(d_inner);
            multiply_rows<C, false>(inner, 0, ring.weights());
            multiply_rows<C, true>(d_inner, DY<C>, second.weights());
#pragma unroll
            for (int d = 0; d < CHUNK / 8; ++d) bias[d] = load_pair(p.bias1 + chunk, d);
            ptx::wgmma_wait<1>(inner);
            activate();
            ptx::wgmma_wait<0>(d_inner);
            second.release();
            cut();
            ptx::wgmma_fence(results, d_hidden);
            multiply_d_hidden();
            // What products only read can be written meanwhile.
            store_chunk(inner_columns(p.hidden, chunk), hidden);
            store_chunk(inner_columns(p.d_hidden, chunk), d_hidden);
            ptx::wgmma_wait<0>(results);
            ring.release();
            ring = second;
            ring.advance();
        }
        // All are done with x and dy, whose places sums and dx take.
        ptx::barrier_sync(MULTIPLIED, threads());
        add_to_rows();
        before_backward();
    }

  private:
    __device__ __forceinline__ bool is_projected() const { return p.projected.outputs > 0; }

    // The warpgroup's rows of a chunk of inner rows.
    __device__ __forceinline__ gemm::Columns<uint16_t> inner_columns(uint16_t *rows, int chunk) const {
        return {rows + static_cast<size_t>(first) * p.inner + chunk, static_cast<size_t>(p.inner), 32};
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < C / 2; ++i) results[i / 4][i % 4] = 0.0f;
    }

    // Those of the block that have rows, the first warpgroup's among them.
    __device__ __forceinline__ int threads() const {
        const int of_block = p.rows - static_cast<int>(blockIdx.x) * BLOCK_ROWS;
        return min(MULTIPLIERS, (of_block + ROWS - 1) / ROWS) * GROUP;
    }

    // d, with what comes by way of a projection, in the place of dy. The last weights' slot is not given back.
    __device__ __forceinline__ void add_projected() {
        copy_given();
        const gemm::Matrix<const uint16_t> gradient{p.projected.d, p.rows, p.projected.width};
        clear();
        Chunk next;
        load_chunk(next, gradient.columns(first, 0));
#pragma unroll 1
        for (int column = 0; column < p.projected.outputs; column += CHUNK) {
            swap_pairs(d_hidden, next);
            // The next columns come while these are multiplied.
            const int behind = column + CHUNK;
            if (behind < p.projected.outputs) load_chunk(next, gradient.columns(first, behind));
            ring.release();
            ring.advance();
            ring.wait();
            ptx::wgmma_fence(results, d_hidden);
            multiply_d_hidden();
            ptx::wgmma_wait<0>(results);
        }
        ptx::cp_async_wait<0>();
        // All are done with the last weights, whose place sums take.
        ptx::barrier_sync(MULTIPLIED, threads());
        add_to_rows();
    }

    // Copies the warp's rows of d to the place of dy, in the background; zeros, where none is given.
    __device__ __forceinline__ void copy_given() const {
        constexpr int PIECES = C / 8;
#pragma unroll 4
        for (int i = lane(); i < WARP_ROWS * PIECES; i += 32) {
            const int row = warp_row() + i / PIECES, piece = i % PIECES;
            const bool inside = p.given != 0 && row < valid;
            const uint16_t *from = inside ? p.d + static_cast<size_t>(first + row) * C + piece * 8 : p.d;
            ptx::cp_async_16(tile(DY<C> + piece / 8).at(row, piece % 8), from, inside ? 16 : 0);
        }
        ptx::cp_async_commit();
    }

    // Backward of a LayerNorm of the warp's rows; sums over rows come together in shared memory from `sums` on.
    template <class Load, class Gradient, class Store>
    __device__ __forceinline__ void norm_and_sums(const FeedForwardNorm &norm, ptx::Shared sums, const Load &load,
                                                  const Gradient &gradient, const Store &store) const {
        const auto rows = norm_rows();
        const int warp = ptx::thread() / 32 - GROUP / 32;
        layer_norm::Columns<1> own{};
        layer_norm::backward_rows(own, norm.weight, norm.statistics, rows, load, gradient, store);
        if (rows.inside()) own.put(sums + warp * 8 * C, 0, rows.column(), C);
        if (group() == 1) {
            ptx::barrier_sync(SUMMED, threads());
            layer_norm::store_sums<GROUP>(norm.parts, sums, threads() / 32, C, ptx::thread() % GROUP,
                                          (p.rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
        } else {
            ptx::barrier_arrive(SUMMED, threads());
        }
    }

    // Of the LayerNorm behind the network: dy, and x, where products read them.
    __device__ __forceinline__ void behind_backward() const {
        const int lane = Rows<C>::lane();
        const Tile<64> x = tile(lane / 8), dy = tile(DY<C> + lane / 8);
        norm_and_sums(
            p.behind, ring.weights().begin,
            [&](size_t at) {
                layer_norm::Row row{layer_norm::load_pieces(p.behind.added + at, p.behind.x + at)};
                if (!is_projected()) row.d = ptx::load_global(reinterpret_cast<const uint4 *>(p.d + at));
                return row;
            },
            [&](const layer_norm::Row &loaded, int row) {
                ptx::store_shared(x.at(row, lane % 8), loaded.of.x);
                return is_projected() ? ptx::load_shared<uint4>(dy.at(row, lane % 8)) : loaded.d;
            },
            [&](uint4 packed, int row, size_t at) {
                ptx::store_shared(dy.at(row, lane % 8), packed);
                if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.dy + at), packed);
            });
    }

    // Adds results to the rows that stand in the place of dy.
    __device__ __forceinline__ void add_to_rows() const {
#pragma unroll
        for (int d = 0; d < C / 8; ++d) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const ptx::Shared place = at_pair(DY<C>, d, half);
                const uint32_t other = ptx::load_shared<uint32_t>(place);
                ptx::store_shared(place, ptx::pack_bf16(results[d][2 * half] + bf16_low(other),
                                                        results[d][2 * half + 1] + bf16_high(other)));
            }
        }
        ptx::sync_warp();
    }

    // Of the LayerNorm before it.
    __device__ __forceinline__ void before_backward() const {
        const int lane = Rows<C>::lane(), period = p.before.period;
        const Tile<64> dx = tile(DY<C> + lane / 8);
        layer_norm::Repeated<C> added{p.before.added, period, norm_rows().repeated(period)};
        norm_and_sums(
            p.before, ptx::shared_base(),
            [&](size_t at) { return layer_norm::Row{layer_norm::load_pieces(p.before.x + at, added.next(lane * PIECE))}; },
            [&](const layer_norm::Row &, int row) { return ptx::load_shared<uint4>(dx.at(row, lane % 8)); },
            [&](uint4 packed, int row, size_t at) {
                if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(p.d + at), packed);
            });
    }

    // results += d_hidden · weight1 of a chunk, or · a projection's.
    __device__ __forceinline__ void multiply_d_hidden() {
        // From 64 columns of C to the next.
        constexpr uint64_t TO_NEXT = units(TILE) << 16;
        const uint64_t weights = operand(ring.weights()) | TO_NEXT;
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
            ptx::wgmma_m64k16_bf16<true>(results, d_hidden[k], weights + units(k * Tile<64>::bytes(16)), true);
        }
        ptx::wgmma_commit();
    }

    // h of the inner rows.
    __device__ __forceinline__ void activate() {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int d = 2 * k + i / 2, e = 2 * (i % 2);
                hidden[k][i] = ptx::pack_bf16(relu(inner[d][e] + bias[d].x), relu(inner[d][e + 1] + bias[d].y));
            }
        }
    }

    // dh of their gradient.
    __device__ __forceinline__ void cut() {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int d = 2 * k + i / 2, e = 2 * (i % 2);
                d_hidden[k][i] = ptx::pack_bf16(bf16_low(hidden[k][i]) > 0.0f ? d_inner[d][e] : 0.0f,
                                                bf16_high(hidden[k][i]) > 0.0f ? d_inner[d][e + 1] : 0.0f);
            }
        }
    }
};

template <int C> __device__ __forceinline__ void backward(const FeedForwardBackwardWgmma &p) {
    const int loads = (2 * p.network.inner + p.network.projected.outputs) / CHUNK;
    run_block<BackwardRing<C>>(
        p.network.rows, loads, [&](BackwardRing<C> ring) { load_weights<C>(p, ring); },
        [&](int first) { Multiplier<C>(p.network, first).run(); });
}

} // namespace
} // namespace feed_forward::wgmma

#define FEED_FORWARD_BACKWARD_WGMMA(NAME, C)                                                                          \
    extern "C" __global__ void __cluster_dims__(FEED_FORWARD_SM90_BLOCKS)                                             \
        __launch_bounds__(FEED_FORWARD_SM90_THREADS, 1) NAME(const __grid_constant__ FeedForwardBackwardWgmma p) {    \
        feed_forward::wgmma::backward<C>(p);                                                                          \
    }
FEED_FORWARD_BACKWARD_WGMMA(feed_forward_backward_wgmma_c64, 64)
FEED_FORWARD_BACKWARD_WGMMA(feed_forward_backward_wgmma_c128, 128)
FEED_FORWARD_BACKWARD_WGMMA(feed_forward_backward_wgmma_c192, 192)
FEED_FORWARD_BACKWARD_WGMMA(feed_forward_backward_wgmma_c256, 256)
