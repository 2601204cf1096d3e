// Runs one launch in a process of its own, for the sanitizers: runner LAUNCH RESULT. Both are binary files, as
// src/sanitize.rs writes and reads them. What the kernel did wrong is in the result; the exit status tells only whether
// there is one.
#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" const unsigned char emu_kernels;

namespace {

[[noreturn]] void give_up(const std::string &why) {
    fprintf(stderr, "runner: %s\n", why.c_str());
    exit(2);
}

class Reader {
  public:
    explicit Reader(const char *path) {
        std::ifstream file(path, std::ios::binary);
        if (!file) {
            give_up(std::string("cannot read ") + path);
        }
        bytes.assign(std::istreambuf_iterator<char>(file), {});
    }

    template <class T> T number() {
        T value;
        memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }

    std::string text() {
        const uint64_t length = number<uint64_t>();
        return std::string(take(length), length);
    }

  private:
    const char *take(uint64_t count) {
        if (count > bytes.size() - at) {
            give_up("the launch is cut off");
        }
        at += count;
        return bytes.data() + at - count;
    }

    std::vector<char> bytes;
    size_t at = 0;
};

class Writer {
  public:
    template <class T> void number(T value) { bytes.append(reinterpret_cast<const char *>(&value), sizeof(T)); }

    void text(const std::string &value) {
        number<uint64_t>(value.size());
        bytes += value;
    }

    void save(const char *path) const {
        std::ofstream file(path, std::ios::binary);
        file << bytes;
        if (!file.flush()) {
            give_up(std::string("cannot write ") + path);
        }
    }

  private:
    std::string bytes;
};

} // namespace

int main(int argument_count, char **arguments) {
    if (argument_count != 3) {
        give_up("usage: runner LAUNCH RESULT");
    }
    Reader launch(arguments[1]);
    const std::string name = launch.text();
    uint32_t grid[3], block[3];
    for (uint32_t &extent : grid) {
        extent = launch.number<uint32_t>();
    }
    for (uint32_t &extent : block) {
        extent = launch.number<uint32_t>();
    }
    const uint32_t shared_bytes = launch.number<uint32_t>();
    EmuConfig config{};
    config.seed = launch.number<uint64_t>();
    config.schedule = static_cast<EmuSchedule>(launch.number<uint32_t>());
    config.copies = static_cast<EmuCopies>(launch.number<uint32_t>());
    config.sums = static_cast<EmuSums>(launch.number<uint32_t>());
    config.workers = launch.number<uint32_t>();
    config.count = launch.number<uint32_t>();
    config.shared_limit = launch.number<uint32_t>();

    const EmuKernel *kernel = emu_find(&emu_kernels, name.c_str());
    if (kernel == nullptr) {
        give_up("there is no kernel " + name);
    }
    EmuMemory *memory = emu_memory_new(UINT64_MAX);
    std::vector<uint64_t> addresses;
    std::vector<uint64_t> sizes(launch.number<uint32_t>());
    for (uint64_t &size : sizes) {
        const std::string buffer = launch.text(), content = launch.text();
        size = content.size();
        addresses.push_back(emu_alloc(memory, size));
        emu_name(memory, addresses.back(), buffer.c_str());
        memcpy(emu_host(memory, addresses.back(), size), content.data(), size);
    }
    // Of unit 16, which the kernel's struct may be aligned to.
    const std::string parameter = launch.text();
    if (parameter.size() != emu_parameter_bytes(kernel)[0]) {
        give_up("the parameter has another size than that of " + name);
    }
    struct alignas(16) Unit {
        unsigned char bytes[16];
    };
    std::vector<Unit> units(parameter.size() / sizeof(Unit) + 1);
    unsigned char *bytes = units.data()->bytes;
    memcpy(bytes, parameter.data(), parameter.size());
    for (uint32_t pointers = launch.number<uint32_t>(); pointers > 0; --pointers) {
        const uint64_t at = launch.number<uint64_t>(), buffer = launch.number<uint64_t>();
        const uint64_t offset = launch.number<uint64_t>();
        if (at + 8 > parameter.size() || buffer >= addresses.size()) {
            give_up("a pointer that is not of the parameter, or to no buffer");
        }
        const uint64_t address = addresses[buffer] + offset;
        memcpy(bytes + at, &address, 8);
    }

    void *const parameters[] = {bytes};
    EmuCounters counters{};
    char report[8192] = "";
    Writer result;
    result.number<int32_t>(emu_launch(memory, kernel, grid, block, shared_bytes, parameters, &config, &counters, report,
                                      sizeof(report)));
    result.text(report);
    result.number(counters);
    for (size_t i = 0; i < addresses.size(); ++i) {
        result.text(std::string(static_cast<const char *>(emu_host(memory, addresses[i], sizes[i])), sizes[i]));
    }
    result.save(arguments[2]);
    // Nothing is freed: the threads of a kernel that was given up would still own it.
    return 0;
}
