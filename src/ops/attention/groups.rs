//! Which sets stay on the chip, and how many warps of a block share one.

use std::cmp::Reverse;

use crate::device::abi::{AttentionBlock, AttentionTile};

/// Rows of a matrix instruction's tile, and columns of the next.
pub(super) const TILE_ROWS: u32 = 16;

/// Tiles that rows fill.
pub(super) fn tiles(rows: i32) -> u32 {
    rows.unsigned_abs().div_ceil(TILE_ROWS)
}

/// What a kernel takes for a head of a set that stays on the chip.
///
/// A set is *resident* where there is a number of warps, at most a block's, that suffices for its queries, and whose share
/// of the block's shared memory suffices for its bytes; else it is *streamed*. Where a warp takes three tiles of queries,
/// no set of more than 384 is resident; a kernel that keeps 264 bytes for each query with its key needs a card that gives
/// a block 99 KB or more for that many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Residence {
    /// Tiles of 16 queries that a warp takes at most.
    pub query_tiles: u32,
    /// Bytes of shared memory of a tile of 16 queries.
    pub query_tile_bytes: u32,
    /// Bytes of a tile of 16 keys.
    pub key_tile_bytes: u32,
    /// Bytes of a warp besides.
    pub warp_bytes: u32,
}

/// The warps and the bytes of shared memory of a head of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub warps: u32,
    pub bytes: u32,
}

impl Residence {
    /// The fewest warps of a block of so many that do for the set on a card with `shared_bytes` for a block; `None` where
    /// it is streamed.
    pub fn group(&self, set: &AttentionTile, block_warps: u32, shared_bytes: u32) -> Option<Group> {
        let (queries, keys) = (tiles(set.query_rows), tiles(set.key_rows));
        let bytes = u64::from(queries) * u64::from(self.query_tile_bytes)
            + u64::from(keys) * u64::from(self.key_tile_bytes);
        (0..=block_warps.ilog2()).map(|power| 1 << power).find_map(|warps: u32| {
            let bytes = bytes + u64::from(warps * self.warp_bytes);
            let groups = block_warps / warps;
            (queries <= warps * self.query_tiles && bytes * u64::from(groups) <= u64::from(shared_bytes))
                .then_some(Group { warps, bytes: bytes as u32 })
        })
    }
}

/// Sets that are a group's each, in blocks of like size, and those that are streamed.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    /// What each block of a head does: long sets first, which take longest.
    pub blocks: Vec<AttentionBlock>,
    /// The sets of the blocks, each block's one behind the other: parts of sets first, which are to be combined, then whole ones.
    pub sets: Vec<AttentionTile>,
    /// Sets for which the chip is too small.
    pub streamed: Vec<AttentionTile>,
}

impl Groups {
    /// Of parts of sets and whole sets, in blocks of so many warps; `group` is `None` where a set is streamed, as no part is. Of
    /// sets without keys there is nothing to do.
    pub fn new(
        parts: &[AttentionTile],
        mut sets: Vec<AttentionTile>,
        block_warps: u32,
        group: impl Fn(&AttentionTile) -> Option<Group>,
    ) -> Self {
        sets.retain(|set| set.key_rows > 0);
        sets.sort_by_key(|set| Reverse(i64::from(set.query_rows) * i64::from(set.key_rows)));
        let mut all = Groups::default();
        for set in parts.iter().copied().chain(sets) {
            let Some(Group { warps, bytes }) = group(&set) else {
                all.streamed.push(set);
                continue;
            };
            let fits = |block: &AttentionBlock| {
                block.warps == warps as i32 && (block.sets + 1) * block.warps <= block_warps as i32
            };
            match all.blocks.last_mut().filter(|block| fits(block)) {
                Some(block) => {
                    block.sets += 1;
                    block.group_bytes = block.group_bytes.max(bytes as i32);
                }
                None => all.blocks.push(AttentionBlock {
                    first_set: all.sets.len() as i32,
                    sets: 1,
                    warps: warps as i32,
                    group_bytes: bytes as i32,
                }),
            }
            all.sets.push(set);
        }
        all
    }

