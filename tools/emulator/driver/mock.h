/* What tests ask of the mock driver besides CUDA's own calls. */
#ifndef SETRANK_MOCK_H
#define SETRANK_MOCK_H
#include <stddef.h>
#include <stdint.h>
#include "emulator.h"
#ifdef __cplusplus
extern "C" {
#endif

/** What was done since the process began or mockReset. */
typedef struct MockCounters {
    /** Launches of kernels that were accepted, those in launches of graphs among them, and launches of graphs. */
    uint64_t launches, graph_launches;
    /** Graphs that were instantiated, and those of them that are not destroyed yet. */
    uint64_t graph_instances, live_graph_instances;
    /** Allocations of device memory that succeeded, and those that are not freed yet: how many, and their bytes. */
    uint64_t allocations, live_allocations, live_bytes;
    /** Bytes of copies and memsets that were asked for. */
    uint64_t bytes_to_device, bytes_to_host, bytes_on_device, bytes_set;
    /** Calls that wait for a stream, an event or a context. */
    uint64_t synchronizations;
    /** Pieces of work that were queued and have not run yet. */
    uint64_t pending;
    /** The emulator's counters, added up over the launches that have run; zero unless `count=yes`. */
    EmuCounters emulator;
} MockCounters;

/** What one kernel's launches that have run did. */
typedef struct MockLaunched {
    /** Its name, ended by 0, cut to fit. */
    char kernel[64];
    uint64_t launches;
    /** Added up; zero unless `count=yes`. */
    EmuCounters emulator;
} MockLaunched;

/** Forgets everything, and then reads `words`, written as in SETRANK_MOCK_DEVICE, which is not read until mockReset.
    0; 1 if a word is wrong: mockReport says which, and cuInit fails. */
int mockConfigure(const char *words);
/** Forgets everything: contexts, memory, queued work, errors, counters, the configuration and the kernels. Gives the
    number of allocations that something wrote behind the end of and that were never freed. */
int mockReset(void);
/** Reads the counters. */
void mockCounters(MockCounters *);
/** Reads those of each kernel, by name, as many as fit into `count`; gives how many there are. */
size_t mockLaunched(MockLaunched *, size_t count);
/** Copies what was last written to stderr, "" at first, ended by 0 and cut to fit; gives its full length. */
size_t mockReport(char *text, size_t bytes);
/** While it is not 0, a launch like one that was counted before is not run, and counts as the latest of those did: the
    same kernel with the same sizes and numbers, wherever its pointers point. */
void mockSkipRepeats(int skip);
/** Looks kernels up in another table, the symbol `emu_kernels` of a library for the same emulator; NULL: its own. */
void mockKernels(const void *table);

#ifdef __cplusplus
}
#endif
#endif
