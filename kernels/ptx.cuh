// The only file with inline PTX, and the only way to memory: kernels hold no raw loads or stores. On the CPU the
// emulator supplies the same names (tools/emulator/include/emulator/ptx.hpp), counts and checks them.
#pragma once

#ifdef SETRANK_EMULATOR
#include "emulator/ptx.hpp"
#else

#include <stdint.h>

// What wgmma works on in the background: the compiler has it in its registers here, and knows nothing of its values.
namespace registers {

template <int J> __device__ __forceinline__ void pin(float (&values)[J][4]) {
#pragma unroll
    for (int i = 0; i < 4 * J; ++i) asm volatile("" : "+f"(values[i / 4][i % 4])::"memory");
}
template <int J> __device__ __forceinline__ void pin(uint32_t (&values)[J][4]) {
#pragma unroll
    for (int i = 0; i < 4 * J; ++i) asm volatile("" : "+r"(values[i / 4][i % 4])::"memory");
}

} // namespace registers

namespace ptx {

// A byte address in the block's shared memory.
using Shared = uint32_t;

// Where the block's dynamic shared memory begins: a multiple of 1024, not always 0.
__device__ __forceinline__ Shared shared_base() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared));
}

// This thread's threadIdx.x, read again at each call: what is computed of it is not kept in registers between two.
__device__ __forceinline__ uint32_t thread() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

// ---------------------------------------------------------------- memory: T of 2, 4, 8 or 16 bytes, so aligned

// Loads T from shared memory.
template <class T> __device__ __forceinline__ T load_shared(Shared from) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
    T value;
    if constexpr (sizeof(T) == 2) {
        uint16_t word;
        asm volatile("ld.shared.b16 %0, [%1];" : "=h"(word) : "r"(from) : "memory");
        memcpy(&value, &word, 2);
    } else if constexpr (sizeof(T) == 4) {
        uint32_t word;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
        memcpy(&value, &word, 4);
    } else if constexpr (sizeof(T) == 8) {
        uint32_t words[2];
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from) : "memory");
        memcpy(&value, words, 8);
    } else {
        uint32_t words[4];
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(from)
                     : "memory");
        memcpy(&value, words, 16);
    }
    return value;
}

// Stores T to shared memory.
template <class T> __device__ __forceinline__ void store_shared(Shared to, T value) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
    if constexpr (sizeof(T) == 2) {
        uint16_t word;
        memcpy(&word, &value, 2);
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(word) : "memory");
    } else if constexpr (sizeof(T) == 4) {
        uint32_t word;
        memcpy(&word, &value, 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
    } else if constexpr (sizeof(T) == 8) {
        uint32_t words[2];
        memcpy(words, &value, 8);
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(words[0]), "r"(words[1]) : "memory");
    } else {
        uint32_t words[4];
        memcpy(words, &value, 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
                     "r"(words[2]), "r"(words[3])
                     : "memory");
    }
}

// Loads T from global memory that nothing writes during the launch. Volatile, so that a load under a condition stays
// under it: hoisted, it would read outside of buffers.
template <class T> __device__ __forceinline__ T load_constant(const T *from) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
    const size_t address = __cvta_generic_to_global(from);
    T value;
    if constexpr (sizeof(T) == 2) {
        uint16_t word;
        asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(word) : "l"(address));
        memcpy(&value, &word, 2);
    } else if constexpr (sizeof(T) == 4) {
        uint32_t word;
        asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(word) : "l"(address));
        memcpy(&value, &word, 4);
    } else if constexpr (sizeof(T) == 8) {
        uint32_t words[2];
        asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(address));
        memcpy(&value, words, 8);
    } else {
        uint32_t words[4];
        asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "l"(address));
        memcpy(&value, words, 16);
    }
    return value;
}

