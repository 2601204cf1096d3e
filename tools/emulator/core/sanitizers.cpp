#include "sanitizers.hpp"

#include <cstdio>

#if defined(SETRANK_ASAN)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#endif

namespace emu::sanitizer {

Stack machine_stack() {
    Stack stack;
#if defined(SETRANK_ASAN)
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack.bottom, &stack.bytes);
    pthread_attr_destroy(&attributes);
#endif
#if defined(SETRANK_TSAN)
    stack.fiber = __tsan_get_current_fiber();
#endif
    return stack;
}

Stack fiber_stack(void *bottom, size_t bytes, [[maybe_unused]] unsigned thread) {
    Stack stack;
    stack.bottom = bottom;
    stack.bytes = bytes;
#if defined(SETRANK_TSAN)
    stack.fiber = __tsan_create_fiber(0);
    char name[32];
    snprintf(name, sizeof(name), "thread %u", thread);
    __tsan_set_fiber_name(stack.fiber, name);
#endif
    return stack;
}

void renew([[maybe_unused]] Stack &stack) {
#if defined(SETRANK_ASAN)
    __asan_unpoison_memory_region(stack.bottom, stack.bytes);
    stack.fake_frames = nullptr;
#endif
}

} // namespace emu::sanitizer

#if defined(SETRANK_TSAN)
// Their loops would be recognised as what they are, and become calls of themselves.
extern "C" {
void *memcpy(void *to, const void *from, size_t bytes) noexcept {
    void *at = to;
    asm volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(bytes) : : "memory");
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) noexcept {
    if (static_cast<char *>(to) <= from || static_cast<const char *>(from) + bytes <= to) {
        return memcpy(to, from, bytes);
    }
    char *last_to = static_cast<char *>(to) + bytes - 1;
    const char *last_from = static_cast<const char *>(from) + bytes - 1;
    asm volatile("std\n\trep movsb\n\tcld" : "+D"(last_to), "+S"(last_from), "+c"(bytes) : : "memory");
    return to;
}

void *memset(void *to, int value, size_t bytes) noexcept {
    void *at = to;
    asm volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(value) : "memory");
    return to;
}
}
#endif
