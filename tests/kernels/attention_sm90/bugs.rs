//! Bugs that are planted.

use crate::family::{Bug, WRONG_RESULTS, WrongLaunch};

/// Keys go round.
const D32_DROPOUT: &str = "attention_forward_wgmma_d32_dropout";
/// They do too, and in the last pass not all warpgroups have queries.
const D64_DROPOUT: &str = "attention_forward_wgmma_d64_dropout";

/// Of backward: keys come in two passes, and some blocks of them have warps without keys.
const BACKWARD_D32_DROPOUT: &str = "attention_backward_wgmma_d32_dropout";
/// Two passes, in the second of which one of the warpgroups has no keys.
const BACKWARD_D64_DROPOUT: &str = "attention_backward_wgmma_d64_dropout";

/// Of launches of one block.
const NO_BLOCK: &str = "a grid of ";

const UNWRITTEN: &str = "is read before anything is written to it";

pub const IN_SOURCES: [Bug; 30] = [
    Bug {
        what: "registers that are not fenced",
        file: "attention_forward_sm90.cuh",
        right: "            ptx::wgmma_fence(scores[0], softmax.output[0], weights);\n",
        wrong: "",
        kernels: D32_DROPOUT,
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "weights that are not fenced",
        file: "attention_forward_sm90.cuh",
        right: "            ptx::wgmma_fence(softmax.output[0], weights);\n            gather<1>",
        wrong: "            ptx::wgmma_fence(softmax.output[0]);\n            gather<1>",
        kernels: D32_DROPOUT,
        found_by: &["registers of a were written since wgmma_fence had them"],
    },
    Bug {
        what: "results that are not waited for",
        file: "attention_forward_sm90.cuh",
        right: "        ptx::wgmma_wait<0>(softmax.output[0]);\n        if (rises)",
        wrong: "        if (rises)",
        kernels: D32_DROPOUT,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it", "under way"],
    },
    Bug {
        what: "scores that are not waited for",
        file: "attention_forward_sm90.cuh",
        right: "ptx::wgmma_wait<1>(scores[0]);",
        wrong: "ptx::wgmma_wait<2>(scores[0]);",
        kernels: D32_DROPOUT,
        found_by: &["of these results is still under way"],
    },
    Bug {
        what: "keys that products may not see yet",
        file: "attention_ring_sm90.cuh",
        right: "            ptx::fence_proxy_async();\n",
        wrong: "",
        kernels: D32_DROPOUT,
        found_by: &["which has not called fence_proxy_async since"],
    },
    Bug {
        what: "queries that products may not see yet",
        file: "attention_forward_sm90.cuh",
        right: "        ptx::fence_proxy_async();\n",
        wrong: "",
        kernels: D64_DROPOUT,
        found_by: &["which has not called fence_proxy_async since"],
    },
    Bug {
        what: "queries that others still multiply",
        file: "attention_forward_sm90.cuh",
        right: "        // All of the warpgroup are done with those before.\n        ptx::barrier_sync(group(), GROUP);\n",
        wrong: "",
        kernels: D32_DROPOUT,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "pieces where they are not",
        file: "warpgroup_sm90.cuh",
        right: "SWIZZLE = D == 32 ? 2 : 1",
        wrong: "SWIZZLE = D == 32 ? 3 : 2",
        kernels: D64_DROPOUT,
        found_by: &["where its units of permuted pieces are to begin"],
    },
    Bug {
        what: "rows where they are not",
        file: "warpgroup_sm90.cuh",
        right: "EIGHT_ROWS = Tile<D>::bytes(8) >> 4",
        wrong: "EIGHT_ROWS = Tile<D>::bytes(4) >> 4",
        kernels: D64_DROPOUT,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "values that are not transposed",
        file: "attention_forward_sm90.cuh",
        right: "wgmma_m64k16_bf16<true>(softmax.output",
        wrong: "wgmma_m64k16_bf16<false>(softmax.output",
        kernels: D64_DROPOUT,
        found_by: &[WRONG_RESULTS, "is part of an mbarrier"],
    },
    Bug {
        what: "the other phase",
        file: "attention_ring_sm90.cuh",
        right: "ptx::mbarrier_wait(full(), phase);",
        wrong: "ptx::mbarrier_wait(full(), phase ^ 1);",
        kernels: D64_DROPOUT,
        found_by: &[UNWRITTEN, "is read while a cp_async_16 into it is under way", "deadlock"],
    },
    Bug {
        what: "chunks that are replaced while they are read",
        file: "attention_ring_sm90.cuh",
        right: "            if (number >= ring.slots) ptx::mbarrier_wait(ring.empty(), ring.phase ^ 1);\n",
        wrong: "",
        kernels: D32_DROPOUT,
        found_by: &["is overwritten while", "is read while a cp_async_16", "one arrival more", "deadlock"],
    },
    Bug {
        what: "chunks that are given back before they are read",
        file: "attention_forward_sm90.cuh",
        right: "            weigh<false>(left, first);\n            if (!first) before.release();\n",
        wrong: "            if (!first) before.release();\n            weigh<false>(left, first);\n",
        kernels: D32_DROPOUT,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "chunks that a warpgroup without queries keeps",
        file: "attention_forward_sm90.cuh",
        right: "                ring.release();\n",
        wrong: "",
        kernels: D64_DROPOUT,
        found_by: &["deadlock"],
    },
    Bug {
        what: "keys behind the set that count",
        file: "attention_forward_sm90.cuh",
        right: "        mask_columns(scores, left, lane());\n",
        wrong: "",
        kernels: D64_DROPOUT,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "values behind the set that are left alone",
        file: "attention_ring_sm90.cuh",
        right: "                ptx::cp_async_16(ring.values().at(row, piece), from + to_values, inside ? 16 : 0);\n",
        wrong: "                if (inside) ptx::cp_async_16(ring.values().at(row, piece), from + to_values, 16);\n",
        kernels: D64_DROPOUT,
        found_by: &[UNWRITTEN],
    },
    Bug {
        what: "results of an older scale",
        file: "attention_forward_sm90.cuh",
        right: "        if (rises) softmax.rescale(shrink);\n",
        wrong: "        (void)rises;\n",
        kernels: D64_DROPOUT,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a draw for all chunks",
        file: "attention_forward_sm90.cuh",
        right: "tile.first_key + tile.key_rows - left",
        wrong: "tile.first_key",
        kernels: D32_DROPOUT,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "gradients' registers that are not fenced",
        file: "attention_backward_sm90.cuh",
        right: "                ptx::wgmma_fence(d_value[b], d_key[b], operands[u]);\n",
        wrong: "                ptx::wgmma_fence(operands[u]);\n",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "a second unit that is not fenced",
        file: "attention_backward_sm90.cuh",
        right: "                ptx::wgmma_fence(operands[u]);\n",
        wrong: "",
        kernels: BACKWARD_D64_DROPOUT,
        found_by: &["wgmma_fence has not had the registers of a"],
    },
    Bug {
        what: "weights that are not waited for",
        file: "attention_backward_sm90.cuh",
        right: "        wait<1>(weights);\n",
        wrong: "",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &[WRONG_RESULTS, "while a wgmma_m64k16_bf16"],
    },
    Bug {
        what: "gradients that are not waited for",
        file: "attention_backward_sm90.cuh",
        right: "            ptx::wgmma_wait<0>(d_key[b]);\n            ptx::wgmma_wait<0>(d_value[b]);\n",
        wrong: "",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &["under way", "is overwritten while", WRONG_RESULTS],
    },
    Bug {
        what: "s that products may not see yet",
        file: "attention_backward_sm90.cuh",
        right: "            ptx::fence_proxy_async();\n            ptx::sync_warp();\n",
        wrong: "            ptx::sync_warp();\n",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &["which has not called fence_proxy_async since"],
    },
    Bug {
        what: "keys that products may not see yet",
        file: "attention_backward_sm90.cuh",
        right: "        ptx::fence_proxy_async();\n        ptx::barrier();\n",
        wrong: "        ptx::barrier();\n",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &["which has not called fence_proxy_async since"],
    },
    Bug {
        what: "the other phase",
        file: "attention_backward_sm90.cuh",
        right: "ptx::mbarrier_wait(Places<D>::full(slot), phase);",
        wrong: "ptx::mbarrier_wait(Places<D>::full(slot), phase ^ 1);",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &[UNWRITTEN, "is read while a cp_async_16 into it is under way", "deadlock"],
    },
    Bug {
        what: "s that is multiplied before it is there",
        file: "attention_backward_sm90.cuh",
        right: "                ptx::mbarrier_wait(Places<D>::weighed(slot), phase);\n",
        wrong: "",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &[UNWRITTEN, "fence_proxy_async", "is overwritten while", "one arrival more", "deadlock"],
    },
    Bug {
        what: "a tile that is there before the place of its s is free",
        file: "attention_backward_sm90.cuh",
        right: "                gather(tile, slot, steps, pass > 0, pass + 1 == passes);\n                // With it, the place of s is free too.\n                if (more) finish(slot);\n",
        wrong: "                if (more) finish(slot);\n                gather(tile, slot, steps, pass > 0, pass + 1 == passes);\n",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it", "fence_proxy_async", WRONG_RESULTS],
    },
    Bug {
        what: "values that s takes the place of too early",
        file: "attention_backward_sm90.cuh",
        right: "        ptx::barrier_sync(1, WEIGHERS * GROUP);\n",
        wrong: "",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "keys that are replaced too early",
        file: "attention_backward_sm90.cuh",
        right: "        if (first > 0) ptx::barrier();\n",
        wrong: "",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &[WRONG_RESULTS, "is overwritten while"],
    },
    Bug {
        what: "keys behind the set that count",
        file: "attention_backward_sm90.cuh",
        right: "            if (valid < 16) mask_rows<LAST>(weights, valid);\n",
        wrong: "",
        kernels: BACKWARD_D32_DROPOUT,
        found_by: &[WRONG_RESULTS],
    },
];

pub const IN_LAUNCHES: [WrongLaunch; 7] = [
    WrongLaunch::too_little_shared_memory(""),
    WrongLaunch {
        what: "a block too few",
        change: |launch| launch.grid[0] -= 1,
        kernels: "",
        found_by: &[WRONG_RESULTS, NO_BLOCK],
    },
    WrongLaunch::a_block_too_many("", &["of `blocks` of", "of `tiles` of"]),
    WrongLaunch {
        what: "a head too few",
        change: |launch| launch.grid[1] -= 1,
        kernels: "",
        found_by: &[WRONG_RESULTS, NO_BLOCK],
    },
    WrongLaunch {
        what: "a warp too few",
        change: |launch| launch.block[0] -= 32,
        kernels: "",
        found_by: &["needs a warpgroup of four warps", "up to the block's", "deadlock"],
    },
    WrongLaunch {
        what: "more threads than the kernel is for",
        change: |launch| launch.block[0] += 32,
        kernels: "",
        found_by: &["its __launch_bounds__ allow"],
    },
    WrongLaunch {
        what: "a buffer that is too short",
        change: |launch| launch.buffers[1].bytes.truncate(512),
        kernels: "",
        found_by: &["of `kv` of 512 bytes", "at byte -"],
    },
];
