// Switches between stacks.
#pragma once

// Saves the callee-saved registers and the stack pointer at `*from`, and goes on where `to` was saved.
extern "C" void setrank_emulator_switch(void **from, void *to);

namespace emu {

// What to switch to so that `entry` begins on the stack that ends at `top`, a multiple of 16.
void *prepare_stack(void *top, void (*entry)());

} // namespace emu
