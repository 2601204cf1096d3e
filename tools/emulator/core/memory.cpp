#include "memory.hpp"

#include "sanitizers.hpp"
#include "worker.hpp"

#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr uint64_t UNIT = 256;
// Memory starts as NaN in every floating type.
constexpr unsigned char POISON = 0xff;
// What lies around an allocation inside of its pages.
constexpr unsigned char SURROUNDINGS = 0xc7;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

} // namespace

EmuMemory::EmuMemory(uint64_t limit) : limit(limit) {}

EmuMemory::~EmuMemory() {
    free_all();
    for (emu::Worker *worker : workers) {
        emu::delete_worker(worker);
    }
}

uint64_t EmuMemory::allocate(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (bytes > limit - total) {
        return 0;
    }
    const uint64_t page = page_bytes();
    const uint64_t units = round_up(bytes == 0 ? 1 : bytes, UNIT), pages = round_up(units, page);
    const size_t mapping_bytes = pages + 2 * page;
    void *mapped =
        mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return 0;
    }
    unsigned char *mapping = static_cast<unsigned char *>(mapped), *first = mapping + page;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapped, mapping_bytes);
        return 0;
    }
    unsigned char *begin = first + pages - units;
    memset(first, SURROUNDINGS, static_cast<size_t>(begin - first));
    memset(begin, POISON, bytes);
    memset(begin + bytes, SURROUNDINGS, units - bytes);
    const uint64_t address = reinterpret_cast<uint64_t>(begin) | emu::DEVICE_BIT;
    allocations[address] = Allocation{bytes, mapping, mapping_bytes, {}};
    total += bytes;
    return address;
}

bool EmuMemory::release(uint64_t address, const Allocation &allocation) {
    const uint64_t page = page_bytes();
    const unsigned char *begin = emu::host_pointer(address), *end = begin + allocation.bytes;
    bool intact = true;
    for (const unsigned char *byte = allocation.mapping + page; byte < begin; ++byte) {
        intact = intact && *byte == SURROUNDINGS;
    }
    for (const unsigned char *byte = end; byte < allocation.mapping + allocation.mapping_bytes - page; ++byte) {
        intact = intact && *byte == SURROUNDINGS;
    }
    munmap(allocation.mapping, allocation.mapping_bytes);
    return intact;
}

int EmuMemory::free(uint64_t address) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = allocations.find(address);
    if (found == allocations.end()) {
        return 1;
    }
    total -= found->second.bytes;
    const bool intact = release(address, found->second);
    allocations.erase(found);
    return intact ? 0 : 2;
}

int EmuMemory::free_all() {
    const std::lock_guard<std::mutex> lock(mutex);
    int overwritten = 0;
    for (const auto &[address, allocation] : allocations) {
        overwritten += !release(address, allocation);
    }
    allocations.clear();
    total = 0;
    return overwritten;
}

void *EmuMemory::host(uint64_t address, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin()) {
        return nullptr;
    }
    const auto &[begin, allocation] = *--next;
    const uint64_t offset = address - begin;
    if (offset > allocation.bytes || bytes > allocation.bytes - offset) {
        return nullptr;
    }
    return emu::host_pointer(address);
}

uint64_t EmuMemory::allocated() {
    const std::lock_guard<std::mutex> lock(mutex);
    return total;
}

void EmuMemory::name(uint64_t address, const char *name) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = allocations.find(address);
    if (found != allocations.end()) {
        found->second.name = name;
    }
}

std::vector<emu::Span> EmuMemory::spans() {
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<emu::Span> spans;
    spans.reserve(allocations.size());
    for (const auto &[address, allocation] : allocations) {
        spans.push_back({address, allocation.bytes});
    }
    return spans;
}

std::string EmuMemory::describe(uint64_t address) {
    if (address == 0) {
        return "the null pointer";
    }
    char text[160];
    if ((address & emu::DEVICE_BIT) == 0) {
        snprintf(text, sizeof(text), "0x%llx, no address of device memory", static_cast<unsigned long long>(address));
        return text;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    // The nearest allocation is the one meant: an address before the first byte of one is most often just before it.
    const auto above = allocations.upper_bound(address);
    auto nearest = above;
    if (above != allocations.begin()) {
        nearest = std::prev(above);
        const uint64_t end = nearest->first + nearest->second.bytes;
        if (above != allocations.end() && address > end && above->first - address < address - end) {
            nearest = above;
        }
    }
    if (nearest == allocations.end()) {
        snprintf(text, sizeof(text), "0x%llx, where nothing is allocated", static_cast<unsigned long long>(address));
        return text;
    }
    const auto &[begin, allocation] = *nearest;
    snprintf(text, sizeof(text), "byte %lld of %s of %llu bytes", static_cast<long long>(address - begin),
             allocation.name.empty() ? "an allocation" : ("`" + allocation.name + "`").c_str(),
             static_cast<unsigned long long>(allocation.bytes));
    return text;
}

emu::Worker *EmuMemory::take_worker() {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!workers.empty()) {
            emu::Worker *worker = workers.back();
            workers.pop_back();
            return worker;
        }
    }
    return emu::new_worker();
}

void EmuMemory::give_worker(emu::Worker *worker) {
    const std::lock_guard<std::mutex> lock(mutex);
    workers.push_back(worker);
}

extern "C" {

EmuMemory *emu_memory_new(uint64_t limit) { return new EmuMemory(limit); }

int emu_memory_delete(EmuMemory *memory) {
    const int overwritten = memory->free_all();
    delete memory;
    return overwritten;
}

uint64_t emu_alloc(EmuMemory *memory, uint64_t bytes) { return memory->allocate(bytes); }

int emu_free(EmuMemory *memory, uint64_t address) { return memory->free(address); }

void *emu_host(EmuMemory *memory, uint64_t address, uint64_t bytes) { return memory->host(address, bytes); }

uint64_t emu_allocated(EmuMemory *memory) { return memory->allocated(); }

void emu_name(EmuMemory *memory, uint64_t address, const char *name) { memory->name(address, name); }
}
