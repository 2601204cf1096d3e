// A block while it runs: its threads as fibers, its warps, barriers, copies and shared memory.
#pragma once

#include "emulator.h"
#include "emulator/kernels.hpp"
#include "emulator/machine.hpp"
#include "memory.hpp"
#include "sanitizers.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace emu {

constexpr uint32_t LANES = 32;
constexpr uint32_t ALL_LANES = ~uint32_t{0};
constexpr uint32_t MAX_WARPS = MAX_THREADS / LANES;
// Those of a block, and behind them the cluster's.
constexpr uint32_t BARRIERS = 16, CLUSTER_BARRIER = BARRIERS;
// Most blocks of a cluster.
constexpr uint32_t MOST_BLOCKS = 8;
constexpr uint32_t NONE = ~uint32_t{0};
// The tag of shared memory that no thread's store wrote last.
constexpr uint32_t NO_TAG = ~uint32_t{0};

// CUresults.
constexpr int INVALID_VALUE = 1;
constexpr int ILLEGAL_ADDRESS = 700;
constexpr int MISALIGNED_ADDRESS = 716;
constexpr int LAUNCH_FAILED = 719;

class Footprint;

// What all blocks of a launch share.
struct Launch {
    EmuMemory *memory;
    const Kernel *kernel;
    std::vector<unsigned char> parameter;
    Index blocks, threads;
    uint32_t thread_count;
    uint32_t shared_bytes;
    EmuConfig config;
    std::vector<Span> spans;
    // Bytes touched, for each of `spans`; empty unless they are counted.
    std::vector<Footprint> *footprints;
};

// What went wrong.
struct Failure {
    int code = 0;
    std::string text;
};

// A copy by cp.async.
struct ThreadCopy {
    Shared to;
    uint32_t bytes;
    const unsigned char *from;
    uint32_t group;
    bool landed;
    Site site;
};

struct BulkLoad {
    Operation operation;
    Shared to;
    uint32_t bytes;
    const unsigned char *from;
    // Of a box of a matrix: bytes of its rows, of these the ones that are inside of the matrix, rows that are, and how far
    // those are apart. What is outside is 0. Bytes of rows whose pieces are permuted, if they are.
    uint32_t row_bytes, inside_bytes, inside_rows;
    uint64_t stride;
    uint32_t permuted_bytes;
    Shared mbarrier;
    bool landed;
    uint32_t thread;
    Site site;
};

struct BulkStore {
    unsigned char *to;
    Shared from;
    uint32_t bytes;
    uint32_t group;
    // Whether shared memory was read, into `data`; whether the thread waited for that; whether `to` was written.
    bool read, released, written;
    Site site;
    std::vector<unsigned char> data;
};

struct MBarrier {
    Shared at;
    // Arrivals that a phase needs, and those that this phase still needs.
    uint32_t arrivals, pending;
    // Bytes that this phase still waits for; below 0 while copies land before they are expected.
    int64_t bytes;
    uint32_t phase;
    uint32_t initialiser;
    bool fenced;
    sanitizer::Meeting meeting;
};

// The inner index of a product of matrices, and most fragments of eight columns of its results.
constexpr uint32_t INNER_VALUES = 16, MOST_FRAGMENTS = 32;

// A lane's part of a wgmma.
struct Product {
    Site site;
    uint32_t group, fragments;
    // Where its registers are: `left` of a, or null.
    float *d;
    const uint32_t *left;
    uint32_t left_values[4];
    float results[4 * MOST_FRAGMENTS];
    // Whether no later one adds to the same registers; whether these have the results already.
    bool newest, landed;
    WgmmaOperands operands;
};

// What a warp's wgmma reads of shared memory.
struct ProductReads {
    uint32_t group;
    Site site;
    WgmmaOperands operands;
};

// Registers as wgmma_fence found them.
struct FencedRegisters {
    const void *at;
    std::vector<uint32_t> values;
};

// What a warp did that the others of its warpgroup have to do too.
struct GroupStep {
    Operation operation;
    Site site;
    WgmmaOperands operands;
    uint32_t value;
};

// Steps that a warp can be ahead of others of its warpgroup, and products that it can have under way.
constexpr uint64_t MOST_AHEAD = 1024, MOST_READS = 64;

struct Warpgroup {
    // How many steps each of its warps has done, and the most of these.
    uint64_t done[4], most;
    // Registers of each thread, or 0 while they are as at the launch.
    uint32_t registers;
    // Step `number` stands at `number` modulo their count. No memory is taken and freed by turns: threads that did so would
    // look to a sanitizer as if they knew of each other.
    GroupStep steps[MOST_AHEAD];
};

