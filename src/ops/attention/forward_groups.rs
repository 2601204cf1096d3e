//! Which groups of warps take which queries in forward, and with how much shared memory.

use std::cmp::Reverse;

use super::parts::sums_bytes;
use super::{Heads, Roles};
use crate::device::Limits;
use crate::device::abi::{
    ATTENTION_FORWARD_BLOCKS_D32, ATTENTION_FORWARD_BLOCKS_D64, ATTENTION_FORWARD_SPLIT_ROWS,
    ATTENTION_FORWARD_TILES_D32, ATTENTION_FORWARD_TILES_D64, ATTENTION_FORWARD_WARPS, AttentionBlock,
    AttentionTile,
};
use crate::device::choice::Fusion;

/// Warps of a block, and of a group at most.
const WARPS: u32 = ATTENTION_FORWARD_WARPS;

/// Rows that kernels work on at a time, of queries and of keys.
const STEP: u32 = 16;

/// The fewest rows that a ring of three chunks takes.
const RING_ROWS: u32 = 3 * STEP;

/// The groups of forward.
#[derive(Clone, Debug)]
pub struct ForwardGroups {
    /// Each group's work: parts of sets first, which are to be combined; then a set, or a range of its queries, those with many
    /// keys first.
    pub tiles: Vec<AttentionTile>,
    /// Which of them a block takes; all blocks have as much shared memory.
    pub blocks: Vec<AttentionBlock>,
    /// Whether the warps of a group share out the keys, since there are few queries; else they share out the queries.
    pub split: bool,
}

/// A tile, and the warps that take it.
type Group = (AttentionTile, u32);

impl ForwardGroups {
    /// Of parts of sets and whole sets.
    ///
    /// A group is of as few warps as have room for its keys and values, so that few warps wait for others; keys that all
    /// warps of a block have no room for are streamed: in less than [`Fusion::Attention`], those that a ring is too short for.
    /// Where that makes too few blocks for the card, groups are of more warps, and in the end a set's queries are several
    /// groups'. A query's results do not depend on any of it; but where warps share out the keys, they depend on the warps,
    /// whose number is then a matter of the set alone.
    pub(super) fn new(
        roles: Roles,
        parts: &[AttentionTile],
        mut sets: Vec<AttentionTile>,
        heads: Heads,
        limits: &Limits,
    ) -> Self {
        sets.retain(|set| set.query_rows > 0);
        sets.sort_by_key(|set| Reverse((set.key_rows, set.query_rows)));
        let split =
            matches!(roles, Roles::Induce { points } if points <= ATTENTION_FORWARD_SPLIT_ROWS as usize);
        let (blocks_at_once, warp_tiles) = match heads.width {
            32 => (ATTENTION_FORWARD_BLOCKS_D32, ATTENTION_FORWARD_TILES_D32),
            _ => (ATTENTION_FORWARD_BLOCKS_D64, ATTENTION_FORWARD_TILES_D64),
        };
        let bytes = (limits.shared_per_multiprocessor / blocks_at_once)
            .saturating_sub(limits.shared_reserved)
            .min(limits.shared_per_block);
        let room = (bytes / WARPS / row_bytes(heads)).max(RING_ROWS);
        let room = if limits.fuse < Fusion::Attention { RING_ROWS } else { room };
        let rows = |&(set, warps): &Group| rows_of_a_warp(&set, warps, split, heads);

        let fitting = |set| {
            let fits = |warps: &u32| rows(&(set, *warps)) <= room;
            (set, [1, 2].into_iter().find(fits).unwrap_or(WARPS))
        };
        let mut groups: Vec<Group> = parts.iter().copied().chain(sets).map(fitting).collect();
        let fills = |groups: &[Group]| {
            blocks(groups, 0).len() * heads.count >= (blocks_at_once * limits.multiprocessors) as usize
        };
        for _ in 0..WARPS.ilog2() {
            if split || fills(&groups) {
                break;
            }
            for (set, warps) in &mut groups {
                if *warps < WARPS && tiles(set.query_rows) >= 2 * *warps {
                    *warps *= 2;
                }
            }
        }
        if !split && !fills(&groups) {
            let of = |(set, warps)| ranges(set, STEP, warp_tiles * WARPS).map(move |range| (range, warps));
            groups = groups.into_iter().flat_map(of).collect();
        }
        let warp_rows = groups.iter().map(rows).max().unwrap_or(0).min(room);
        ForwardGroups {
            blocks: blocks(&groups, warp_rows * row_bytes(heads)),
            tiles: groups.into_iter().map(|(tile, _)| tile).collect(),
            split,
        }
    }

