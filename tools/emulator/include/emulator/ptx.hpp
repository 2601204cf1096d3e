// The names of kernels/ptx.cuh on the emulator. Loads and stores are inline up to the checks of the common case; the
// rest calls the core. SETRANK_EMULATOR_SCAN is set when only the kernels' declarations are wanted.
#pragma once

#ifndef SETRANK_EMULATOR_SCAN
#include "emulator/language.hpp"
#include "emulator/memory.hpp"

namespace emu {

inline float flush_subnormal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

// What the hardware gives for every NaN.
inline float canonical_nan(float x) { return x != x ? __uint_as_float(0x7fffffff) : x; }

// To nearest even; every NaN becomes 0x7fff.
inline uint32_t round_bf16(float x) {
    const uint32_t bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// An error of an approximate function of x, which may be 2^-22 (PTX ISA): somewhat less than half, since the result is
// rounded twice besides, and the same for the same x, as in hardware, whose own errors are not known.
inline double approximation_error(float x) {
    uint32_t bits = __float_as_uint(x) * 0x9e3779b9u;
    bits = (bits ^ bits >> 15) * 0x85ebca6bu;
    return (bits / double(UINT32_MAX) * 2.0 - 1.0) * 0x0.fp-23;
}

} // namespace emu

// Nothing that kernels/ptx.cuh lacks: a kernel that used it would not compile for a GPU.
namespace ptx {

using Shared = emu::Shared;

inline Shared shared_base() { return emu::SHARED_BASE; }

inline uint32_t thread() { return emu::thread().index.x; }

// ---------------------------------------------------------------- memory

template <class T> __forceinline__ T load_shared(Shared from, emu::Site site = emu::Site::here()) {
    T value;
    memcpy(&value, emu::shared_for_load<sizeof(T)>(from, site), sizeof(T));
    return value;
}

template <class T> __forceinline__ void store_shared(Shared to, T value, emu::Site site = emu::Site::here()) {
    memcpy(emu::shared_for_store<sizeof(T)>(to, site), &value, sizeof(T));
}

template <class T> __forceinline__ T load_constant(const T *from, emu::Site site = emu::Site::here()) {
    T value;
    memcpy(&value, emu::global_memory<sizeof(T)>(emu::Operation::LOAD_CONSTANT, from, site), sizeof(T));
    return value;
}

template <class T> __forceinline__ T load_global(const T *from, emu::Site site = emu::Site::here()) {
    T value;
    memcpy(&value, emu::global_memory<sizeof(T)>(emu::Operation::LOAD_GLOBAL, from, site), sizeof(T));
    return value;
}

template <class T> __forceinline__ void store_global(T *to, T value, emu::Site site = emu::Site::here()) {
    memcpy(emu::global_memory<sizeof(T)>(emu::Operation::STORE_GLOBAL, to, site), &value, sizeof(T));
}

inline uint32_t atomic_add_global(uint32_t *at, uint32_t value, emu::Site site = emu::Site::here()) {
    return emu::block().core->atomic_add_global(&emu::thread(), reinterpret_cast<uint64_t>(at), value, site);
}

inline uint32_t atomic_add_shared(Shared at, uint32_t value, emu::Site site = emu::Site::here()) {
    return emu::block().core->atomic_add_shared(&emu::thread(), at, value, site);
}

// ---------------------------------------------------------------- copies global → shared, in the background

inline void cp_async_16(Shared to, const void *from, uint32_t bytes, emu::Site site = emu::Site::here()) {
    emu::block().core->cp_async(&emu::thread(), to, reinterpret_cast<uint64_t>(from), bytes, site);
}

inline void cp_async_commit() { emu::block().core->cp_async_commit(&emu::thread()); }

template <int PENDING> inline void cp_async_wait() { emu::block().core->cp_async_wait(&emu::thread(), PENDING); }

// ---------------------------------------------------------------- matrices of a warp

// The core gets copies of the fragments: the kernel's own can stay in registers.
inline void ldmatrix_x4(uint32_t (&to)[4], Shared row, emu::Site site = emu::Site::here()) {
    uint32_t words[4];
    emu::block().core->ldmatrix(&emu::thread(), emu::Operation::LDMATRIX, words, row, site);
    memcpy(to, words, sizeof(words));
}

inline void ldmatrix_x4_transposed(uint32_t (&to)[4], Shared row, emu::Site site = emu::Site::here()) {
    uint32_t words[4];
    emu::block().core->ldmatrix(&emu::thread(), emu::Operation::LDMATRIX_TRANSPOSED, words, row, site);
    memcpy(to, words, sizeof(words));
}

inline void stmatrix_x4(Shared row, const uint32_t (&from)[4], emu::Site site = emu::Site::here()) {
    uint32_t words[4];
    memcpy(words, from, sizeof(words));
    emu::block().core->stmatrix(&emu::thread(), emu::Operation::STMATRIX, row, words, site);
}

inline void stmatrix_x4_transposed(Shared row, const uint32_t (&from)[4], emu::Site site = emu::Site::here()) {
    uint32_t words[4];
    memcpy(words, from, sizeof(words));
    emu::block().core->stmatrix(&emu::thread(), emu::Operation::STMATRIX_TRANSPOSED, row, words, site);
}

inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                              emu::Site site = emu::Site::here()) {
    emu::MmaOperands operands = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    emu::block().core->mma(&emu::thread(), &operands, site);
    memcpy(c, operands.c, sizeof(operands.c));
}

// ---------------------------------------------------------------- barriers, and values passed inside a warp

inline void barrier(emu::Site site = emu::Site::here()) {
    emu::block().core->barrier(&emu::thread(), emu::Operation::BARRIER, 0, 0, site);
}

inline void barrier_sync(uint32_t id, uint32_t threads, emu::Site site = emu::Site::here()) {
    emu::block().core->barrier(&emu::thread(), emu::Operation::BARRIER_SYNC, id, threads, site);
}

inline void barrier_arrive(uint32_t id, uint32_t threads, emu::Site site = emu::Site::here()) {
    emu::block().core->barrier(&emu::thread(), emu::Operation::BARRIER_ARRIVE, id, threads, site);
}

inline uint32_t cluster_rank() { return emu::block().rank; }

inline void cluster_barrier(emu::Site site = emu::Site::here()) {
    emu::block().core->cluster_barrier(&emu::thread(), site);
}

inline void sync_warp(emu::Site site = emu::Site::here()) { emu::block().core->sync_warp(&emu::thread(), site); }

inline uint32_t shuffle_xor(uint32_t value, uint32_t mask, emu::Site site = emu::Site::here()) {
    emu::Thread &thread = emu::thread();
    const uint32_t from = (thread.number % 32) ^ (mask % 32);
    return emu::block().core->shuffle(&thread, emu::Operation::SHUFFLE_XOR, value, from, site);
}
inline float shuffle_xor(float value, uint32_t mask, emu::Site site = emu::Site::here()) {
    return __uint_as_float(shuffle_xor(__float_as_uint(value), mask, site));
}

inline uint32_t shuffle(uint32_t value, uint32_t lane, emu::Site site = emu::Site::here()) {
    return emu::block().core->shuffle(&emu::thread(), emu::Operation::SHUFFLE, value, lane % 32, site);
}
inline float shuffle(float value, uint32_t lane, emu::Site site = emu::Site::here()) {
    return __uint_as_float(shuffle(__float_as_uint(value), lane, site));
}

inline uint32_t shuffle_up(uint32_t value, uint32_t delta, emu::Site site = emu::Site::here()) {
    emu::Thread &thread = emu::thread();
    const uint32_t lane = thread.number % 32, by = delta % 32;
    const uint32_t from = lane >= by ? lane - by : lane;
    return emu::block().core->shuffle(&thread, emu::Operation::SHUFFLE_UP, value, from, site);
}

inline uint32_t shuffle_down(uint32_t value, uint32_t delta, emu::Site site = emu::Site::here()) {
    emu::Thread &thread = emu::thread();
    const uint32_t lane = thread.number % 32, by = delta % 32;
    const uint32_t from = lane + by < 32 ? lane + by : lane;
    return emu::block().core->shuffle(&thread, emu::Operation::SHUFFLE_DOWN, value, from, site);
}

inline uint32_t ballot(bool is, emu::Site site = emu::Site::here()) {
    return emu::block().core->ballot(&emu::thread(), is, site);
}

// ---------------------------------------------------------------- arithmetic

inline float exp2(float x) {
    emu::count_exponential();
    x = emu::flush_subnormal(x);
    const float near = exp2f(x);
    // Whole powers are exact.
    const float found = x == truncf(x) ? near : float(near * (1.0 + emu::approximation_error(x)));
    return emu::canonical_nan(emu::flush_subnormal(found));
}

inline float log2(float x) {
    emu::count_exponential();
    x = emu::flush_subnormal(x);
    const float near = log2f(x);
    // Near 1 the error is absolute; of whole powers there is none.
    const float scale = x > 0.5f && x < 2.0f ? 1.0f : near;
    const float found = near == truncf(near) ? near : float(near + scale * emu::approximation_error(x));
    return emu::canonical_nan(found);
}

inline uint32_t pack_bf16(float low, float high) { return emu::round_bf16(low) | emu::round_bf16(high) << 16; }

// ---------------------------------------------------------------- sm_90

inline void mbarrier_init(Shared at, uint32_t arrivals, emu::Site site = emu::Site::here()) {
    emu::block().core->mbarrier_init(&emu::thread(), at, arrivals, site);
}

inline void fence_mbarrier_init() { emu::block().core->fence_mbarrier_init(&emu::thread()); }

inline void mbarrier_arrive(Shared at, emu::Site site = emu::Site::here()) {
    emu::block().core->mbarrier_arrive(&emu::thread(), at, 0, site);
}

inline void mbarrier_arrive_expect(Shared at, uint32_t bytes, emu::Site site = emu::Site::here()) {
    emu::block().core->mbarrier_arrive(&emu::thread(), at, bytes, site);
}

inline void mbarrier_arrive_at(Shared at, uint32_t block, emu::Site site = emu::Site::here()) {
    emu::block().core->mbarrier_arrive_at(&emu::thread(), at, block, site);
}

inline void mbarrier_wait(Shared at, uint32_t parity, emu::Site site = emu::Site::here()) {
    emu::block().core->mbarrier_wait(&emu::thread(), at, parity, site);
}

inline void fence_proxy_async() { emu::block().core->fence_proxy_async(&emu::thread()); }

inline void bulk_load(Shared to, const void *from, uint32_t bytes, Shared mbarrier,
                      emu::Site site = emu::Site::here()) {
    emu::block().core->bulk_load(&emu::thread(), to, reinterpret_cast<uint64_t>(from), bytes, mbarrier, site);
}

inline void tensor_load(Shared to, const void *map, int32_t column, int32_t row, Shared mbarrier, uint32_t blocks,
                        emu::Site site = emu::Site::here()) {
    const emu::TensorBox box{static_cast<const emu::TensorMap *>(map), 2, {column, row, 0}, blocks};
    emu::block().core->tensor_load(&emu::thread(), to, &box, mbarrier, site);
}

inline void tensor_load(Shared to, const void *map, int32_t column, int32_t row, int32_t panel, Shared mbarrier,
                        uint32_t blocks, emu::Site site = emu::Site::here()) {
    const emu::TensorBox box{static_cast<const emu::TensorMap *>(map), 3, {column, row, panel}, blocks};
    emu::block().core->tensor_load(&emu::thread(), to, &box, mbarrier, site);
}

inline void bulk_store(void *to, Shared from, uint32_t bytes, emu::Site site = emu::Site::here()) {
    emu::block().core->bulk_store(&emu::thread(), reinterpret_cast<uint64_t>(to), from, bytes, site);
}

inline void bulk_commit() { emu::block().core->bulk_commit(&emu::thread()); }

template <int PENDING> inline void bulk_wait_read() { emu::block().core->bulk_wait(&emu::thread(), PENDING, false); }

template <int PENDING> inline void bulk_wait() { emu::block().core->bulk_wait(&emu::thread(), PENDING, true); }

// ---------------------------------------------------------------- matrices of a warpgroup

// The core writes to d when it likes: that its address is known keeps d in memory.
template <bool TRANSPOSED, int J>
inline void wgmma_m64k16_bf16(float (&d)[J][4], const uint32_t (&a)[4], uint64_t b, bool add,
                              emu::Site site = emu::Site::here()) {
    static_assert(J == 1 || J == 4 || J == 8 || J == 16 || J == 24 || J == 32);
    const emu::WgmmaOperands operands{d[0], a, 0, b, J, true, false, TRANSPOSED, add};
    emu::block().core->wgmma(&emu::thread(), &operands, site);
}

template <bool TRANSPOSED, bool LEFT_TRANSPOSED = false, int J>
inline void wgmma_m64k16_bf16(float (&d)[J][4], uint64_t a, uint64_t b, bool add, emu::Site site = emu::Site::here()) {
    static_assert(J == 1 || J == 4 || J == 8 || J == 16 || J == 24 || J == 32);
    const emu::WgmmaOperands operands{d[0], nullptr, a, b, J, false, LEFT_TRANSPOSED, TRANSPOSED, add};
    emu::block().core->wgmma(&emu::thread(), &operands, site);
}

template <int J> inline void wgmma_fence(float (&d)[J][4], emu::Site site = emu::Site::here()) {
    const emu::Registers all[] = {{d, 4 * J}};
    emu::block().core->wgmma_fence(&emu::thread(), all, 1, site);
}

template <int K> inline void wgmma_fence(uint32_t (&a)[K][4], emu::Site site = emu::Site::here()) {
    const emu::Registers all[] = {{a, 4 * K}};
    emu::block().core->wgmma_fence(&emu::thread(), all, 1, site);
}

template <int J, int K>
inline void wgmma_fence(float (&d)[J][4], uint32_t (&a)[K][4], emu::Site site = emu::Site::here()) {
    const emu::Registers all[] = {{d, 4 * J}, {a, 4 * K}};
    emu::block().core->wgmma_fence(&emu::thread(), all, 2, site);
}

template <int I, int J, int K>
inline void wgmma_fence(float (&c)[I][4], float (&d)[J][4], uint32_t (&a)[K][4],
                        emu::Site site = emu::Site::here()) {
    const emu::Registers all[] = {{c, 4 * I}, {d, 4 * J}, {a, 4 * K}};
    emu::block().core->wgmma_fence(&emu::thread(), all, 3, site);
}

inline void wgmma_commit(emu::Site site = emu::Site::here()) {
    emu::block().core->wgmma_commit(&emu::thread(), site);
}

template <int PENDING, int J> inline void wgmma_wait(float (&d)[J][4], emu::Site site = emu::Site::here()) {
    const emu::Registers results{d, 4 * J};
    emu::block().core->wgmma_wait(&emu::thread(), PENDING, &results, site);
}

template <int REGISTERS> inline void registers_decrease(emu::Site site = emu::Site::here()) {
    emu::block().core->set_registers(&emu::thread(), emu::Operation::REGISTERS_DECREASE, REGISTERS, site);
}

template <int REGISTERS> inline void registers_increase(emu::Site site = emu::Site::here()) {
    emu::block().core->set_registers(&emu::thread(), emu::Operation::REGISTERS_INCREASE, REGISTERS, site);
}

} // namespace ptx
#endif
