// What a kernel on the emulator sees of the machine: its thread, its block, and the functions of the core. Kernels and
// core are tied by these structs only, not by symbols: a library of kernels runs on any core of the same version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emu {

// A place in a kernel's source.
struct Site {
    const char *file;
    int line;

    // As the default argument of a parameter: where the function is called.
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return Site{file, line};
    }
};

// Three indices or extents, as CUDA's uint3 and dim3.
struct Index {
    uint32_t x, y, z;
};

// A byte address in the block's shared memory.
using Shared = uint32_t;

// Where dynamic shared memory begins: not 0, so that a forgotten base shows.
constexpr Shared SHARED_BASE = 1024;
// Most dynamic shared memory of a block, in bytes.
constexpr uint32_t SHARED_LIMIT = 227 * 1024;
// Set in every address of device memory: no host address has it, so a raw access traps.
constexpr uint64_t DEVICE_BIT = uint64_t{1} << 55;

// What is known of a byte of shared memory: a set of these bits.
enum ByteState : uint8_t {
    WRITTEN = 1,
    // A copy into it has not been waited for.
    COPY_IN = 2,
    // A bulk store reads it, and has not been waited for.
    COPY_OUT = 4,
    // It is part of an mbarrier.
    IN_MBARRIER = 8,
    // A matrix product reads it, and has not been waited for.
    IN_PRODUCT = 16,
};

// What kernels call; the core has the names for reports.
enum class Operation : uint8_t {
    LOAD_SHARED,
    STORE_SHARED,
    LOAD_CONSTANT,
    LOAD_GLOBAL,
    STORE_GLOBAL,
    ATOMIC_ADD_GLOBAL,
    ATOMIC_ADD_SHARED,
    CP_ASYNC,
    LDMATRIX,
    LDMATRIX_TRANSPOSED,
    STMATRIX,
    STMATRIX_TRANSPOSED,
    MMA,
    BARRIER,
    BARRIER_SYNC,
    BARRIER_ARRIVE,
    CLUSTER_BARRIER,
    SYNC_WARP,
    SHUFFLE_XOR,
    SHUFFLE,
    SHUFFLE_UP,
    SHUFFLE_DOWN,
    BALLOT,
    MBARRIER_INIT,
    MBARRIER_ARRIVE,
    MBARRIER_ARRIVE_AT,
    MBARRIER_WAIT,
    BULK_LOAD,
    TENSOR_LOAD,
    BULK_STORE,
    WGMMA,
    WGMMA_FENCE,
    WGMMA_COMMIT,
    WGMMA_WAIT,
    REGISTERS_DECREASE,
    REGISTERS_INCREASE,
};

// A thread of the block that runs.
struct Thread {
    // threadIdx
    Index index;
    // Its number in the block: warp · 32 + lane.
    uint32_t number;
    // What its stores to shared memory leave behind: its number, and above it the count of its proxy fences.
    uint32_t tag;
    // Accesses left until the core looks whether it loops without end.
    int32_t budget;
    uint32_t unused[10];
};
static_assert(sizeof(Thread) == 64);

constexpr uint32_t MAX_THREADS = 1024;
// A thread's tag is its number modulo this, plus this for each of its proxy fences.
constexpr uint32_t TAG_FENCE = MAX_THREADS;
// Accesses between two looks at a thread that does nothing else.
constexpr int32_t ACCESS_BUDGET = 1 << 16;

// Operands of mma_m16n8k16_bf16, and its result in `c`.
struct MmaOperands {
    float c[4];
    uint32_t a[4], b[2];
};

// Operands of wgmma_m64k16_bf16: `fragments` times four results in `d`.
struct WgmmaOperands {
    float *d;
    // Of a in registers.
    const uint32_t *a;
    // Descriptors of a, unless it is in registers, and of b.
    uint64_t left, right;
    uint32_t fragments;
    bool in_registers, left_transposed, transposed, add;
};

// Registers that wgmma_fence is given, or wgmma_wait.
struct Registers {
    const void *at;
    size_t words;
};

// A CUtensorMap as the mock driver and the launches of tests make it: a matrix of 16-bit values in global memory, rows
// `row_bytes` apart, of which tensor copies take boxes; or one in panels of columns, `panel_bytes` apart. Rows of a box that
// `permuted_bytes` says, 128 or 64, have their pieces permuted.
struct TensorMap {
    uint64_t address, columns, rows, row_bytes;
    uint32_t box_columns, box_rows;
    // TENSOR_MAP, so that what is no map is noticed.
    uint64_t mark;
    uint64_t panels, panel_bytes;
    uint32_t box_panels, permuted_bytes;
    // Its dimensions: 3 in panels, else 2, and there is one panel.
    uint64_t rank;
    uint64_t unused[6];
};
static_assert(sizeof(TensorMap) == 128);
constexpr uint64_t TENSOR_MAP = 0x70616d20726f736e;

