//! Sets that are too long for one block: parts of them, whose results are combined in a fixed order.

use super::plan::has_few_points;
use super::{Heads, Roles};
use crate::device::Plan;
use crate::device::abi::{
    ATTENTION_COMBINE_WARPS, ATTENTION_FORWARD_SPLIT_ROWS, ATTENTION_PART_NUMBERS, ATTENTION_PART_ROWS,
    ATTENTION_PARTS, ATTENTION_POINTS_ROWS, AttentionBlock, AttentionTile,
};
use crate::device::choice::Fusion;

/// Warps of a block that combines.
const WARPS: u32 = ATTENTION_COMBINE_WARPS;

// A part leaves two sums of all points, or what forward's warps leave; and what forward cuts it shares out to warps.
const _: () = assert!(ATTENTION_PART_NUMBERS >= 2 * ATTENTION_POINTS_ROWS);
const _: () = assert!(ATTENTION_FORWARD_SPLIT_ROWS == ATTENTION_POINTS_ROWS);

/// Where few points ask the documents of a long set, or these ask them, a block would go over all of them: such a set is cut
/// into parts, by its size alone, so that its results do not depend on the batch.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The parts, neighbours one behind the other.
    pub tiles: Vec<AttentionTile>,
    /// The parts of each set, for a block that combines them.
    pub sets: Vec<AttentionBlock>,
}

impl Parts {
    /// Of the long ones among sets whose documents meet few points; and the others, whole.
    pub(super) fn new(
        roles: Roles,
        mut sets: Vec<AttentionTile>,
        heads: Heads,
        fuse: Fusion,
    ) -> (Self, Vec<AttentionTile>) {
        let mut parts = Parts::default();
        let may_be_cut = has_few_points(roles, fuse);
        sets.retain(|set| {
            let count = count(documents(roles, set));
            if count == 1 || !may_be_cut {
                return true;
            }
            parts.sets.push(AttentionBlock {
                first_set: parts.tiles.len() as i32,
                sets: count as i32,
                warps: WARPS as i32,
                group_bytes: (WARPS * sums_bytes(heads)) as i32,
            });
            parts.tiles.extend((0..count).map(|number| part(roles, *set, number, count)));
            false
        });
        (parts, sets)
    }

    /// The launch of a kernel that combines them; `None` where there are none.
    pub(super) fn combine(&self, kernel: &'static str, heads: Heads) -> Option<Plan> {
        self.sets.first().map(|set| Plan {
            family: "attention",
            kernel,
            grid: [self.sets.len() as u32, heads.count as u32, 1],
            block: WARPS * 32,
            shared_bytes: set.group_bytes as u32,
        })
    }

    /// Numbers that they leave for it.
    pub(super) fn numbers(&self, heads: Heads) -> usize {
        self.tiles.len() * numbers_of_a_part(heads)
    }

    /// The most parts of sets with so many documents in all, the longest of which has so many.
    pub(super) fn bound(roles: Roles, documents: usize, longest: usize, fuse: Fusion) -> usize {
        let rows = ATTENTION_PART_ROWS as usize;
        // Of a set of 1025 there are two.
        if has_few_points(roles, fuse) && longest > rows { 2 * documents / rows } else { 0 }
    }

    /// The most numbers that those leave.
    pub fn numbers_bound(
        roles: Roles,
        documents: usize,
        longest: usize,
        heads: Heads,
        fuse: Fusion,
    ) -> usize {
        Parts::bound(roles, documents, longest, fuse) * numbers_of_a_part(heads)
    }
}

fn numbers_of_a_part(heads: Heads) -> usize {
    ATTENTION_PART_NUMBERS as usize * heads.hidden()
}

/// Bytes that a warp leaves for another: of forward, for each tile of queries D / 8 + 1 times 16 of each lane, which is more
/// than backward's.
pub(super) fn sums_bytes(heads: Heads) -> u32 {
    ATTENTION_FORWARD_SPLIT_ROWS / 16 * (heads.width as u32 / 8 + 1) * 16 * 32
}

fn documents(roles: Roles, set: &AttentionTile) -> u32 {
    if matches!(roles, Roles::Induce { .. }) { set.key_rows as u32 } else { set.query_rows as u32 }
}

/// Parts of a set of so many documents.
fn count(documents: u32) -> u32 {
    documents.div_ceil(ATTENTION_PART_ROWS).clamp(1, ATTENTION_PARTS)
}