    /// Bytes of shared memory of a block.
    pub fn shared_bytes(&self) -> u32 {
        self.blocks.first().map_or(0, |block| (block.group_bytes / block.warps) as u32 * WARPS)
    }
}

/// Bytes of a key with its value.
fn row_bytes(heads: Heads) -> u32 {
    4 * heads.width as u32
}

/// Tiles of 16 rows.
fn tiles(rows: i32) -> u32 {
    (rows as u32).div_ceil(STEP)
}

/// Rows of keys and values that each of so many warps needs room for, if all of them are to stay; where warps share out
/// the keys, at least as many as take up what one leaves for another.
fn rows_of_a_warp(set: &AttentionTile, warps: u32, split: bool, heads: Heads) -> u32 {
    let steps = tiles(set.key_rows);
    if !split {
        return (steps * STEP).div_ceil(warps);
    }
    let left = if warps > 1 { sums_bytes(heads).div_ceil(row_bytes(heads)) } else { 0 };
    left.max(steps.div_ceil(warps) * STEP)
}

/// Even ranges of a set's queries of at most so many tiles of so many rows: those that a block takes at a time.
pub(super) fn ranges(set: AttentionTile, tile_rows: u32, most: u32) -> impl Iterator<Item = AttentionTile> {
    let all = (set.query_rows as u32).div_ceil(tile_rows);
    let count = all.div_ceil(most);
    let begin =
        move |number: u32| (u64::from(all) * u64::from(number) / u64::from(count)) as i32 * tile_rows as i32;
    (0..count).map(move |number| {
        let [first, end] = [begin(number), begin(number + 1).min(set.query_rows)];
        AttentionTile {
            query_begin: set.query_begin + first,
            query_rows: end - first,
            output_begin: set.output_begin + first,
            first_query: first,
            ..set
        }
    })
}