// Loads T from global memory.
template <class T> __device__ __forceinline__ T load_global(const T *from) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
    const size_t address = __cvta_generic_to_global(from);
    T value;
    if constexpr (sizeof(T) == 2) {
        uint16_t word;
        asm volatile("ld.global.b16 %0, [%1];" : "=h"(word) : "l"(address) : "memory");
        memcpy(&value, &word, 2);
    } else if constexpr (sizeof(T) == 4) {
        uint32_t word;
        asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
        memcpy(&value, &word, 4);
    } else if constexpr (sizeof(T) == 8) {
        uint32_t words[2];
        asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                     : "=r"(words[0]), "=r"(words[1])
                     : "l"(address)
                     : "memory");
        memcpy(&value, words, 8);
    } else {
        uint32_t words[4];
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "l"(address)
                     : "memory");
        memcpy(&value, words, 16);
    }
    return value;
}

// Stores T to global memory.
template <class T> __device__ __forceinline__ void store_global(T *to, T value) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
    const size_t address = __cvta_generic_to_global(to);
    if constexpr (sizeof(T) == 2) {
        uint16_t word;
        memcpy(&word, &value, 2);
        asm volatile("st.global.b16 [%0], %1;" ::"l"(address), "h"(word) : "memory");
    } else if constexpr (sizeof(T) == 4) {
        uint32_t word;
        memcpy(&word, &value, 4);
        asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
    } else if constexpr (sizeof(T) == 8) {
        uint32_t words[2];
        memcpy(words, &value, 8);
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1]) : "memory");
    } else {
        uint32_t words[4];
        memcpy(words, &value, 16);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]), "r"(words[1]),
                     "r"(words[2]), "r"(words[3])
                     : "memory");
    }
}

// Adds to an integer in global memory; gives what it was.
__device__ __forceinline__ uint32_t atomic_add_global(uint32_t *at, uint32_t value) {
    uint32_t before;
    asm volatile("atom.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(at)), "r"(value)
                 : "memory");
    return before;
}

// Adds to an integer in shared memory; gives what it was.
__device__ __forceinline__ uint32_t atomic_add_shared(Shared at, uint32_t value) {
    uint32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(at), "r"(value) : "memory");
    return before;
}

// ---------------------------------------------------------------- copies global → shared, in the background

// Copies 16 bytes; with `bytes` 0 it writes zeros and does not touch `from`.
__device__ __forceinline__ void cp_async_16(Shared to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the newest PENDING groups of this thread have landed.
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---------------------------------------------------------------- matrices of a warp

// Loads four 8×8 matrices of 16-bit values; lane 8·i + r gives the address of row r of matrix i, 16 bytes.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// As ldmatrix_x4, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// c [16, 8] f32 += a [16, 16] bf16 · b [16, 8] bf16; fragments as the PTX manual lays them out.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---------------------------------------------------------------- barriers, and values passed inside a warp

// Waits for all threads of the block.
__device__ __forceinline__ void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

// Waits at barrier `id`, 1 to 15, until `threads` threads, a multiple of 32, have come or arrived.
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at barrier `id` without waiting.
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Waits for all lanes of the warp and orders their memory accesses.
__device__ __forceinline__ void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// The value of lane `lane ^ mask`.
__device__ __forceinline__ uint32_t shuffle_xor(uint32_t value, uint32_t mask) {
    uint32_t other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(other) : "r"(value), "r"(mask));
    return other;
}
__device__ __forceinline__ float shuffle_xor(float value, uint32_t mask) {
    return __uint_as_float(shuffle_xor(__float_as_uint(value), mask));
}

// The value of lane `lane`.
__device__ __forceinline__ uint32_t shuffle(uint32_t value, uint32_t lane) {
    uint32_t other;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(other) : "r"(value), "r"(lane));
    return other;
}
__device__ __forceinline__ float shuffle(float value, uint32_t lane) {
    return __uint_as_float(shuffle(__float_as_uint(value), lane));
}

// The value of the lane `delta` below; the lowest ones keep their own.
__device__ __forceinline__ uint32_t shuffle_up(uint32_t value, uint32_t delta) {
    uint32_t other;
    asm volatile("shfl.sync.up.b32 %0, %1, %2, 0x0, 0xffffffff;" : "=r"(other) : "r"(value), "r"(delta));
    return other;
}

