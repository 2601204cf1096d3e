//! Which sets warpgroups take in backward, where their matrix instructions are asked for.

use std::cmp::Reverse;

use super::{Heads, Roles};
use crate::device::abi::{
    ATTENTION_SM90_BACKWARD_THREADS, ATTENTION_SM90_HELD_D32, ATTENTION_SM90_HELD_D64, ATTENTION_SM90_ROWS,
    ATTENTION_SM90_SLOT_BARRIER_BYTES, ATTENTION_SM90_SLOTS, ATTENTION_SM90_SUMS_BYTES,
    ATTENTION_SM90_WEIGHERS, AttentionTile,
};
use crate::device::{Limits, Plan};

/// Keys of a block, and queries of a tile.
const ROWS: u32 = ATTENTION_SM90_ROWS;

/// Queries that are weighed together: half of a tile.
const HALF: u32 = ROWS / 2;

/// Keys of a product of weights' gradients with keys.
const STEP: u32 = 16;

/// The blocks of backward that multiply by warpgroups.
#[derive(Clone, Debug)]
pub struct BackwardWarpgroups {
    /// Each block's set. Those with many documents come first.
    pub sets: Vec<AttentionTile>,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
}

impl BackwardWarpgroups {
    /// Parts whole sets into those that warpgroups take and the others.
    ///
    /// Warpgroups take sets among documents, if at least three quarters of the products that they spend on the set are its
    /// own: with less, they have as many accesses to shared memory for each of those as other kernels; and if there is room
    /// for what they put by between two passes.
    pub(super) fn part(
        roles: Roles,
        width: usize,
        sets: Vec<AttentionTile>,
        limits: &Limits,
    ) -> [Vec<AttentionTile>; 2] {
        let is_taken = |set: &AttentionTile| {
            let pairs = u64::from(set.query_rows.unsigned_abs()) * u64::from(set.key_rows.unsigned_abs());
            roles == Roles::Documents
                && fills_two_tiles(set)
                && 4 * 5 * pairs >= 3 * padded_pairs(set)
                && bytes(width, set) <= u64::from(limits.shared_per_block)
        };
        let (taken, others) = sets.into_iter().partition(is_taken);
        [taken, others]
    }

    /// The blocks of these sets, each of more than a tile and a half.
    pub fn new(mut sets: Vec<AttentionTile>, heads: Heads) -> Self {
        debug_assert!(sets.iter().all(fills_two_tiles), "other kernels' sets");
        sets.sort_by_key(|set| Reverse((set.key_rows, set.query_rows)));
        let shared_bytes = sets.iter().map(|set| bytes(heads.width, set)).max().unwrap_or(0);
        BackwardWarpgroups { sets, shared_bytes: u32::try_from(shared_bytes).unwrap_or(u32::MAX) }
    }

    /// The launch for them; `None` where there are none.
    pub fn launch(&self, heads: Heads, dropout: bool) -> Option<Plan> {
        let kernel = match (heads.width, dropout) {
            (32, false) => "attention_backward_wgmma_d32",
            (32, true) => "attention_backward_wgmma_d32_dropout",
            (_, false) => "attention_backward_wgmma_d64",
            (_, true) => "attention_backward_wgmma_d64_dropout",
        };
        (!self.sets.is_empty()).then_some(Plan {
            family: "attention_sm90",
            kernel,
            grid: [self.sets.len() as u32, heads.count as u32, 1],
            block: ATTENTION_SM90_BACKWARD_THREADS,
            shared_bytes: self.shared_bytes,
        })
    }
}

/// Whether two tiles of queries of a set fill all rows of s.
fn fills_two_tiles(set: &AttentionTile) -> bool {
    set.query_rows.unsigned_abs() > ROWS + HALF
}

/// Blocks of keys of a pass.
fn blocks(width: usize) -> u32 {
    ATTENTION_SM90_WEIGHERS * if width == 32 { ATTENTION_SM90_HELD_D32 } else { ATTENTION_SM90_HELD_D64 }
}

