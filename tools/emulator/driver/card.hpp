// The cards that the mock driver can be: what CUDA's programming guide says of each compute capability.
#pragma once

#include <stdint.h>

#include "cuda.hpp"

namespace mock {

struct Card {
    int major, minor;
    const char *name;
    int multiprocessors;
    // Bytes of shared memory: of a multiprocessor, and the most that a block may opt in to.
    int shared_multiprocessor, shared_opt_in;
    int threads_multiprocessor, blocks_multiprocessor;
    int l2_bytes;
};

constexpr int WARP = 32;
constexpr int MAX_THREADS = 1024;
constexpr int MAX_BLOCK[3] = {1024, 1024, 64};
constexpr uint32_t MAX_GRID[3] = {0x7fffffff, 65535, 65535};
// Registers of a multiprocessor, which one block may have all of; they are given to warps in units.
constexpr int REGISTERS = 65536;
constexpr int REGISTER_UNIT = 256;
// Bytes of shared memory that a block has without opting in, and that the driver keeps for itself in each block.
constexpr int SHARED_DEFAULT = 48 * 1024;
constexpr int SHARED_RESERVED = 1024;
constexpr int SHARED_UNIT = 128;
// The clock that is named; nothing takes time by it.
constexpr int CLOCK_KHZ = 1755000;

// The card of this compute capability, or null.
const Card *card_of(int major, int minor);
// The compute capabilities that there are cards of, for messages.
const char *known_cards();
// Registers that a warp of a kernel takes up.
int warp_registers(int registers);
// Threads of a block that the registers suffice for.
int threads_by_registers(int registers);

} // namespace mock
