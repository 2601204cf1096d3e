#include "matrix.hpp"

#include <cstring>

// The same source for processors with and without AVX2, chosen when the program starts. Without contraction both give
// the same bits.
#if defined(__x86_64__) && !defined(SETRANK_SANITIZED)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace emu {

void transpose(uint32_t (&matrix)[32]) {
    uint16_t from[8][8], to[8][8];
    memcpy(from, matrix, sizeof(from));
    for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < 8; ++column) {
            to[column][row] = from[row][column];
        }
    }
    memcpy(matrix, to, sizeof(to));
}

namespace {

FOR_EACH_PROCESSOR void multiply_rows(const uint16_t (&a)[16][16], const uint16_t (&b)[8][16], float (&c)[16][8]) {
    typedef uint32_t Bits __attribute__((vector_size(32)));
    typedef float Row __attribute__((vector_size(32)));
    Row columns[16];
    for (int k = 0; k < 16; ++k) {
        Bits bits;
        for (int n = 0; n < 8; ++n) {
            bits[n] = uint32_t{b[n][k]} << 16;
        }
        memcpy(&columns[k], &bits, sizeof(bits));
    }
    for (int m = 0; m < 16; ++m) {
        float scales[16];
        for (int k = 0; k < 16; ++k) {
            const uint32_t bits = uint32_t{a[m][k]} << 16;
            memcpy(&scales[k], &bits, 4);
        }
        Row sum;
        memcpy(&sum, c[m], sizeof(sum));
        for (int k = 0; k < 16; ++k) {
            sum += columns[k] * scales[k];
        }
        memcpy(c[m], &sum, sizeof(sum));
    }
}

} // namespace

void multiply(const uint16_t (&a)[16][16], const uint16_t (&b)[8][16], float (&c)[16][8]) { multiply_rows(a, b, c); }

} // namespace emu
