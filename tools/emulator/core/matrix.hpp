// Arithmetic of matrix fragments.
#pragma once

#include <cstdint>

namespace emu {

constexpr uint32_t MATRIX_ROW_BYTES = 16;

// Transposes an 8×8 matrix of 16-bit values, row-major.
void transpose(uint32_t (&matrix)[32]);

// c += a · b, with b by columns, all bf16 and f32: every product is exact in f32 (subnormal ones aside), and they are
// added to c one by one in the order of the inner index, each sum rounded to f32.
void multiply(const uint16_t (&a)[16][16], const uint16_t (&b)[8][16], float (&c)[16][8]);

} // namespace emu
