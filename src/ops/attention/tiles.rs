//! Which rows of attention belong together, cut into what a block does.

use std::cmp::Reverse;

use super::Roles;
use crate::device::abi::{ATTENTION_KEY_ROWS, ATTENTION_QUERY_ROWS, AttentionTile};

/// Rows of a tile of queries of fused kernels.
pub(super) const QUERY_ROWS: usize = ATTENTION_QUERY_ROWS as usize;

/// Rows of a tile of keys of theirs.
pub(super) const KEY_ROWS: usize = ATTENTION_KEY_ROWS as usize;

/// The sets that `offsets` `[B + 1]` delimit, whole.
pub(super) fn whole_sets(roles: Roles, offsets: &[usize]) -> Vec<AttentionTile> {
    offsets.windows(2).enumerate().map(|set| whole(roles, set)).collect()
}

/// Tiles of so many queries of these sets: those with many keys first.
pub(super) fn query_tiles(mut sets: Vec<AttentionTile>, rows: usize) -> Vec<AttentionTile> {
    sets.sort_by_key(|set| (Reverse(set.key_rows), set.set));
    sets.iter().flat_map(|set| queries_of(set, rows)).collect()
}

/// Tiles of keys: those with many queries first.
pub(super) fn key_tiles(mut sets: Vec<AttentionTile>, rows: usize) -> Vec<AttentionTile> {
    sets.sort_by_key(|set| (Reverse(set.query_rows), set.set));
    sets.iter().flat_map(|set| keys_of(set, rows)).collect()
}

/// All queries and keys of a set.
fn whole(roles: Roles, (set, offsets): (usize, &[usize])) -> AttentionTile {
    let documents = [offsets[0], offsets[1] - offsets[0]];
    let points = |points: usize| [set * points, points];
    let (queries, outputs, keys) = match roles {
        Roles::Documents => (documents, documents, documents),
        Roles::Induce { points: count } => ([0, count], points(count), documents),
        Roles::Attend { points: count } => (documents, documents, points(count)),
    };
    AttentionTile {
        query_begin: queries[0] as i32,
        query_rows: queries[1] as i32,
        output_begin: outputs[0] as i32,
        first_query: 0,
        key_begin: keys[0] as i32,
        key_rows: keys[1] as i32,
        first_key: 0,
        set: set as i32,
    }
}

/// The tiles of queries of a set.
fn queries_of(&set: &AttentionTile, rows: usize) -> impl Iterator<Item = AttentionTile> {
    (0..set.query_rows).step_by(rows).map(move |first| AttentionTile {
        query_begin: set.query_begin + first,
        query_rows: (set.query_rows - first).min(rows as i32),
        output_begin: set.output_begin + first,
        first_query: first,
        ..set
    })
}

/// The tiles of keys of a set.
fn keys_of(&set: &AttentionTile, rows: usize) -> impl Iterator<Item = AttentionTile> {
    (0..set.key_rows).step_by(rows).map(move |first| AttentionTile {
        key_begin: set.key_begin + first,
        key_rows: (set.key_rows - first).min(rows as i32),
        first_key: first,
        ..set
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begin and rows of queries and keys, where results begin, the first of each in the set, the set.
    fn numbers(tile: &AttentionTile) -> [i32; 8] {
        [
            tile.query_begin,
            tile.query_rows,
            tile.key_begin,
            tile.key_rows,
            tile.output_begin,
            tile.first_query,
            tile.first_key,
            tile.set,
        ]
    }

    #[test]
    fn long_sets_come_first() {
        let sets = whole_sets(Roles::Documents, &[0, 1, 1, 302, 365]);
        let tiles: Vec<_> = query_tiles(sets.clone(), QUERY_ROWS).iter().map(numbers).collect();
        assert_eq!(
            tiles,
            [
                [1, 128, 1, 301, 1, 0, 0, 2],
                [129, 128, 1, 301, 129, 128, 0, 2],
                [257, 45, 1, 301, 257, 256, 0, 2],
                [302, 63, 302, 63, 302, 0, 0, 3],
                [0, 1, 0, 1, 0, 0, 0, 0],
            ]
        );
        let tiles: Vec<_> = key_tiles(sets, KEY_ROWS).iter().map(numbers).collect();
        assert_eq!(tiles[0], [1, 301, 1, 64, 1, 0, 0, 2]);
        assert_eq!(tiles[4], [1, 301, 257, 45, 1, 0, 256, 2]);
        assert_eq!(tiles[5..], [[302, 63, 302, 63, 302, 0, 0, 3], [0, 1, 0, 1, 0, 0, 0, 0]]);
    }

    #[test]
    fn points_ask_and_are_asked() {
        let induce = whole_sets(Roles::Induce { points: 20 }, &[0, 3, 70]);
        let tiles: Vec<_> = query_tiles(induce.clone(), QUERY_ROWS).iter().map(numbers).collect();
        assert_eq!(tiles, [[0, 20, 3, 67, 20, 0, 0, 1], [0, 20, 0, 3, 0, 0, 0, 0]]);
        let tiles: Vec<_> = key_tiles(induce, KEY_ROWS).iter().map(numbers).collect();
        assert_eq!(
            tiles,
            [[0, 20, 0, 3, 0, 0, 0, 0], [0, 20, 3, 64, 20, 0, 0, 1], [0, 20, 67, 3, 20, 0, 64, 1]]
        );
        // The points of the set without documents get a gradient too.
        let attend = whole_sets(Roles::Attend { points: 70 }, &[0, 3, 3]);
        let tiles: Vec<_> = query_tiles(attend.clone(), QUERY_ROWS).iter().map(numbers).collect();
        assert_eq!(tiles, [[0, 3, 0, 70, 0, 0, 0, 0]]);
        let tiles: Vec<_> = key_tiles(attend, KEY_ROWS).iter().map(numbers).collect();
        assert_eq!(
            tiles,
            [
                [0, 3, 0, 64, 0, 0, 0, 0],
                [0, 3, 64, 6, 0, 0, 64, 0],
                [3, 0, 70, 64, 3, 0, 0, 1],
                [3, 0, 134, 6, 3, 0, 64, 1],
            ]
        );
    }
}