    /// The most bytes of shared memory that the groups of a block share.
    pub fn shared_bytes(&self) -> u32 {
        let of = |block: &AttentionBlock| block.sets.unsigned_abs() * block.group_bytes.unsigned_abs();
        self.blocks.iter().map(of).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;

    const RESIDENCE: Residence =
        Residence { query_tiles: 3, query_tile_bytes: 2176, key_tile_bytes: 2048, warp_bytes: 4608 };

    fn set(number: i32, query_rows: i32, key_rows: i32) -> AttentionTile {
        AttentionTile {
            query_begin: 0,
            query_rows,
            output_begin: 0,
            first_query: 0,
            key_begin: 0,
            key_rows,
            first_key: 0,
            set: number,
        }
    }

    fn groups(sizes: &[(i32, i32)], limits: &Limits) -> Groups {
        let sets = sizes.iter().zip(0..).map(|(&(queries, keys), number)| set(number, queries, keys));
        Groups::new(&[], sets.collect(), 8, |set| RESIDENCE.group(set, 8, limits.shared_per_block))
    }

    /// Warps of a set of so many queries and keys; 0 where it is streamed.
    fn warps(queries: i32, keys: i32, limits: &Limits) -> u32 {
        RESIDENCE.group(&set(0, queries, keys), 8, limits.shared_per_block).map_or(0, |group| group.warps)
    }

    #[test]
    fn as_many_warps_as_queries_and_memory_need() {
        let large = &Limits::SM_90;
        for (rows, expected) in
            [(1, 1), (48, 1), (49, 2), (96, 2), (97, 4), (192, 4), (193, 8), (384, 8), (385, 0)]
        {
            assert_eq!(warps(rows, rows, large), expected, "{rows} rows");
        }
        // 8 · (3 · 4224 + 4608) bytes for 48 rows are more than 99 KB, and 4 · (3 · 4224 + 2 · 4608) less.
        let small = &Limits::SM_89;
        assert_eq!([32, 33, 48].map(|rows| warps(rows, rows, small)), [2, 2, 2]);
        assert_eq!([16, 17].map(|rows| warps(rows, rows, small)), [1, 2]);
        assert_eq!([240, 241].map(|rows| warps(rows, rows, small)), [8, 0]);
        assert_eq!([(20, 400), (400, 20), (20, 1200), (0, 5)].map(|(q, k)| warps(q, k, large)), [4, 0, 8, 1]);
    }

    #[test]
    fn neighbours_of_like_size_share_a_block() {
        let sizes = [(40, 40), (500, 500), (1, 1), (360, 360), (50, 50), (0, 0), (60, 60), (1, 1)];
        let Groups { blocks, sets, streamed } = groups(&sizes, &Limits::SM_90);
        assert_eq!(sets.iter().map(|set| set.set).collect::<Vec<_>>(), [3, 6, 4, 0, 2, 7]);
        assert_eq!(streamed.iter().map(|set| set.set).collect::<Vec<_>>(), [1]);
        let blocks: Vec<_> = blocks.iter().map(|block| (block.first_set, block.sets, block.warps)).collect();
        assert_eq!(blocks, [(0, 1, 8), (1, 2, 2), (3, 3, 1)]);
        let many = groups(&[(1, 1); 20], &Limits::SM_90);
        assert_eq!(many.blocks.iter().map(|block| block.sets).collect::<Vec<_>>(), [8, 8, 4]);
        assert_eq!(many.blocks[2].first_set, 16);
    }

    #[test]
    fn a_block_is_as_large_as_its_largest_sets() {
        let of = |sizes: &[(i32, i32)]| groups(sizes, &Limits::SM_90).shared_bytes();
        let bytes = |tiles: u32, warps: u32| tiles * (2176 + 2048) + warps * 4608;
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(384, 384), (40, 40)]), bytes(24, 8));
        assert_eq!(of(&[(1, 1), (48, 48), (2, 2)]), 3 * bytes(3, 1));
        // The block of the longest sets is not the largest.
        assert_eq!(of(&[(49, 49), (48, 48), (48, 48), (48, 48)]), 3 * bytes(3, 1));
    }
}
