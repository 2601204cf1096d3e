//! How the norm of the gradients, and Adam, are launched on a GPU.

use crate::device::abi::{
    AdamUpdate, GradientNorm, GradientSquares, OPTIMIZER_BLOCK, OPTIMIZER_PART, OPTIMIZER_SHARED_BYTES,
    OPTIMIZER_THREADS, RoundParameters,
};
use crate::device::{DeviceError, Plan};
use crate::train::optimizer::AdamConfig;

/// One step of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// The learning rate.
    pub lr: f64,
    /// Number of the step, from 1.
    pub step: u64,
    /// The largest norm that the gradients keep; 0: any.
    pub clip: f64,
    /// Adam's constants.
    pub adam: AdamConfig,
    /// Decay of the running average, where there is one.
    pub ema: f64,
}

/// Values of scratch that the norm of `len` gradients needs.
pub fn gradient_norm_scratch_len(len: usize) -> usize {
    // Sums are f64.
    2 * len.div_ceil(OPTIMIZER_PART as usize)
}

/// The plan of the norm and of Adam: a pure function of the number of parameters.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerPlan {
    length: usize,
}

impl OptimizerPlan {
    /// The plan for `length` parameters.
    ///
    /// Refuses what is no multiple of 64, or more than 2⁴⁰.
    pub fn new(length: usize) -> Result<Self, DeviceError> {
        const MAX_LENGTH: usize = 1 << 40;
        if length > MAX_LENGTH || !length.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "Adam on a GPU: parameters are a multiple of 64 up to {MAX_LENGTH}, not {length}"
            )));
        }
        Ok(OptimizerPlan { length })
    }

    /// Partial sums of the norm.
    pub fn parts(&self) -> usize {
        self.length.div_ceil(OPTIMIZER_PART as usize)
    }

    /// The launch of `gradient_squares`; `None` where there is nothing to do.
    pub fn squares(&self) -> Option<Plan> {
        plan("gradient_squares", self.parts(), OPTIMIZER_SHARED_BYTES)
    }

    /// The launch of `gradient_norm`, which sets the norm to 0 where there is no gradient.
    pub fn norm(&self) -> Plan {
        Plan {
            family: "optimizer",
            kernel: "gradient_norm",
            grid: [1, 1, 1],
            block: OPTIMIZER_THREADS,
            shared_bytes: OPTIMIZER_SHARED_BYTES,
        }
    }

    /// The launch of `adam_update`; `None` where there is nothing to do.
    pub fn update(&self) -> Option<Plan> {
        plan("adam_update", self.length.div_ceil(OPTIMIZER_BLOCK as usize), 0)
    }

    /// The launch of `round_parameters`; `None` where there is nothing to do.
    pub fn round(&self) -> Option<Plan> {
        plan("round_parameters", self.length.div_ceil(OPTIMIZER_BLOCK as usize), 0)
    }

    /// The parameter of `gradient_squares` but for its pointers, which are null.
    pub fn squares_numbers(&self) -> GradientSquares {
        GradientSquares {
            gradients: std::ptr::null(),
            parts: std::ptr::null_mut(),
            length: self.length as i64,
        }
    }

    /// The parameter of `gradient_norm` but for its pointers, which are null.
    pub fn norm_numbers(&self) -> GradientNorm {
        GradientNorm {
            parts: std::ptr::null(),
            norm: std::ptr::null_mut(),
            count: self.parts() as i32,
            unused: 0,
        }
    }

    /// The parameter of `adam_update` but for its pointers, which are null; `averages` says whether there is an average.
    ///
    /// Refuses step 0, whose bias could not be corrected.
    pub fn update_numbers(&self, step: &AdamStep, averages: bool) -> Result<AdamUpdate, DeviceError> {
        if step.step == 0 {
            return Err(DeviceError::Shapes("Adam on a GPU: steps are counted from 1".to_owned()));
        }
        let AdamConfig { beta1, beta2, eps, weight_decay } = step.adam;
        let power = step.step.min(i32::MAX as u64) as i32;
        let correction = |beta: f32| (1.0 - f64::from(beta).powi(power)) as f32;
        let number = step.step as f64;
        Ok(AdamUpdate {
            gradients: std::ptr::null(),
            norm: std::ptr::null(),
            parameters: std::ptr::null_mut(),
            rounded: std::ptr::null_mut(),
            first: std::ptr::null_mut(),
            second: std::ptr::null_mut(),
            average: std::ptr::null_mut(),
            length: self.length as i64,
            clip: step.clip as f32,
            lr: step.lr as f32,
            beta1,
            beta2,
            eps,
            weight_decay,
            correction1: correction(beta1),
            correction2: correction(beta2),
            towards: (1.0 - step.ema.min((1.0 + number) / (10.0 + number))) as f32,
            averages: i32::from(averages),
        })
    }

    /// The parameter of `round_parameters` but for its pointers, which are null.
    pub fn round_numbers(&self) -> RoundParameters {
        RoundParameters {
            parameters: std::ptr::null(),
            rounded: std::ptr::null_mut(),
            length: self.length as i64,
        }
    }
}

