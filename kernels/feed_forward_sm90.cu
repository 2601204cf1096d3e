// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "feed_forward_sm90.cuh"

// The row-wise network of a block, the LayerNorm before it and the one behind, and what the next attention takes of it, by
// matrix instructions of warpgroups (wgmma): inner rows stay in registers, and the latter LayerNorm follows where the results
// are.
//
//   y = LayerNorm₂(x + f),   f = fc2(ReLU(fc1(x))),   x = LayerNorm₁(x₁ + added[i % period]),   out = activation(y·Wᵀ + b),
//
// as feed_forward.cu has it.
//
// Shapes      as there.
// Checked     as there. Plans take it on compute capability 9.0, if asked to.
// Launch      grid (⌈rows / 128⌉, and an even number), in clusters of two blocks; 384 threads: of one warpgroup a thread
//             loads, two multiply, each 64 rows, which are 16 of each of its warps in the LayerNorm before; those without
//             rows only go along. Each block loads a half of all weights, by tensor copies that bring it to both, the first
//             while LayerNorm goes on: weights are read once for 256 rows. Shared memory: x, and for a projection y, in its
//             place (256·C bytes), four slots for the weights of 64 inner columns in one of the layers, or of 64 of a projection's (128·C
//             bytes each), their mbarriers: 192 KiB at C = 256. Registers, of 168 at the launch: 24 where it loads, 240 where
//             it multiplies: 128 of results at C = 256, 32 and 16 of 64 inner columns as results and as operands.
// Order       a warp has four rows of the LayerNorm before at a time, so that sums of one wait beside those of others, and
//             four more on their way. A warpgroup has the next inner columns made while it multiplies these by fc2's weights.
//             A projection's first weights come while LayerNorm goes on; of its results a warpgroup has 64 columns at a time, and one stores
//             while the other multiplies: four lanes swap pairs, so that each writes 16 bytes of a row.
// Types       as there.
// Determinism sums over inner dimensions in order, 16 a step, and of the LayerNorm before as `layer_norm_forward` has them: x
//             has the same bits. A row has the same bits in any batch. The bits of feed_forward.cu differ where a card's
//             wgmma adds otherwise than its mma, and in the sums of the LayerNorm behind; out is what `linear_forward` makes
//             of y, but where a card adds otherwise. No atomics.
// Writes      as there.
// Cost        as there, but for what shared memory takes: 1.03 cycles a product, 1.29 of a projection's (counters.txt), x's,
//             y's and the weights' operands, copies of weights, y. By the rates of an H100 (798e12 FLOP/s, a
//             wavefront a cycle and multiprocessor at 1.7 GHz, 3.0e12 B/s) a row of C = 256, G = 1024 is to take 1.31 ns of
//             products, which bound it, 1.18 of wavefronts, 0.85 of bytes; it asks L2 for 4096 bytes of weights, as many as
//             eight rows of x have: 3.1e12 B/s. A projection to 3·C columns takes 0.49 ns of products more, 0.55 of
//             wavefronts, 0.51 of bytes, and 1536 bytes of weights. A block's products wait for its LayerNorm, which is not
//             in these figures. No card has run it.

