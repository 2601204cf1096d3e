//! How the losses of sets are launched on a GPU.

use super::Loss;
use crate::device::abi::{
    SET_LOSSES_OF_ATTENTION, SET_LOSSES_OF_LAMBDA, SET_LOSSES_OF_NDCG, SET_LOSSES_SLOTS, SET_LOSSES_THREADS,
    SetLosses,
};
use crate::device::{DeviceError, Limits, Plan};
use crate::ops::sizes::refuse_rows;

/// The plan of a batch's losses: a pure function of its sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetLossesPlan {
    /// Documents of the batch, N.
    pub documents: usize,
    /// Sets, B.
    pub sets: usize,
    /// Documents of the longest set.
    pub longest: usize,
}

impl SetLossesPlan {
    /// The plan for `documents` documents in sets that `offsets` `[B + 1]` delimit.
    ///
    /// Refuses offsets that do not begin with 0, that decrease or that do not end with the documents, more than 2³⁰
    /// documents, and more sets than a grid holds.
    pub fn new(documents: usize, offsets: &[usize]) -> Result<Self, DeviceError> {
        let refuse =
            |reason: String| Err(DeviceError::Shapes(format!("the losses of sets on a GPU: {reason}")));
        refuse_rows("the losses of sets", documents)?;
        let (first, last) = (offsets.first().unwrap_or(&0), offsets.last().unwrap_or(&0));
        if (*first, *last) != (0, documents) {
            return refuse(format!("sets of documents {first} to {last}, where there are 0 to {documents}"));
        }
        if let Some(set) = offsets.windows(2).position(|set| set[1] < set[0]) {
            return refuse(format!(
                "set {set} ends at document {}, before it begins at {}",
                offsets[set + 1],
                offsets[set]
            ));
        }
        let sets = offsets.len().saturating_sub(1);
        if sets > Limits::MAX_GRID_X as usize {
            return refuse(format!("at most {} sets, not {sets}", Limits::MAX_GRID_X));
        }
        let longest = offsets.windows(2).map(|set| set[1] - set[0]).max().unwrap_or(0);
        Ok(SetLossesPlan { documents, sets, longest })
    }

    /// Values of shared memory that `loss` keeps of a document.
    pub fn values_of_document(loss: Loss) -> usize {
        kernel(loss).1 as usize
    }

    /// The most documents that a set may have for `loss` on a card of these limits: its values fill shared memory.
    pub fn most_documents(loss: Loss, limits: &Limits) -> usize {
        let (_, values) = kernel(loss);
        ((limits.shared_per_block / 4 - SET_LOSSES_SLOTS) / values) as usize
    }

    /// The launch; `None` where there is no set.
    ///
    /// Refuses a set that is too long for the card's shared memory.
    pub fn launch(&self, loss: Loss, limits: &Limits) -> Result<Option<Plan>, DeviceError> {
        let (kernel, values) = kernel(loss);
        let at_most = Self::most_documents(loss, limits);
        if self.longest > at_most {
            return Err(DeviceError::Shapes(format!(
                "{kernel} on this GPU: a set has at most {at_most} documents, not {}: use --top-k {at_most}, or \
                 --device cpu",
                self.longest
            )));
        }
        Ok((self.sets > 0).then_some(Plan {
            family: "loss",
            kernel,
            grid: [self.sets as u32, 1, 1],
            block: SET_LOSSES_THREADS,
            shared_bytes: 4 * (SET_LOSSES_SLOTS + values * self.longest as u32),
        }))
    }

    /// The kernel's parameter but for its pointers, which are null.
    pub fn numbers(&self, scale: f32) -> SetLosses {
        SetLosses {
            scores: std::ptr::null(),
            labels: std::ptr::null(),
            offsets: std::ptr::null(),
            losses: std::ptr::null_mut(),
            d_scores: std::ptr::null_mut(),
            scale,
            longest: self.longest as i32,
        }
    }
}

/// The kernel of a loss, and the values that it keeps of a document.
fn kernel(loss: Loss) -> (&'static str, u32) {
    match loss {
        Loss::AttentionRank => ("set_losses_attention_rank", SET_LOSSES_OF_ATTENTION),
        Loss::SoftmaxCrossEntropy => ("set_losses_softmax_cross_entropy", SET_LOSSES_OF_ATTENTION),
        Loss::LambdaLoss => ("set_losses_lambda_loss", SET_LOSSES_OF_LAMBDA),
        Loss::ApproxNdcg => ("set_losses_approx_ndcg", SET_LOSSES_OF_NDCG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_a_set() {
        let plan = SetLossesPlan::new(300, &[0, 40, 40, 300]).unwrap();
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            let launches = Loss::ALL.map(|loss| plan.launch(loss, &card).unwrap().unwrap());
            launches.iter().for_each(|launch| launch.check(&card).unwrap());
            assert_eq!(launches.map(|launch| launch.grid), [[3, 1, 1]; 4]);
            assert_eq!(
                launches.map(|launch| launch.shared_bytes - 32),
                [2, 2, 6, 4].map(|values| 4 * values * 260)
            );
        }
    }

    #[test]
    fn long_sets() {
        let of = |len, loss, card: &Limits| SetLossesPlan::new(len, &[0, len]).unwrap().launch(loss, card);
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            for loss in Loss::ALL {
                of(4096, loss, &card).unwrap().unwrap().check(&card).unwrap();
            }
        }
        of(4222, Loss::LambdaLoss, &Limits::SM_89).unwrap().unwrap().check(&Limits::SM_89).unwrap();
        let error = of(4223, Loss::LambdaLoss, &Limits::SM_89).unwrap_err().to_string();
        assert!(error.contains("set_losses_lambda_loss on this GPU: a set has at most 4222"), "{error}");
        of(4223, Loss::ApproxNdcg, &Limits::SM_89).unwrap();
    }

    #[test]
    fn nothing_to_do() {
        for offsets in [&[][..], &[0]] {
            let plan = SetLossesPlan::new(0, offsets).unwrap();
            assert_eq!(plan.launch(Loss::LambdaLoss, &Limits::SM_90).unwrap(), None);
        }
    }

    #[test]
    fn bad_shapes() {
        for (documents, offsets, part) in [
            (2, &[0, 1][..], "sets of documents 0 to 1, where there are 0 to 2"),
            (2, &[1, 2], "sets of documents 1 to 2"),
            (3, &[0, 2, 1, 3], "set 1 ends at document 1, before it begins at 2"),
            ((1 << 30) + 1, &[0, (1 << 30) + 1], "at most 1073741824 rows"),
        ] {
            let error = SetLossesPlan::new(documents, offsets).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
