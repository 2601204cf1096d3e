// Launches: what is allowed, and blocks spread over threads of the machine.
#include "counters.hpp"
#include "fault.hpp"
#include "worker.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#include <thread>

namespace emu {

namespace {

constexpr uint64_t MOST_BLOCKS_X = 0x7fffffff, MOST_BLOCKS_YZ = 0xffff;
constexpr uint32_t MOST_THREADS_Z = 64;
// Grids up to this size run their blocks in a random order when the schedule is random.
constexpr uint64_t MOST_SHUFFLED = uint64_t{1} << 24;

uint64_t product(Index index) { return uint64_t{index.x} * index.y * index.z; }

uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

// What is wrong with the launch itself.
Failure check(const Launch &launch) {
    char text[256];
    const char *name = launch.kernel->name;
    const auto [gx, gy, gz] = launch.blocks;
    const auto [bx, by, bz] = launch.threads;
    if (gx == 0 || gy == 0 || gz == 0 || gx > MOST_BLOCKS_X || gy > MOST_BLOCKS_YZ || gz > MOST_BLOCKS_YZ) {
        snprintf(text, sizeof(text), "launch of %s: a grid of %u x %u x %u blocks: not 1 to 2147483647, 65535, 65535",
                 name, gx, gy, gz);
        return {INVALID_VALUE, text};
    }
    if (product(launch.threads) == 0 || product(launch.threads) > MAX_THREADS || bz > MOST_THREADS_Z) {
        snprintf(text, sizeof(text), "launch of %s: a block of %u x %u x %u threads: not 1 to 1024, and 64 in z", name,
                 bx, by, bz);
        return {INVALID_VALUE, text};
    }
    if (product(launch.threads) > launch.kernel->max_threads) {
        snprintf(text, sizeof(text), "launch of %s: blocks of %u threads: its __launch_bounds__ allow %u", name,
                 launch.thread_count, launch.kernel->max_threads);
        return {INVALID_VALUE, text};
    }
    if (launch.kernel->cluster == 0 || launch.kernel->cluster > MOST_BLOCKS || gx % launch.kernel->cluster != 0) {
        snprintf(text, sizeof(text), "launch of %s: a grid of %u blocks in x: no multiple of its clusters' %u, 8 at most", name,
                 gx, launch.kernel->cluster);
        return {INVALID_VALUE, text};
    }
    const uint32_t limit =
        launch.config.shared_limit == 0 ? SHARED_LIMIT : std::min(launch.config.shared_limit, SHARED_LIMIT);
    if (launch.shared_bytes > limit) {
        snprintf(text, sizeof(text), "launch of %s: %u bytes of shared memory: at most %u", name, launch.shared_bytes,
                 limit);
        return {INVALID_VALUE, text};
    }
    return {};
}

// The order in which clusters begin.
std::vector<uint32_t> cluster_order(const Launch &launch, uint64_t blocks) {
    std::vector<uint32_t> order;
    if ((launch.config.schedule == EMU_RANDOM || launch.config.schedule == EMU_PCT) && blocks <= MOST_SHUFFLED) {
        order.resize(blocks);
        std::iota(order.begin(), order.end(), 0u);
        for (uint64_t i = blocks - 1; i > 0; --i) {
            std::swap(order[i], order[mix(launch.config.seed ^ mix(i)) % (i + 1)]);
        }
    }
    return order;
}

void add(EmuCounters &sum, const EmuCounters &part) {
    sum.blocks += part.blocks;
    sum.threads += part.threads;
    sum.requested_read += part.requested_read;
    sum.requested_written += part.requested_written;
    sum.requests += part.requests;
    sum.sectors += part.sectors;
    sum.wavefronts += part.wavefronts;
    sum.ideal_wavefronts += part.ideal_wavefronts;
    sum.mma += part.mma;
    sum.exponentials += part.exponentials;
    sum.barriers += part.barriers;
    sum.switches += part.switches;
}

// Runs all blocks. Of several that fail, the first in the order is reported, whatever the number of workers.
Failure run_blocks(const Launch &launch, EmuCounters &counters) {
    const uint32_t of_cluster = launch.kernel->cluster;
    const uint64_t clusters = product(launch.blocks) / of_cluster;
    const std::vector<uint32_t> order = cluster_order(launch, clusters);
    std::atomic<uint64_t> next{0}, first_failed{clusters};
    std::mutex mutex;
    Failure failure;
    const auto work = [&] {
        Cluster cluster{};
        while (cluster.count < of_cluster) {
            Worker *worker = launch.memory->take_worker();
            if (worker == nullptr) {
                break;
            }
            worker->begin_launch(launch);
            cluster.blocks[cluster.count++] = worker;
        }
        if (cluster.count < of_cluster) {
            const std::lock_guard<std::mutex> lock(mutex);
            first_failed = 0;
            failure = {LAUNCH_FAILED, "launch: no memory for the block's threads"};
        }
        for (uint64_t i = next++; i < clusters && i < first_failed; i = next++) {
            const uint64_t number = !order.empty()                             ? order[i]
                                    : launch.config.schedule == EMU_REVERSED ? clusters - 1 - i
                                                                             : i;
            if (!Worker::run(launch, cluster, number * of_cluster)) {
                const std::lock_guard<std::mutex> lock(mutex);
                if (i < first_failed) {
                    first_failed = i;
                    failure = cluster.blocks[0]->failure;
                }
            }
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (uint32_t i = 0; i < cluster.count; ++i) {
            Worker *worker = cluster.blocks[i];
            worker->counters.exponentials = worker->exponentials;
            add(counters, worker->counters);
            launch.memory->give_worker(worker);
        }
    };
    std::vector<std::thread> others;
    const uint64_t workers = std::min<uint64_t>(std::max(launch.config.workers, 1u), clusters);
    for (uint64_t i = 1; i < workers; ++i) {
        others.emplace_back(work);
    }
    work();
    for (std::thread &other : others) {
        other.join();
    }
    return failure;
}

} // namespace

// ---------------------------------------------------------------- blocks

Worker *new_worker() {
    // Of twice the size, a part is aligned; nothing of it is memory before it is used.
    void *mapped = mmap(nullptr, 2 * ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return nullptr;
    }
    const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped);
    const uintptr_t arena = (begin + ARENA_BYTES - 1) / ARENA_BYTES * ARENA_BYTES;
    if (arena > begin) {
        munmap(mapped, arena - begin);
    }
    munmap(reinterpret_cast<void *>(arena + ARENA_BYTES), begin + ARENA_BYTES - arena);
    static_assert(sizeof(Worker) <= ARENA_BYTES / 2);
    if (mprotect(reinterpret_cast<void *>(arena), ARENA_BYTES / 2, PROT_READ | PROT_WRITE) != 0) {
        munmap(reinterpret_cast<void *>(arena), ARENA_BYTES);
        return nullptr;
    }
    return new (reinterpret_cast<void *>(arena)) Worker;
}

void delete_worker(Worker *worker) {
    worker->~Worker();
    munmap(worker, ARENA_BYTES);
}

Worker::Worker() {
    core = &FUNCTIONS;
    shared = shared_memory;
    state = shared_state;
    tags = shared_tags;
    constexpr size_t MOST_MBARRIERS = 256, MANY_LOADS = 1024;
    mbarriers.reserve(MOST_MBARRIERS);
    loads.reserve(MANY_LOADS);
    for (uint32_t i = 0; i < MAX_WARPS; ++i) {
        warps[i].number = i;
    }
    for (uint32_t i = 0; i < MAX_THREADS; ++i) {
        threads[i].number = i;
        fibers[i].thread = &threads[i];
        fibers[i].warp = &warps[i / LANES];
        fibers[i].bit = 1u << i % LANES;
    }
}

void Worker::begin_launch(const Launch &of) {
    launch = &of;
    counters = {};
    exponentials = 0;
    counting = of.config.count != 0;
    preempting = of.config.schedule == EMU_RANDOM || of.config.schedule == EMU_PCT;
    unchecked_shared_bytes = counting ? 0 : of.shared_bytes;
    threads_in_block = of.threads;
    blocks_in_grid = of.blocks;
    warp_count = (of.thread_count + LANES - 1) / LANES;
    // Where no allocation is, nor the null pointer.
    recent_begin = uint64_t{1} << 63;
    recent_bytes = 16;
    main_fiber.stack = sanitizer::machine_stack();
}

bool Worker::run(const Launch &of, Cluster &cluster, uint64_t first) {
    Worker &one = *cluster.blocks[0];
    for (uint32_t i = 0; i < cluster.count; ++i) {
        Worker &block = *cluster.blocks[i];
        block.cluster = &cluster;
        block.rank = i;
        if (!block.begin(of, first + i)) {
            one.failure = block.failure;
            return false;
        }
    }
    sanitizer::release(one.block_begins);
    cluster.running = &one;
    {
        const FaultScope scope(one);
        one.switch_to(one.main_fiber, *one.pick());
    }
    sanitizer::acquire(one.block_ends);
    // What was wrong in a thread comes before what is left undone of it.
    bool failed = false;
    for (uint32_t i = 0; i < cluster.count && !failed; ++i) {
        failed = cluster.blocks[i]->failed;
        one.failure = failed ? cluster.blocks[i]->failure : one.failure;
    }
    for (uint32_t i = 0; i < cluster.count && !failed; ++i) {
        failed = !cluster.blocks[i]->end();
        one.failure = failed ? cluster.blocks[i]->failure : one.failure;
    }
    return !failed;
}

// Makes the block ready.
bool Worker::begin(const Launch &of, uint64_t block_number) {
    const uint64_t row = block_number / of.blocks.x;
    index = {static_cast<uint32_t>(block_number % of.blocks.x), static_cast<uint32_t>(row % of.blocks.y),
             static_cast<uint32_t>(row / of.blocks.y)};
    random_state = mix(mix(of.config.seed) + block_number) | 1;
    failed = false;
    exhausted = 0;
    live_warps = ready_warps = 0;
    for (Barrier &barrier : barriers) {
        barrier.warps = barrier.waiting = barrier.came = 0;
    }
    mbarriers.clear();
    loads.clear();
    for (uint32_t i = 0; i < warp_count; ++i) {
        Warp &warp = warps[i];
        const uint32_t lanes = std::min(LANES, of.thread_count - i * LANES);
        warp.live = lanes == LANES ? ALL_LANES : (1u << lanes) - 1;
        warp.arrived = 0;
        warp.waits_at = NONE;
        warp.first_read = warp.end_read = 0;
        Warpgroup &group = warpgroups[i / 4];
        group.done[i % 4] = group.most = group.registers = 0;
        live_warps |= 1u << i;
        waiting_lanes[i] = 0;
        priorities[i] = static_cast<uint32_t>(random());
        ready_lanes[i] = 0;
        make_ready(warp, warp.live);
    }
    for (uint32_t i = 0; i < of.thread_count; ++i) {
        const uint32_t y = i / of.threads.x;
        threads[i].index = {i % of.threads.x, y % of.threads.y, y / of.threads.y};
        threads[i].tag = i;
        threads[i].budget = ACCESS_BUDGET;
        Fiber &fiber = fibers[i];
        fiber.turn = fiber.meetings = 0;
        fiber.waits_at = NONE;
        fiber.open_group = fiber.open_store_group = 0;
        fiber.copies.clear();
        fiber.stores.clear();
        fiber.open_products = 0;
        fiber.products.clear();
        fiber.fenced.clear();
        fiber.records.clear();
        if (!prepare(fiber)) {
            failure = {LAUNCH_FAILED, "launch: no memory for the block's threads"};
            return false;
        }
    }
    // Whatever a kernel reads before it writes is NaN, in every floating type.
    constexpr unsigned char POISON = 0xff;
    memset(shared + SHARED_BASE, POISON, of.shared_bytes);
    memset(state + SHARED_BASE, 0, of.shared_bytes);
    memset(shared_reads, 0, (SHARED_BASE + of.shared_bytes) / 16 * sizeof(shared_reads[0]));
    current = &main_fiber;
    return true;
}

// All its threads have exited.
bool Worker::end() {
    if (!loads.empty()) {
        const BulkLoad &first = loads.front();
        char text[128];
        snprintf(text, sizeof(text), "%s: the block ends before its mbarrier's phase is complete",
                 operation_name(first.operation));
        record(LAUNCH_FAILED, first.site, text, &threads[first.thread]);
    }
    failed = failed || !warpgroups_agree();
    ++counters.blocks;
    counters.threads += launch->thread_count;
    return !failed;
}

} // namespace emu

