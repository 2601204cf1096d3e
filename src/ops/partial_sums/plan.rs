//! How sums of parts are launched.

use crate::device::abi::{
    PARTIAL_SUMS_AT_ONCE, PARTIAL_SUMS_COLUMNS, PARTIAL_SUMS_WARPS, PartialSum, PartialSums,
};
use crate::device::{DeviceError, Limits, Plan};

/// The plan of sums of parts: a pure function of their lengths and counts.
#[derive(Clone, Debug)]
pub struct PartialSumsPlan {
    /// Length and count of each.
    sums: Vec<(usize, usize)>,
}

impl PartialSumsPlan {
    /// The plan for sums of these lengths and counts of parts.
    ///
    /// Refuses more than 32 sums, more values than a grid has columns, and more parts than 32 bits count.
    pub fn new(sums: &[(usize, usize)]) -> Result<Self, DeviceError> {
        const MAX_LENGTH: usize = Limits::MAX_GRID_X as usize * PARTIAL_SUMS_COLUMNS as usize;
        const MAX_COUNT: usize = i32::MAX as usize - PARTIAL_SUMS_WARPS as usize;
        let refuse = |reason: String| Err(DeviceError::Shapes(format!("sums of parts on a GPU: {reason}")));
        if sums.len() > PARTIAL_SUMS_AT_ONCE as usize {
            return refuse(format!("at most {PARTIAL_SUMS_AT_ONCE} at once, not {}", sums.len()));
        }
        if let Some((length, count)) =
            sums.iter().find(|&&(length, count)| length > MAX_LENGTH || count > MAX_COUNT)
        {
            return refuse(format!(
                "at most {MAX_COUNT} parts of at most {MAX_LENGTH} values, not {count} of {length}"
            ));
        }
        let plan = PartialSumsPlan { sums: sums.to_vec() };
        let blocks = plan.blocks();
        if blocks > Limits::MAX_GRID_X as usize {
            return refuse(format!("at most {} blocks of 32 values, not {blocks}", Limits::MAX_GRID_X));
        }
        Ok(plan)
    }

    fn blocks(&self) -> usize {
        self.sums.iter().map(|&sum| blocks(sum)).sum()
    }

    /// The kernel's parameter but for its pointers, which are null. A sum of no parts has no blocks.
    pub fn numbers(&self) -> PartialSums {
        let none = PartialSum {
            parts: std::ptr::null(),
            into: std::ptr::null_mut(),
            length: 0,
            count: 0,
            first_block: 0,
        };
        let mut sums = [none; PARTIAL_SUMS_AT_ONCE as usize];
        let mut first_block = 0;
        for (to, &sum) in sums.iter_mut().zip(&self.sums) {
            let (length, count) = (sum.0 as i64, sum.1 as i32);
            *to = PartialSum { length, count, first_block: first_block as i32, ..none };
            first_block += blocks(sum);
        }
        PartialSums { sums, count: self.sums.len() as i32, unused: 0 }
    }

    /// The launch; `None` where there is nothing to do.
    pub fn launch(&self) -> Option<Plan> {
        let with_blocks = self.sums.iter().filter(|&&sum| blocks(sum) > 0);
        let parts = with_blocks.map(|&(_, count)| count).max()?;
        let threads = 32 * PARTIAL_SUMS_WARPS.min(parts as u32);
        Some(Plan {
            family: "partial_sums",
            kernel: "partial_sums",
            grid: [self.blocks() as u32, 1, 1],
            block: threads,
            shared_bytes: 4 * threads,
        })
    }
}

fn blocks((length, count): (usize, usize)) -> usize {
    if count == 0 { 0 } else { length.div_ceil(PARTIAL_SUMS_COLUMNS as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warp_for_each_of_up_to_eight_parts() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            for (sums, blocks, threads) in [
                (&[(1, 1)][..], 1, 32),
                (&[(32, 7)], 1, 224),
                (&[(33, 8)], 2, 256),
                (&[((1 << 36) - 32, 1000)], (1 << 31) - 1, 256),
                (&[(33, 2), (64, 5), (0, 9), (1, 0), (1, 1)], 5, 160),
            ] {
                let plan = PartialSumsPlan::new(sums).unwrap().launch().unwrap();
                assert_eq!((plan.grid, plan.block), ([blocks, 1, 1], threads));
                plan.check(&card).unwrap();
            }
        }
        let numbers = PartialSumsPlan::new(&[(33, 2), (64, 0), (1, 1)]).unwrap().numbers();
        let begins = numbers.sums.map(|sum| sum.first_block);
        assert_eq!((numbers.count, &begins[..4]), (3, &[0, 2, 2, 0][..]));
    }

    #[test]
    fn nothing_to_do() {
        for sums in [&[(0, 3)][..], &[(3, 0)], &[(0, 1), (1, 0)], &[]] {
            assert_eq!(PartialSumsPlan::new(sums).unwrap().launch(), None);
        }
    }

    #[test]
    fn bad_shapes() {
        let most = (1 << 36) - 32;
        for (sums, part) in [
            (&[(1 << 36, 1)][..], "at most 2147483639 parts of at most 68719476704 values"),
            (&[(1, 1 << 31)], "at most 2147483639 parts of at most 68719476704 values"),
            (&[(most, 1), (1, 1)], "at most 2147483647 blocks of 32 values, not 2147483648"),
            (&[(1, 1); 33], "at most 32 at once, not 33"),
        ] {
            let error = PartialSumsPlan::new(sums).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
