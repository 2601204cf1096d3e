// Capture: what a stream is given is noted down, to become a graph, instead of being queued. Rules and codes are those
// of the manual's "Stream capture"; whatever breaks one ends the capture for good.
#pragma once

#include "driver.hpp"
#include "launch.hpp"

namespace mock {

// A piece of work of a graph.
struct GraphNode {
    enum Kind { KERNEL, COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE, MEMSET };

    Kind kind;
    // A kernel's launch as it was captured.
    std::shared_ptr<const Launch> launch;
    // Bytes of a copy or memset, and what does it, each time anew.
    uint64_t bytes = 0;
    std::function<CUresult()> run;
    // The numbers of the nodes that come before it.
    std::vector<size_t> after;
};

enum CaptureMode : int { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };

struct Capture {
    // The stream that it began in, and the thread that began it.
    Stream *origin;
    std::thread::id thread;
    CaptureMode mode;
    enum State { ACTIVE, INVALIDATED, ENDED } state = ACTIVE;
    std::vector<GraphNode> nodes;
};

// Counts a piece of work that was asked for.
void count(const GraphNode &node);

// Notes work down in a stream that is being captured, behind what the stream was given before.
void note(Stream &stream, GraphNode node);

// Whether a stream is being captured; the call ends if its capture is invalid already.
bool is_capturing(const Stream &stream);

// Ends the call with a code and a message, and the capture for good.
[[noreturn]] void invalidate(Capture &capture, CUresult code, const char *why);

// Ends the call if the stream is being captured, or is the legacy default stream and would wait for one that is: `what`
// is no work that a graph can have, or the host would wait for it.
void refuse_capturing(const Stream &stream, const char *what);
// Ends the call if any stream of the context is being captured: the host would wait for all of them.
void refuse_capturing(const Context &context, const char *what);
// Ends the call if a capture keeps this thread from calls that may wait by themselves, as its mode says.
void refuse_unsafe();

} // namespace mock