struct Barrier {
    // Threads that it needs, or 0 for all of the block, and those that came; the warps that came and that wait.
    uint32_t threads, came;
    uint32_t warps, waiting;
    uint32_t phase;
    Site site;
    sanitizer::Meeting meetings[2];
};

// What the lanes of a warp hand to an operation, and get from it.
union Exchange {
    // Row-major: a [16, 16], b by columns [8, 16], c [16, 8].
    struct {
        alignas(32) uint16_t a[16][16], b[8][16];
        alignas(32) float c[16][8];
    } mma;
    struct {
        alignas(32) uint32_t words[4][LANES];
        Shared rows[LANES];
    } matrices;
    uint32_t words[LANES];
};

struct Warp {
    uint32_t number;
    // Lanes that have not exited, and those of them that have come to the operation below.
    uint32_t live, arrived;
    Operation operation;
    Site site;
    // The operands of a barrier, the phase that it arrived in, and the barrier that the warp waits at or NONE.
    uint32_t barrier, barrier_threads, barrier_phase, waits_at;
    // Operations alternate between the two: a lane can be one ahead of those that read the last result.
    Exchange exchange[2];
    sanitizer::Meeting barrier_meeting, sync_meetings[2];
    // Of the wgmma that lanes have come to; those that are under way are numbers `first_read` to `end_read`.
    WgmmaOperands operands;
    uint64_t first_read, end_read;
    ProductReads reads[MOST_READS];
};

// An access of a lane, while accesses are counted.
struct Record {
    Site site;
    Operation operation;
    uint8_t bytes;
    bool in_shared, in_global;
    Shared shared;
    uint64_t global;
};

struct Fiber {
    void *stack_pointer = nullptr;
    Thread *thread = nullptr;
    Warp *warp = nullptr;
    uint32_t bit = 0;
    // Which exchange its last operation used.
    uint32_t turn = 0;
    // How often it has met others.
    uint32_t meetings = 0;
    // The mbarrier that it waits at, or NONE.
    Shared waits_at = NONE;
    uint32_t waits_parity = 0;
    Site waits_site{};
    uint32_t open_group = 0, open_store_group = 0;
    std::vector<ThreadCopy> copies;
    std::vector<BulkStore> stores;
    uint32_t open_products = 0;
    std::deque<Product> products;
    std::vector<FencedRegisters> fenced;
    std::vector<Record> records;
    sanitizer::Stack stack;
};

class Worker;

// Blocks that run together, and the one whose thread runs.
struct Cluster {
    Worker *blocks[MOST_BLOCKS];
    uint32_t count;
    Worker *running;
};

class Worker : public Block {
  public:
    Worker();

    // Runs the blocks of a cluster, from number `first` on, to their end, or to what is wrong in one of them.
    static bool run(const Launch &launch, Cluster &cluster, uint64_t first);

    // What was wrong, after `run` gave false.
    Failure failure;
    // Of all blocks that it ran for this launch.
    EmuCounters counters{};

    void begin_launch(const Launch &launch);

    // The functions that kernels call (machine.hpp says what they do).
    unsigned char *shared_access(Thread &, Operation, Shared, uint32_t bytes, Site);
    unsigned char *global_access(Thread &, Operation, uint64_t, uint32_t bytes, Site);
    void out_of_budget(Thread &, Site);
    uint32_t add_shared(Thread &, Shared, uint32_t value, Site);
    uint32_t add_global(Thread &, uint64_t, uint32_t value, Site);
    void count_exponential(Thread &) { ++exponentials; }
    void cp_async(Thread &, Shared to, uint64_t from, uint32_t bytes, Site);
    void cp_async_commit(Thread &);
    void cp_async_wait(Thread &, uint32_t pending);
    void ldmatrix(Thread &, Operation, uint32_t *to, Shared row, Site);
    void stmatrix(Thread &, Operation, Shared row, const uint32_t *from, Site);
    void mma(Thread &, MmaOperands *, Site);
    void barrier(Thread &, Operation, uint32_t id, uint32_t threads, Site);
    void cluster_barrier(Thread &, Site);
    void sync_warp(Thread &, Site);
    uint32_t shuffle(Thread &, Operation, uint32_t value, uint32_t from, Site);
    uint32_t ballot(Thread &, bool, Site);
    void mbarrier_init(Thread &, Shared, uint32_t arrivals, Site);
    void fence_proxy_async(Thread &);
    void fence_mbarrier_init(Thread &);
    void mbarrier_arrive(Thread &, Shared, uint32_t bytes, Site);
    void mbarrier_arrive_at(Thread &, Shared, uint32_t block, Site);
    void mbarrier_wait(Thread &, Shared, uint32_t parity, Site);
    void tensor_load(Thread &, Shared to, const TensorBox *, Shared mbarrier, Site);
    void bulk_load(Thread &, Shared to, uint64_t from, uint32_t bytes, Shared mbarrier, Site);
    void bulk_store(Thread &, uint64_t to, Shared from, uint32_t bytes, Site);
    void bulk_commit(Thread &);
    void bulk_wait(Thread &, uint32_t pending, bool written);
    void wgmma(Thread &, const WgmmaOperands *, Site);
    void wgmma_fence(Thread &, const Registers *, uint32_t count, Site);
    void wgmma_commit(Thread &, Site);
    void wgmma_wait(Thread &, uint32_t pending, const Registers *results, Site);
    void set_registers(Thread &, Operation, uint32_t count, Site);

