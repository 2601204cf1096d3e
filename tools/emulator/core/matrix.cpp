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

// A row of results or of products, a lane each. Casts between the two keep the bits.
typedef float Row __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

inline float widened(uint16_t value) {
    const uint32_t bits = uint32_t{value} << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

// How tensor cores add (Fasi, Higham, Mikaitis, Pranesh 2021: "Numerical behavior of NVIDIA tensor cores"): so many
// products at a time and what was there, each cut so many bits behind those of an f32 as large as the largest of them.
struct Truncation {
    int at_once;
    int extra_bits;
};

constexpr int32_t SIGN = INT32_MIN, EXPONENT = 0x7f800000, ONE = 127 << 23;
// The exponent of the least number that the largest is taken for: its factor is an f32.
constexpr int32_t LEAST_EXPONENT = 27 << 23;
// What numbers below that are raised by first: their last bit is 2^-149, for which there is no factor. How cards cut sums that
// are subnormal themselves is not known: these are rounded to nearest.
constexpr int32_t RAISED = 100 << 23;

inline __attribute__((always_inline)) void find_largest(Ints &largest, const Row &sum, const Row *products, int count) {
    largest = (Ints)sum & ~SIGN;
    for (int k = 0; k < count; ++k) {
        const Ints size = (Ints)products[k] & ~SIGN;
        largest = size > largest ? size : largest;
    }
}

// Adds products to the sum, each lane for itself, cut as the largest of its numbers asks.
inline __attribute__((always_inline)) void add_cut(Row &sum, const Row *products, const Ints &largest,
                                                   Truncation truncation) {
    Ints exponent = largest & EXPONENT;
    exponent = exponent < LEAST_EXPONENT ? Ints{} + LEAST_EXPONENT : exponent;
    // Powers of two, with which the last bit that is kept is 1.
    const int32_t bits = (23 + truncation.extra_bits) << 23;
    const Row factor = (Row)(ONE + bits - (exponent - ONE)), back = (Row)(exponent - bits);
    Ints total = __builtin_convertvector(sum * factor, Ints);
    for (int k = 0; k < truncation.at_once; ++k) {
        total += __builtin_convertvector(products[k] * factor, Ints);
    }
    // Toward zero: what the nearest one has too much is one unit of its last place.
    const Row near = __builtin_convertvector(total, Row);
    const Ints again = __builtin_convertvector(near, Ints);
    const Ints too_large = (again < 0 ? -again : again) > (total < 0 ? -total : total);
    sum = (Row)((Ints)near + too_large) * back;
}

// Adds products to the sum, each lane for itself; false where one is not finite.
inline __attribute__((always_inline)) bool add_truncated(Row &sum, const Row *products, Truncation truncation) {
    Ints largest;
    find_largest(largest, sum, products, truncation.at_once);
    const Ints infinite = largest >= EXPONENT, tiny = (largest > 0) & (largest < LEAST_EXPONENT), odd = infinite | tiny;
    int32_t is_infinite = 0, is_odd = 0;
    for (int n = 0; n < 8; ++n) {
        is_infinite |= infinite[n];
        is_odd |= odd[n];
    }
    if (is_infinite) {
        return false;
    }
    if (!is_odd) {
        add_cut(sum, products, largest, truncation);
        return true;
    }
    const Row factor = (Row)(ONE + (tiny & RAISED)), back = (Row)(ONE - (tiny & RAISED));
    Row raised[16];
    for (int k = 0; k < truncation.at_once; ++k) {
        raised[k] = products[k] * factor;
    }
    sum *= factor;
    find_largest(largest, sum, raised, truncation.at_once);
    add_cut(sum, raised, largest, truncation);
    sum *= back;
    return true;
}

FOR_EACH_PROCESSOR void multiply_rows(const uint16_t (&a)[16][16], const uint16_t (&b)[8][16], float (&c)[16][8],
                                      const Truncation *truncation) {
    Row columns[16];
    for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < 8; ++n) {
            columns[k][n] = widened(b[n][k]);
        }
    }
    for (int m = 0; m < 16; ++m) {
        Row before, products[16];
        memcpy(&before, c[m], sizeof(before));
        for (int k = 0; k < 16; ++k) {
            products[k] = columns[k] * widened(a[m][k]);
        }
        Row sum = before;
        bool is_done = truncation != nullptr;
        for (int k = 0; is_done && k < 16; k += truncation->at_once) {
            is_done = add_truncated(sum, products + k, *truncation);
        }
        if (!is_done) {
            sum = before;
            for (int k = 0; k < 16; ++k) {
                sum += products[k];
            }
        }
        memcpy(c[m], &sum, sizeof(sum));
    }
}

} // namespace

void multiply(const uint16_t (&a)[16][16], const uint16_t (&b)[8][16], float (&c)[16][8], EmuSums sums) {
    static constexpr Truncation AMPERE{8, 1}, HOPPER{16, 2};
    multiply_rows(a, b, c, sums == EMU_NEAREST ? nullptr : sums == EMU_AMPERE ? &AMPERE : &HOPPER);
}

} // namespace emu
