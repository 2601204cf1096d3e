//! Which blocks of warpgroups take which queries in forward, where matrix instructions of warpgroups are asked for.

use std::cmp::Reverse;

use super::forward_groups::ranges;
use super::{Heads, Roles};
use crate::device::abi::{
    ATTENTION_SM90_BARRIER_BYTES, ATTENTION_SM90_BLOCKS_D32, ATTENTION_SM90_BLOCKS_D64,
    ATTENTION_SM90_CONSUMERS_D32, ATTENTION_SM90_CONSUMERS_D64, ATTENTION_SM90_ROWS, ATTENTION_SM90_STEP,
    ATTENTION_SM90_THREADS_D32, ATTENTION_SM90_THREADS_D64, AttentionBlock, AttentionTile,
};
use crate::device::{Limits, Plan};

/// Queries of a warpgroup, and keys of a chunk.
const ROWS: u32 = ATTENTION_SM90_ROWS;

/// Keys of a product of weights with values.
const STEP: u32 = ATTENTION_SM90_STEP;

/// The fewest chunks of a ring: of one the values are read, of the next the keys, while another is loaded.
const RING_CHUNKS: u32 = 3;

/// The blocks of forward that multiply by warpgroups.
#[derive(Clone, Debug)]
pub struct ForwardWarpgroups {
    /// Each block's work: a set, or a range of its queries. Those with many keys come first.
    pub tiles: Vec<AttentionTile>,
    /// The blocks, one for each tile; all have as much shared memory.
    pub blocks: Vec<AttentionBlock>,
    /// Threads of a block.
    pub threads: u32,
}

impl ForwardWarpgroups {
    /// Parts whole sets into those that warpgroups take and the others.
    ///
    /// Warpgroups take sets among documents of more than their 64 rows, if at least half of the products that they spend
    /// on the set are its own: with less, the products take longer than the exponentials.
    pub(super) fn part(roles: Roles, sets: Vec<AttentionTile>) -> [Vec<AttentionTile>; 2] {
        let is_taken = |set: &AttentionTile| {
            let pairs = u64::from(set.query_rows as u32) * u64::from(set.key_rows as u32);
            roles == Roles::Documents && set.query_rows > ROWS as i32 && 2 * pairs >= padded_pairs(set)
        };
        let (taken, others) = sets.into_iter().partition(is_taken);
        [taken, others]
    }

    /// The blocks of these sets: keys and values of a set stay in a block's shared memory if there is room, else they
    /// go round. Where there are too few sets for the card, their queries are several blocks'.
    pub fn new(mut sets: Vec<AttentionTile>, heads: Heads, limits: &Limits) -> Self {
        sets.retain(|set| set.query_rows > 0);
        sets.sort_by_key(|set| Reverse((set.key_rows, set.query_rows)));
        let (consumers, blocks_at_once, threads) = match heads.width {
            32 => (ATTENTION_SM90_CONSUMERS_D32, ATTENTION_SM90_BLOCKS_D32, ATTENTION_SM90_THREADS_D32),
            _ => (ATTENTION_SM90_CONSUMERS_D64, ATTENTION_SM90_BLOCKS_D64, ATTENTION_SM90_THREADS_D64),
        };
        if sets.len() * heads.count < (blocks_at_once * limits.multiprocessors) as usize {
            sets = sets.into_iter().flat_map(|set| ranges(set, ROWS, consumers)).collect();
        }
        let row_bytes = 2 * heads.width as u32;
        let query_bytes = consumers * ROWS * row_bytes;
        let chunk_bytes = 2 * ROWS * row_bytes + ATTENTION_SM90_BARRIER_BYTES;
        let most = (limits.shared_per_multiprocessor / blocks_at_once)
            .saturating_sub(limits.shared_reserved)
            .min(limits.shared_per_block);
        let room = (most.saturating_sub(query_bytes) / chunk_bytes).max(RING_CHUNKS);
        let chunks = sets.iter().map(|set| (set.key_rows as u32).div_ceil(ROWS)).max().unwrap_or(0).min(room);
        let block = |number: usize| AttentionBlock {
            first_set: number as i32,
            sets: 1,
            warps: (threads / 32) as i32,
            group_bytes: (query_bytes + chunks * chunk_bytes) as i32,
        };
        ForwardWarpgroups { blocks: (0..sets.len()).map(block).collect(), tiles: sets, threads }
    }

