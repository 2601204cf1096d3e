// Memory pools: each device has its default one.

#include "driver.hpp"
#include "memory.hpp"

using namespace mock;

namespace {

enum : int {
    REUSE_FIRST = 1,
    REUSE_LAST = 3,
    RELEASE_THRESHOLD = 4,
    RESERVED_CURRENT = 5,
    USED_CURRENT = 7,
};

Device &pool_of(CUmemoryPool pool) {
    for (const auto &device : driver().devices)
        if (device.get() == pool)
            return *device;
    refuse(CUDA_ERROR_INVALID_VALUE, "%p is no memory pool", static_cast<void *>(pool));
}

CUresult get_pool(const char *name, CUmemoryPool *pool, CUdevice device) {
    return call_initialized(name, [&] {
        if (!driver().configuration.pools)
            refuse(CUDA_ERROR_NOT_SUPPORTED, "the device has no memory pools");
        output(pool) = &device_of(device);
        return CUDA_SUCCESS;
    });
}

} // namespace

MOCK_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return get_pool(__func__, pool, device);
}

MOCK_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return get_pool(__func__, pool, device);
}

MOCK_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return call_initialized(__func__, [&] {
        if (&pool_of(pool) != &device_of(device))
            refuse(CUDA_ERROR_INVALID_VALUE, "the pool is another device's");
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
    return call_initialized(__func__, [&] {
        pool_of(pool);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, const void *value) {
    return call_initialized(__func__, [&] {
        Device &device = pool_of(pool);
        if (!value)
            refuse(CUDA_ERROR_INVALID_VALUE, "the value is null");
        if (attribute == RELEASE_THRESHOLD)
            device.release_threshold = *static_cast<const uint64_t *>(value);
        else
            refuse(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not supported", attribute);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    return call_initialized(__func__, [&] {
        const Device &device = pool_of(pool);
        if (!value)
            refuse(CUDA_ERROR_INVALID_VALUE, "the value is null");
        if (attribute >= REUSE_FIRST && attribute <= REUSE_LAST)
            *static_cast<int *>(value) = 1;
        else if (attribute == RELEASE_THRESHOLD)
            *static_cast<uint64_t *>(value) = device.release_threshold;
        else if (attribute == RESERVED_CURRENT || attribute == USED_CURRENT)
            *static_cast<uint64_t *>(value) = emu_allocated(device.memory);
        else
            refuse(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not supported", attribute);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return call_in_context(__func__, [&](Context &context) {
        if (&pool_of(pool) != context.device)
            refuse(CUDA_ERROR_NOT_SUPPORTED, "the pool is another device's");
        output(address) = allocate_ordered(context, stream, bytes, "cuMemAllocFromPoolAsync");
        return CUDA_SUCCESS;
    });
}
