// Reads numbers and texts from bytes that may be cut off anywhere.
#pragma once

#include <stdint.h>
#include <string.h>
#include <string>

#include "driver.hpp"

namespace mock {

struct Bytes {
    const char *data;
    uint64_t size;

    // The part from `offset` on; the call ends if it is not inside.
    Bytes part(uint64_t offset, uint64_t bytes) const {
        if (offset > size || bytes > size - offset)
            refuse(CUDA_ERROR_INVALID_IMAGE, "the image ends early: %llu bytes at %llu are not in its %llu",
                   static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offset),
                   static_cast<unsigned long long>(size));
        return {data + offset, bytes};
    }

    // The little-endian number at `offset`.
    template <class T> T number(uint64_t offset) const {
        T value;
        memcpy(&value, part(offset, sizeof value).data, sizeof value);
        return value;
    }

    // The text at `offset`, up to its 0.
    std::string text(uint64_t offset) const {
        const Bytes rest = part(offset, size - (offset < size ? offset : size));
        return std::string(rest.data, strnlen(rest.data, rest.size));
    }
};

} // namespace mock
