// Streams.

#include "capture.hpp"
#include "driver.hpp"
#include "work.hpp"

using namespace mock;

MOCK_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return call_in_context(__func__, [&](Context &context) {
        output(stream);
        if (flags & ~CU_STREAM_NON_BLOCKING)
            refuse(CUDA_ERROR_INVALID_VALUE, "flags %u are unknown", flags);
        // The driver takes a priority out of range as the nearest in it.
        const int nearest = std::min(std::max(priority, GREATEST_PRIORITY), LEAST_PRIORITY);
        context.streams.push_back(
            std::make_unique<Stream>(Stream{&context, !(flags & CU_STREAM_NON_BLOCKING), nearest, true, {}, nullptr}));
        *stream = context.streams.back().get();
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

MOCK_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return call_in_context(__func__, [&](Context &context) {
        if (reinterpret_cast<uintptr_t>(handle) <= 2)
            refuse(CUDA_ERROR_INVALID_HANDLE, "default streams cannot be destroyed");
        Stream &stream = stream_of(context, handle);
        if (stream.capture && stream.capture->state == Capture::ACTIVE)
            stream.capture->state = Capture::INVALIDATED;
        stream.capture = nullptr;
        stream.held = false;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return call_in_context(__func__, [&](Context &context) {
        Stream &stream = stream_of(context, handle);
        refuse_capturing(stream, "a wait");
        refuse_unsafe();
        ++driver().counters.synchronizations;
        finish(stream);
        return stream.context->device->fault;
    });
}

MOCK_EXPORT CUresult cuStreamQuery(CUstream handle) {
    return call_in_context(__func__, [&](Context &context) {
        const Stream &stream = stream_of(context, handle);
        refuse_capturing(stream, "a query");
        refuse_unsafe();
        const std::shared_ptr<Operation> operation = unfinished(stream);
        if (!operation)
            return CUDA_SUCCESS;
        advance(operation);
        return CUDA_ERROR_NOT_READY;
    });
}

MOCK_EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    return call_in_context(__func__, [&](Context &context) {
        output(priority) = stream_of(context, handle).priority;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
    return call_in_context(__func__, [&](Context &context) {
        output(flags) = stream_of(context, handle).blocking ? 0u : unsigned(CU_STREAM_NON_BLOCKING);
        return CUDA_SUCCESS;
    });
}
