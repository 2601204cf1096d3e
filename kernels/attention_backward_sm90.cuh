#pragma once

#include "attention_tile.cuh"
#include "attention_warpgroup_sm90.cuh"

// Attention, backward, by matrix instructions of warpgroups (wgmma), among the documents of a set. Formulas and letters are
// those of attention_backward.cuh.
//
//   Two warpgroups weigh. Each holds blocks of 64 keys, k and v as left operands in registers, sums their d_k and d_v there,
//   and goes over all queries of the set: rows are keys, so that p and s are left operands for d_v and d_k as they stand.
//   s goes transposed to shared memory too, where a third warpgroup finds that of all keys and makes d_q of a tile of 64
//   queries of it, in one sum; it also loads the tiles of queries, and computes δ of what it loads.
//   Keys that are more than the two hold, 256 or for heads of 64 128, come in passes; sums of d_q wait in shared memory.
//
// Shapes      as in attention_backward.cuh.
// Checked     as there; a set has more than 96 documents, so that two tiles fill all rows of s. Plans take it on compute
//             capability 9.0, if asked to, for sets of which three quarters of the products are useful
//             (`BackwardWarpgroups`); other sets of the batch are the other kernels'.
// Launch      grid (sets, H); 384 threads: the warpgroup that loads, then those that weigh. Shared memory: two buffers of s,
//             which values use first, keys, two tiles of q and d_o with log-sum-exps and δ, and the sums of d_q: 81 to 225
//             KB. A multiprocessor has one block: those that weigh take 216 registers a thread, of 168 at the launch, and
//             the third has 72. ptxas uses 194, with dropout 214.
// Order       a tile is handed on by two mbarriers: `full` says that it is loaded and the place of its s free, `weighed` that
//             its s is there and its place free. While d_q is made of one, the next is weighed.
// Types       bf16 in and out; p, s, δ and sums in f32; p and s rounded to bf16 for the products behind them.
// Determinism the same bits for a set whatever the batch around it: sums go in a fixed order, no atomics. The bits of the
//             other kernels differ.
// Writes      `=`: d_q and d_kv of the table's sets, nothing else.
// Cost        as attention_backward_resident.cuh. At n 360 and D 32, of one head: 11424 products of warps (89 % of them useful:
//             keys are padded to 64, queries to 32), 1.09·n² exponentials, 16008 wavefronts of shared memory (1.40 a product,
//             against 1.70 of the other kernel), bytes each once. By the rates of an H100 (798e12 FLOP/s, 3.6e12 exp/s, 3.0e12
//             B/s, on 132 multiprocessors a wavefront and four instructions a cycle at 1.7 GHz) those take 59, 39, 71 and 62 ns,
//             and instructions about 76 (310 of a warp for 128 keys and 32 queries): bound by shared memory and instructions,
//             where the other kernel is to take 82 of products. A fifth of the wavefronts are log-sum-exps and δ, which are
//             asked for by each row of keys, a quarter s's way to d_q's product. At D 64 it is 1.26 a product, against 2.5.
//             wgmma may be slower with 32 columns than that. No card has run it.
// Range       as there, and what is not finite stays in its set.
// Lost        three warpgroups that weigh, of 152 registers: 16 to 80 bytes of spills. Three blocks of keys a warpgroup: 112 bytes
//             at 240 registers. Keys and values as operands in shared memory: by count 0.4 wavefronts a product more. Fences of
//             registers to which a product under way adds: ptxas puts all products one behind the other.

