#include "context.hpp"

#if defined(__x86_64__)
// It ends with a jump: returns never go to the frame that the processor predicts.
asm(R"(
.text
.globl setrank_emulator_switch
.hidden setrank_emulator_switch
.type setrank_emulator_switch, @function
.p2align 4
setrank_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rdx
    jmp *%rdx
.size setrank_emulator_switch, .-setrank_emulator_switch
)");
#else
#error "the emulator has no context switch for this processor: write one like that for x86-64 in core/context.cpp"
#endif

namespace emu {

void *prepare_stack(void *top, void (*entry)()) {
    void **stack = static_cast<void **>(top);
    *--stack = nullptr; // the return address of `entry`, which does not return
    *--stack = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; ++i) {
        *--stack = nullptr;
    }
    return stack;
}

} // namespace emu