// The value of the lane `delta` above; the highest ones keep their own.
__device__ __forceinline__ uint32_t shuffle_down(uint32_t value, uint32_t delta) {
    uint32_t other;
    asm volatile("shfl.sync.down.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(other) : "r"(value), "r"(delta));
    return other;
}

// The lanes whose `is` holds, a bit each.
__device__ __forceinline__ uint32_t ballot(bool is) {
    uint32_t lanes;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nvote.sync.ballot.b32 %0, p, 0xffffffff;\n}"
                 : "=r"(lanes)
                 : "r"(static_cast<uint32_t>(is)));
    return lanes;
}

// ---------------------------------------------------------------- arithmetic

// 2^x, relative error at most 2^-22; subnormals are 0.
__device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2 x; subnormals count as 0.
__device__ __forceinline__ float log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two f32 rounded to bf16, to nearest even; `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// ---------------------------------------------------------------- sm_90

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Stores four 8×8 matrices of 16-bit values: ldmatrix_x4 the other way.
__device__ __forceinline__ void stmatrix_x4(Shared row, const uint32_t (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// As stmatrix_x4, each matrix transposed.
__device__ __forceinline__ void stmatrix_x4_transposed(Shared row, const uint32_t (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// The block's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}

// Waits for all threads of the cluster that have not exited; a warp comes to it as a whole.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Makes an mbarrier of the 8 bytes at `at` that `arrivals` arrivals, and the bytes expected, complete.
__device__ __forceinline__ void mbarrier_init(Shared at, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

// Shows new mbarriers to the asynchronous proxy; the other threads of the block see them after a barrier.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives.
__device__ __forceinline__ void mbarrier_arrive(Shared at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

// Arrives at the mbarrier that stands at the same place in block `block` of the cluster. It orders what the block's own
// threads see, and what was waited for: for stores that the other block is to read it takes `cluster_barrier`.
__device__ __forceinline__ void mbarrier_arrive_at(Shared at, uint32_t block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(at),
                 "r"(block)
                 : "memory");
}

// Arrives, and has the phase wait for `bytes` bytes of bulk copies besides.
__device__ __forceinline__ void mbarrier_arrive_expect(Shared at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

// In the build that looks for hangs a wait knows the place of its call, and does not sleep between its polls.
#ifdef SETRANK_BOUNDED_WAITS
#define SETRANK_SITE , const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SETRANK_POLL "test_wait"
#else
#define SETRANK_SITE
#define SETRANK_POLL "try_wait"
#endif

// Waits until the phase of this parity is complete.
__device__ __forceinline__ void mbarrier_wait(Shared at, uint32_t parity SETRANK_SITE) {
    uint32_t complete;
#ifdef SETRANK_BOUNDED_WAITS
    uint32_t polls = 0;
#endif
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier." SETRANK_POLL ".parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(complete)
                     : "r"(at), "r"(parity)
                     : "memory");
#ifdef SETRANK_BOUNDED_WAITS
        if (complete == 0 && ++polls == 1u << 26) {
            printf("block (%u, %u, %u), warp %u waited in vain at %s:%d\n", blockIdx.x, blockIdx.y, blockIdx.z,
                   threadIdx.x / 32, file, line);
            asm volatile("trap;");
        }
#endif
    } while (complete == 0);
}

// Orders this thread's own accesses to shared memory before the bulk copies that follow.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies `bytes` bytes, a multiple of 16, global → shared, and tells `mbarrier` of them.
__device__ __forceinline__ void bulk_load(Shared to, const void *from, uint32_t bytes, Shared mbarrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(mbarrier)
                 : "memory");
}

// Copies a box of a matrix from its row `row` and column `column` on, as its tensor map in the kernel's parameter says, to
// the same place in each block of the cluster of which `blocks` has a bit, and tells the mbarrier there of the box's bytes.
// What is outside of the matrix is 0; pieces of 16 bytes of rows of 128 are permuted as those of a `Tile<64>`.
__device__ __forceinline__ void tensor_load(Shared to, const void *map, int32_t column, int32_t row, Shared mbarrier,
                                            uint32_t blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(mbarrier), "h"(static_cast<uint16_t>(blocks))
                 : "memory");
}

// The same of a matrix in panels of columns, from panel `panel` on: of those of a box one stands behind the other. Pieces of
// rows of 64 bytes are permuted as those of a `Tile<32>`.
__device__ __forceinline__ void tensor_load(Shared to, const void *map, int32_t column, int32_t row, int32_t panel,
                                            Shared mbarrier, uint32_t blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(panel), "r"(mbarrier), "h"(static_cast<uint16_t>(blocks))
                 : "memory");
}

// Copies `bytes` bytes, a multiple of 16, shared → global, in this thread's bulk group.
__device__ __forceinline__ void bulk_store(void *to, Shared from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}

// Ends a group of this thread's bulk stores.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the newest PENDING groups have read their shared memory.
template <int PENDING> __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until all but the newest PENDING groups are written.
template <int PENDING> __device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---------------------------------------------------------------- matrices of a warpgroup

// Values of a fragment of eight columns, as operands of asm; of four fragments; and of all of J fragments, with the text
// that names them.
#define SETRANK_FRAGMENT(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SETRANK_FOUR(j) SETRANK_FRAGMENT(j), SETRANK_FRAGMENT(j + 1), SETRANK_FRAGMENT(j + 2), SETRANK_FRAGMENT(j + 3)
#define SETRANK_OPERANDS_1 SETRANK_FRAGMENT(0)
#define SETRANK_OPERANDS_4 SETRANK_FOUR(0)
#define SETRANK_OPERANDS_8 SETRANK_OPERANDS_4, SETRANK_FOUR(4)
#define SETRANK_OPERANDS_16 SETRANK_OPERANDS_8, SETRANK_FOUR(8), SETRANK_FOUR(12)
#define SETRANK_OPERANDS_24 SETRANK_OPERANDS_16, SETRANK_FOUR(16), SETRANK_FOUR(20)
#define SETRANK_OPERANDS_32 SETRANK_OPERANDS_24, SETRANK_FOUR(24), SETRANK_FOUR(28)
#define SETRANK_NAMES_1 "%0, %1, %2, %3"
#define SETRANK_NAMES_4 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SETRANK_NAMES_8 \
    SETRANK_NAMES_4 \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SETRANK_NAMES_16 \
    SETRANK_NAMES_8 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SETRANK_NAMES_24 \
    SETRANK_NAMES_16 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SETRANK_NAMES_32 \
    SETRANK_NAMES_24 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The instruction with a in registers, and in shared memory, given the numbers of its operands behind those of d.
#define SETRANK_WGMMA(J, COLUMNS, A0, A1, A2, A3, B, ADDS, TURNED)                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %" #ADDS ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" SETRANK_NAMES_##J "}, "           \
                 "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TURNED ";\n}"                       \
                 : SETRANK_OPERANDS_##J                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(TRANSPOSED)                     \
                 : "memory")
#define SETRANK_WGMMA_SHARED(J, COLUMNS, A, B, ADDS, LEFT_TURNED, TURNED)                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %" #ADDS ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" SETRANK_NAMES_##J "}, "           \
                 "%" #A ", %" #B ", p, 1, 1, %" #LEFT_TURNED ", %" #TURNED ";\n}"                                     \
                 : SETRANK_OPERANDS_##J                                                                              \
                 : "l"(a), "l"(b), "r"(adds), "n"(LEFT_TRANSPOSED), "n"(TRANSPOSED)                                   \
                 : "memory")

// d [64, 8·J] f32 = a [64, 16] · b [16, 8·J], plus what d was where `add`, of the four warps of a warpgroup together, in the
// background: d and a are left alone until `wgmma_wait`. Fragments are those of mma_m16n8k16_bf16, 16 rows a warp; b stands
// in shared memory as its descriptor says, its inner index along the rows, or, with TRANSPOSED, across them.
template <bool TRANSPOSED, int J>
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[J][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    static_assert(J == 1 || J == 4 || J == 8 || J == 16 || J == 24 || J == 32);
    const uint32_t adds = add;
    if constexpr (J == 1) SETRANK_WGMMA(1, 8, 4, 5, 6, 7, 8, 9, 10);
    if constexpr (J == 4) SETRANK_WGMMA(4, 32, 16, 17, 18, 19, 20, 21, 22);
    if constexpr (J == 8) SETRANK_WGMMA(8, 64, 32, 33, 34, 35, 36, 37, 38);
    if constexpr (J == 16) SETRANK_WGMMA(16, 128, 64, 65, 66, 67, 68, 69, 70);
    if constexpr (J == 24) SETRANK_WGMMA(24, 192, 96, 97, 98, 99, 100, 101, 102);
    if constexpr (J == 32) SETRANK_WGMMA(32, 256, 128, 129, 130, 131, 132, 133, 134);
}

// The same with a in shared memory, its inner index along the rows, or, with LEFT_TRANSPOSED, across them.
template <bool TRANSPOSED, bool LEFT_TRANSPOSED = false, int J>
__device__ __forceinline__ void wgmma_m64k16_bf16(float (&d)[J][4], uint64_t a, uint64_t b, bool add) {
    static_assert(J == 1 || J == 4 || J == 8 || J == 16 || J == 24 || J == 32);
    const uint32_t adds = add;
    if constexpr (J == 1) SETRANK_WGMMA_SHARED(1, 8, 4, 5, 6, 7, 8);
    if constexpr (J == 4) SETRANK_WGMMA_SHARED(4, 32, 16, 17, 18, 19, 20);
    if constexpr (J == 8) SETRANK_WGMMA_SHARED(8, 64, 32, 33, 34, 35, 36);
    if constexpr (J == 16) SETRANK_WGMMA_SHARED(16, 128, 64, 65, 66, 67, 68);
    if constexpr (J == 24) SETRANK_WGMMA_SHARED(24, 192, 96, 97, 98, 99, 100);
    if constexpr (J == 32) SETRANK_WGMMA_SHARED(32, 256, 128, 129, 130, 131, 132);
}

#undef SETRANK_WGMMA
#undef SETRANK_WGMMA_SHARED
#undef SETRANK_FRAGMENT
#undef SETRANK_FOUR
#undef SETRANK_OPERANDS_1
#undef SETRANK_OPERANDS_4
#undef SETRANK_OPERANDS_8
#undef SETRANK_OPERANDS_16
#undef SETRANK_OPERANDS_24
#undef SETRANK_OPERANDS_32
#undef SETRANK_NAMES_1
#undef SETRANK_NAMES_4
#undef SETRANK_NAMES_8
#undef SETRANK_NAMES_16
#undef SETRANK_NAMES_24
#undef SETRANK_NAMES_32

// Orders accesses to these registers so far before the wgmmas that follow, as they have to be: results, and operands.
template <int J> __device__ __forceinline__ void wgmma_fence(float (&d)[J][4]) {
    registers::pin(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int K> __device__ __forceinline__ void wgmma_fence(uint32_t (&a)[K][4]) {
    registers::pin(a);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int J, int K> __device__ __forceinline__ void wgmma_fence(float (&d)[J][4], uint32_t (&a)[K][4]) {
    registers::pin(a);
    wgmma_fence(d);
}
template <int I, int J, int K>
__device__ __forceinline__ void wgmma_fence(float (&c)[I][4], float (&d)[J][4], uint32_t (&a)[K][4]) {
    registers::pin(c);
    wgmma_fence(d, a);
}

// Ends a group of this warp's wgmmas.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the newest PENDING groups are done; these are results of theirs.
template <int PENDING, int J> __device__ __forceinline__ void wgmma_wait(float (&d)[J][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    registers::pin(d);
}

// Each thread of the warpgroup gives registers back, or waits for more, until it has REGISTERS.
template <int REGISTERS> __device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
#endif

} // namespace ptx
#endif
