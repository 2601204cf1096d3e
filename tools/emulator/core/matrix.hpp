// Arithmetic of matrix fragments.
#pragma once

#include "emulator.h"

#include <cstdint>

namespace emu {

constexpr uint32_t MATRIX_ROW_BYTES = 16;

// Transposes an 8×8 matrix of 16-bit values, row-major.
void transpose(uint32_t (&matrix)[32]);

// c += a · b, with b by columns, all bf16 and f32: every product is exact in f32 (subnormal ones aside), and they are
// added to c in the order of the inner index, as `sums` says. What is not finite is added one by one in any case.
void multiply(const uint16_t (&a)[16][16], const uint16_t (&b)[8][16], float (&c)[16][8], EmuSums sums);

} // namespace emu