extern "C" {

const EmuKernel *emu_find(const void *table, const char *name) {
    const auto *kernels = static_cast<const emu::KernelTable *>(table);
    for (uint32_t list = 0; list < kernels->count; ++list) {
        for (uint32_t i = 0; i < kernels->lists[list]->count; ++i) {
            const emu::Kernel *kernel = &kernels->lists[list]->kernels[i];
            if (strcmp(kernel->name, name) == 0) {
                return reinterpret_cast<const EmuKernel *>(kernel);
            }
        }
    }
    return nullptr;
}

const uint32_t *emu_parameter_bytes(const EmuKernel *kernel) {
    return reinterpret_cast<const emu::Kernel *>(kernel)->parameter_bytes;
}

int emu_launch(EmuMemory *memory, const EmuKernel *kernel, const uint32_t grid[3], const uint32_t block[3],
               uint32_t shared_bytes, void *const *parameters, const EmuConfig *config, EmuCounters *counters,
               char *report, size_t report_bytes) {
    const auto *entry = reinterpret_cast<const emu::Kernel *>(kernel);
    const auto *parameter = static_cast<const unsigned char *>(parameters[0]);
    emu::Launch launch{};
    launch.memory = memory;
    launch.kernel = entry;
    launch.parameter.assign(parameter, parameter + entry->parameter_bytes[0]);
    launch.blocks = {grid[0], grid[1], grid[2]};
    launch.threads = {block[0], block[1], block[2]};
    launch.thread_count = static_cast<uint32_t>(emu::product(launch.threads));
    launch.shared_bytes = shared_bytes;
    launch.config = *config;
    EmuCounters sum{};
    emu::Failure failure = emu::check(launch);
    if (failure.code == 0) {
        launch.spans = memory->spans();
        std::vector<emu::Footprint> footprints;
        if (config->count != 0) {
            for (const emu::Span &span : launch.spans) {
                footprints.emplace_back(span.bytes);
            }
        }
        launch.footprints = &footprints;
        failure = emu::run_blocks(launch, sum);
        for (const emu::Footprint &footprint : footprints) {
            sum.unique_read += footprint.bytes_read();
            sum.unique_written += footprint.bytes_written();
        }
    }
    if (counters != nullptr) {
        *counters = sum;
    }
    if (failure.code != 0 && report != nullptr && report_bytes > 0) {
        snprintf(report, report_bytes, "%s", failure.text.c_str());
    }
    return failure.code;
}
}
