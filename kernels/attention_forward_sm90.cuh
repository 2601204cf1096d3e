#pragma once

#include "attention_ring_sm90.cuh"
#include "attention_softmax.cuh"

// Attention, forward, by matrix instructions of warpgroups (wgmma): every query attends to all keys of its set, in each head.
//
//   o[i] = Σ_j m[i, j] p[i, j] v[j], as attention_forward.cuh has it (paper, equations 4 to 6).
//
// Shapes      as there.
// Checked     as there. Plans take it on compute capability 9.0, if asked to, for sets of more than 64 documents of which at
//             least half of the products are useful (`ForwardWarpgroups`); other sets of the batch are the other kernels'.
// Launch      grid (blocks, H), a block a set or a range of its queries; 384 threads, or 512 for heads of 64: one warpgroup
//             loads keys and values in chunks of 64 rows, two or three attend, each for 64 queries at a time. Chunks stay
//             where there is room, 13 of heads 32 wide, 12 of 64 wide, so that all queries of the block find them there; else
//             they go round. A multiprocessor has two blocks, or one of heads 64 wide. Registers, of 80 at the launch: 24
//             where it loads, 104 where it attends; for heads of 64, of 128: 24 and 160.
// Order       a warpgroup has the next chunk's scores made while it gathers this one's values; the largest scores and the
//             exponentials need only the scores.
// Types       bf16 in and out; scores, softmax and sums in f32; weights rounded to bf16 for the product with V.
// Determinism the same bits for a set whatever the batch around it: keys in order, no atomics. The bits of the other kernels
//             differ: a chunk of 64 keys has one reference.
// Writes      `=`: every row of the tiles in output and log_sum_exp, nothing else.
// Cost        as there. At n = 360, H 8, D 32, of what would do: 1.11 times the products, 1.05 times the exponentials, 1.00
//             times the bytes that differ, 1.05 wavefronts of shared memory a product (counters.txt): queries are read from
//             there with every chunk, which spares 8 registers. By the rates of an H100 (798e12 FLOP/s, 3.6e12 exp/s, 3.0e12
//             B/s, a wavefront and four instructions a cycle) a document and layer is to take 0.84 ns of exponentials, which
//             bound it, about 0.8 of instructions (245 of a warp for a chunk), 0.69 of bytes, 0.51 of products, 0.42 of
//             wavefronts. P·V of heads 32 wide has 32 columns, for which wgmma may be slower than that. No card has run it.
// Range       as there, and what is not finite stays in its set.
// Lost        branches on the last chunk's steps round the exponentials and the products together: ptxas puts all products
//             one behind the other. Four ways through both: for want of registers, too. Heads of 64 with two blocks a
//             multiprocessor: 32 bytes of spills.

namespace attention::wgmma {

// Query rows of a warpgroup on their way over keys; 16 of them are a warp's.
template <int D, bool DROPOUT> struct Pass {
    const AttentionForward &p;
    // The first row of the warp, counted from the tile's first, and how many from it on are of the tile.
    int row, rows;
    Softmax<D, 1> softmax;
    Fragments<1, ROWS> scores;
    // An operand for each step of keys.
    uint32_t weights[ROWS / STEP][4];
    // Which weights of the chunk are kept, a bit each.
    uint32_t kept;

    __device__ __forceinline__ Pass(const AttentionForward &p, int row, int rows)
        : p(p), row(row), rows(rows), kept(~0u) {}

    // Attends to all keys of tile number `number`.
    __device__ __forceinline__ void attend(Ring<D> &ring, int number) {
        load_queries(ptx::load_constant(&p.tiles[number].query_begin));
        softmax.reset();
        // Keys of the chunk and behind it.
        int left = ptx::load_constant(&p.tiles[number].key_rows);
        bool first = true;
        Ring<D> before = ring;
        ring.wait();
        ptx::wgmma_fence(scores[0]);
        score(ring);
        draw(number, left);
        ptx::wgmma_wait<0>(scores[0]);
#pragma unroll 1
        for (; left > ROWS; left -= ROWS) {
            weigh<false>(left, first);
            if (!first) before.release();
            before = ring;
            ring.advance();
            ring.wait();
            // The next scores come while this chunk's values are gathered.
            ptx::wgmma_fence(scores[0], softmax.output[0], weights);
            score(ring);
            gather<ROWS / STEP>(before, first);
            first = false;
            draw(number, left - ROWS);
            ptx::wgmma_wait<1>(scores[0]);
        }
        mask_columns(scores, left, lane());
        weigh<true>(left, first);
        if (!first) before.release();
        // Each way has its own fence: ptxas takes a wgmma that it does not see right behind one for unordered.
        if (left > 3 * STEP) {
            ptx::wgmma_fence(softmax.output[0], weights);
            gather<4>(ring, first);
        } else if (left > 2 * STEP) {
            ptx::wgmma_fence(softmax.output[0], weights);
            gather<3>(ring, first);
        } else if (left > STEP) {
            ptx::wgmma_fence(softmax.output[0], weights);
            gather<2>(ring, first);
        } else {
            ptx::wgmma_fence(softmax.output[0], weights);
            gather<1>(ring, first);
        }
        ptx::wgmma_wait<0>(softmax.output[0]);
        ring.release();
        ring.advance();
        store(ptx::load_constant(&p.tiles[number].output_begin));
    }

  private:
    static_assert(ROWS == 4 * STEP && STEP == ATTENTION_SM90_STEP);

    static __device__ __forceinline__ int lane() { return ptx::thread() & 31; }
    static __device__ __forceinline__ int group() { return ptx::thread() / GROUP; }

    // The warpgroup's queries.
    static __device__ __forceinline__ Tile<D> queries() {
        return Tile<D>{ptx::shared_base() + (group() - 1) * Tile<D>::bytes(ROWS)};
    }

    __device__ __forceinline__ void load_queries(int first) const {
        constexpr int PIECES = Tile<D>::PIECES;
        const uint16_t *from = p.q + (static_cast<size_t>(blockIdx.y) * p.query_rows + first + row) * D;
        // All of the warpgroup are done with those before.
        ptx::barrier_sync(group(), GROUP);
        const int begin = ptx::thread() % GROUP / 32 * 16;
#pragma unroll
        for (int i = 0; i < 16 * PIECES / 32; ++i) {
            const int number = i * 32 + lane(), in_warp = number / PIECES, piece = number % PIECES;
            Tile<D>::load_piece(queries().at(begin + in_warp, piece), from, in_warp, piece, rows, D);
        }
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();
        ptx::barrier_sync(group(), GROUP);
    }

    // scores = queries · keysᵀ of a chunk.
    __device__ __forceinline__ void score(const Ring<D> &ring) {
        const uint64_t rows = operand(queries()), keys = operand(ring.keys());
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            ptx::wgmma_m64k16_bf16<false>(scores[0], rows + units(d * 32), keys + units(d * 32), d > 0);
        }
        ptx::wgmma_commit();
    }

