//! How scores are launched.

use crate::device::abi::{
    SCORE_MAX_WIDTH, SCORE_PART_ROWS, SCORE_ROWS, SCORE_THREADS, ScoreBackward, ScoreForward,
};
use crate::device::{DeviceError, Plan};
use crate::ops::sizes::refuse_rows;

/// The plan of scores: a pure function of the sizes.
#[derive(Clone, Copy, Debug)]
pub struct ScorePlan {
    rows: usize,
    width: usize,
}

/// Values of scratch that [`score_backward`](super::score_backward) needs for x `[rows, width]`.
pub fn score_scratch_len(rows: usize, width: usize) -> usize {
    parts(rows) * (width + 1)
}

/// Parts that the gradients of the parameters are summed in.
fn parts(rows: usize) -> usize {
    rows.div_ceil(SCORE_PART_ROWS as usize)
}

impl ScorePlan {
    /// The plan for x `[rows, width]`.
    ///
    /// Refuses widths that are no multiple of 64 or exceed 512, and more than 2³⁰ rows.
    pub fn new(rows: usize, width: usize) -> Result<Self, DeviceError> {
        refuse_rows("scores", rows)?;
        if width == 0 || width > SCORE_MAX_WIDTH as usize || !width.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "scores on a GPU: rows are a multiple of 64 up to {SCORE_MAX_WIDTH} wide, not {width}"
            )));
        }
        Ok(ScorePlan { rows, width })
    }

    /// Parts that the gradients of the parameters are summed in.
    pub fn parts(&self) -> usize {
        parts(self.rows)
    }

    /// The launch of `score_forward`; `None` where there is nothing to do.
    pub fn forward(&self) -> Option<Plan> {
        self.plan("score_forward", self.rows.div_ceil(SCORE_ROWS as usize), 0)
    }

    /// The launch of `score_backward`; `None` where there is nothing to do.
    pub fn backward(&self) -> Option<Plan> {
        self.plan("score_backward", self.parts(), SCORE_THREADS / 32 * (self.width as u32 + 1) * 4)
    }

    fn plan(&self, kernel: &'static str, blocks: usize, shared_bytes: u32) -> Option<Plan> {
        (self.rows > 0).then_some(Plan {
            family: "score",
            kernel,
            grid: [blocks as u32, 1, 1],
            block: SCORE_THREADS,
            shared_bytes,
        })
    }

    /// The parameter of `score_forward` but for its pointers, which are null.
    pub fn forward_numbers(&self) -> ScoreForward {
        ScoreForward {
            x: std::ptr::null(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            scores: std::ptr::null_mut(),
            rows: self.rows as i32,
            width: self.width as i32,
        }
    }

    /// The parameter of `score_backward` but for its pointers, which are null.
    pub fn backward_numbers(&self) -> ScoreBackward {
        ScoreBackward {
            d_scores: std::ptr::null(),
            x: std::ptr::null(),
            weight: std::ptr::null(),
            dx: std::ptr::null_mut(),
            d_weight: std::ptr::null_mut(),
            d_bias: std::ptr::null_mut(),
            rows: self.rows as i32,
            width: self.width as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;

    #[test]
    fn blocks_cover_the_rows() {
        for (rows, width, forward, parts, shared) in [
            (1, 64, 1, 1, 2080),
            (33, 256, 2, 1, 8224),
            (129, 512, 5, 2, 16_416),
            (1 << 30, 64, 1 << 25, 1 << 23, 2080),
        ] {
            let plan = ScorePlan::new(rows, width).unwrap();
            let launches = [plan.forward(), plan.backward()].map(Option::unwrap);
            assert_eq!(launches.map(|launch| launch.grid), [[forward, 1, 1], [parts, 1, 1]]);
            assert_eq!(launches.map(|launch| launch.shared_bytes), [0, shared]);
            assert_eq!(score_scratch_len(rows, width), parts as usize * (width + 1));
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launches.iter().for_each(|launch| launch.check(&card).unwrap());
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        let plan = ScorePlan::new(0, 64).unwrap();
        assert_eq!([plan.forward(), plan.backward()], [None; 2]);
        assert_eq!(score_scratch_len(0, 64), 0);
    }

    #[test]
    fn bad_shapes() {
        for (rows, width, part) in [
            (1, 0, "a multiple of 64 up to 512 wide, not 0"),
            (1, 96, "not 96"),
            (1, 576, "not 576"),
            ((1 << 30) + 1, 64, "at most 1073741824 rows"),
        ] {
            let error = ScorePlan::new(rows, width).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