namespace attention::wgmma {

// Warpgroups that weigh, and blocks of 64 keys that each of them holds at a time.
constexpr int WEIGHERS = ATTENTION_SM90_WEIGHERS;
template <int D> constexpr int HELD = D == 32 ? ATTENTION_SM90_HELD_D32 : ATTENTION_SM90_HELD_D64;
// Queries of a product with keys, half of a tile, and steps of products with them.
constexpr int HALF = ROWS / 2, STEPS = HALF / 16;
// Tiles of queries in shared memory, each with its s.
constexpr int SLOTS = ATTENTION_SM90_SLOTS;

// What stands where in shared memory.
template <int D> struct Places {
    // Blocks of keys of a pass, and bytes of one, of s of a tile of queries and a block, and of a tile's log-sum-exps.
    static constexpr int BLOCKS = WEIGHERS * HELD<D>, BLOCK = Tile<D>::bytes(ROWS);
    static constexpr int SCORES = Tile<ROWS>::bytes(ROWS), SUMS = ROWS * 4;

    // s of a block: rows are queries.
    static __device__ __forceinline__ Tile<ROWS> scores(int slot, int block) {
        return Tile<ROWS>{ptx::shared_base() + (slot * BLOCKS + block) * SCORES};
    }
    // Values stand where s will.
    static __device__ __forceinline__ Tile<D> values(int block) {
        return Tile<D>{ptx::shared_base() + block * BLOCK};
    }
    static __device__ __forceinline__ Tile<D> keys(int block) {
        return Tile<D>{scores(SLOTS, 0).begin + block * BLOCK};
    }
    static __device__ __forceinline__ Tile<D> queries(int slot) { return keys(BLOCKS + 2 * slot); }
    static __device__ __forceinline__ Tile<D> d_outputs(int slot) { return keys(BLOCKS + 2 * slot + 1); }
    // log2 of the sums, and behind them δ.
    static __device__ __forceinline__ ptx::Shared sums(int slot) { return queries(SLOTS).begin + slot * 2 * SUMS; }
    // The mbarriers that are complete when a tile is there, and when its s is.
    static __device__ __forceinline__ ptx::Shared full(int slot) { return sums(SLOTS) + slot * 8; }
    static __device__ __forceinline__ ptx::Shared weighed(int slot) { return full(SLOTS + slot); }
    // The first four of the lane's sums of d_q of a tile, while other keys are loaded.
    static __device__ __forceinline__ ptx::Shared parked(int tile) {
        return full(2 * SLOTS) + tile * (ROWS * D * 4) + ptx::thread() % GROUP * 16;
    }
};

// The block's set.
__device__ __forceinline__ AttentionTile load_set(const AttentionBackward &p) {
    return load_entry(p.tiles + blockIdx.x);
}

// The blocks of keys of a pass over a set's queries.
template <int D> struct KeyBlocks {
    int first, count;

    static __device__ __forceinline__ int passes(const AttentionTile &set) {
        return divide_up(divide_up(set.key_rows, ROWS), Places<D>::BLOCKS);
    }

    // As many of each warpgroup in all passes but the last.
    __device__ __forceinline__ KeyBlocks(const AttentionTile &set, int pass) {
        const int all = divide_up(set.key_rows, ROWS);
        const int most = divide_up(divide_up(all, passes(set)), WEIGHERS) * WEIGHERS;
        first = pass * most;
        count = min(all - first, most);
    }

    // All threads of the block load their keys and values, when all are done with those of the pass before.
    __device__ __forceinline__ void load(const AttentionBackward &p, const AttentionTile &set) const {
        constexpr int PIECES = Tile<D>::PIECES;
        if (first > 0) ptx::barrier();
        const int rows = set.key_rows - first * ROWS;
        const size_t begin = static_cast<size_t>(blockIdx.y) * p.key_rows + set.key_begin + first * ROWS;
        const uint16_t *keys = p.kv + begin * D;
        const uint16_t *values = keys + static_cast<size_t>(p.heads) * p.key_rows * D;
#pragma unroll 1
        for (int i = ptx::thread(); i < count * ROWS * PIECES; i += (1 + WEIGHERS) * GROUP) {
            const int row = i / PIECES, piece = i % PIECES;
            Tile<D>::load_piece(Places<D>::keys(0).at(row, piece), keys, row, piece, rows, D);
            Tile<D>::load_piece(Places<D>::values(0).at(row, piece), values, row, piece, rows, D);
        }
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();
        ptx::barrier();
    }
};

// A warpgroup that weighs: it holds keys and values of a pass, and sums their gradients.
template <int D, bool DROPOUT> struct Weigher {
    const AttentionBackward &p;
    // Where the next tile of queries stands, and the phase of its mbarriers.
    int slot;
    uint32_t phase;
    float d_key[HELD<D>][D / 8][4], d_value[HELD<D>][D / 8][4];
    uint32_t key[HELD<D>][D / 16][4], value[HELD<D>][D / 16][4];

    __device__ __forceinline__ explicit Weigher(const AttentionBackward &p) : p(p), slot(0), phase(0) {}

    // Goes over all queries.
    __device__ __forceinline__ void run(int pass) {
        int query_rows, block, blocks, first_key, left;
        {
            const AttentionTile set = load_set(p);
            const KeyBlocks<D> keys(set, pass);
            keys.load(p, set);
            query_rows = set.query_rows;
            block = before(keys), blocks = own(keys);
            first_key = (keys.first + block) * ROWS + warp() * 16;
            left = set.key_rows - first_key;
        }
#pragma unroll
        for (int b = 0; b < HELD<D>; ++b) {
            if (b < blocks) {
                load_operand<D>(key[b], Places<D>::keys(block + b), warp() * 16, lane());
                load_operand<D>(value[b], Places<D>::values(block + b), warp() * 16, lane());
                ptx::wgmma_fence(key[b]);
                ptx::wgmma_fence(value[b]);
            }
        }
        clear(d_key);
        clear(d_value);
        // s takes the place of all values.
        ptx::barrier_sync(1, WEIGHERS * GROUP);
#pragma unroll 1
        for (int query = 0; query < query_rows; query += ROWS) {
            ptx::mbarrier_wait(Places<D>::full(slot), phase);
            const bool both = query_rows - query > HALF;
            if constexpr (D == 32) {
#pragma unroll 1
                for (int half = 0; half < 1 + both; ++half) {
                    if (blocks == 2) {
                        weigh<2>(half, block, query, first_key, left);
                    } else if (blocks == 1) {
                        weigh<1>(half, block, query, first_key, left);
                    }
                }
            } else if (blocks > 0) {
                if (both) {
                    weigh<2>(0, block, query, first_key, left);
                } else {
                    weigh<1>(0, block, query, first_key, left);
                }
            }
            ptx::fence_proxy_async();
            ptx::sync_warp();
            if (lane() == 0) ptx::mbarrier_arrive(Places<D>::weighed(slot));
            if (++slot == SLOTS) {
                slot = 0;
                phase ^= 1;
            }
        }
        store(pass);
    }

  private:
    static_assert(HELD<32> == 2 && HELD<64> == 1, "a unit's block and half");

    static __device__ __forceinline__ int lane() { return ptx::thread() & 31; }
    static __device__ __forceinline__ int warp() { return ptx::thread() / 32 % 4; }

    // Blocks of a pass that other warpgroups have before this one, and those of this one.
    static __device__ __forceinline__ int before(KeyBlocks<D> keys) {
        return (ptx::thread() / GROUP - 1) * keys.count / WEIGHERS;
    }
    static __device__ __forceinline__ int own(KeyBlocks<D> keys) {
        return ptx::thread() / GROUP * keys.count / WEIGHERS - before(keys);
    }

    // Which of the blocks unit u of weights has, and the first of its queries: for heads of 32 units are blocks with one
    // half of the queries, for heads of 64 halves with one block.
    static constexpr __device__ int block_of(int u) { return D == 32 ? u : 0; }
    static constexpr __device__ int query_of(int u) { return D == 32 ? 0 : u * HALF; }

    // Weighs UNITS units, and adds to the gradients; the first half of the queries is number `half`. Of the warp's first
    // block, `left` keys from number `first_key` on and more are of the set.
    template <int UNITS>
    __device__ __forceinline__ void weigh(int half, int block, int query, int first_key, int left) {
        float weights[UNITS][HALF / 8][4], d_weights[UNITS][HALF / 8][4];
        uint32_t kept[UNITS];
        if constexpr (DROPOUT) draw(kept, query + half * HALF, first_key);
        const uint64_t queries = operand(Places<D>::queries(slot)) + half * units(Tile<D>::bytes(HALF));
        const uint64_t d_outputs = queries + units(Places<D>::BLOCK);
        multiply(weights, key, queries);
        multiply(d_weights, value, d_outputs);
        const ptx::Shared sums = Places<D>::sums(slot) + (half * HALF + 2 * (lane() & 3)) * 4;
        wait<1>(weights);
        // Keys behind the set, which are in the last block, weigh nothing: units from that number on. A warp that has no
        // others leaves scores, which nothing reads.
        constexpr int LAST = block_of(UNITS - 1);
        const int valid = left - LAST * ROWS;
        if (valid > 0) {
            if (valid < 16) mask_rows<LAST>(weights, valid);
            exponentiate<UNITS>(weights, sums);
        } else {
            exponentiate<LAST>(weights, sums);
        }
        wait<0>(d_weights);
        // Of each unit, weights and s, as left operands.
        uint32_t operands[UNITS][2 * STEPS][4];
#pragma unroll
        for (int j = 0; j < HALF / 8; ++j) {
            float2 deltas;
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                load_pair(deltas, u, sums + Places<D>::SUMS, j);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float &weight = weights[u][j][e], &d_weight = d_weights[u][j][e];
                    const bool keep = !DROPOUT || (kept[u] >> (4 * j + e) & 1) != 0;
                    if constexpr (DROPOUT) d_weight = keep ? d_weight * p.dropout.keep : 0.0f;
                    d_weight = weight * (d_weight - (e % 2 == 0 ? deltas.x : deltas.y));
                    if constexpr (DROPOUT) weight = keep ? weight : 0.0f;
                }
                uint32_t(&w)[4] = operands[u][j / 2], (&s)[4] = operands[u][STEPS + j / 2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    w[j % 2 * 2 + i] = ptx::pack_bf16(weights[u][j][2 * i], weights[u][j][2 * i + 1]);
                    s[j % 2 * 2 + i] = ptx::pack_bf16(d_weights[u][j][2 * i], d_weights[u][j][2 * i + 1]);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const int b = block_of(u);
            const Tile<ROWS> to = Places<D>::scores(slot, block + b);
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const int row = half * HALF + query_of(u) + k * 16 + (lane() >> 4) * 8 + (lane() & 7);
                ptx::stmatrix_x4_transposed(to.at(row, warp() * 2 + (lane() >> 3 & 1)), operands[u][STEPS + k]);
            }
            if (u == 0 || b > 0) {
                ptx::wgmma_fence(d_value[b], d_key[b], operands[u]);
            } else {
                // What the unit before adds to is under way.
                ptx::wgmma_fence(operands[u]);
            }
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const uint64_t rows = units(Tile<D>::bytes(query_of(u) + k * 16));
                ptx::wgmma_m64k16_bf16<true>(d_value[b], operands[u][k], d_outputs + rows, true);
                ptx::wgmma_m64k16_bf16<true>(d_key[b], operands[u][STEPS + k], queries + rows, true);
            }
            ptx::wgmma_commit();
        }
#pragma unroll
        for (int b = 0; b <= LAST; ++b) {
            ptx::wgmma_wait<0>(d_key[b]);
            ptx::wgmma_wait<0>(d_value[b]);
        }
    }

    // Which weights of the units are kept.
    template <int UNITS>
    __device__ __forceinline__ void draw(uint32_t (&kept)[UNITS], int query, int first_key) const {
        const int set = ptx::load_constant(&p.tiles[blockIdx.x].set);
        const Place place{blockIdx.y, static_cast<uint32_t>(set)};
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            Kept<HALF / 8> drawn;
            drawn.draw_for_keys(p.dropout, place, query + query_of(u), first_key + block_of(u) * ROWS, lane());
            kept[u] = drawn.packed();
        }
    }

    // results = rows · columnsᵀ of each unit, a group of products: between fences ptxas would make groups of its own.
    template <int UNITS>
    __device__ __forceinline__ void multiply(float (&results)[UNITS][HALF / 8][4],
                                             const uint32_t (&rows)[HELD<D>][D / 16][4], uint64_t columns) const {
#pragma unroll
        for (int u = 0; u < UNITS; ++u) ptx::wgmma_fence(results[u]);
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const uint64_t begin = columns + units(Tile<D>::bytes(query_of(u)));
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                ptx::wgmma_m64k16_bf16<false>(results[u], rows[block_of(u)][d], begin + units(d * 32), d > 0);
            }
        }
        ptx::wgmma_commit();
    }

    template <int PENDING, int UNITS>
    static __device__ __forceinline__ void wait(float (&results)[UNITS][HALF / 8][4]) {
#pragma unroll
        for (int u = 0; u < UNITS; ++u) ptx::wgmma_wait<PENDING>(results[u]);
    }

    // Of the units from number FIRST on, the warp's rows from number `valid` on are no keys.
    template <int FIRST, int UNITS>
    static __device__ __forceinline__ void mask_rows(float (&scores)[UNITS][HALF / 8][4], int valid) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if ((lane() >> 2) + e / 2 * 8 < valid) continue;