    // results += weights · values of a chunk's first STEPS steps; the first are set.
    template <int STEPS> __device__ __forceinline__ void gather(const Ring<D> &ring, bool first) {
        const uint64_t values = operand(ring.values());
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            ptx::wgmma_m64k16_bf16<true>(softmax.output[0], weights[k], values + units(k * Tile<D>::bytes(STEP)),
                                         k > 0 || !first);
        }
        ptx::wgmma_commit();
    }

    // Draws for the chunk from which on so many keys are left.
    __device__ __forceinline__ void draw(int number, int left) {
        if constexpr (DROPOUT) {
            const AttentionTile tile = load_entry(p.tiles + number);
            const Place place{blockIdx.y, static_cast<uint32_t>(tile.set)};
            Kept<ROWS / 8> drawn;
            drawn.draw_for_queries(p.dropout, place, tile.first_query + row, tile.first_key + tile.key_rows - left,
                                   lane());
            kept = drawn.packed();
        }
    }

    // Makes weights of scores; behind it results are there, and of the same scale. Of the last chunk, which has `left` keys,
    // steps behind those are left out.
    template <bool LAST> __device__ __forceinline__ void weigh(int left, bool first) {
        float shrink[1][2];
        bool rises = false;
        if (rows > 0) {
            rises = softmax.adjust(scores, shrink, first, p.scale_log2e);
#pragma unroll
            for (int k = 0; k < ROWS / STEP; ++k) {
                if (LAST && k > 0 && k * STEP >= left) continue;
#pragma unroll
                for (int j = 2 * k; j < 2 * k + 2; ++j) {
                    softmax.weigh(scores[0][j], 0, p.scale_log2e, DROPOUT ? kept >> 4 * j : ~0u);
                }
            }
        }
        ptx::wgmma_wait<0>(softmax.output[0]);
        if (rises) softmax.rescale(shrink);
#pragma unroll
        for (int k = 0; k < ROWS / STEP; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float *pair = &scores[0][2 * k + i / 2][2 * (i % 2)];
                weights[k][i] = ptx::pack_bf16(pair[0], pair[1]);
            }
        }
    }

    __device__ __forceinline__ void store(int first) const {
        const size_t head = blockIdx.y, heads = p.heads;
        const int output_row = first + row;
        softmax.store(p.output + (output_row * heads + head) * D, heads * D,
                      p.log_sum_exp + (head * p.output_rows + output_row), rows, DROPOUT ? p.dropout.keep : 1.0f,
                      lane());
    }
};

template <int D, bool DROPOUT> __device__ __forceinline__ void forward(const AttentionForward &p) {
    constexpr int BLOCKS = D == 32 ? ATTENTION_SM90_BLOCKS_D32 : ATTENTION_SM90_BLOCKS_D64;
    constexpr int REGISTERS = D == 32 ? ATTENTION_SM90_REGISTERS_D32 : ATTENTION_SM90_REGISTERS_D64;
    static_assert(registers_suffice(ATTENTION_SM90_REGISTERS, CONSUMERS<D>, REGISTERS, BLOCKS));
    const AttentionBlock block = load_entry(p.blocks + blockIdx.x);
    const AttentionTile tile = load_entry(p.tiles + block.first_set);
    constexpr int PASS = CONSUMERS<D> * ROWS;
    const int passes = (tile.query_rows + PASS - 1) / PASS, chunks = (tile.key_rows + ROWS - 1) / ROWS;
    const int slots = Ring<D>::room(block.group_bytes), group = threadIdx.x / GROUP;
    Ring<D> ring{slots, chunks <= slots};
    ring.make(threadIdx.x);
    ptx::barrier();
    if (group == 0) {
        ptx::registers_decrease<ATTENTION_SM90_REGISTERS>();
        fill(p, ring, tile, ring.stays ? chunks : chunks * passes);
        return;
    }
    ptx::registers_increase<REGISTERS>();
#pragma unroll 1
    for (int begin = (group - 1) * ROWS; begin < passes * PASS; begin += PASS) {
        if (ring.stays) ring.slot = ring.phase = 0;
        if (begin < tile.query_rows) {
            const int row = begin + threadIdx.x % GROUP / 32 * 16;
            Pass<D, DROPOUT>(p, row, min(tile.query_rows - row, 16)).attend(ring, block.first_set);
        } else if (!ring.stays) {
            // The others wait for it.
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; ++chunk) {
                ring.wait();
                ring.release();
                ring.advance();
            }
        }
    }
}

} // namespace attention::wgmma