fn plan(kernel: &'static str, blocks: usize, shared_bytes: u32) -> Option<Plan> {
    (blocks > 0).then_some(Plan {
        family: "optimizer",
        kernel,
        grid: [blocks as u32, 1, 1],
        block: OPTIMIZER_THREADS,
        shared_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;

    const STEP: AdamStep = AdamStep {
        lr: 1e-3,
        step: 1,
        clip: 0.0,
        adam: AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 },
        ema: 0.999,
    };

    #[test]
    fn blocks_cover_the_parameters() {
        for (length, parts, blocks) in [
            (64, 1, 1),
            (1024, 1, 1),
            (1088, 1, 2),
            (16_384, 1, 16),
            (16_448, 2, 17),
            (1 << 40, 1 << 26, 1 << 30),
        ] {
            let plan = OptimizerPlan::new(length).unwrap();
            let launches =
                [plan.squares().unwrap(), plan.norm(), plan.update().unwrap(), plan.round().unwrap()];
            assert_eq!(launches.map(|launch| launch.grid[0]), [parts, 1, blocks, blocks]);
            assert_eq!(gradient_norm_scratch_len(length), 2 * parts as usize);
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launches.iter().for_each(|launch| launch.check(&card).unwrap());
            }
        }
    }

    #[test]
    fn nothing_to_do() {
        let plan = OptimizerPlan::new(0).unwrap();
        assert_eq!([plan.squares(), plan.update(), plan.round()], [None; 3]);
        assert_eq!((plan.norm_numbers().count, gradient_norm_scratch_len(0)), (0, 0));
    }

    #[test]
    fn bias_is_corrected_and_early_steps_count_more() {
        let numbers = |step| OptimizerPlan::new(64).unwrap().update_numbers(&step, true).unwrap();
        let first = numbers(STEP);
        assert_eq!((first.correction1, first.correction2), (1.0 - 0.9, 1.0 - 0.999));
        assert_eq!(first.towards, (9.0f64 / 11.0) as f32);
        let late = numbers(AdamStep { step: u64::MAX, ..STEP });
        assert_eq!((late.correction1, late.correction2, late.towards), (1.0, 1.0, 0.001));
    }

    #[test]
    fn bad_shapes() {
        for length in [32, 65, (1 << 40) + 64] {
            let error = OptimizerPlan::new(length).unwrap_err().to_string();
            assert!(error.contains("a multiple of 64 up to 1099511627776"), "{error}");
        }
        let plan = OptimizerPlan::new(64).unwrap();
        let error = plan.update_numbers(&AdamStep { step: 0, ..STEP }, false).unwrap_err().to_string();
        assert!(error.contains("counted from 1"), "{error}");
    }
}