// A box of a matrix, from this column, row and panel on, and the blocks of the cluster that get it, a bit each.
struct TensorBox {
    const TensorMap *map;
    uint32_t rank;
    int32_t from[3];
    uint32_t blocks;
};

// The core's functions; each reports what is wrong and then does not return.
struct Functions {
    // Host pointer for an access to shared or global memory, checked and counted.
    unsigned char *(*shared)(Thread *, Operation, Shared at, uint32_t bytes, Site);
    unsigned char *(*global)(Thread *, Operation, uint64_t at, uint32_t bytes, Site);
    uint32_t (*atomic_add_global)(Thread *, uint64_t at, uint32_t value, Site);
    uint32_t (*atomic_add_shared)(Thread *, Shared at, uint32_t value, Site);
    void (*out_of_budget)(Thread *, Site);
    void (*count_exponential)(Thread *);

    void (*cp_async)(Thread *, Shared to, uint64_t from, uint32_t bytes, Site);
    void (*cp_async_commit)(Thread *);
    void (*cp_async_wait)(Thread *, uint32_t pending);

    void (*ldmatrix)(Thread *, Operation, uint32_t *to, Shared row, Site);
    void (*stmatrix)(Thread *, Operation, Shared row, const uint32_t *from, Site);
    void (*mma)(Thread *, MmaOperands *, Site);

    // `threads` 0: all of the block.
    void (*barrier)(Thread *, Operation, uint32_t id, uint32_t threads, Site);
    void (*cluster_barrier)(Thread *, Site);
    void (*sync_warp)(Thread *, Site);
    // The value of lane `from`.
    uint32_t (*shuffle)(Thread *, Operation, uint32_t value, uint32_t from, Site);
    uint32_t (*ballot)(Thread *, bool, Site);

    void (*mbarrier_init)(Thread *, Shared at, uint32_t arrivals, Site);
    void (*fence_mbarrier_init)(Thread *);
    void (*mbarrier_arrive)(Thread *, Shared at, uint32_t bytes, Site);
    // In the block of this number in the cluster.
    void (*mbarrier_arrive_at)(Thread *, Shared at, uint32_t block, Site);
    void (*mbarrier_wait)(Thread *, Shared at, uint32_t parity, Site);
    void (*fence_proxy_async)(Thread *);
    void (*bulk_load)(Thread *, Shared to, uint64_t from, uint32_t bytes, Shared mbarrier, Site);
    void (*tensor_load)(Thread *, Shared to, const TensorBox *, Shared mbarrier, Site);
    void (*bulk_store)(Thread *, uint64_t to, Shared from, uint32_t bytes, Site);
    void (*bulk_commit)(Thread *);
    // `written`: waits for the writes too, not only for the reads of shared memory.
    void (*bulk_wait)(Thread *, uint32_t pending, bool written);

    // d and a are where their values are until the product is waited for.
    void (*wgmma)(Thread *, const WgmmaOperands *, Site);
    void (*wgmma_fence)(Thread *, const Registers *, uint32_t count, Site);
    void (*wgmma_commit)(Thread *, Site);
    void (*wgmma_wait)(Thread *, uint32_t pending, const Registers *results, Site);
    void (*set_registers)(Thread *, Operation, uint32_t count, Site);
};

// The block that runs on this thread of the machine.
struct Block {
    const Functions *core;
    // blockIdx, blockDim, gridDim
    Index index, threads_in_block, blocks_in_grid;
    // Its number in its cluster.
    uint32_t rank;
    // Bytes of dynamic shared memory that need no call of the core: all of it, or none while accesses are counted.
    uint32_t unchecked_shared_bytes;
    // Host addresses of shared byte 0, of its state, and of the tags, one for each two bytes.
    unsigned char *shared;
    uint8_t *state;
    uint32_t *tags;
    // The allocation that was accessed last: its device address and bytes (at least 16).
    uint64_t recent_begin, recent_bytes;
    // Exponentials and logarithms of all threads so far.
    uint64_t exponentials;
    Thread threads[MAX_THREADS];
};

// A block and the stacks of its threads lie in one arena, aligned to its size, so that code on a stack finds both from
// its stack pointer. The second half of the arena are the stacks.
constexpr size_t STACK_BYTES = size_t{64} << 10;
constexpr size_t ARENA_BYTES = 2 * MAX_THREADS * STACK_BYTES;

inline __attribute__((always_inline)) uintptr_t stack_pointer() {
#if defined(__x86_64__)
    uintptr_t address;
    asm("movq %%rsp, %0" : "=r"(address));
    return address;
#else
    return reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
}

inline __attribute__((always_inline)) Block &block() {
    return *reinterpret_cast<Block *>(stack_pointer() & ~(ARENA_BYTES - 1));
}

inline __attribute__((always_inline)) Thread &thread() {
    return block().threads[stack_pointer() / STACK_BYTES % MAX_THREADS];
}

} // namespace emu
