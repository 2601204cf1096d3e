/* The emulator's C interface, for Rust and for the mock driver. Nothing here is global: memory, kernels and
   configuration are the caller's, and launches may run at the same time. */
#ifndef SETRANK_EMULATOR_H
#define SETRANK_EMULATOR_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/** Which of the threads that can go on goes on. */
typedef enum EmuSchedule {
    EMU_IN_ORDER = 0,
    EMU_REVERSED = 1,
    EMU_RANDOM = 2,
    /** Random priorities of warps that change at random points (PCT). */
    EMU_PCT = 3,
} EmuSchedule;

/** When asynchronous copies land. */
typedef enum EmuCopies {
    EMU_AT_ISSUE = 0,
    /** As late as is legal. */
    EMU_AT_WAIT = 1,
    EMU_AT_RANDOM = 2,
} EmuCopies;

/** How a matrix instruction adds its products to what was there. */
typedef enum EmuSums {
    /** One after the other, each sum to the nearest f32. */
    EMU_NEAREST = 0,
    /** Eight at a time, cut one bit behind those of an f32 as large as the largest, their sum cut to f32: as an A100. */
    EMU_AMPERE = 1,
    /** All 16 at a time, cut two bits behind: as an H100. */
    EMU_HOPPER = 2,
} EmuSums;

/** How a launch is run. */
typedef struct EmuConfig {
    uint64_t seed;
    EmuSchedule schedule;
    EmuCopies copies;
    EmuSums sums;
    /** Threads of the machine that blocks are spread over, at least 1. The result does not depend on it. */
    uint32_t workers;
    /** Whether the counters below are kept beyond those that cost nothing. */
    uint32_t count;
    /** Bytes of shared memory that a block may have on this card (dynamic, opted in); 0: 227 KiB. */
    uint32_t shared_limit;
} EmuConfig;

/** What a launch did; DESIGN-defined proxies of speed, the same whatever the schedule. */
typedef struct EmuCounters {
    uint64_t blocks, threads;
    /** What warps ask of global memory: bytes of the sectors that each request touches. */
    uint64_t requested_read, requested_written;
    /** Distinct bytes of global memory touched. */
    uint64_t unique_read, unique_written;
    /** Requests of warps to global memory, and the 32-byte sectors that they touch. */
    uint64_t requests, sectors;
    /** Cycles of shared memory, and how many there would be without bank conflicts: Σ ⌈distinct bytes / 128⌉. */
    uint64_t wavefronts, ideal_wavefronts;
    /** Matrix products of a warp (m16n8k16 counts 1), exponentials and logarithms of a lane, barriers of a block. */
    uint64_t mma, exponentials, barriers;
    /** Fiber switches: the emulator's own cost. */
    uint64_t switches;
} EmuCounters;

/** Device memory. Addresses are no host pointers: a host access to one traps. */
typedef struct EmuMemory EmuMemory;

/** `limit` bytes in all. */
EmuMemory *emu_memory_new(uint64_t limit);
/** Frees everything; 0, or the number of allocations whose surroundings were overwritten. */
int emu_memory_delete(EmuMemory *);
/** An address aligned to 256 bytes, poisoned, an unmapped page right behind its last 256-byte unit and the bytes
    between guarded; 0 when the limit is reached. */
uint64_t emu_alloc(EmuMemory *, uint64_t bytes);
/** 0; 1: not the address of an allocation; 2: the bytes behind it were overwritten. */
int emu_free(EmuMemory *, uint64_t address);
/** Host pointer to `bytes` bytes at a device address, or NULL if they are not inside of one allocation. */
void *emu_host(EmuMemory *, uint64_t address, uint64_t bytes);
/** What reports call an allocation. */
void emu_name(EmuMemory *, uint64_t address, const char *name);
/** Bytes allocated. */
uint64_t emu_allocated(EmuMemory *);

/** A kernel compiled for the emulator. */
typedef struct EmuKernel EmuKernel;
/** The kernel of this name in `table`, the symbol `emu_kernels` of a library of kernels, or NULL. */
const EmuKernel *emu_find(const void *table, const char *name);
/** Bytes of the kernel's parameters, in order, ended by 0. */
const uint32_t *emu_parameter_bytes(const EmuKernel *);

/** Runs a launch to its end. 0, or a CUresult with a text in `report`: what, where (file:line, block, thread), and what
    the other threads do. 700: illegal address, 716: misaligned, 719: anything else that a kernel does wrong; 1: no card
    allows such a launch, or the kernel's launch bounds do not. */
int emu_launch(EmuMemory *, const EmuKernel *, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
               void *const *parameters, const EmuConfig *, EmuCounters *counters, char *report, size_t report_bytes);

#ifdef __cplusplus
}
#endif
#endif