/// Neighbouring groups of as many warps each, as many as a block has warps for.
fn blocks(groups: &[Group], warp_bytes: u32) -> Vec<AttentionBlock> {
    let mut blocks: Vec<AttentionBlock> = Vec::new();
    for (number, &(_, warps)) in groups.iter().enumerate() {
        match blocks.last_mut() {
            Some(block) if block.warps == warps as i32 && (block.sets + 1) * block.warps <= WARPS as i32 => {
                block.sets += 1;
            }
            _ => blocks.push(AttentionBlock {
                first_set: number as i32,
                sets: 1,
                warps: warps as i32,
                group_bytes: (warps * warp_bytes) as i32,
            }),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::tiles::whole_sets;

    const ROLES: Roles = Roles::Documents;

    fn groups(roles: Roles, offsets: &[usize], width: usize, limits: &Limits) -> ForwardGroups {
        ForwardGroups::new(roles, &[], whole_sets(roles, offsets), Heads { count: 8, width }, limits)
    }

    /// Warps of a set of so many documents where there are enough of them for the card, and rows that a warp has room for.
    fn alone(roles: Roles, documents: usize, width: usize, limits: &Limits) -> [u32; 2] {
        let limits = Limits { multiprocessors: 1, ..*limits };
        let blocks = groups(roles, &[0, documents], width, &limits).blocks;
        let bytes = (blocks[0].group_bytes / blocks[0].warps) as u32;
        [blocks[0].warps as u32, bytes / (4 * width as u32)]
    }

    #[test]
    fn a_group_has_the_warps_that_its_keys_need() {
        for (card, width, rows) in [
            (Limits::SM_90, 32, 150),
            (Limits::SM_80, 32, 107),
            (Limits::SM_89, 32, 64),
            (Limits::SM_90, 64, 113),
            (Limits::SM_80, 64, 81),
            (Limits::SM_89, 64, 49),
        ] {
            let most = |warps: usize| warps * rows / 16 * 16;
            let of = |documents| alone(ROLES, documents, width, &card)[0];
            assert_eq!([1, most(1), most(1) + 1].map(of), [1, 1, 2], "{card:?}, {width}");
            assert_eq!([most(2), most(2) + 1, most(4), 5000].map(of), [2, 4, 4, 4], "{card:?}, {width}");
            // As many rows as there is room for, where keys are streamed.
            assert_eq!(alone(ROLES, most(4) + 1, width, &card)[1], rows as u32, "{card:?}, {width}");
            let block = groups(ROLES, &[0, 5000], width, &card).shared_bytes();
            assert!(block <= card.shared_per_block && card.blocks_by_shared(block) >= 2, "{card:?}, {width}");
        }
        // A ring takes 48 rows, however little memory there is.
        let little = Limits { shared_per_multiprocessor: 16 << 10, ..Limits::SM_90 };
        assert_eq!(alone(ROLES, 1000, 64, &little), [4, 48]);
        // Nor more where less is fused.
        let flash = Limits { fuse: Fusion::Flash, ..Limits::SM_90 };
        assert_eq!([48, 97, 300].map(|rows| alone(ROLES, rows, 32, &flash)), [[1, 48], [4, 28], [4, 48]]);
    }

    #[test]
    fn points_that_ask_share_out_the_keys() {
        let split = |points| groups(Roles::Induce { points }, &[0, 10], 32, &Limits::SM_90).split;
        assert_eq!([1, 32, 33, 128].map(split), [true, true, false, false]);
        let attend = Roles::Attend { points: 20 };
        assert!(!groups(ROLES, &[0, 10], 32, &Limits::SM_90).split);
        assert!(!groups(attend, &[0, 10], 32, &Limits::SM_90).split);
        // What one warp leaves for another takes 40 rows; 161 keys are 11 steps, of which one of two warps has 6.
        let induce = Roles::Induce { points: 20 };
        let of = |documents| alone(induce, documents, 32, &Limits::SM_90);
        assert_eq!([16, 144, 161, 300].map(of), [[1, 16], [1, 144], [2, 96], [4, 80]]);
        let little = Limits { shared_per_multiprocessor: 16 << 10, ..Limits::SM_90 };
        assert_eq!(alone(induce, 49, 32, &little), [2, 40]);
        // The warps of a set are not a matter of the batch.
        let block = groups(induce, &[0, 144], 32, &Limits::SM_90).blocks[0];
        assert_eq!((block.warps, block.sets), (1, 1));
    }

    /// First tile, tiles, warps.
    fn numbers(blocks: &[AttentionBlock]) -> Vec<[i32; 3]> {
        blocks.iter().map(|block| [block.first_set, block.sets, block.warps]).collect()
    }

    #[test]
    fn few_sets_are_spread_over_the_card() {
        // A block for each set would not do for 132 multiprocessors: ranges of 5 and 6 tiles of 16 queries are.
        let all = groups(ROLES, &[0, 200, 200, 240, 241, 242], 32, &Limits::SM_90);
        assert_eq!(numbers(&all.blocks), [[0, 1, 4], [1, 1, 4], [2, 1, 2], [3, 2, 1]]);
        let tiles: Vec<_> = all
            .tiles
            .iter()
            .map(|tile| [tile.set, tile.first_query, tile.query_rows, tile.output_begin])
            .collect();
        assert_eq!(tiles, [[0, 0, 96, 0], [0, 96, 104, 96], [2, 0, 40, 200], [3, 0, 1, 240], [4, 0, 1, 241]]);
        // Enough as they are.
        let offsets: Vec<usize> = (0..=200).map(|set| set * 40).collect();
        let many = groups(ROLES, &offsets, 32, &Limits::SM_90);
        assert_eq!((many.tiles.len(), numbers(&many.blocks)[49]), (200, [196, 4, 1]));
    }
}