/// One of so many even parts, which begin with a tile of 16 documents.
fn part(roles: Roles, set: AttentionTile, number: u32, count: u32) -> AttentionTile {
    let documents = documents(roles, &set);
    let tiles = documents.div_ceil(16);
    let begin = |number: u32| ((tiles * number / count * 16).min(documents)) as i32;
    let (first, rows) = (begin(number), begin(number + 1) - begin(number));
    match roles {
        Roles::Induce { .. } => {
            AttentionTile { key_begin: set.key_begin + first, key_rows: rows, first_key: first, ..set }
        }
        _ => AttentionTile {
            query_begin: set.query_begin + first,
            output_begin: set.output_begin + first,
            query_rows: rows,
            first_query: first,
            ..set
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::tiles::whole_sets;

    const HEADS: Heads = Heads { count: 2, width: 32 };
    const INDUCE: Roles = Roles::Induce { points: 20 };
    const ATTEND: Roles = Roles::Attend { points: 20 };

    fn parts(roles: Roles, offsets: &[usize], fuse: Fusion) -> (Parts, Vec<AttentionTile>) {
        Parts::new(roles, whole_sets(roles, offsets), HEADS, fuse)
    }

    #[test]
    fn long_sets_are_cut_evenly() {
        let offsets = [0, 5, 1029, 2054, 2054, 5154];
        let documents = |tile: &AttentionTile, roles| match roles {
            INDUCE => [tile.set, tile.key_begin, tile.key_rows, tile.first_key],
            _ => [tile.set, tile.query_begin, tile.query_rows, tile.first_query],
        };
        for roles in [INDUCE, ATTEND] {
            let (Parts { tiles, sets }, whole) = parts(roles, &offsets, Fusion::All);
            let tiles: Vec<_> = tiles.iter().map(|tile| documents(tile, roles)).collect();
            assert_eq!(
                tiles,
                [
                    [2, 1029, 512, 0],
                    [2, 1541, 513, 512],
                    [4, 2054, 768, 0],
                    [4, 2822, 784, 768],
                    [4, 3606, 768, 1552],
                    [4, 4374, 780, 2320],
                ]
            );
            let sets: Vec<_> = sets.iter().map(|set| [set.first_set, set.sets, set.warps]).collect();
            assert_eq!(sets, [[0, 2, 4], [2, 4, 4]]);
            assert_eq!(whole.iter().map(|set| set.set).collect::<Vec<_>>(), [0, 1, 3]);
        }
        // What is of the points is each part's.
        let (of_induce, of_attend) =
            (parts(INDUCE, &offsets, Fusion::All).0, parts(ATTEND, &offsets, Fusion::All).0);
        let points = |tile: &AttentionTile| [tile.query_begin, tile.query_rows, tile.output_begin];
        assert!(of_induce.tiles[2..].iter().all(|tile| points(tile) == [0, 20, 80]));
        let points = |tile: &AttentionTile| [tile.key_begin, tile.key_rows, tile.first_key];
        assert!(of_attend.tiles[2..].iter().all(|tile| points(tile) == [80, 20, 0]));
        assert_eq!(of_attend.tiles[3].output_begin, 2822);
    }

    #[test]
    fn a_set_has_a_bounded_number_of_parts() {
        let (Parts { tiles, .. }, _) = parts(INDUCE, &[0, 1 << 20], Fusion::All);
        assert_eq!((tiles.len(), tiles[63].key_rows), (64, 1 << 14));
        for documents in [1, 1024, 1025, 2048, 2049, 70_001] {
            let (parts, _) = parts(ATTEND, &[0, documents], Fusion::All);
            assert_eq!(parts.tiles.is_empty(), documents <= 1024, "{documents}");
            let bound = Parts::numbers_bound(ATTEND, documents, documents, HEADS, Fusion::All);
            assert!((parts.numbers(HEADS)..=4 * parts.numbers(HEADS)).contains(&bound), "{documents}");
        }
    }

    #[test]
    fn others_are_not_cut() {
        for (roles, fuse) in [
            (Roles::Documents, Fusion::All),
            (Roles::Induce { points: 33 }, Fusion::All),
            (Roles::Attend { points: 33 }, Fusion::All),
            (INDUCE, Fusion::Flash),
        ] {
            let (parts, whole) = parts(roles, &[0, 5000], fuse);
            assert!(parts.tiles.is_empty() && whole.len() == 1, "{roles:?}, {fuse:?}");
            assert_eq!(parts.combine("attention_combine_forward_d32", HEADS), None);
            assert_eq!(Parts::bound(roles, 5000, 5000, fuse), 0);
        }
    }
}