#pragma unroll
            for (int u = FIRST; u < UNITS; ++u) {
#pragma unroll
                for (int j = 0; j < HALF / 8; ++j) scores[u][j][e] = -INFINITE;
            }
        }
    }

    // Numbers of the lane's two columns of eight: units of the same queries share them.
    static __device__ __forceinline__ void load_pair(float2 &pair, int u, ptx::Shared from, int j) {
        if (u == 0 || query_of(u) > 0) pair = ptx::load_shared<float2>(from + (query_of(u) + j * 8) * 4);
    }

    // Makes weights of the scores of the first COUNT units.
    template <int COUNT, int UNITS>
    __device__ __forceinline__ void exponentiate(float (&scores)[UNITS][HALF / 8][4], ptx::Shared sums) const {
#pragma unroll
        for (int j = 0; j < HALF / 8; ++j) {
            float2 log2_sums;
#pragma unroll
            for (int u = 0; u < COUNT; ++u) {
                load_pair(log2_sums, u, sums, j);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float log2_sum = e % 2 == 0 ? log2_sums.x : log2_sums.y;
                    scores[u][j][e] = ptx::exp2(fmaf(scores[u][j][e], p.scale_log2e, -log2_sum));
                }
            }
        }
    }

    // Writes the gradients of the pass's keys and values.
    __device__ __forceinline__ void store(int pass) const {
        const AttentionTile set = load_set(p);
        const KeyBlocks<D> keys(set, pass);
        const size_t values = static_cast<size_t>(p.heads) * p.key_rows * D;
        const float keep = DROPOUT ? p.dropout.keep : 1.0f;
#pragma unroll
        for (int b = 0; b < HELD<D>; ++b) {
            if (b >= own(keys)) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = (keys.first + before(keys) + b) * ROWS + warp() * 16 + half * 8 + (lane() >> 2);
                const bool inside = row < set.key_rows;
                const size_t at = (static_cast<size_t>(blockIdx.y) * p.key_rows + set.key_begin + row) * D +
                                  (lane() & 3) * 8;
                const uint16_t *relu = p.relu != 0 ? p.kv + at : nullptr;
                store_row<D>(d_key[b], half, p.scale, p.d_kv + at, relu, inside, lane());
                store_row<D>(d_value[b], half, keep, p.d_kv + values + at, relu != nullptr ? relu + values : nullptr,
                             inside, lane());
            }
        }
    }
};

