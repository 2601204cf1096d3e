// Initialization, and what devices are.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.hpp"

using namespace mock;

namespace {

void make_devices(Driver &state) {
    for (int ordinal = 0; ordinal < state.configuration.devices; ++ordinal) {
        auto device = std::make_unique<Device>();
        device->ordinal = ordinal;
        device->memory = emu_memory_new(state.configuration.memory);
        state.devices.push_back(std::move(device));
    }
    state.random.seed(state.configuration.emulator.seed);
    state.initialized = true;
}

int attribute_of(const Device &device, int attribute) {
    const Configuration &configuration = driver().configuration;
    const Card &card = *configuration.card;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return MAX_THREADS;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return MAX_BLOCK[attribute - CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return int(MAX_GRID[attribute - CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X]);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return SHARED_DEFAULT;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
        return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return WARP;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        return REGISTERS;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return CLOCK_KHZ;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return configuration.multiprocessors();
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        return card.l2_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return card.threads_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return device.ordinal + 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return card.major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return card.minor;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return card.shared_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return card.shared_opt_in;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        return card.blocks_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        return card.major >= 8 ? SHARED_RESERVED : 0;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        return configuration.pools;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
        return 1;
    // What the mock driver does not offer, it says that the device does not.
    case CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT:
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        return 0;
    default:
        refuse(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not supported", attribute);
    }
}

} // namespace

MOCK_EXPORT CUresult cuInit(unsigned flags) {
    return call_always(__func__, [&] {
        Driver &state = driver();
        if (state.initialized)
            return CUDA_SUCCESS;
        if (flags != 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "the flags must be 0, not %u", flags);
        const char *const words = getenv("SETRANK_MOCK_DEVICE");
        if (!state.configured && words)
            state.configuration_error = read_configuration(words, state.configuration);
        if (!state.configuration_error.empty())
            refuse(CUDA_ERROR_INVALID_VALUE, "%s: %s", state.configured ? "the configuration" : "SETRANK_MOCK_DEVICE",
                   state.configuration_error.c_str());
        if (state.configuration.devices == 0)
            return CUDA_ERROR_NO_DEVICE;
        make_devices(state);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDriverGetVersion(int *version) {
    return call_always(__func__, [&] {
        // Before cuInit the environment has not been read.
        Configuration configuration = driver().configuration;
        const char *const words = getenv("SETRANK_MOCK_DEVICE");
        if (!driver().configured && !driver().initialized && words)
            read_configuration(words, configuration);
        output(version) = configuration.driver_version;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceGetCount(int *count) {
    return call_initialized(__func__, [&] {
        output(count) = int(driver().devices.size());
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    return call_initialized(__func__, [&] {
        output(device) = device_of(ordinal).ordinal;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    return call_initialized(__func__, [&] {
        device_of(device);
        output(name);
        snprintf(name, size_t(bytes), "%s", driver().configuration.card->name);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    return call_initialized(__func__, [&] {
        output(uuid);
        memset(uuid, 0, 16);
        memcpy(uuid, "mock GPU", 8);
        uuid[15] = static_cast<unsigned char>(device_of(device).ordinal);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

MOCK_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    return call_initialized(__func__, [&] {
        device_of(device);
        output(bytes) = driver().configuration.memory;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    return call_initialized(__func__, [&] {
        output(value) = attribute_of(device_of(device), attribute);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    return call_initialized(__func__, [&] {
        device_of(device);
        device_of(peer);
        output(can) = 0;
        return CUDA_SUCCESS;
    });
}
