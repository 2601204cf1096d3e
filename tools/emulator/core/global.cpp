// Accesses to device memory, against the allocations that there were when the launch began.
#include "worker.hpp"

#include <algorithm>

namespace emu {

namespace {

// When threads use up their budgets so often and none meets others or exits, they wait for what does not come.
constexpr uint32_t MOST_EXHAUSTED = 1 << 10;

} // namespace

unsigned char *Worker::check_global(Operation operation, uint64_t at, uint32_t bytes, uint32_t alignment, Site site) {
    const auto above = std::upper_bound(launch->spans.begin(), launch->spans.end(), at,
                                        [](uint64_t address, const Span &span) { return address < span.begin; });
    const bool inside = above != launch->spans.begin() && at - std::prev(above)->begin <= std::prev(above)->bytes &&
                        bytes <= std::prev(above)->bytes - (at - std::prev(above)->begin);
    if (!inside) {
        fail(ILLEGAL_ADDRESS, site, "%s of %u bytes at %s", operation_name(operation), bytes,
             launch->memory->describe(at).c_str());
    }
    if (at % alignment != 0) {
        fail(MISALIGNED_ADDRESS, site, "%s at %s: not aligned to %u", operation_name(operation),
             launch->memory->describe(at).c_str(), alignment);
    }
    if (!counting && std::prev(above)->bytes >= 16) {
        recent_begin = std::prev(above)->begin;
        recent_bytes = std::prev(above)->bytes;
    }
    return host_pointer(at);
}

unsigned char *Worker::global_access(Thread &thread, Operation operation, uint64_t at, uint32_t bytes, Site site) {
    unsigned char *host = check_global(operation, at, bytes, bytes, site);
    if (counting) {
        count_access(thread, operation, at, bytes, site);
    }
    return host;
}

uint32_t Worker::add_global(Thread &thread, uint64_t at, uint32_t value, Site site) {
    uint32_t *counter =
        reinterpret_cast<uint32_t *>(global_access(thread, Operation::ATOMIC_ADD_GLOBAL, at, 4, site));
    const uint32_t before = sanitizer::add(counter, value);
    preempt(fiber(thread));
    return before;
}

// Others may have to go on before what this thread looks for is there.
void Worker::out_of_budget(Thread &thread, Site site) {
    Fiber &me = fiber(thread);
    thread.budget = ACCESS_BUDGET;
    if (++exhausted > MOST_EXHAUSTED) {
        fail(LAUNCH_FAILED, site, "endless loop: %u accesses to memory since a thread last met others or exited",
             MOST_EXHAUSTED * static_cast<uint32_t>(ACCESS_BUDGET));
    }
    make_ready(*me.warp, me.bit);
    wait(me);
}

} // namespace emu
