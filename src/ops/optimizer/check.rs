//! Problems of Adam and of the norm on a GPU, their exact answers, and what a kernel's answers are held against.

use half::bf16;

use super::{
    AdamStep, DeviceWeights, OptimizerPlan, adam_step, gradient_norm, gradient_norm_scratch_len,
    round_parameters,
};
use crate::device::abi::OPTIMIZER_PART;
use crate::device::{DeviceError, Gpu};
use crate::ops::check::draw::plain_evaluations;
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};
use crate::train::average;
use crate::train::optimizer::{Adam, AdamConfig};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Parts of the norm.
    Squares,
    /// The norm.
    Norm,
    /// A step, and the average where there is one.
    Update {
        /// Whether there is one.
        averages: bool,
    },
    /// The copy in bf16.
    Round,
}

/// Parameters and all that a step of theirs takes.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What is computed.
    pub stage: Stage,
    /// Number of parameters.
    pub length: usize,
    /// The step.
    pub step: AdamStep,
    /// Their gradients; none where parts of the norm were given.
    pub gradients: Vec<f32>,
    /// The exact parts of the norm.
    pub parts: Vec<f64>,
    /// The norm that the step is told.
    pub norm: f32,
    /// The parameters before.
    pub parameters: Vec<f32>,
    /// The first moment before.
    pub first: Vec<f32>,
    /// The second moment before.
    pub second: Vec<f32>,
    /// The average before.
    pub average: Vec<f32>,
}

/// Results, one after the other: the parts, the norm, the copy, or all that a step changes, in the order of
/// [`DeviceWeights`].
pub type Answer = Vec<Vec<f64>>;

/// A step of a size that shows everything: decay, and clipping of more than a few gradients.
pub const STEP: AdamStep = AdamStep {
    lr: 0.1,
    step: 3,
    clip: 5.0,
    adam: AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.05 },
    ema: 0.999,
};

/// The sum in f64 with what its roundings lost (Neumaier), so that it is exact beside sums in any order.
fn exact_sum(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, lost) = values.fold((0.0f64, 0.0f64), |(sum, lost), value| {
        let next = sum + value;
        let (large, small) = if sum.abs() >= value.abs() { (sum, value) } else { (value, sum) };
        (next, lost + ((large - next) + small))
    });
    sum + lost
}

fn square(gradient: f32) -> f64 {
    f64::from(gradient) * f64::from(gradient)
}

impl Problem {
    /// Normally distributed gradients, parameters and moments.
    pub fn random(stage: Stage, length: usize, step: AdamStep, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal =
            |scale: f64| -> Vec<f32> { (0..length).map(|_| (rng.normal() * scale) as f32).collect() };
        let gradients = normal(1.0);
        let tiles = gradients.chunks(OPTIMIZER_PART as usize);
        let parts: Vec<f64> =
            tiles.map(|tile| exact_sum(tile.iter().map(|&gradient| square(gradient)))).collect();
        Problem {
            stage,
            length,
            step,
            norm: exact_sum(parts.iter().copied()).sqrt() as f32,
            parts,
            parameters: normal(1.0),
            first: normal(0.1),
            second: normal(0.1).iter().map(|value| value * value).collect(),
            average: normal(1.0),
            gradients,
        }
    }

    /// The norm of `count` random parts.
    pub fn of_parts(count: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let parts = (0..count).map(|_| rng.normal().powi(2)).collect();
        let none = Problem::random(Stage::Norm, 0, STEP, seed);
        Problem { length: count * OPTIMIZER_PART as usize, parts, ..none }
    }

    /// The plan of its launch.
    pub fn plan(&self) -> Result<OptimizerPlan, DeviceError> {
        OptimizerPlan::new(self.length)
    }

    /// The copy in bf16 before the step.
    pub fn rounded(&self) -> Vec<bf16> {
        self.parameters.iter().copied().map(bf16::from_f32).collect()
    }

    /// What gradients are multiplied by.
    fn scale(&self) -> f64 {
        let norm = f64::from(self.norm);
        if self.step.clip > 0.0 && norm > self.step.clip { self.step.clip / norm } else { 1.0 }
    }

