//! How rows are cut for sums over all of them on a GPU: every part is summed apart, and then the parts are added up.

/// Runs of rows that are summed apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Parts {
    /// Runs.
    pub count: usize,
    /// Rows of each but the last, which may have less: a multiple of 64.
    pub rows: usize,
}

impl Parts {
    /// Rows that are worth a part.
    const LEAST_ROWS: usize = 256;
    /// Multiprocessors of a card that is to be busy; more parts would only add traffic.
    const MULTIPROCESSORS: usize = 132;

    /// Parts of `rows` rows, where each takes `blocks` blocks, of which a multiprocessor has so many `at_once`: a pure function
    /// of the shape, so that the bits are the same on every card.
    pub fn new(rows: usize, blocks: usize, at_once: usize) -> Self {
        Self::of(rows, Self::least_rows(&[(rows, blocks)], at_once))
    }

    /// Parts of several matrices, rows and blocks a part of each, that are summed by one launch: about as many rows a part of
    /// all, so that no block takes much longer than the others.
    pub fn of_several(matrices: &[(usize, usize)], at_once: usize) -> impl Iterator<Item = Self> {
        let of_part = Self::least_rows(matrices, at_once);
        matrices.iter().map(move |&(rows, _)| Self::of(rows, of_part))
    }

    /// The fewest rows of a part such that all parts of all matrices are no more blocks than a card has at once, where there are
    /// such.
    fn least_rows(matrices: &[(usize, usize)], at_once: usize) -> usize {
        let enough = Self::MULTIPROCESSORS * at_once;
        let most_rows = matrices.iter().map(|&(rows, _)| rows).max().unwrap_or(0);
        let blocks = |of_part| -> usize {
            matrices.iter().map(|&(rows, blocks)| Self::of(rows, of_part).count * blocks).sum()
        };
        // In runs of 64 rows.
        let (mut least, mut most) = (1, most_rows.div_ceil(64).max(1));
        while least < most {
            let middle = least + (most - least) / 2;
            (least, most) = if blocks(64 * middle) <= enough { (least, middle) } else { (middle + 1, most) };
        }
        64 * least
    }

    /// Parts of at most `of_part` rows, but of as many as are worth one, all about as large.
    fn of(rows: usize, of_part: usize) -> Self {
        let count = rows.div_ceil(of_part).min(rows.div_ceil(Self::LEAST_ROWS));
        let of_part = rows.div_ceil(count.max(1)).next_multiple_of(64);
        Parts { count: rows.div_ceil(of_part.max(1)), rows: of_part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_rows() {
        for rows in [1, 64, 255, 256, 257, 300, 1280, 16_896, 1 << 30] {
            for blocks in [1, 8, 100, 600] {
                let parts = Parts::new(rows, blocks, 4);
                assert!(parts.rows.is_multiple_of(64) && parts.count * blocks <= 528.max(blocks));
                assert!((parts.count - 1) * parts.rows < rows && parts.count * parts.rows >= rows);
                assert!(parts.count == 1 || parts.rows >= 128, "{rows} rows: {parts:?}");
            }
        }
        assert_eq!(Parts::new(0, 8, 4).count, 0);
    }

    #[test]
    fn parts_of_several_are_as_many_as_a_card_takes_and_about_as_large() {
        // An IMSAB block's: documents, half as many induced rows, and the points.
        let matrices = [(33_792, 22), (16_896, 20), (20, 2)];
        let parts: Vec<Parts> = Parts::of_several(&matrices, 1).collect();
        let found: Vec<(usize, usize)> = parts.iter().map(|parts| (parts.count, parts.rows)).collect();
        assert_eq!(found, [(4, 8448), (2, 8448), (1, 64)]);
        // One is as it is alone, and there are never fewer than one of each.
        for (rows, blocks) in [(1, 8), (300, 4), (1280, 30), (1 << 20, 22), (1 << 30, 600)] {
            let alone: Vec<Parts> = Parts::of_several(&[(rows, blocks)], 4).collect();
            assert_eq!(alone, [Parts::new(rows, blocks, 4)]);
            let with_nothing: Vec<Parts> = Parts::of_several(&[(rows, blocks), (0, 7)], 4).collect();
            assert_eq!((with_nothing[0], with_nothing[1].count), (alone[0], 0));
        }
        assert!(Parts::of_several(&[(500, 600), (1 << 20, 600)], 1).all(|parts| parts.count == 1));
    }
}