// The warpgroup that loads tiles of queries, and sums their gradients.
template <int D> struct Feeder {
    static constexpr int PIECES = Tile<D>::PIECES, COUNT = ROWS * PIECES / GROUP;

    const AttentionBackward &p;
    // Of the tile on its way, the thread's pieces of the results, and log2 of a sum.
    uint4 outputs[COUNT];
    float log2_sum;

    __device__ __forceinline__ explicit Feeder(const AttentionBackward &p) : p(p) {}

    __device__ __forceinline__ void run() {
        const AttentionTile set = load_set(p);
        const int tiles = divide_up(set.query_rows, ROWS), passes = KeyBlocks<D>::passes(set);
        int slot = 0;
        uint32_t phase = 0;
        load(0, 0);
#pragma unroll 1
        for (int pass = 0; pass < passes; ++pass) {
            const KeyBlocks<D> keys(set, pass);
            const int steps = divide_up(min(set.key_rows - keys.first * ROWS, keys.count * ROWS), 16);
            keys.load(p, set);
            if (pass == 0) {
                finish(0);
                load(1, 1);
                finish(1);
            }
#pragma unroll 1
            for (int tile = 0; tile < tiles; ++tile) {
                ptx::mbarrier_wait(Places<D>::weighed(slot), phase);
                // All are done with the tile's queries: the next but one takes their place, of this pass or the next.
                const bool wraps = tile + SLOTS >= tiles, more = !wraps || pass + 1 < passes;
                if (more) load(wraps ? tile + SLOTS - tiles : tile + SLOTS, slot);
                gather(tile, slot, steps, pass > 0, pass + 1 == passes);
                // With it, the place of s is free too.
                if (more) finish(slot);
                if (++slot == SLOTS) {
                    slot = 0;
                    phase ^= 1;
                }
            }
        }
    }

  private:
    static __device__ __forceinline__ int row(int i) { return (i * GROUP + static_cast<int>(ptx::thread())) / PIECES; }
    static __device__ __forceinline__ int piece() { return static_cast<int>(ptx::thread()) % PIECES; }

    // Begins to load a tile.
    __device__ __forceinline__ void load(int tile, int slot) {
        const AttentionTile set = load_set(p);
        const size_t head = blockIdx.y, heads = p.heads, stride = heads * D;
        const int first = tile * ROWS, rows = set.query_rows - first;
        const uint16_t *queries = p.q + (head * p.query_rows + set.query_begin + first) * D;
        const size_t begin = ((set.output_begin + first) * heads + head) * D;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const ptx::Shared to = Places<D>::queries(slot).at(row(i), piece());
            Tile<D>::load_piece(to, queries, row(i), piece(), rows, D);
            Tile<D>::load_piece(to + Places<D>::BLOCK, p.d_output + begin, row(i), piece(), rows, stride);
            outputs[i] = make_uint4(0, 0, 0, 0);
            if (row(i) < rows) {
                const uint16_t *from = p.output + begin + row(i) * stride + piece() * 8;
                outputs[i] = ptx::load_constant(reinterpret_cast<const uint4 *>(from));
            }
        }
        ptx::cp_async_commit();
        // Queries behind the set weigh nothing.
        log2_sum = INFINITE;
        const int query = ptx::thread();
        if (query < min(rows, ROWS)) {
            const size_t at = head * p.output_rows + set.output_begin + first + query;
            log2_sum = ptx::load_constant(p.log_sum_exp + at) * LOG2_E;
        }
    }

    // Has it there, with δ.
    __device__ __forceinline__ void finish(int slot) const {
        ptx::cp_async_wait<0>();
        const ptx::Shared sums = Places<D>::sums(slot);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const uint4 a = outputs[i];
            const uint4 b = ptx::load_shared<uint4>(Places<D>::d_outputs(slot).at(row(i), piece()));
            float sum = add_pairs(add_pairs(0.0f, a.x, b.x), a.y, b.y);
            sum = add_pairs(add_pairs(sum, a.z, b.z), a.w, b.w);
#pragma unroll
            for (int lanes = 1; lanes < PIECES; lanes *= 2) sum += ptx::shuffle_xor(sum, lanes);
            if (piece() == 0) ptx::store_shared(sums + Places<D>::SUMS + row(i) * 4, sum);
        }
        if (ptx::thread() < ROWS) ptx::store_shared(sums + ptx::thread() * 4, log2_sum);
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive(Places<D>::full(slot));
    }

    // d_q of a tile += s · keys, of so many steps of 16 keys of the pass; behind the last pass it is written.
    __device__ __forceinline__ void gather(int tile, int slot, int steps, bool add, bool last) const {
        float d_query[D / 8][4];
        const ptx::Shared parked = Places<D>::parked(tile);
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
            float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (add) values = ptx::load_shared<float4>(parked + d * (GROUP * 16));
            d_query[d][0] = values.x, d_query[d][1] = values.y, d_query[d][2] = values.z, d_query[d][3] = values.w;
        }
        const uint64_t scores = operand(Places<D>::scores(slot, 0)), keys = operand(Places<D>::keys(0));
        ptx::wgmma_fence(d_query);