    /// Parameters, moments and average after the step, in f64 by the definition.
    fn exact_update(&self) -> [Vec<f64>; 4] {
        let [mut parameters, mut first, mut second, mut average] =
            [&self.parameters, &self.first, &self.second, &self.average].map(|values| wide(values));
        if self.norm.is_finite() {
            let AdamConfig { beta1, beta2, eps, weight_decay } = self.step.adam;
            let [beta1, beta2, eps, decay] = [beta1, beta2, eps, weight_decay].map(f64::from);
            let number = self.step.step as f64;
            let keeps = self.step.ema.min((1.0 + number) / (10.0 + number));
            for at in 0..self.length {
                let gradient = f64::from(self.gradients[at]) * self.scale();
                let (w, m, v) = (&mut parameters[at], &mut first[at], &mut second[at]);
                *m = beta1 * *m + (1.0 - beta1) * gradient;
                *v = beta2 * *v + (1.0 - beta2) * gradient * gradient;
                let change =
                    *m / (1.0 - beta1.powf(number)) / ((*v / (1.0 - beta2.powf(number))).sqrt() + eps);
                *w -= self.step.lr * (change + decay * *w);
                average[at] = keeps * average[at] + (1.0 - keeps) * *w;
            }
        }
        [parameters, first, second, average]
    }

    /// As [`Problem::exact_update`], by the CPU's own step in f32.
    fn plain_update(&self) -> [Vec<f64>; 4] {
        let mut adam =
            Adam { first: self.first.clone(), second: self.second.clone(), step: self.step.step - 1 };
        let (mut parameters, mut moved) = (self.parameters.clone(), self.average.clone());
        if self.norm.is_finite() {
            let AdamStep { lr, step, adam: config, ema, .. } = self.step;
            adam.step(&mut parameters, &self.gradients, self.scale() as f32, lr as f32, config);
            average::update(&mut moved, &parameters, ema, step);
        }
        [parameters, adam.first, adam.second, moved].map(|values| wide(&values))
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        match self.stage {
            Stage::Squares => {
                let plain = plain_evaluations(self.parts.len(), |draw| -> Vec<f64> {
                    let tiles = self.gradients.chunks(OPTIMIZER_PART as usize);
                    let sum =
                        |tile: &[f32]| draw.order(tile.len()).iter().map(|&at| square(tile[at])).sum::<f64>();
                    tiles.map(sum).collect()
                });
                let plain: Vec<&[f64]> = plain.iter().map(|sums| &sums[..]).collect();
                vec![("parts", deviation(&kernel[0], &plain, &self.parts, |value| value))]
            }
            Stage::Norm => {
                let exact = exact_sum(self.parts.iter().copied()).sqrt();
                vec![("norm", deviation(&kernel[0], &[&[to_f32(exact)]], &[exact], to_f32))]
            }
            Stage::Update { averages } => {
                let (exact, plain) = (self.exact_update(), self.plain_update());
                let of = |at: usize, kernel: &[f64]| deviation(kernel, &[&plain[at]], &exact[at], to_f32);
                let mut all = vec![
                    ("parameters", of(0, &kernel[0])),
                    ("copy in bf16", rounding(&kernel[1], &kernel[0])),
                    ("first moment", of(1, &kernel[2])),
                    ("second moment", of(2, &kernel[3])),
                ];
                if averages {
                    all.push(("average", of(3, &kernel[4])));
                }
                all
            }
            Stage::Round => vec![("copy in bf16", rounding(&kernel[0], &wide(&self.parameters)))],
        }
    }