    /// The launch for them; `None` where there are none.
    pub fn launch(&self, heads: Heads, dropout: bool) -> Option<Plan> {
        let kernel = match (heads.width, dropout) {
            (32, false) => "attention_forward_wgmma_d32",
            (32, true) => "attention_forward_wgmma_d32_dropout",
            (_, false) => "attention_forward_wgmma_d64",
            (_, true) => "attention_forward_wgmma_d64_dropout",
        };
        let grid = [self.blocks.len() as u32, heads.count as u32, 1];
        let (block, shared_bytes) = (self.threads, self.shared_bytes());
        (!self.blocks.is_empty()).then_some(Plan {
            family: "attention_sm90",
            kernel,
            grid,
            block,
            shared_bytes,
        })
    }

    /// Bytes of shared memory of a block.
    pub fn shared_bytes(&self) -> u32 {
        self.blocks.first().map_or(0, |block| block.group_bytes as u32)
    }
}

/// Pairs of query and key whose products are made for a set: the mean of those of scores, and of weights with values.
fn padded_pairs(set: &AttentionTile) -> u64 {
    let [queries, keys] = [set.query_rows, set.key_rows].map(|rows| u64::from(rows as u32));
    let up_to = |rows: u64, unit: u32| rows.next_multiple_of(unit.into());
    up_to(queries, ROWS) * (up_to(keys, ROWS) + up_to(keys, STEP)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::tiles::whole_sets;

    fn blocks(sizes: &[usize], width: usize, limits: &Limits) -> ForwardWarpgroups {
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        ForwardWarpgroups::new(whole_sets(Roles::Documents, &offsets), Heads { count: 8, width }, limits)
    }

    #[test]
    fn warpgroups_take_sets_that_fill_them() {
        let takes = |documents: usize| {
            let sets = whole_sets(Roles::Documents, &[0, documents]);
            !ForwardWarpgroups::part(Roles::Documents, sets)[0].is_empty()
        };
        let taken: Vec<usize> = (0..=400).filter(|&documents| takes(documents)).collect();
        let gaps = (0..=400).filter(|documents| !taken.contains(documents)).collect::<Vec<_>>();
        assert_eq!(gaps, (0..=84).collect::<Vec<_>>());
        let points = Roles::Attend { points: 100 };
        assert!(ForwardWarpgroups::part(points, whole_sets(points, &[0, 200]))[0].is_empty());
        // Istella's sizes: 88 of 100 products are useful.
        let sets = whole_sets(Roles::Documents, &[0, 439, 810, 1140, 1422, 1545]);
        let useful: u64 = [439u64, 371, 330, 282, 123].iter().map(|size| size * size).sum();
        let padded: u64 = sets.iter().map(padded_pairs).sum();
        assert!(useful * 100 >= padded * 88, "{useful} of {padded}");
    }

    #[test]
    fn sets_stay_where_there_is_room() {
        let card = Limits { multiprocessors: 1, ..Limits::SM_90 };
        let chunks = |documents: usize, width: usize| {
            let bytes = blocks(&[documents], width, &card).shared_bytes();
            let consumers = if width == 32 { 2 } else { 3 };
            (bytes - consumers * 128 * width as u32) / (256 * width as u32 + 16)
        };
        assert_eq!([64, 65, 512, 768, 4096].map(|n| chunks(n, 32)), [1, 2, 8, 12, 13]);
        assert_eq!([64, 65, 512, 768, 4096].map(|n| chunks(n, 64)), [1, 2, 8, 12, 12]);
        for width in [32, 64] {
            let block = blocks(&[4096], width, &card).shared_bytes();
            let at_once = if width == 32 { 2 } else { 1 };
            assert!(card.blocks_by_shared(block) >= at_once, "{width}: {block}");
        }
        // A ring takes three chunks, however little memory there is.
        let little = Limits { shared_per_multiprocessor: 16 << 10, ..card };
        assert_eq!(blocks(&[4096], 32, &little).shared_bytes(), 8192 + 3 * 8208);
    }

    #[test]
    fn few_sets_are_spread_over_the_card() {
        let all = blocks(&[200, 0, 360], 32, &Limits::SM_90);
        let tiles: Vec<_> = all
            .tiles
            .iter()
            .map(|tile| [tile.set, tile.first_query, tile.query_rows, tile.output_begin])
            .collect();
        let expected =
            [[2, 0, 128, 200], [2, 128, 128, 328], [2, 256, 104, 456], [0, 0, 128, 0], [0, 128, 72, 128]];
        assert_eq!(tiles, expected);
        let firsts: Vec<_> = all.blocks.iter().map(|block| block.first_set).collect();
        assert_eq!((firsts, all.threads), ((0..5).collect(), 384));
        assert_eq!(blocks(&[100; 40], 32, &Limits::SM_90).tiles.len(), 40);
    }
}
