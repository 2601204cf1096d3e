// Operands of wgmma in shared memory.
#pragma once

#include "emulator/machine.hpp"

namespace emu {

// Warps of a warpgroup, rows of each of them, the inner index of a product, and values of a unit's row.
constexpr uint32_t GROUP_WARPS = 4, ROWS_OF_WARP = 16, INNER = 16, ATOM = 8;
// Bytes of a unit's row.
constexpr uint32_t PIECE_BYTES = 16;

// How an operand stands in shared memory (PTX ISA, "Matrix Descriptor Format").
struct Descriptor {
    Shared start;
    uint32_t leading, stride;
    // Bytes of a row of its units, in which pieces of 16 bytes are permuted; 16: they are not.
    uint32_t row_bytes;
    uint32_t base_offset;

    explicit Descriptor(uint64_t bits)
        : start(static_cast<uint32_t>(bits & 0x3fff) << 4), leading(static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4),
          stride(static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4), row_bytes(16u << (4 - (bits >> 62)) % 4),
          base_offset(bits >> 49 & 7) {}

    // Where row `row` of eight stands, 16 bytes, of the unit of 8 × 8 values that is number `outer` along the dimension of M
    // or N, and `inner` along K. The rows of a unit are those of M or N, or, `transposed`, of K.
    Shared at(uint32_t outer, uint32_t inner, uint32_t row, bool transposed) const {
        const uint32_t pieces = row_bytes / PIECE_BYTES;
        uint32_t to = start + row * row_bytes;
        if (!transposed) {
            to += outer * stride + inner * (pieces == 1 ? leading : PIECE_BYTES);
        } else if (pieces == 1) {
            to += outer * stride + inner * leading;
        } else {
            to += outer % pieces * PIECE_BYTES + outer / pieces * leading + inner * stride;
        }
        // Bits 4 and on of an address are turned by its bits 7 and on.
        return to ^ ((to >> 7 & (pieces - 1)) << 4);
    }
};

// Calls `take` with each piece of 16 bytes of an operand of so many units along M or N.
template <class Take> void for_each_piece(uint64_t bits, uint32_t outer, bool transposed, Take take) {
    const Descriptor descriptor(bits);
    for (uint32_t n = 0; n < outer; ++n) {
        for (uint32_t k = 0; k < INNER / ATOM; ++k) {
            for (uint32_t row = 0; row < ATOM; ++row) {
                take(descriptor.at(n, k, row, transposed));
            }
        }
    }
}

// The same with those of both operands, as far as they stand there.
template <class Take> void for_each_piece(const WgmmaOperands &operands, Take take) {
    if (!operands.in_registers) {
        for_each_piece(operands.left, GROUP_WARPS * ROWS_OF_WARP / ATOM, operands.left_transposed, take);
    }
    for_each_piece(operands.right, operands.fragments, operands.transposed, take);
}

} // namespace emu
