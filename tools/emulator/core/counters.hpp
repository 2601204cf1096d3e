// Which bytes of device memory a launch touches.
#pragma once

#include "memory.hpp"

#include <memory>

namespace emu {

// The bytes of one allocation, a bit each; blocks of several threads of the machine set them at the same time.
class Footprint {
  public:
    explicit Footprint(uint64_t bytes);

    // Bytes `first` to `first + bytes`.
    void read(uint64_t first, uint64_t bytes) { set(bits_read.get(), first, bytes); }
    void write(uint64_t first, uint64_t bytes) { set(bits_written.get(), first, bytes); }
    uint64_t bytes_read() const { return count(bits_read.get()); }
    uint64_t bytes_written() const { return count(bits_written.get()); }

  private:
    struct Free {
        void operator()(uint64_t *bits) const;
    };
    using Bits = std::unique_ptr<uint64_t[], Free>;

    static void set(uint64_t *bits, uint64_t first, uint64_t bytes);
    uint64_t count(const uint64_t *bits) const;

    uint64_t words;
    Bits bits_read, bits_written;
};

} // namespace emu
