#include "work.hpp"

#include <algorithm>

#include "capture.hpp"

namespace mock {
namespace {

// A queue of the hardware holds no more; the stream runs while a program adds to it.
constexpr size_t QUEUE_LENGTH = 1024;

// Runs the oldest work of a stream, and before it the work of other streams that it comes after.
void step(Stream &stream) {
    const std::shared_ptr<Operation> operation = stream.queue.front();
    for (const auto &earlier : operation->after)
        finish(earlier);
    stream.queue.pop_front();
    Device &device = *stream.context->device;
    // After a fault nothing runs any more.
    if (device.fault == CUDA_SUCCESS)
        device.fault = operation->run();
    operation->done = true;
    operation->finished = std::chrono::steady_clock::now();
    operation->after.clear();
    operation->run = nullptr;
    if (stream.last == operation)
        stream.last = nullptr;
}

// The streams of a context that work is queued in.
std::vector<Stream *> busy_streams(Context &context) {
    std::vector<Stream *> busy;
    if (!context.legacy->queue.empty())
        busy.push_back(context.legacy.get());
    for (const auto &stream : context.streams)
        if (!stream->queue.empty())
            busy.push_back(stream.get());
    return busy;
}

// Streams that the program has let go of are gone when they are empty.
void drop_streams(Context &context) {
    auto &streams = context.streams;
    streams.erase(std::remove_if(streams.begin(), streams.end(),
                                 [](const auto &stream) { return !stream->held && stream->queue.empty(); }),
                  streams.end());
}

void run_at_random(Context &context) {
    while (driver().random() % 2 == 0) {
        const std::vector<Stream *> busy = busy_streams(context);
        if (busy.empty())
            return;
        step(*busy[driver().random() % busy.size()]);
    }
}

} // namespace

Stream &stream_of(Context &context, CUstream handle) {
    const uintptr_t number = reinterpret_cast<uintptr_t>(handle);
    if (number <= 1)
        return *context.legacy;
    if (number == 2) {
        Stream *&stream = context.thread_streams[std::this_thread::get_id()];
        if (!stream) {
            context.streams.push_back(std::make_unique<Stream>(Stream{&context, true, 0, true, {}, nullptr}));
            stream = context.streams.back().get();
        }
        return *stream;
    }
    for (const auto &device : driver().devices)
        if (device->context)
            for (const auto &stream : device->context->streams)
                if (stream.get() == handle && stream->held) {
                    if (device->fault != CUDA_SUCCESS)
                        throw Failure{device->fault};
                    return *stream;
                }
    refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no stream", static_cast<void *>(handle));
}

std::shared_ptr<Operation> enqueue(Stream &stream, std::function<CUresult()> run,
                                   const std::shared_ptr<Operation> &after) {
    refuse_capturing(stream, "work that a graph cannot have");
    Context &context = *stream.context;
    drop_streams(context);
    auto operation = std::make_shared<Operation>();
    operation->stream = &stream;
    operation->run = std::move(run);
    if (after && !after->done)
        operation->after.push_back(after);
    // The legacy default stream and the blocking ones wait for one another.
    if (&stream == context.legacy.get()) {
        for (const auto &other : context.streams)
            if (other->blocking && other->last)
                operation->after.push_back(other->last);
    } else if (stream.blocking && context.legacy->last) {
        operation->after.push_back(context.legacy->last);
    }
    stream.queue.push_back(operation);
    stream.last = operation;
    if (stream.queue.size() > QUEUE_LENGTH)
        step(stream);
    if (driver().configuration.random_streams)
        run_at_random(context);
    return operation;
}

void finish(std::shared_ptr<Operation> operation) {
    while (operation && !operation->done)
        step(*operation->stream);
}

std::shared_ptr<Operation> unfinished(const Stream &stream) {
    if (stream.last || &stream != stream.context->legacy.get())
        return stream.last;
    for (const auto &other : stream.context->streams)
        if (other->blocking && other->last)
            return other->last;
    return nullptr;
}

void finish(Stream &stream) {
    while (const std::shared_ptr<Operation> operation = unfinished(stream))
        finish(operation);
}

void finish(Context &context) {
    for (auto busy = busy_streams(context); !busy.empty(); busy = busy_streams(context))
        step(*busy.front());
    drop_streams(context);
}

void finish_everything() {
    for (const auto &device : driver().devices)
        if (device->context)
            finish(*device->context);
}

void advance(const std::shared_ptr<Operation> &operation) {
    std::shared_ptr<Operation> first = operation;
    for (;;) {
        first = first->stream->queue.front();
        const auto waiting = std::find_if(first->after.begin(), first->after.end(),
                                          [](const auto &earlier) { return !earlier->done; });
        if (waiting == first->after.end())
            break;
        first = *waiting;
    }
    step(*first->stream);
}

} // namespace mock