    // A fault of the machine in a fiber: the signal's handler, with this context, returns to a report of it.
    void fault(const void *address, void *context);
    bool in_fiber() const { return current != &main_fiber; }

  private:
    Fiber &fiber(const Thread &thread) { return fibers[thread.number]; }
    // The block whose thread, or whose machine's, a fiber is.
    static Worker &owner(Fiber &fiber) {
        return *reinterpret_cast<Worker *>(reinterpret_cast<uintptr_t>(&fiber) & ~(ARENA_BYTES - 1));
    }
    // Called on a fiber: reports and gives the block up.
    [[noreturn]] void fail(int code, Site site, const char *format, ...) __attribute__((format(printf, 4, 5)));

    // ---- launch.cpp
    bool begin(const Launch &launch, uint64_t block_number);
    bool end();

    // ---- schedule.cpp
    // The block of the cluster whose thread goes on.
    Worker &pick_block();
    Fiber *pick_own();
    uint64_t random();
    uint32_t random_bit(uint32_t bits);
    void make_ready(Warp &warp, uint32_t lanes);
    Fiber *pick();
    void idle();
    void switch_to(Fiber &from, Fiber &to, bool abandoned = false);
    void wait(Fiber &me);
    // Lets others go first, in the schedules that look for trouble.
    void preempt(Fiber &me);
    // Never comes back.
    [[noreturn]] void leave(Fiber &me);
    static void fiber_main();
    void thread_exit(Fiber &me);
    // False if there is no memory for the stack.
    bool prepare(Fiber &fiber);
    unsigned char *stack_of(uint32_t thread) {
        return reinterpret_cast<unsigned char *>(this) + ARENA_BYTES / 2 + thread * STACK_BYTES;
    }

    // ---- warp.cpp
    // Reports a thread that meets others without end.
    void count_meeting(Fiber &me, Site site);
    // Whether `me` is the last lane to come to an operation of the whole warp.
    bool meet(Fiber &me, Operation operation, Site site);
    // The last lane lets the others go on; the others wait for it.
    void finish(Fiber &me, bool last);
    void diverged(const Warp &warp, Operation operation, Site site);

    // ---- barrier.cpp
    void come_to(Thread &, Operation operation, uint32_t id, uint32_t threads, Site site);
    void warp_arrives(Warp &warp, Fiber *self);
    // All of the block have come.
    void barrier_fills(Barrier &barrier, const Fiber *self);
    void barrier_completes(Barrier &barrier, const Fiber *self);
    sanitizer::Meeting &meeting_at(uint32_t id, uint32_t phase);
    void warp_exits(Warp &warp);

    // ---- shared.cpp
    // Reports an access outside of shared memory, or misaligned.
    void check_range(Operation operation, Shared at, uint32_t bytes, uint32_t alignment, Site site);
    // Reports bytes that must not be read, or written, now.
    void check_load(Operation operation, Shared at, uint32_t bytes, Site site);
    void check_store(Operation operation, Shared at, uint32_t bytes, Site site);
    // Reports what threads wrote and did not order before the asynchronous proxy.
    void check_fenced(Operation operation, Shared at, uint32_t bytes, Site site);
    void set_state(Shared at, uint32_t bytes, uint8_t state);
    void set_written(Shared at, uint32_t bytes, uint32_t tag);
    // Where the copy to, or from, these bytes was issued.
    std::string describe_copy(Shared at, bool into);
    std::string describe_product(Shared at);

    // ---- global.cpp
    unsigned char *check_global(Operation operation, uint64_t at, uint32_t bytes, uint32_t alignment, Site site);