namespace feed_forward::wgmma {
namespace {

// Weights come in the order in which they are multiplied: of fc1 a chunk before those of fc2, and behind them a projection's.
template <int C> using ForwardRing = Ring<C, C / 64, FEED_FORWARD_SM90_SLOTS>;

// A thread loads all weights.
template <int C> __device__ __forceinline__ void load_weights(const FeedForwardWgmma &p, ForwardRing<C> ring) {
    const int inner = p.network.inner;
#pragma unroll 1
    for (int chunk = 0; chunk <= inner; chunk += CHUNK) {
        if (chunk < inner) ring.load1(p.weight1, chunk);
        if (chunk > 0) ring.load2(p.weight2, chunk - CHUNK);
    }
#pragma unroll 1
    for (int column = 0; column < p.network.projection.outputs; column += CHUNK) ring.load1(p.projection, column);
}

// A warpgroup's rows on their way through the network.
template <int C> struct Multiplier : Rows<C> {
    using Rows<C>::first, Rows<C>::valid, Rows<C>::lane, Rows<C>::group, Rows<C>::warp_row;
    using Rows<C>::tile, Rows<C>::at_pair, Rows<C>::norm_rows, Rows<C>::show, Rows<C>::store_chunk;

    const FeedForward &p;
    ForwardRing<C> ring;
    // A chunk of the inner rows, or of a projection, in front of the ReLU and behind it; fc2's results.
    float inner[CHUNK / 8][4];
    Chunk hidden;
    float results[C / 8][4];
    // The chunk's bias.
    float2 bias[CHUNK / 8];

    __device__ __forceinline__ Multiplier(const FeedForward &p, int first)
        : Rows<C>{first, p.rows - first}, p(p) {}

    __device__ __forceinline__ void run() {
        norm_before();
        show();
#pragma unroll
        for (int i = 0; i < C / 2; ++i) results[i / 4][i % 4] = 0.0f;
        ring.wait();
        ptx::wgmma_fence(inner);
        multiply_rows<C, false>(inner, 0, ring.weights());
        load_bias(p.bias1);
        ptx::wgmma_wait<0>(inner);
        ring.release();
        activate(true);
#pragma unroll 1
        for (int chunk = CHUNK; chunk < p.inner; chunk += CHUNK) {
            pack();
            // The next chunk comes while this one is multiplied.
            ring.advance();
            ForwardRing<C> next = ring;
            ring.advance();
            next.wait();
            ring.wait();
            ptx::wgmma_fence(inner, results, hidden);
            multiply_rows<C, false>(inner, 0, next.weights());
            multiply_hidden();
            load_bias(p.bias1 + chunk);
            ptx::wgmma_wait<1>(inner);
            next.release();
            activate(true);
            ptx::wgmma_wait<0>(results);
            ring.release();
        }
        pack();
        ring.advance();
        ring.wait();
        ptx::wgmma_fence(results, hidden);
        multiply_hidden();
        ptx::wgmma_wait<0>(results);
        ring.release();
        add_x();
        // All of the warpgroup are done with x, whose place y takes.
        if (is_projecting()) ptx::barrier_sync(group(), GROUP);
        normalise();
        project();
    }

  private:
    __device__ __forceinline__ bool is_projecting() const { return p.projection.outputs > 0; }

    // The LayerNorm before the network: the rows of its warps, where products read them.
    __device__ __forceinline__ void norm_before() const {
        const int piece = Rows<C>::lane() % 8;
        const Tile<64> columns = tile(Rows<C>::lane() / 8);
        layer_norm::forward_rows({p.x, p.added, p.before.scale, p.before.shift, p.before.statistics, p.attended, p.period, p.eps},
                                 norm_rows(), valid, [&](int row) { return columns.at(row, piece); });
    }

    // results += hidden · weight2ᵀ of a chunk.
    __device__ __forceinline__ void multiply_hidden() {
        const uint64_t weights = operand(ring.weights());
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
            ptx::wgmma_m64k16_bf16<false>(results, hidden[k], weights + units(k * 32), true);
        }
        ptx::wgmma_commit();
    }

    __device__ __forceinline__ void load_bias(const float *from) {
#pragma unroll
        for (int d = 0; d < CHUNK / 8; ++d) bias[d] = load_pair(from, d);
    }

    // Adds the bias, and cuts what is below 0, if it is to.
    __device__ __forceinline__ void activate(bool cuts) {
#pragma unroll
        for (int d = 0; d < CHUNK / 8; ++d) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float value = inner[d][e] + (e % 2 == 0 ? bias[d].x : bias[d].y);
                inner[d][e] = cuts ? relu(value) : value;
            }
        }
    }

    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *pair = &inner[2 * k + i / 2][2 * (i % 2)];
                hidden[k][i] = ptx::pack_bf16(pair[0], pair[1]);
            }
        }
    }

    // v = x + f, with f rounded as it is kept.
    __device__ __forceinline__ void add_x() {
        const gemm::Matrix<uint16_t> output{p.output, p.rows, C};
#pragma unroll
        for (int number = 0; number < C / CHUNK; ++number) {
            Chunk f;
#pragma unroll
            for (int i = 0; i < CHUNK / 8; ++i) {
                const int d = number * (CHUNK / 8) + i;
                const float2 shift = load_pair(p.bias2, d);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float &low = results[d][2 * half], &high = results[d][2 * half + 1];
                    const uint32_t rounded = ptx::pack_bf16(low + shift.x, high + shift.y);
                    const uint32_t other = ptx::load_shared<uint32_t>(at_pair(0, d, half));
                    low = bf16_low(rounded) + bf16_low(other);
                    high = bf16_high(rounded) + bf16_high(other);
                    pair(f, i, half) = rounded;
                }
            }
            if (p.output != nullptr) store_chunk(output.columns(first, number * CHUNK), f);
        }
    }

    // The sum over a row, of which four lanes have a part each.
    static __device__ __forceinline__ float row_sum(float own) {
        own += ptx::shuffle_xor(own, 1);
        return own + ptx::shuffle_xor(own, 2);
    }

    // y of v, and the statistics.
    __device__ __forceinline__ void normalise() {
        constexpr float SHARE = 1.0f / C;
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // As LayerNorm alone: what is left of the mean is taken away as well.
            float mean = 0.0f;
#pragma unroll
            for (int pass = 0; pass < 2; ++pass) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < C / 4; ++i) sum += results[i / 2][2 * half + i % 2];
                const float rest = row_sum(sum) * SHARE;
                mean += rest;
