// Included before everything else where the core is compiled for ThreadSanitizer: gives its memcpy, memmove and memset
// other names, under which sanitizers.cpp defines them. ThreadSanitizer takes calls of the usual ones, also those that
// the compiler makes of assignments, for accesses of the kernel's thread.
#pragma once

extern "C" {
void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes) noexcept __asm__("setrank_memcpy");
void *memmove(void *to, const void *from, __SIZE_TYPE__ bytes) noexcept __asm__("setrank_memmove");
void *memset(void *to, int value, __SIZE_TYPE__ bytes) noexcept __asm__("setrank_memset");
}
