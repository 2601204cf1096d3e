//! How scores, losses and both gradients are launched as one.

use crate::device::abi::{SCORE_THREADS, SET_LOSSES_SLOTS, ScoreLosses};
use crate::device::choice::Fusion;
use crate::device::{DeviceError, Limits, Plan};
use crate::ops::loss::{Loss, SetLossesPlan};
use crate::ops::score::ScorePlan;

/// The plan of a batch's scores, losses and gradients in one kernel: a pure function of its sets and the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreLossPlan {
    sets: SetLossesPlan,
    width: usize,
}

/// Values of scratch that [`score_losses`](super::score_losses) needs for so many sets of rows of `width` values.
pub fn score_loss_scratch_len(sets: usize, width: usize) -> usize {
    sets * (width + 1)
}

impl ScoreLossPlan {
    /// The plan for these sets of rows of `width` values.
    ///
    /// Refuses widths that are no multiple of 64 or exceed 512.
    pub fn new(sets: SetLossesPlan, width: usize) -> Result<Self, DeviceError> {
        ScorePlan::new(sets.documents, width)?;
        Ok(ScoreLossPlan { sets, width })
    }

    /// Whether one kernel is asked for and quicker than three.
    ///
    /// A block has a set, and a multiprocessor asks L2 for 5.5e12/132 bytes a second: the longest set is done 6·C of them a
    /// document later, at C = 256 37 ns. Three kernels spread the documents evenly, but read them twice from memory, 3.0e12/132
    /// bytes a second: 68 ns for each document that a multiprocessor has; and take two launches more, 1.3 µs each. So the longest
    /// set may have 7/4 times a multiprocessor's share, and 16384/C documents. By the rates of an H100, 88 sets of 384 are one
    /// kernel, of 14 µs where three would take 20, and so are 840 of 40; a single set of 500 is three, of 6 µs where one would
    /// take 18. Of sets with fewer than 8 documents on average, most of one kernel would be reading weights and leaving parts.
    pub fn pays(&self, loss: Loss, limits: &Limits) -> bool {
        let SetLossesPlan { documents, sets, longest } = self.sets;
        let at_most = 16_384 / self.width + 7 * documents / (4 * limits.multiprocessors as usize).max(1);
        limits.fuse == Fusion::All
            && longest <= at_most
            && documents >= 8 * sets
            && self.shared_bytes(loss) <= limits.shared_per_block as usize
    }

    /// Values of shared memory before the gradients by the scores: those that the loss keeps, then sums of eight warps.
    fn before_gradients(&self, loss: Loss) -> usize {
        let sums = SCORE_THREADS as usize / 32 * (self.width + 1);
        SET_LOSSES_SLOTS as usize + sums.max(self.sets.longest * SetLossesPlan::values_of_document(loss))
    }

    fn shared_bytes(&self, loss: Loss) -> usize {
        4 * (self.before_gradients(loss) + self.sets.longest)
    }

