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
        let enough = Self::MULTIPROCESSORS * at_once;
        let count = (enough / blocks.max(1)).max(1).min(rows.div_ceil(Self::LEAST_ROWS));
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
}
