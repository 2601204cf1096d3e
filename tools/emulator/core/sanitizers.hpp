// What the core tells ThreadSanitizer and AddressSanitizer. The core itself is compiled without them, and its memcpy is
// not theirs (plain_memory.hpp): its own accesses, to what other lanes hold, are not the kernel's.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(SETRANK_TSAN)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_set_fiber_name(void *fiber, const char *name);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *object);
void __tsan_release(void *object);
void __tsan_read_range(void *from, unsigned long bytes);
void __tsan_write_range(void *to, unsigned long bytes);
void __tsan_func_entry(void *return_address);
void __tsan_func_exit(void);
unsigned __tsan_atomic32_fetch_add(volatile unsigned *at, unsigned value, int order);
}
#endif
#if defined(SETRANK_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu::sanitizer {

// Something that threads meet at: what happened before a release happens before what follows an acquire.
struct Meeting {
    char unused;
};

inline void acquire([[maybe_unused]] Meeting &at) {
#if defined(SETRANK_TSAN)
    __tsan_acquire(&at);
#endif
}

inline void release([[maybe_unused]] Meeting &at) {
#if defined(SETRANK_TSAN)
    __tsan_release(&at);
#endif
}

// Accesses of the thread that runs.
inline void read([[maybe_unused]] const void *from, [[maybe_unused]] size_t bytes) {
#if defined(SETRANK_TSAN)
    __tsan_read_range(const_cast<void *>(from), bytes);
#endif
}

inline void write([[maybe_unused]] void *to, [[maybe_unused]] size_t bytes) {
#if defined(SETRANK_TSAN)
    __tsan_write_range(to, bytes);
#endif
}

// A call of the core by a kernel, so that the kernel's line is in reports: instrumented functions tell of themselves.
class Call {
  public:
    explicit Call([[maybe_unused]] void *return_address) {
#if defined(SETRANK_TSAN)
        __tsan_func_entry(return_address);
#endif
    }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    ~Call() {
#if defined(SETRANK_TSAN)
        __tsan_func_exit();
#endif
    }
};

// Adds atomically: blocks may run at the same time.
inline uint32_t add(uint32_t *at, uint32_t value) {
#if defined(SETRANK_TSAN)
    return __tsan_atomic32_fetch_add(at, value, __ATOMIC_RELAXED);
#else
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
#endif
}

// A stack as the sanitizers know it.
struct Stack {
    void *bottom = nullptr;
    size_t bytes = 0;
    void *fiber = nullptr;
    void *fake_frames = nullptr;
};

// The stack of the machine's thread that calls.
Stack machine_stack();
// A new stack for a thread of a kernel.
Stack fiber_stack(void *bottom, size_t bytes, unsigned thread);

// Forgets the frames that were left on a stack that begins anew.
void renew(Stack &stack);

// Around a switch: before it, and after it on the new stack. `abandoned`: nothing goes on on `from`.
inline void leave([[maybe_unused]] Stack &from, [[maybe_unused]] Stack &to, [[maybe_unused]] bool abandoned) {
#if defined(SETRANK_ASAN)
    __sanitizer_start_switch_fiber(abandoned ? nullptr : &from.fake_frames, to.bottom, to.bytes);
#endif
#if defined(SETRANK_TSAN)
    constexpr unsigned NO_SYNCHRONISATION = 1;
    __tsan_switch_to_fiber(to.fiber, NO_SYNCHRONISATION);
#endif
}

inline void enter([[maybe_unused]] Stack &now) {
#if defined(SETRANK_ASAN)
    __sanitizer_finish_switch_fiber(now.fake_frames, nullptr, nullptr);
#endif
}

} // namespace emu::sanitizer
