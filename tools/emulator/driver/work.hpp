// Queued work and its order. A stream's work runs only when something waits for it, and then no more than that needs,
// so that a synchronization that a program forgot shows in its results. Any other order that the streams and events
// allow is as legal; `streams=random` takes one at random.
#pragma once

#include "driver.hpp"

namespace mock {

constexpr int LEAST_PRIORITY = 0;
constexpr int GREATEST_PRIORITY = -5;

// The stream that a handle means: 0 and 1 the legacy default stream of this context, 2 the thread's, and any other a
// stream of whatever context. The call ends if its device has faulted.
Stream &stream_of(Context &context, CUstream handle);

// Queues work behind all that the stream, and the order of the legacy default stream, puts before it, and behind
// `after`. When it runs, it gives 0, or a fault, which its device keeps.
std::shared_ptr<Operation> enqueue(Stream &stream, std::function<CUresult()> run,
                                   const std::shared_ptr<Operation> &after = nullptr);

// Runs the work and what comes before it, unless it has run.
void finish(std::shared_ptr<Operation> operation);
// Runs all that the stream, the context or every context was given; for the legacy default stream, what it waits for
// too.
void finish(Stream &stream);
void finish(Context &context);
void finish_everything();

// Runs a piece of work that comes before, or is, `operation`: time passes while a program asks whether it is done.
void advance(const std::shared_ptr<Operation> &operation);

// The last work that has not run of a stream, and of those that it waits for; null: all is done.
std::shared_ptr<Operation> unfinished(const Stream &stream);

} // namespace mock
