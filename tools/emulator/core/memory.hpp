// Device memory: allocations with exact bounds, and unmapped pages around them.
#pragma once

#include "emulator.h"
#include "emulator/machine.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace emu {

class Worker;

// An allocation as kernels see it.
struct Span {
    // Device address.
    uint64_t begin;
    uint64_t bytes;
};

// The host pointer to device memory.
inline unsigned char *host_pointer(uint64_t address) {
    return reinterpret_cast<unsigned char *>(address & ~DEVICE_BIT);
}

} // namespace emu

struct EmuMemory {
    explicit EmuMemory(uint64_t limit);
    EmuMemory(const EmuMemory &) = delete;
    EmuMemory &operator=(const EmuMemory &) = delete;
    ~EmuMemory();

    uint64_t allocate(uint64_t bytes);
    // As emu_free.
    int free(uint64_t address);
    // As emu_delete: the number of allocations with overwritten surroundings.
    int free_all();
    void *host(uint64_t address, uint64_t bytes);
    uint64_t allocated();
    void name(uint64_t address, const char *name);

    // All allocations, in the order of their addresses.
    std::vector<emu::Span> spans();
    // Where an address lies, in words.
    std::string describe(uint64_t address);

    // Arenas for blocks are kept here between launches.
    emu::Worker *take_worker();
    void give_worker(emu::Worker *worker);

  private:
    struct Allocation {
        uint64_t bytes;
        unsigned char *mapping;
        size_t mapping_bytes;
        std::string name;
    };

    // Whether the bytes around an allocation are as they were, and unmaps it.
    static bool release(uint64_t address, const Allocation &allocation);

    std::mutex mutex;
    uint64_t limit, total = 0;
    std::map<uint64_t, Allocation> allocations;
    std::vector<emu::Worker *> workers;
};