#pragma unroll 1
        for (int k = 0; k < steps; k += ROWS / 16) {
            // Of a block; the last may have fewer.
            const uint64_t left = scores + k / 4 * units(Places<D>::SCORES), right = keys + k * units(Tile<D>::bytes(16));
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i) {
                if (i > 0 && k + i >= steps) continue;
                ptx::wgmma_m64k16_bf16<true>(d_query, left + units(i * 32), right + units(i * Tile<D>::bytes(16)), true);
            }
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>(d_query);
        if (last) {
            store(d_query, tile);
            return;
        }
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
            const auto &sums = d_query[d];
            ptx::store_shared(parked + d * (GROUP * 16), make_float4(sums[0], sums[1], sums[2], sums[3]));
        }
    }

    __device__ __forceinline__ void store(const float (&d_query)[D / 8][4], int tile) const {
        const AttentionTile set = load_set(p);
        const int lane = ptx::thread() & 31;
        const size_t head = blockIdx.y;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile * ROWS + ptx::thread() / 32 * 16 + half * 8 + (lane >> 2), column = (lane & 3) * 8;
            const uint16_t *query = p.q + ((head * p.query_rows + set.query_begin + row) * D + column);
            uint16_t *to = p.d_q + ((head * p.output_rows + set.output_begin + row) * D + column);
            store_row<D>(d_query, half, p.scale, to, p.relu != 0 ? query : nullptr, row < set.query_rows, lane);
        }
    }
};

template <int D, bool DROPOUT> __device__ __forceinline__ void backward(const AttentionBackward &p) {
    static_assert(registers_suffice(ATTENTION_SM90_FEEDER_REGISTERS, WEIGHERS, ATTENTION_SM90_WEIGHER_REGISTERS,
                                    ATTENTION_SM90_BACKWARD_BLOCKS));
    if (threadIdx.x < SLOTS) {
        ptx::mbarrier_init(Places<D>::full(threadIdx.x), GROUP);
        ptx::mbarrier_init(Places<D>::weighed(threadIdx.x), WEIGHERS * GROUP / 32);
    }
    // That they are made, all know behind the barriers round the first keys.
    if (threadIdx.x < GROUP) {
        ptx::registers_decrease<ATTENTION_SM90_FEEDER_REGISTERS>();
        Feeder<D>(p).run();
        return;
    }
    ptx::registers_increase<ATTENTION_SM90_WEIGHER_REGISTERS>();
    const int passes = KeyBlocks<D>::passes(load_set(p));
    Weigher<D, DROPOUT> weigher(p);
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) weigher.run(pass);
}

} // namespace attention::wgmma
