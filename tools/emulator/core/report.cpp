// What a report says.
#include "worker.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>

namespace emu {

namespace {

constexpr const char *NAMES[] = {
    "load_shared",     "store_shared",      "load_constant",
    "load_global",     "store_global",      "atomic_add_global",
    "atomic_add_shared", "cp_async_16",     "ldmatrix_x4",
    "ldmatrix_x4_transposed", "stmatrix_x4", "stmatrix_x4_transposed",
    "mma_m16n8k16_bf16",
    "barrier",         "barrier_sync",      "barrier_arrive",
    "cluster_barrier",
    "sync_warp",       "shuffle_xor",       "shuffle",
    "shuffle_up",      "shuffle_down",      "ballot",
    "mbarrier_init",   "mbarrier_arrive",   "mbarrier_arrive_at",
    "mbarrier_wait",   "bulk_load",         "tensor_load",
    "bulk_store",      "wgmma_m64k16_bf16",
    "wgmma_fence",     "wgmma_commit",      "wgmma_wait",
    "registers_decrease", "registers_increase",
};
static_assert(sizeof(NAMES) / sizeof(NAMES[0]) == static_cast<size_t>(Operation::REGISTERS_INCREASE) + 1);

// Groups of threads that a report lists at most.
constexpr size_t MOST_GROUPS = 12;

void append(std::string &text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void append(std::string &text, const char *format, ...) {
    char part[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part, sizeof(part), format, arguments);
    va_end(arguments);
    text += part;
}

} // namespace

const char *operation_name(Operation operation) { return NAMES[static_cast<size_t>(operation)]; }

const char *short_file(const char *file) {
    const char *last = strrchr(file, '/');
    while (last != nullptr && last > file) {
        --last;
        if (*last == '/') {
            return last + 1;
        }
    }
    return file;
}

void Worker::fail(int code, Site site, const char *format, ...) {
    char text[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    // What is wrong may be in another block of the cluster than the thread.
    Worker &at = *cluster->running;
    at.record(code, site, text, at.current->thread);
    at.leave(*at.current);
}

void Worker::record(int code, Site site, const char *text, const Thread *thread) {
    failed = true;
    failure.code = code;
    failure.text.clear();
    append(failure.text, "%s:%d: %s\n  in kernel %s, block (%u, %u, %u)", short_file(site.file), site.line, text,
           launch->kernel->name, index.x, index.y, index.z);
    if (thread != nullptr) {
        append(failure.text, ", thread %u (warp %u, lane %u)", thread->number, thread->number / LANES,
               thread->number % LANES);
    }
    failure.text += describe_threads(thread);
}

// Where the threads are, those at the same place together.
std::string Worker::describe_threads(const Thread *except) {
    struct Group {
        std::string place, threads;
        uint32_t last;
        bool range;
    };
    std::vector<Group> groups;
    std::map<std::string, size_t> numbers;
    for (uint32_t i = 0; i < launch->thread_count; ++i) {
        const Fiber &fiber = fibers[i];
        const Warp &warp = *fiber.warp;
        std::string place;
        if (fiber.thread == except) {
            continue;
        }
        if ((warp.live & fiber.bit) == 0) {
            place = "exited";
        } else if ((warp.arrived & fiber.bit) != 0) {
            append(place, "at %s (%s:%d), where not all lanes of their warp have come", operation_name(warp.operation),
                   short_file(warp.site.file), warp.site.line);
        } else if (warp.waits_at != NONE) {
            const Barrier &barrier = barriers[warp.waits_at];
            const uint32_t warps_needed = static_cast<uint32_t>(__builtin_popcount(live_warps | barrier.warps));
            append(place, "at %s (%s:%d), barrier %u, where %u of %u threads have come", operation_name(warp.operation),
                   short_file(warp.site.file), warp.site.line, warp.waits_at, barrier.came,
                   barrier.threads != 0 ? barrier.threads : warps_needed * LANES);
        } else if (fiber.waits_at != NONE) {
            const MBarrier &mbarrier = *find_mbarrier(fiber.waits_at);
            append(place,
                   "at mbarrier_wait (%s:%d) for phase %u of the mbarrier at byte %u, which misses %u arrivals and "
                   "%lld bytes",
                   short_file(fiber.waits_site.file), fiber.waits_site.line, mbarrier.phase, mbarrier.at - SHARED_BASE,
                   mbarrier.pending, static_cast<long long>(mbarrier.bytes));
        } else {
            place = "able to go on";
        }
        const auto [known, added] = numbers.emplace(place, groups.size());
        if (added) {
            groups.push_back({place, std::to_string(i), i, false});
            continue;
        }
        Group &group = groups[known->second];
        if (group.last + 1 == i) {
            group.range = true;
        } else {
            append(group.threads, "%s%u", group.range ? ("-" + std::to_string(group.last) + ", ").c_str() : ", ", i);
            group.range = false;
        }
        group.last = i;
    }
    std::string text;
    for (size_t i = 0; i < groups.size() && i < MOST_GROUPS; ++i) {
        Group &group = groups[i];
        if (group.range) {
            append(group.threads, "-%u", group.last);
        }
        constexpr size_t MOST_LENGTH = 120;
        if (group.threads.size() > MOST_LENGTH) {
            group.threads.resize(MOST_LENGTH);
            group.threads += "…";
        }
        append(text, "\n  threads %s: %s", group.threads.c_str(), group.place.c_str());
    }
    if (groups.size() > MOST_GROUPS) {
        append(text, "\n  and %zu groups more", groups.size() - MOST_GROUPS);
    }
    return text;
}

} // namespace emu