#pragma unroll
                for (int i = 0; i < C / 4; ++i) results[i / 2][2 * half + i % 2] -= rest;
            }
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < C / 4; ++i) {
                const float value = results[i / 2][2 * half + i % 2];
                squares = fmaf(value, value, squares);
            }
            const float variance = fmaf(row_sum(squares), SHARE, p.eps), near = rsqrtf(variance);
            inverse[half] = fmaf(0.5f * near, fmaf(-variance * near, near, 1.0f), near);
            const int row = warp_row() + half * 8 + (lane() >> 2);
            if ((lane() & 3) == 0 && row < valid) {
                ptx::store_global(reinterpret_cast<float2 *>(p.behind.statistics) + first + row,
                                  make_float2(mean, inverse[half]));
            }
        }
        const gemm::Matrix<uint16_t> rows{p.y, p.rows, C};
#pragma unroll
        for (int number = 0; number < C / CHUNK; ++number) {
            Chunk y;
#pragma unroll
            for (int i = 0; i < CHUNK / 8; ++i) {
                const int d = number * (CHUNK / 8) + i;
                const float2 scale = load_pair(p.behind.scale, d), shift = load_pair(p.behind.shift, d);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float low = fmaf(results[d][2 * half] * inverse[half], scale.x, shift.x);
                    const float high = fmaf(results[d][2 * half + 1] * inverse[half], scale.y, shift.y);
                    pair(y, i, half) = ptx::pack_bf16(low, high);
                    // Where a projection reads it.
                    if (is_projecting()) ptx::store_shared(at_pair(0, d, half), pair(y, i, half));
                }
            }
            store_chunk(rows.columns(first, number * CHUNK), y);
        }
    }

    // What the next layer makes of y, a chunk of its columns at a time: one warpgroup multiplies while the other stores.
    __device__ __forceinline__ void project() {
        if (!is_projecting()) return;
        show();
        const gemm::Matrix<uint16_t> out{p.projection.out, p.rows, p.projection.width};
#pragma unroll 1
        for (int column = 0; column < p.projection.outputs; column += CHUNK) {
            ring.advance();
            ring.wait();
            ptx::wgmma_fence(inner);
            multiply_rows<C, false>(inner, 0, ring.weights());
            load_bias(p.projection.bias + column);
            ptx::wgmma_wait<0>(inner);
            ring.release();
            activate(p.projection.relu != 0);
            pack();
            store_chunk(out.columns(first, column), hidden);
        }
    }
};

template <int C> __device__ __forceinline__ void forward(const FeedForwardWgmma &p) {
    const int loads = (2 * p.network.inner + p.network.projection.outputs) / CHUNK;
    run_block<ForwardRing<C>>(
        p.network.rows, loads, [&](ForwardRing<C> ring) { load_weights<C>(p, ring); },
        [&](int first) { Multiplier<C>(p.network, first).run(); });
}

} // namespace
} // namespace feed_forward::wgmma

#define FEED_FORWARD_WGMMA(NAME, C)                                                                                   \
    extern "C" __global__ void __cluster_dims__(FEED_FORWARD_SM90_BLOCKS)                                             \
        __launch_bounds__(FEED_FORWARD_SM90_THREADS, 1) NAME(const __grid_constant__ FeedForwardWgmma p) {            \
        feed_forward::wgmma::forward<C>(p);                                                                           \
    }
FEED_FORWARD_WGMMA(feed_forward_wgmma_c64, 64)
FEED_FORWARD_WGMMA(feed_forward_wgmma_c128, 128)
FEED_FORWARD_WGMMA(feed_forward_wgmma_c192, 192)
FEED_FORWARD_WGMMA(feed_forward_wgmma_c256, 256)
