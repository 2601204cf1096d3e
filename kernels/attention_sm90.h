/* Attention by matrix instructions of warpgroups (family `attention_sm90`): its constants. Its parameters and tables are those
   of attention.h; a block has one set, or in forward one range of a set's queries. */
#ifndef SETRANK_ATTENTION_SM90_H
#define SETRANK_ATTENTION_SM90_H
#include <stdint.h>

enum {
    /** Keys of a chunk, and queries of a warpgroup. */
    ATTENTION_SM90_ROWS = 64,
    /** Keys of a step: the last chunk has as many steps as it needs. */
    ATTENTION_SM90_STEP = 16,
    /** Bytes of a chunk's mbarriers. */
    ATTENTION_SM90_BARRIER_BYTES = 16,
    /** Warpgroups of a block of forward that attend; one more loads keys and values. Of heads 32 wide, and 64 wide. */
    ATTENTION_SM90_CONSUMERS_D32 = 2,
    ATTENTION_SM90_CONSUMERS_D64 = 3,
    /** Threads of a block. */
    ATTENTION_SM90_THREADS_D32 = 384,
    ATTENTION_SM90_THREADS_D64 = 512,
    /** Blocks that a multiprocessor has registers for at once. */
    ATTENTION_SM90_BLOCKS_D32 = 2,
    ATTENTION_SM90_BLOCKS_D64 = 1,
    /** Registers of a thread that loads, and of those that attend. A thread begins with 80 where there are 768 on a
     *  multiprocessor, and with 128 where there are 512. */
    ATTENTION_SM90_REGISTERS = 24,
    ATTENTION_SM90_REGISTERS_D32 = 104,
    ATTENTION_SM90_REGISTERS_D64 = 160,
    /** Warpgroups of a block of backward that weigh; one more loads queries and sums their gradients. */
    ATTENTION_SM90_WEIGHERS = 2,
    /** Blocks of 64 keys that each of them holds at a time: of heads 32 wide, and 64 wide. */
    ATTENTION_SM90_HELD_D32 = 2,
    ATTENTION_SM90_HELD_D64 = 1,
    /** Tiles of 64 queries in a block's shared memory: one is weighed, the other on its way. */
    ATTENTION_SM90_SLOTS = 2,
    /** Bytes of the log-sum-exps and δ of a tile of queries, and of its mbarriers. */
    ATTENTION_SM90_SUMS_BYTES = 512,
    ATTENTION_SM90_SLOT_BARRIER_BYTES = 16,
    /** Threads of a block of backward, and blocks that a multiprocessor has registers for: a thread begins with 168. */
    ATTENTION_SM90_BACKWARD_THREADS = 384,
    ATTENTION_SM90_BACKWARD_BLOCKS = 1,
    /** Registers of a thread that loads, and of those that weigh. */
    ATTENTION_SM90_FEEDER_REGISTERS = 72,
    ATTENTION_SM90_WEIGHER_REGISTERS = 216,
};

#endif
