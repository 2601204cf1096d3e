//! How rows are gathered: which threads copy which, and where the bits of what is dropped stand.

use crate::data::augment::{Columns, FeatureDropout};
use crate::device::abi::{GATHER_LANES, GATHER_THREADS, GatherDropout, GatherRows};
use crate::device::{DeviceError, Limits, Plan};

/// Rows of a block.
const OF_BLOCK: usize = (GATHER_THREADS / GATHER_LANES) as usize;

/// The plan of a gather: a pure function of the sizes, and of what is dropped.
#[derive(Clone, Copy, Debug)]
pub struct GatherPlan {
    rows: usize,
    width: usize,
    dropout: Option<FeatureDropout>,
}

impl GatherPlan {
    /// Features of which some are dropped, at most: a bit for each, of all rows of a block, in the 48 KB of shared memory
    /// that every card has.
    pub const MAX_DROPPED: usize = (48 << 10) / OF_BLOCK * 8;

    /// The plan for `rows` rows of `width` values.
    ///
    /// Refuses a width that is no multiple of 64, more rows or columns than 32 bits count, and with `dropout` columns that
    /// are none of the rows' and more features than [`MAX_DROPPED`](Self::MAX_DROPPED).
    pub fn new(rows: usize, width: usize, dropout: Option<FeatureDropout>) -> Result<Self, DeviceError> {
        const MAX: usize = i32::MAX as usize;
        // Four steps of 64 columns are looked at together.
        if rows > MAX || width > MAX - 256 || !width.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "gathering rows on a GPU: at most {MAX} rows of at most {} values, a multiple of 64, not {rows} of \
                 {width}",
                MAX - 256
            )));
        }
        if let Some(FeatureDropout { columns: Columns { num_features, first_within_set }, .. }) = dropout
            && !((1..=Self::MAX_DROPPED).contains(&num_features)
                && (num_features..=width).contains(&first_within_set))
        {
            return Err(DeviceError::Shapes(format!(
                "gathering rows on a GPU: dropout takes 1 to {} features and columns within the set that begin behind \
                 them, in {width} columns or at their end, not {num_features} features and columns from \
                 {first_within_set} on",
                Self::MAX_DROPPED
            )));
        }
        Ok(GatherPlan { rows, width, dropout })
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self) -> GatherRows {
        GatherRows {
            from: std::ptr::null(),
            index: std::ptr::null(),
            data_rows: std::ptr::null(),
            to: std::ptr::null_mut(),
            rows: self.rows as i32,
            width: self.width as i32,
            dropout: self.dropout.map_or_else(GatherDropout::default, |dropout| dropout.numbers()),
        }
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        const _: () = assert!(i32::MAX as usize / OF_BLOCK < Limits::MAX_GRID_X as usize);
        let (kernel, shared_bytes) = match self.dropout {
            None => ("gather_rows", 0),
            Some(dropout) => {
                let words = dropout.columns.num_features.div_ceil(u32::BITS as usize);
                ("gather_rows_dropout", OF_BLOCK * words * size_of::<u32>())
            }
        };
        (self.rows > 0 && self.width > 0).then_some(Plan {
            family: "gather",
            kernel,
            grid: [self.rows.div_ceil(OF_BLOCK) as u32, 1, 1],
            block: GATHER_THREADS,
            shared_bytes: shared_bytes as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::Shuffle;

    const CARDS: [Limits; 3] = [Limits::SM_89, Limits::SM_80, Limits::SM_90];

    fn dropout(num_features: usize, first_within_set: usize) -> Option<FeatureDropout> {
        let columns = Columns { num_features, first_within_set };
        Some(FeatureDropout { rate: 0.25, shuffle: Shuffle { seed: 1, epoch: 2 }, columns })
    }

    #[test]
    fn eight_threads_for_a_row() {
        for card in CARDS {
            for (rows, blocks) in [(1, 1), (32, 1), (33, 2), (i32::MAX as usize, 1 << 26)] {
                let plan = GatherPlan::new(rows, 192, None).unwrap().launch().unwrap();
                assert_eq!((plan.kernel, plan.shared_bytes), ("gather_rows", 0));
                assert_eq!((plan.grid, plan.block), ([blocks, 1, 1], 256));
                plan.check(&card).unwrap();
            }
        }
    }

    #[test]
    fn a_bit_for_each_feature() {
        for card in CARDS {
            for (features, width, bytes) in
                [(1, 64, 128), (32, 64, 128), (33, 64, 256), (12_288, 12_288, 48 << 10)]
            {
                let plan = GatherPlan::new(33, width, dropout(features, features)).unwrap().launch().unwrap();
                assert_eq!((plan.kernel, plan.shared_bytes), ("gather_rows_dropout", bytes));
                assert_eq!((plan.grid, plan.block), ([2, 1, 1], 256));
                plan.check(&card).unwrap();
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(GatherPlan::new(0, 64, None).unwrap().launch(), None);
        assert_eq!(GatherPlan::new(0, 64, dropout(3, 3)).unwrap().launch(), None);
        assert_eq!(GatherPlan::new(3, 0, None).unwrap().launch(), None);
    }

    #[test]
    fn bad_shapes() {
        for (rows, width) in [(1, 32), (1, 65), (1 << 31, 64), (1, (1 << 31) - 128)] {
            let error = GatherPlan::new(rows, width, None).unwrap_err().to_string();
            assert!(error.contains("a multiple of 64, not"), "{error}");
        }
        for (features, first_within_set) in [(0, 3), (4, 3), (65, 65), (3, 65)] {
            let error = GatherPlan::new(1, 64, dropout(features, first_within_set)).unwrap_err().to_string();
            let says = format!("not {features} features and columns from {first_within_set} on");
            assert!(error.contains(&says), "{error}");
        }
        assert!(GatherPlan::new(1, 12_352, dropout(12_289, 12_289)).is_err());
    }
}
