//! Bugs in what the kernels of warpgroups share: each family is to find them in its own.

use crate::family::{Bug, WRONG_RESULTS};

/// What the emulator says of shared memory that nobody has written.
pub const UNWRITTEN: &str = "is read before anything is written to it";

pub const fn the_other_phase(kernels: &'static str) -> Bug {
    Bug {
        what: "the other phase",
        file: "ring_sm90.cuh",
        right: "ptx::mbarrier_wait(full(), phase);",
        wrong: "ptx::mbarrier_wait(full(), phase ^ 1);",
        kernels,
        found_by: &[UNWRITTEN, "is under way", "deadlock"],
    }
}

pub const fn fewer_bytes_than_come(kernels: &'static str) -> Bug {
    Bug {
        what: "fewer bytes than come",
        file: "ring_sm90.cuh",
        right: "ptx::mbarrier_arrive_expect(full(), BYTES);",
        wrong: "ptx::mbarrier_arrive_expect(full(), BYTES / 2);",
        kernels,
        found_by: &[
            UNWRITTEN,
            "bytes more than it expects",
            "is read while a tensor_load into it is under way",
        ],
    }
}

pub const fn operands_that_are_replaced(kernels: &'static str) -> Bug {
    Bug {
        what: "operands that are replaced while they are read",
        file: "ring_sm90.cuh",
        right: "        ptx::mbarrier_wait(empty(), phase ^ (is_lent ? 0 : 1));\n",
        wrong: "",
        kernels,
        found_by: &["is overwritten while", "one arrival more", "deadlock"],
    }
}

pub const fn operands_that_one_block_alone_gets_back(kernels: &'static str) -> Bug {
    Bug {
        what: "operands that one block alone gets back",
        file: "ring_sm90.cuh",
        right: "if (lane < BLOCKS) ptx::mbarrier",
        wrong: "if (lane < 1) ptx::mbarrier",
        kernels,
        found_by: &["one arrival more", "deadlock"],
    }
}

pub const fn mbarriers_that_copies_do_not_see(kernels: &'static str) -> Bug {
    Bug {
        what: "mbarriers that copies do not see",
        file: "warpgroup_sm90.cuh",
        right: "    ptx::fence_mbarrier_init();\n",
        wrong: "",
        kernels,
        found_by: &["has not called fence_mbarrier_init since"],
    }
}

pub const fn mbarriers_that_the_other_block_has_not_made(kernels: &'static str) -> Bug {
    Bug {
        what: "mbarriers that the other block has not made yet",
        file: "warpgroup_sm90.cuh",
        right: "    ptx::fence_mbarrier_init();\n    ptx::cluster_barrier();\n",
        wrong: "    ptx::fence_mbarrier_init();\n    ptx::barrier();\n",
        kernels,
        found_by: &["no mbarrier has been made of byte"],
    }
}

pub const fn a_block_that_exits_too_early(kernels: &'static str) -> Bug {
    Bug {
        what: "a block that exits while the other one tells it",
        file: "warpgroup_sm90.cuh",
        right: "    // What the other blocks tell this one's mbarriers needs them until they are done.\n    ptx::cluster_barrier();\n",
        wrong: "",
        kernels,
        found_by: &["of the cluster has exited"],
    }
}

pub const fn a_shared_operand_for_one_block(kernels: &'static str) -> Bug {
    Bug {
        what: "the operand that blocks share for one of them alone",
        file: "wide_sm90.cuh",
        right: "ptx::tensor_load(to, map, 0, row, panel, full(), ALL_BLOCKS);",
        wrong: "ptx::tensor_load(to, map, 0, row, panel, full(), 1 << ptx::cluster_rank());",
        kernels,
        found_by: &["deadlock"],
    }
}

pub const fn the_first_blocks_rows_for_both(kernels: &'static str) -> Bug {
    Bug {
        what: "the first block's rows for both",
        file: "wide_sm90.cuh",
        right: "(pair / tiles * BLOCKS + ptx::cluster_rank()) * ROWS;",
        wrong: "pair / tiles * BLOCKS * ROWS;",
        kernels,
        found_by: &[WRONG_RESULTS],
    }
}
