// Host pointers for loads and stores: the checks of the common case, inline. Under a sanitizer, and while accesses are
// counted, the core does all of them.
#pragma once

#include "emulator/machine.hpp"

#include <cstring>

namespace emu {

// Whether each byte of `state` has, of the bits of `mask`, those of `is`.
template <unsigned BYTES>
inline __attribute__((always_inline)) bool each_byte(const uint8_t *state, uint8_t mask, uint8_t is) {
    if constexpr (BYTES == 16) {
        return each_byte<8>(state, mask, is) && each_byte<8>(state + 8, mask, is);
    } else {
        constexpr uint64_t EACH = 0x0101010101010101 >> (64 - 8 * BYTES);
        uint64_t states = 0;
        memcpy(&states, state, BYTES);
        return (states & EACH * mask) == EACH * is;
    }
}

inline __attribute__((always_inline)) void spend(Block &block, Thread &thread, Site site) {
    if (--thread.budget < 0) {
        block.core->out_of_budget(&thread, site);
    }
}

template <unsigned BYTES> inline __attribute__((always_inline)) bool plain_shared(const Block &block, Shared at) {
#ifdef SETRANK_SANITIZED
    (void)block, (void)at;
    return false;
#else
    return uint64_t{at - SHARED_BASE} + BYTES <= block.unchecked_shared_bytes && at % BYTES == 0;
#endif
}

template <unsigned BYTES>
inline __attribute__((always_inline)) const unsigned char *shared_for_load(Shared from, Site site) {
    static_assert(BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16);
    Block &block = emu::block();
    Thread &thread = emu::thread();
    spend(block, thread, site);
    if (plain_shared<BYTES>(block, from) &&
        each_byte<BYTES>(block.state + from, WRITTEN | COPY_IN | IN_MBARRIER, WRITTEN)) {
        return block.shared + from;
    }
    return block.core->shared(&thread, Operation::LOAD_SHARED, from, BYTES, site);
}

template <unsigned BYTES>
inline __attribute__((always_inline)) unsigned char *shared_for_store(Shared to, Site site) {
    static_assert(BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16);
    Block &block = emu::block();
    Thread &thread = emu::thread();
    spend(block, thread, site);
    if (plain_shared<BYTES>(block, to) && each_byte<BYTES>(block.state + to, COPY_IN | COPY_OUT | IN_MBARRIER | IN_PRODUCT, 0)) {
        memset(block.state + to, WRITTEN, BYTES);
        for (unsigned i = 0; i < BYTES / 2; ++i) {
            block.tags[to / 2 + i] = thread.tag;
        }
        return block.shared + to;
    }
    return block.core->shared(&thread, Operation::STORE_SHARED, to, BYTES, site);
}

template <unsigned BYTES>
inline __attribute__((always_inline)) unsigned char *global_memory(Operation operation, const void *pointer,
                                                                   Site site) {
    static_assert(BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16);
    Block &block = emu::block();
    Thread &thread = emu::thread();
    spend(block, thread, site);
    const uint64_t at = reinterpret_cast<uint64_t>(pointer);
#ifndef SETRANK_SANITIZED
    if (at - block.recent_begin <= block.recent_bytes - BYTES && at % BYTES == 0) {
        return reinterpret_cast<unsigned char *>(at & ~DEVICE_BIT);
    }
#endif
    return block.core->global(&thread, operation, at, BYTES, site);
}

inline __attribute__((always_inline)) void count_exponential() {
#ifdef SETRANK_SANITIZED
    block().core->count_exponential(&thread());
#else
    ++block().exponentials;
#endif
}

} // namespace emu
