// Copies and memsets. When the driver is done with host memory is what the manual's "API synchronization behavior"
// says.

#include <algorithm>
#include <string.h>

#include "capture.hpp"
#include "driver.hpp"
#include "host_memory.hpp"
#include "memory.hpp"
#include "work.hpp"

using namespace mock;

namespace {

void check_host(const void *pointer) {
    if (!pointer)
        refuse(CUDA_ERROR_INVALID_VALUE, "the host pointer is null");
    const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(pointer);
    if (is_device_address(address))
        refuse(CUDA_ERROR_INVALID_VALUE, "%p is given as a host pointer but is %s", pointer,
               describe(address).c_str());
}

// Queues a copy or memset; null where it is captured instead.
std::shared_ptr<Operation> submit(Stream &stream, GraphNode::Kind kind, uint64_t bytes, std::function<CUresult()> run) {
    const GraphNode node{kind, nullptr, bytes, std::move(run), {}};
    if (is_capturing(stream)) {
        note(stream, node);
        return nullptr;
    }
    count(node);
    return enqueue(stream, node.run);
}

// Ends the call if a copy between the device and pageable memory would be captured: the host may have to wait for it.
void check_captured(const Stream &stream, const void *host, size_t bytes) {
    if (!is_pinned(host, bytes))
        refuse_capturing(stream, "a copy from or to pageable memory");
}

// Queues a copy from the host. From pageable memory it takes the bytes at once.
std::shared_ptr<Operation> copy_to_device(Stream &stream, CUdeviceptr to, const void *from, size_t bytes) {
    check_host(from);
    const std::shared_ptr<Allocation> allocation = allocation_at("destination", to, bytes);
    check_captured(stream, from, bytes);
    std::shared_ptr<std::vector<char>> staged;
    if (!is_pinned(from, bytes)) {
        const char *const begin = static_cast<const char *>(from);
        staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    }
    return submit(stream, GraphNode::COPY_TO_DEVICE, bytes, [=] {
        void *const target = touch("a copy to the device", *allocation, to, bytes);
        if (!target)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy(target, staged ? staged->data() : from, bytes);
        return CUDA_SUCCESS;
    });
}

// Queues a copy to the host.
std::shared_ptr<Operation> copy_to_host(Stream &stream, void *to, CUdeviceptr from, size_t bytes) {
    check_host(to);
    const std::shared_ptr<Allocation> allocation = allocation_at("source", from, bytes);
    check_captured(stream, to, bytes);
    return submit(stream, GraphNode::COPY_TO_HOST, bytes, [=] {
        const void *const source = touch("a copy to the host", *allocation, from, bytes);
        if (!source)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy(to, source, bytes);
        return CUDA_SUCCESS;
    });
}

CUresult copy_on_device(Context &context, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
    Stream &stream = stream_of(context, handle);
    if (bytes == 0)
        return CUDA_SUCCESS;
    const std::shared_ptr<Allocation> target = allocation_at("destination", to, bytes);
    const std::shared_ptr<Allocation> source = allocation_at("source", from, bytes);
    submit(stream, GraphNode::COPY_ON_DEVICE, bytes, [=] {
        void *const to_host = touch("a copy on the device", *target, to, bytes);
        const void *const from_host = to_host ? touch("a copy on the device", *source, from, bytes) : nullptr;
        if (!from_host)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        memmove(to_host, from_host, bytes);
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

// Queues a memset of `count` values.
template <class T> CUresult set(Context &context, CUdeviceptr to, T value, size_t count, CUstream handle) {
    Stream &stream = stream_of(context, handle);
    if (count == 0)
        return CUDA_SUCCESS;
    if (to % sizeof(T) != 0 || count > SIZE_MAX / sizeof(T))
        refuse(CUDA_ERROR_INVALID_VALUE, "0x%llx is not aligned to %zu bytes, or %zu values are too many",
               static_cast<unsigned long long>(to), sizeof(T), count);
    const size_t bytes = count * sizeof(T);
    const std::shared_ptr<Allocation> allocation = allocation_at("destination", to, bytes);
    submit(stream, GraphNode::MEMSET, bytes, [=] {
        T *const target = static_cast<T *>(touch("a memset", *allocation, to, bytes));
        if (!target)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        std::fill(target, target + count, value);
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

} // namespace

MOCK_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
    return call_in_context(__func__, [&](Context &context) {
        Stream &stream = stream_of(context, handle);
        if (bytes > 0)
            copy_to_device(stream, to, from, bytes);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
    return call_in_context(__func__, [&](Context &context) {
        Stream &stream = stream_of(context, handle);
        if (bytes == 0)
            return CUDA_SUCCESS;
        const std::shared_ptr<Operation> copy = copy_to_host(stream, to, from, bytes);
        if (!is_pinned(to, bytes))
            finish(copy);
        return stream.context->device->fault;
    });
}

MOCK_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return call_in_context(__func__,
                           [&](Context &context) { return copy_on_device(context, to, from, bytes, stream); });
}

MOCK_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                                       CUstream stream) {
    return call_in_context(__func__,
                           [&](Context &context) { return copy_on_device(context, to, from, bytes, stream); });
}

MOCK_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return call_in_context(__func__, [&](Context &context) {
        if (bytes == 0)
            return CUDA_SUCCESS;
        refuse_unsafe();
        // From pageable memory the copy is staged behind what came before, and may itself come later.
        finish(*context.legacy);
        const std::shared_ptr<Operation> copy = copy_to_device(*context.legacy, to, from, bytes);
        if (is_pinned(from, bytes))
            finish(copy);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return call_in_context(__func__, [&](Context &context) {
        if (bytes == 0)
            return CUDA_SUCCESS;
        refuse_unsafe();
        finish(copy_to_host(*context.legacy, to, from, bytes));
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return call_in_context(__func__,
                           [&](Context &context) { return copy_on_device(context, to, from, bytes, nullptr); });
}

MOCK_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, uint8_t value, size_t count, CUstream stream) {
    return call_in_context(__func__, [&](Context &context) { return set(context, to, value, count, stream); });
}

MOCK_EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, uint16_t value, size_t count, CUstream stream) {
    return call_in_context(__func__, [&](Context &context) { return set(context, to, value, count, stream); });
}

MOCK_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, uint32_t value, size_t count, CUstream stream) {
    return call_in_context(__func__, [&](Context &context) { return set(context, to, value, count, stream); });
}

// Memsets of device memory do not wait, their name notwithstanding.
MOCK_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, uint8_t value, size_t count) {
    return call_in_context(__func__, [&](Context &context) { return set(context, to, value, count, nullptr); });
}

MOCK_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, uint16_t value, size_t count) {
    return call_in_context(__func__, [&](Context &context) { return set(context, to, value, count, nullptr); });
}

MOCK_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, uint32_t value, size_t count) {
    return call_in_context(__func__, [&](Context &context) { return set(context, to, value, count, nullptr); });
}
