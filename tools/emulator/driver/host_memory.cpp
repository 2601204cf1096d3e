#include "host_memory.hpp"

#include <stdlib.h>
#include <string.h>

#include "capture.hpp"
#include "memory.hpp"
#include "work.hpp"

namespace mock {

static constexpr size_t PAGE = 4096;

bool is_pinned(const void *pointer, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
    const auto &pinned = driver().pinned;
    const auto after = pinned.upper_bound(begin);
    if (after == pinned.begin())
        return false;
    const auto &[address, memory] = *std::prev(after);
    return begin - address <= memory.bytes && bytes <= memory.bytes - (begin - address);
}

void unpin_all(const Context &context) {
    auto &pinned = driver().pinned;
    for (auto memory = pinned.begin(); memory != pinned.end();) {
        if (memory->second.context != &context) {
            ++memory;
            continue;
        }
        if (memory->second.allocated)
            free(reinterpret_cast<void *>(memory->first));
        memory = pinned.erase(memory);
    }
}

} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return call_in_context(__func__, [&](Context &context) {
        output(pointer);
        if (bytes == 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "0 bytes cannot be allocated");
        if (flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
            refuse(CUDA_ERROR_INVALID_VALUE, "flags %u are unknown", flags);
        refuse_unsafe();
        *pointer = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
        if (!*pointer)
            refuse(CUDA_ERROR_OUT_OF_MEMORY, "the host has no %zu bytes", bytes);
        // Nothing may rely on what is in it: NaN in every floating type, as in device memory.
        memset(*pointer, 0xff, bytes);
        driver().pinned[reinterpret_cast<uintptr_t>(*pointer)] = {&context, bytes, true};
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

MOCK_EXPORT CUresult cuMemFreeHost(void *pointer) {
    return call_in_context(__func__, [&](Context &) {
        const auto found = driver().pinned.find(reinterpret_cast<uintptr_t>(pointer));
        if (found == driver().pinned.end() || !found->second.allocated)
            refuse(CUDA_ERROR_INVALID_VALUE, "%p was not allocated by cuMemHostAlloc, or is freed", pointer);
        refuse_unsafe();
        finish_everything();
        driver().pinned.erase(found);
        free(pointer);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned) {
    return call_in_context(__func__, [&](Context &context) {
        if (!pointer || bytes == 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "there is no memory to register");
        refuse_unsafe();
        const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
        for (const auto &[address, memory] : driver().pinned)
            if (begin < address + memory.bytes && address < begin + bytes)
                refuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "some of the bytes are pinned already");
        driver().pinned[begin] = {&context, bytes, false};
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemHostUnregister(void *pointer) {
    return call_in_context(__func__, [&](Context &) {
        const auto found = driver().pinned.find(reinterpret_cast<uintptr_t>(pointer));
        if (found == driver().pinned.end() || found->second.allocated)
            refuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p is not registered", pointer);
        refuse_unsafe();
        finish_everything();
        driver().pinned.erase(found);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    return call_in_context(__func__, [&](Context &) {
        unsigned &kind = output(static_cast<unsigned *>(data));
        if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            refuse(CUDA_ERROR_NOT_SUPPORTED, "attribute %d of a pointer is not known here", attribute);
        if (find_allocation(pointer, 1))
            kind = CU_MEMORYTYPE_DEVICE;
        else if (is_pinned(reinterpret_cast<const void *>(pointer), 1))
            kind = CU_MEMORYTYPE_HOST;
        else
            // No mistake: this is how memory that CUDA does not know is told from other.
            return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
    });
}
