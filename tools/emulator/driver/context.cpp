// Primary contexts, and what is set for a context.

#include "capture.hpp"
#include "driver.hpp"
#include "host_memory.hpp"
#include "memory.hpp"
#include "work.hpp"

using namespace mock;

namespace mock {

void destroy_context(Device &device) {
    // Other contexts may use its memory too.
    finish_everything();
    free_all(device);
    unpin_all(*device.context);
    device.context.reset();
    device.retained = 0;
}

} // namespace mock

namespace {

void make_context(Device &device) {
    device.context = std::make_unique<Context>();
    device.context->device = &device;
    device.context->flags = device.primary_flags;
    device.context->legacy = std::make_unique<Stream>(Stream{device.context.get(), true, 0, true, {}, nullptr});
}

constexpr int LIMITS = int(sizeof(Context::limits) / sizeof(size_t));

} // namespace

MOCK_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    return call_initialized(__func__, [&] {
        Device &device = device_of(ordinal);
        output(context);
        if (!device.context)
            make_context(device);
        ++device.retained;
        *context = device.context.get();
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return call_initialized(__func__, [&] {
        Device &device = device_of(ordinal);
        if (device.retained == 0)
            refuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context of device %d is not retained", ordinal);
        if (--device.retained == 0)
            destroy_context(device);
        return device.fault;
    });
}

MOCK_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return call_initialized(__func__, [&] {
        Device &device = device_of(ordinal);
        if (device.context)
            destroy_context(device);
        return device.fault;
    });
}

MOCK_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
    return call_initialized(__func__, [&] {
        Device &device = device_of(ordinal);
        output(flags) = device.primary_flags;
        output(active) = device.context != nullptr;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
    return call_initialized(__func__, [&] {
        device_of(ordinal).primary_flags = flags;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    return call_initialized(__func__, [&] {
        for (const auto &device : driver().devices) {
            if (!context || device->context.get() == context) {
                set_current_context(context);
                return CUDA_SUCCESS;
            }
        }
        refuse(CUDA_ERROR_INVALID_CONTEXT, "%p is no context", static_cast<void *>(context));
    });
}

MOCK_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    return call_initialized(__func__, [&] {
        output(context) = current_context();
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    return call_in_context(__func__, [&](Context &context) {
        output(device) = context.device->ordinal;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxSetFlags(unsigned flags) {
    return call_in_context(__func__, [&](Context &context) {
        context.flags = flags;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    return call_in_context(__func__, [&](Context &context) {
        output(flags) = context.flags;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxSynchronize(void) {
    return call_in_context(__func__, [&](Context &context) {
        refuse_capturing(context, "a wait for everything");
        refuse_unsafe();
        ++driver().counters.synchronizations;
        finish(context);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxGetLimit(size_t *value, int limit) {
    return call_in_context(__func__, [&](Context &context) {
        if (limit < 0 || limit >= LIMITS)
            refuse(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit %d is not supported", limit);
        output(value) = context.limits[limit];
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    return call_in_context(__func__, [&](Context &context) {
        if (limit < 0 || limit >= LIMITS)
            refuse(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit %d is not supported", limit);
        context.limits[limit] = value;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxGetCacheConfig(int *config) {
    return call_in_context(__func__, [&](Context &context) {
        output(config) = context.cache_config;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxSetCacheConfig(int config) {
    return call_in_context(__func__, [&](Context &context) {
        context.cache_config = config;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    return call_in_context(__func__, [&](Context &) {
        output(least) = LEAST_PRIORITY;
        output(greatest) = GREATEST_PRIORITY;
        return CUDA_SUCCESS;
    });
}