    /// The launch; `None` where there is no set.
    ///
    /// Refuses a set that is too long for the card's shared memory.
    pub fn launch(&self, loss: Loss, limits: &Limits) -> Result<Option<Plan>, DeviceError> {
        let kernel = match loss {
            Loss::AttentionRank => "score_losses_attention_rank",
            Loss::SoftmaxCrossEntropy => "score_losses_softmax_cross_entropy",
            Loss::LambdaLoss => "score_losses_lambda_loss",
            Loss::ApproxNdcg => "score_losses_approx_ndcg",
        };
        let shared_bytes = self.shared_bytes(loss);
        if shared_bytes > limits.shared_per_block as usize {
            return Err(DeviceError::Shapes(format!(
                "{kernel} on this GPU: a set of {} documents takes {shared_bytes} bytes of shared memory, where there are {}",
                self.sets.longest, limits.shared_per_block
            )));
        }
        Ok((self.sets.sets > 0).then_some(Plan {
            family: "score_loss",
            kernel,
            grid: [self.sets.sets as u32, 1, 1],
            block: SCORE_THREADS,
            shared_bytes: shared_bytes as u32,
        }))
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self, loss: Loss, scale: f32) -> ScoreLosses {
        ScoreLosses {
            x: std::ptr::null(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            labels: std::ptr::null(),
            offsets: std::ptr::null(),
            scores: std::ptr::null_mut(),
            losses: std::ptr::null_mut(),
            d_scores: std::ptr::null_mut(),
            dx: std::ptr::null_mut(),
            d_weight: std::ptr::null_mut(),
            d_bias: std::ptr::null_mut(),
            scale,
            longest: self.sets.longest as i32,
            width: self.width as i32,
            before_gradients: self.before_gradients(loss) as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sizes: &[usize], width: usize) -> ScoreLossPlan {
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let documents = sizes.iter().sum();
        ScoreLossPlan::new(SetLossesPlan::new(documents, &offsets).unwrap(), width).unwrap()
    }

    #[test]
    fn a_block_a_set() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            // Sums of a row of 256 values take 8224 bytes, what LambdaLoss keeps of 384 documents 9216.
            for (loss, bytes) in [(Loss::SoftmaxCrossEntropy, 8224), (Loss::LambdaLoss, 9216)] {
                let plan = plan(&[40, 0, 384], 256);
                let launch = plan.launch(loss, &card).unwrap().unwrap();
                launch.check(&card).unwrap();
                assert_eq!((launch.grid, launch.block), ([3, 1, 1], 256));
                assert_eq!(launch.shared_bytes, 32 + bytes + 4 * 384);
                assert_eq!(plan.numbers(loss, 1.0).before_gradients as u32 * 4, 32 + bytes);
            }
        }
        assert_eq!(score_loss_scratch_len(3, 256), 3 * 257);
        assert_eq!(plan(&[], 64).launch(Loss::LambdaLoss, &Limits::SM_90).unwrap(), None);
    }

    #[test]
    fn one_kernel_where_it_is_quicker() {
        let pays = |sizes: &[usize], width| plan(sizes, width).pays(Loss::AttentionRank, &Limits::SM_90);
        assert!(pays(&[384; 88], 256) && pays(&[40; 840], 256) && pays(&[40; 32], 256) && pays(&[64], 256));
        assert!(!pays(&[500], 256) && !pays(&[65], 256) && pays(&[256], 64) && !pays(&[64], 512));
        // One that is long among many.
        assert!(!pays(&[&[40; 840][..], &[600]].concat(), 256));
        // Reading weights, and parts.
        assert!(pays(&[8; 100], 256) && !pays(&[7; 100], 256) && !pays(&[0, 0, 9], 256));
        let attention = Limits { fuse: Fusion::Attention, ..Limits::SM_90 };
        assert!(!plan(&[40; 840], 256).pays(Loss::AttentionRank, &attention));
    }

    #[test]
    fn sets_that_do_not_fit_are_not_asked_for() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            let card = Limits { multiprocessors: 1, ..card };
            let most = (card.shared_per_block as usize / 4 - 8) / 7;
            let [fits, does_not] = [most, most + 1].map(|len| plan(&[len], 64));
            fits.launch(Loss::LambdaLoss, &card).unwrap().unwrap().check(&card).unwrap();
            assert!(fits.pays(Loss::LambdaLoss, &card) && !does_not.pays(Loss::LambdaLoss, &card));
            let error = does_not.launch(Loss::LambdaLoss, &card).unwrap_err().to_string();
            assert!(error.contains(&format!("a set of {} documents takes", most + 1)), "{error}");
        }
    }

    #[test]
    fn bad_shapes() {
        let sets = SetLossesPlan::new(3, &[0, 3]).unwrap();
        let error = ScoreLossPlan::new(sets, 96).unwrap_err().to_string();
        assert!(error.contains("a multiple of 64 up to 512 wide, not 96"), "{error}");
    }
}