/// Bytes of shared memory for a set: s, keys and values of a pass, two tiles of queries with what belongs to them, and,
/// where keys take several passes, the sums of the queries' gradients.
fn bytes(width: usize, set: &AttentionTile) -> u64 {
    let row = 2 * width as u32;
    let scores = ATTENTION_SM90_SLOTS * blocks(width) * ROWS * ROWS * 2;
    let queries = 2 * ROWS * row + ATTENTION_SM90_SUMS_BYTES + ATTENTION_SM90_SLOT_BARRIER_BYTES;
    let fixed = scores + blocks(width) * ROWS * row + ATTENTION_SM90_SLOTS * queries;
    let tiles = set.query_rows.unsigned_abs().div_ceil(ROWS);
    let parked = if set.key_rows.unsigned_abs() > blocks(width) * ROWS { tiles } else { 0 };
    u64::from(fixed) + u64::from(parked) * u64::from(ROWS * 2 * row)
}

/// Pairs of query and key whose products are made for a set, in five products: scores, gradients of weights, of values and
/// of keys, and of queries.
fn padded_pairs(set: &AttentionTile) -> u64 {
    let [queries, keys] = [set.query_rows, set.key_rows].map(|rows| u64::from(rows.unsigned_abs()));
    let up_to = |rows: u64, unit: u32| rows.next_multiple_of(unit.into());
    4 * up_to(queries, HALF) * up_to(keys, ROWS) + up_to(queries, ROWS) * up_to(keys, STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::tiles::whole_sets;

    fn takes(documents: usize, width: usize) -> bool {
        let sets = whole_sets(Roles::Documents, &[0, documents]);
        let [taken, others] = BackwardWarpgroups::part(Roles::Documents, width, sets, &Limits::SM_90);
        assert_eq!(taken.len() + others.len(), 1);
        !taken.is_empty()
    }

    #[test]
    fn warpgroups_take_sets_that_fill_them() {
        let taken: Vec<usize> = (0..=400).filter(|&documents| takes(documents, 32)).collect();
        let gaps = taken.windows(2).filter(|pair| pair[1] > pair[0] + 1).map(|pair| (pair[0], pair[1]));
        assert_eq!(taken[0], 110);
        assert_eq!(gaps.collect::<Vec<_>>(), [(128, 152), (160, 165), (192, 206), (256, 262)]);
        let points = Roles::Attend { points: 100 };
        let sets = whole_sets(points, &[0, 200]);
        assert!(BackwardWarpgroups::part(points, 32, sets, &Limits::SM_90)[0].is_empty());
        // Istella's sizes: 90 of 100 products are useful.
        let sets = whole_sets(Roles::Documents, &[0, 439, 810, 1140, 1422, 1545]);
        let useful: u64 = [439u64, 371, 330, 282, 123].iter().map(|size| 5 * size * size).sum();
        let padded: u64 = sets.iter().map(padded_pairs).sum();
        assert!(useful * 100 >= padded * 90, "{useful} of {padded}");
    }

    #[test]
    fn sums_of_long_sets_have_room() {
        let longest = |width| (0..2000).filter(|&documents| takes(documents, width)).max();
        assert_eq!([32, 64].map(longest), [Some(1024), Some(576)]);
        let of = |documents: usize, width| {
            let sets = whole_sets(Roles::Documents, &[0, 100, 100 + documents]);
            BackwardWarpgroups::new(sets, Heads { count: 8, width }).shared_bytes
        };
        // Without and with a second pass.
        assert_eq!([256, 257].map(|documents| of(documents, 32)), [99_360, 99_360 + 5 * 8192]);
        assert_eq!([128, 129].map(|documents| of(documents, 64)), [82_976, 82_976 + 3 * 16_384]);
    }

    #[test]
    fn long_sets_come_first() {
        let sets = whole_sets(Roles::Documents, &[0, 200, 500, 620]);
        let all = BackwardWarpgroups::new(sets, Heads { count: 8, width: 32 });
        assert_eq!(all.sets.iter().map(|set| set.set).collect::<Vec<_>>(), [1, 0, 2]);
        let launch = all.launch(Heads { count: 8, width: 32 }, true).unwrap();
        assert_eq!((launch.grid, launch.block), ([3, 8, 1], 384));
        launch.check(&Limits::SM_90).unwrap();
    }
}
