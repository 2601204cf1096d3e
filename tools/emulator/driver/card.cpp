#include "card.hpp"

#include <algorithm>

namespace mock {

static constexpr int KIB = 1024;
static constexpr int MIB = 1024 * KIB;

static const Card CARDS[] = {
    {7, 5, "Mock T4", 40, 64 * KIB, 64 * KIB, 1024, 16, 4 * MIB},
    {8, 0, "Mock A100", 108, 164 * KIB, 163 * KIB, 2048, 32, 40 * MIB},
    {8, 6, "Mock A10", 72, 100 * KIB, 99 * KIB, 1536, 16, 6 * MIB},
    {8, 9, "Mock L4", 58, 100 * KIB, 99 * KIB, 1536, 24, 48 * MIB},
    {9, 0, "Mock H100", 132, 228 * KIB, 227 * KIB, 2048, 32, 50 * MIB},
    {10, 0, "Mock B200", 148, 228 * KIB, 227 * KIB, 2048, 32, 126 * MIB},
    {12, 0, "Mock RTX 5090", 170, 100 * KIB, 99 * KIB, 1536, 24, 96 * MIB},
};

const Card *card_of(int major, int minor) {
    for (const Card &card : CARDS)
        if (card.major == major && card.minor == minor)
            return &card;
    return nullptr;
}

const char *known_cards() { return "7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0"; }

int warp_registers(int registers) {
    return (registers * WARP + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
}

int threads_by_registers(int registers) {
    if (registers == 0)
        return MAX_THREADS;
    // A multiprocessor has four partitions, and each warp lies in one of them.
    const int warps = REGISTERS / 4 / warp_registers(registers) * 4;
    return std::min(MAX_THREADS, warps * WARP);
}

} // namespace mock