    // ---- copies.cpp
    void land(const ThreadCopy &copy);
    void land_sometimes(Fiber &me);
    void begin_load(const BulkLoad &load);
    void land(BulkLoad &load);
    bool land_one_load();
    void read(BulkStore &store);
    void write(BulkStore &store);
    void release(BulkStore &store);
    void end_copies(Fiber &me);

    // ---- wgmma.cpp
    void warpgroup_does(Warp &warp, const GroupStep &step);
    bool warpgroups_agree();
    void check_registers(Fiber &me, const void *at, size_t bytes, const char *what, Site site);
    void check_untouched(const Product &product, Site site);
    void read_operand(uint64_t descriptor, uint32_t outer, bool transposed, uint16_t (*to)[INNER_VALUES], Site site);
    void tell_sanitizer(const WgmmaOperands &operands, uint32_t lane);
    void multiply_warp(Warp &warp, const WgmmaOperands &operands, Site site);
    void end_products(Fiber &me);

    // ---- cluster.cpp
    // The block of this number in the cluster, which has to be there still.
    Worker &block_of_cluster(Operation operation, uint32_t number, Site site);

    // ---- mbarrier.cpp
    void arrive(Operation operation, Shared at, uint32_t bytes, Site site);
    MBarrier *find_mbarrier(Shared at);
    MBarrier &need_mbarrier(Operation operation, Shared at, Site site);
    void settle(MBarrier &mbarrier, Operation operation, Site site);

    // ---- counters.cpp
    void count_access(const Thread &, Operation, Shared at, uint32_t bytes, Site);
    void count_access(const Thread &, Operation, uint64_t at, uint32_t bytes, Site);
    void count_copy(const Thread &, Shared to, uint64_t from, uint32_t bytes, Site);
    void count_global_bytes(Operation operation, uint64_t at, uint32_t bytes);
    void count_sectors(Operation operation, uint64_t sectors);
    void count_bulk(Operation operation, uint64_t global, uint32_t bytes);
    void count_bulk_shared(uint32_t bytes);
    void count_rows(const Shared (&rows)[LANES]);
    uint32_t count_unit(const Shared (&rows)[LANES]) const;
    void count_warp(Warp &warp);
    void count_divergent(const Fiber *lanes, size_t lane_count);
    void count_request(const std::array<const Record *, LANES> &lanes);

    // ---- fault.cpp
    [[noreturn]] static void give_up(Worker *worker);

    // ---- report.cpp
    void record(int code, Site site, const char *text, const Thread *thread);
    std::string describe_threads(const Thread *except);

    const Launch *launch = nullptr;
    Cluster *cluster = nullptr;
    bool counting = false;
    bool preempting = false;
    bool failed = false;
    const char *fault_text = nullptr;
    // How often threads used up their budgets since one of them met others, or exited.
    uint32_t exhausted = 0;
    uint64_t random_state = 1;
    uint32_t warp_count = 0;

    Fiber *current = nullptr;
    uint32_t live_warps = 0, ready_warps = 0;
    uint32_t ready_lanes[MAX_WARPS] = {};
    // Lanes that wait at mbarriers.
    uint32_t waiting_lanes[MAX_WARPS] = {};
    uint32_t priorities[MAX_WARPS] = {};
    Barrier barriers[BARRIERS + 1] = {};
    std::vector<MBarrier> mbarriers;
    std::vector<BulkLoad> loads;
    Warpgroup warpgroups[MAX_WARPS / 4];
    // Wavefronts of the wgmma that is being read for.
    uint32_t unit_wavefronts = 0;
    sanitizer::Meeting block_begins, block_ends;

    Fiber main_fiber;
    Fiber fibers[MAX_THREADS];
    Warp warps[MAX_WARPS] = {};

    // Where a thread goes on after a fault.
    alignas(64) unsigned char fault_stack[64 << 10];
    alignas(64) unsigned char shared_memory[SHARED_BASE + SHARED_LIMIT];
    alignas(64) uint8_t shared_state[SHARED_BASE + SHARED_LIMIT];
    alignas(64) uint32_t shared_tags[(SHARED_BASE + SHARED_LIMIT) / 2];
    // Of each 16 bytes, by how many warps' wgmmas they are being read.
    uint32_t shared_reads[(SHARED_BASE + SHARED_LIMIT) / 16];
};

Worker *new_worker();
void delete_worker(Worker *worker);

// The functions of the core, for `Block::core`.
extern const Functions FUNCTIONS;

bool same_place(Site a, Site b);
const char *operation_name(Operation operation);
// The last two parts of a path.
const char *short_file(const char *file);

} // namespace emu