    /// The right answer to hold one against, result by result: the copy has to be that of the answer's own parameters.
    fn exact(&self, kernel: &Answer) -> Answer {
        match self.stage {
            Stage::Squares => vec![self.parts.clone()],
            Stage::Norm => vec![vec![exact_sum(self.parts.iter().copied()).sqrt()]],
            Stage::Update { .. } => {
                let [parameters, first, second, average] = self.exact_update();
                vec![parameters, rounded(&kernel[0]), first, second, average]
            }
            Stage::Round => vec![rounded(&wide(&self.parameters))],
        }
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let single = |buffer| Ok::<_, DeviceError>(wide(&gpu.download(buffer)?));
        match self.stage {
            Stage::Squares | Stage::Norm => {
                let gradients = uploaded(gpu, &self.gradients)?;
                let mut norm = taken(gpu, 1)?;
                let mut scratch = taken(gpu, gradient_norm_scratch_len(self.length))?;
                gradient_norm(gpu, &mut norm, &gradients, &mut scratch)?;
                if self.stage == Stage::Norm {
                    return Ok(vec![single(&norm)?]);
                }
                let parts: Vec<f32> = gpu.download(&scratch)?;
                let bytes: &[u8] = bytemuck::cast_slice(&parts);
                Ok(vec![bytes.chunks_exact(size_of::<f64>()).map(bytemuck::pod_read_unaligned).collect()])
            }
            Stage::Update { averages } => {
                let mut rounded = uploaded(gpu, &self.rounded())?;
                let mut parameters = uploaded(gpu, &self.parameters)?;
                let (mut first, mut second) = (uploaded(gpu, &self.first)?, uploaded(gpu, &self.second)?);
                let mut average = if averages { Some(uploaded(gpu, &self.average)?) } else { None };
                let weights = DeviceWeights {
                    parameters: &mut parameters,
                    rounded: &mut rounded,
                    first: &mut first,
                    second: &mut second,
                    average: average.as_mut(),
                };
                let (gradients, norm) = (uploaded(gpu, &self.gradients)?, uploaded(gpu, &[self.norm])?);
                adam_step(gpu, weights, &gradients, &norm, &self.step)?;
                let copy = wide(&gpu.download(&rounded)?);
                let mut answer = vec![single(&parameters)?, copy, single(&first)?, single(&second)?];
                if let Some(average) = &average {
                    answer.push(single(average)?);
                }
                Ok(answer)
            }
            Stage::Round => {
                let mut rounded = taken(gpu, self.length)?;
                round_parameters(gpu, &mut rounded, &uploaded(gpu, &self.parameters)?)?;
                Ok(vec![wide(&gpu.download(&rounded)?)])
            }
        }
    }
}

/// A copy in bf16, which has to be that of its own parameters, which are f32, to the bit.
fn rounding(copy: &[f64], parameters: &[f64]) -> Deviation {
    let exact = rounded(parameters);
    deviation(copy, &[&exact], &exact, |value| value)
}

fn rounded(parameters: &[f64]) -> Vec<f64> {
    parameters.iter().map(|&value| to_bf16(value)).collect()
}

/// All stages, each with a length that leaves a part or block half empty.
pub const STAGES: [(Stage, usize); 5] = [
    (Stage::Squares, OPTIMIZER_PART as usize + 192),
    (Stage::Norm, 2 * OPTIMIZER_PART as usize + 64),
    (Stage::Update { averages: true }, 1088),
    (Stage::Update { averages: false }, 1088),
    (Stage::Round, 1088),
];

/// Runs the norm and Adam on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_stages(gpu, STAGES)
}

/// The same for so many times the least number of values.
pub fn run_at(gpu: &Gpu, n: usize) -> Result<Vec<Checked>, DeviceError> {
    of_stages(gpu, STAGES.map(|(stage, _)| (stage, n * UNIT)))
}

/// What a number of values is a multiple of.
const UNIT: usize = 64;

fn of_stages(gpu: &Gpu, stages: [(Stage, usize); 5]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (stage, length) in stages {
        let problem = Problem::random(stage, length, STEP, SEED);
        let found = problem.solve(gpu)?;
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let what = format!("Adam, {stage:?} of {length} values: {result}");
            let results = || (found[at].clone(), problem.exact(&found).swap_remove(at));
            checked.push(Checked::new(what, deviation, results));
        }
    }
    Ok(checked)
}
