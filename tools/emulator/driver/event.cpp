// Events: marks in a stream that streams and the host can wait for.

#include <algorithm>

#include "capture.hpp"
#include "driver.hpp"
#include "work.hpp"

using namespace mock;

namespace {

// An event of any context: streams may wait for another device's.
Event &event_of(CUevent handle) {
    for (const auto &device : driver().devices)
        if (device->context && device->context->events.count(handle))
            return *handle;
    refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no event", static_cast<void *>(handle));
}

bool pending(const Event &event) { return event.record && !event.record->done; }

// Ends the call if the event is a mark in a capture, which never comes for the host.
void refuse_captured(const Event &event) {
    if (!event.capture)
        return;
    if (event.capture->state == Capture::ACTIVE)
        invalidate(*event.capture, CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture");
    refuse(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture, which has ended or is invalid");
}

// Has a stream that is captured, or from now on is, wait for an event.
void wait_in_capture(Stream &stream, const Event &event) {
    if (!event.capture) {
        if (event.record)
            invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                       "the event was recorded outside of the stream's capture");
        return;
    }
    if (event.capture->state != Capture::ACTIVE)
        refuse_captured(event);
    if (stream.capture && stream.capture != event.capture) {
        event.capture->state = Capture::INVALIDATED;
        invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE, "the event and the stream are of two captures");
    }
    if (&stream == stream.context->legacy.get())
        invalidate(*event.capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy default stream cannot be captured");
    stream.capture = event.capture;
    for (const size_t node : event.captured)
        if (std::find(stream.captured.begin(), stream.captured.end(), node) == stream.captured.end())
            stream.captured.push_back(node);
}

} // namespace

MOCK_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    return call_in_context(__func__, [&](Context &context) {
        output(event);
        if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
            refuse(CUDA_ERROR_INVALID_VALUE, "flags %u are not supported", flags);
        auto made = std::make_unique<Event>(Event{&context, flags, nullptr});
        *event = made.get();
        context.events[*event] = std::move(made);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    return call_in_context(__func__, [&](Context &) {
        Event &event = event_of(handle);
        event.context->events.erase(handle);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
    return call_in_context(__func__, [&](Context &context) {
        Event &event = event_of(handle);
        Stream &recorded = stream_of(context, stream);
        if (event.context != recorded.context)
            refuse(CUDA_ERROR_INVALID_HANDLE, "the event and the stream are of different contexts");
        const bool captured = is_capturing(recorded);
        event.record = captured ? nullptr : enqueue(recorded, [] { return CUDA_SUCCESS; });
        event.capture = recorded.capture;
        event.captured = recorded.captured;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags) {
    return call_in_context(__func__, [&](Context &context) {
        const Event &event = event_of(handle);
        if (flags != 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "flags %u are not supported", flags);
        Stream &waiting = stream_of(context, stream);
        if (is_capturing(waiting) || event.capture) {
            wait_in_capture(waiting, event);
            return CUDA_SUCCESS;
        }
        // An event that was not recorded, or has come already, keeps nothing waiting.
        if (pending(event))
            enqueue(waiting, [] { return CUDA_SUCCESS; }, event.record);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return call_in_context(__func__, [&](Context &) {
        const Event &event = event_of(handle);
        refuse_captured(event);
        refuse_unsafe();
        ++driver().counters.synchronizations;
        finish(event.record);
        return event.context->device->fault;
    });
}

MOCK_EXPORT CUresult cuEventQuery(CUevent handle) {
    return call_in_context(__func__, [&](Context &) {
        const Event &event = event_of(handle);
        refuse_captured(event);
        refuse_unsafe();
        if (!pending(event))
            return CUDA_SUCCESS;
        advance(event.record);
        return CUDA_ERROR_NOT_READY;
    });
}

MOCK_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return call_in_context(__func__, [&](Context &) {
        output(milliseconds);
        const Event &from = event_of(start);
        const Event &to = event_of(end);
        if (from.context != to.context)
            refuse(CUDA_ERROR_INVALID_HANDLE, "the events are of different contexts");
        for (const Event *event : {&from, &to}) {
            refuse_captured(*event);
            if (event->flags & CU_EVENT_DISABLE_TIMING)
                refuse(CUDA_ERROR_INVALID_HANDLE, "an event was made without timing (CU_EVENT_DISABLE_TIMING)");
            if (!event->record)
                refuse(CUDA_ERROR_INVALID_HANDLE, "an event was not recorded");
        }
        if (pending(from) || pending(to))
            return CUDA_ERROR_NOT_READY;
        *milliseconds = std::chrono::duration<float, std::milli>(to.record->finished - from.record->finished).count();
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
