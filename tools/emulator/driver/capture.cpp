#include "capture.hpp"

#include <algorithm>

#include "graph.hpp"
#include "work.hpp"

namespace mock {
namespace {

// The captures that have not ended.
std::vector<std::shared_ptr<Capture>> captures() {
    std::vector<std::shared_ptr<Capture>> found;
    for (const auto &device : driver().devices)
        if (device->context)
            for (const auto &stream : device->context->streams)
                if (stream->capture && stream->capture->origin == stream.get())
                    found.push_back(stream->capture);
    return found;
}

// Takes all streams out of a capture, which ends.
void end(Capture &capture) {
    capture.state = Capture::ENDED;
    for (const auto &device : driver().devices)
        if (device->context)
            for (const auto &stream : device->context->streams)
                if (stream->capture.get() == &capture) {
                    stream->captured.clear();
                    stream->capture = nullptr;
                }
}

// Whether all nodes are among `last` or come before one of them.
bool is_joined(const Capture &capture, std::vector<size_t> last) {
    std::vector<bool> reached(capture.nodes.size());
    while (!last.empty()) {
        const size_t node = last.back();
        last.pop_back();
        if (reached[node])
            continue;
        reached[node] = true;
        last.insert(last.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
    }
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

// The capture that work in the legacy default stream would wait for, or null.
std::shared_ptr<Capture> implicit(const Stream &stream) {
    if (&stream == stream.context->legacy.get())
        for (const auto &other : stream.context->streams)
            if (other->blocking && other->capture)
                return other->capture;
    return nullptr;
}

} // namespace

void invalidate(Capture &capture, CUresult code, const char *why) {
    if (capture.state == Capture::ACTIVE)
        capture.state = Capture::INVALIDATED;
    refuse(code, "%s; the capture is invalid", why);
}

bool is_capturing(const Stream &stream) {
    if (stream.capture && stream.capture->state != Capture::ACTIVE)
        refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the stream's capture is invalid by an earlier mistake");
    return stream.capture != nullptr;
}

void count(const GraphNode &node) {
    MockCounters &counters = driver().counters;
    switch (node.kind) {
    case GraphNode::KERNEL:
        ++counters.launches;
        break;
    case GraphNode::COPY_TO_DEVICE:
        counters.bytes_to_device += node.bytes;
        break;
    case GraphNode::COPY_TO_HOST:
        counters.bytes_to_host += node.bytes;
        break;
    case GraphNode::COPY_ON_DEVICE:
        counters.bytes_on_device += node.bytes;
        break;
    case GraphNode::MEMSET:
        counters.bytes_set += node.bytes;
        break;
    }
}

void note(Stream &stream, GraphNode node) {
    node.after = stream.captured;
    stream.captured = {stream.capture->nodes.size()};
    stream.capture->nodes.push_back(std::move(node));
}

void refuse_capturing(const Stream &stream, const char *what) {
    if (is_capturing(stream))
        invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   (std::string(what) + " in a stream that is being captured").c_str());
    if (const std::shared_ptr<Capture> capture = implicit(stream))
        invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                   (std::string(what) + " in the legacy default stream would wait for a blocking stream that is being "
                                        "captured")
                       .c_str());
}

void refuse_capturing(const Context &context, const char *what) {
    for (const auto &stream : context.streams)
        if (stream->capture)
            refuse_capturing(*stream, what);
}

void refuse_unsafe() {
    for (const auto &capture : captures()) {
        const bool own = capture->thread == std::this_thread::get_id() && capture->mode != CAPTURE_RELAXED;
        if (own || capture->mode == CAPTURE_GLOBAL)
            invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                       own ? "the call may wait, and this thread is capturing a stream"
                           : "the call may wait, and another thread is capturing a stream in global mode");
    }
}

} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    return call_in_context(__func__, [&](Context &context) {
        Stream &stream = stream_of(context, handle);
        if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED)
            refuse(CUDA_ERROR_INVALID_VALUE, "mode %d is unknown", mode);
        if (&stream == stream.context->legacy.get())
            refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy default stream cannot be captured");
        if (stream.capture)
            refuse(CUDA_ERROR_ILLEGAL_STATE, "the stream is being captured already");
        stream.capture = std::make_shared<Capture>(
            Capture{&stream, std::this_thread::get_id(), CaptureMode(mode), Capture::ACTIVE, {}});
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    return call_in_context(__func__, [&](Context &context) {
        output(graph) = nullptr;
        Stream &stream = stream_of(context, handle);
        const std::shared_ptr<Capture> capture = stream.capture;
        if (!capture)
            refuse(CUDA_ERROR_ILLEGAL_STATE, "the stream is not being captured");
        if (capture->origin != &stream)
            invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began in another stream");
        if (capture->mode != CAPTURE_RELAXED && capture->thread != std::this_thread::get_id())
            refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread began the capture");
        const bool valid = capture->state == Capture::ACTIVE;
        const bool joined = is_joined(*capture, stream.captured);
        end(*capture);
        if (!valid)
            refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier mistake made the capture invalid");
        if (!joined)
            refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                   "another stream has captured work that this one does not wait for");
        *graph = make_graph(context, std::move(capture->nodes));
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    return call_in_context(__func__, [&](Context &context) {
        const Stream &stream = stream_of(context, handle);
        if (implicit(stream))
            refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "a blocking stream is being captured");
        output(status) = !stream.capture ? 0 : stream.capture->state == Capture::ACTIVE ? 1 : 2;
        return CUDA_SUCCESS;
    });
}
