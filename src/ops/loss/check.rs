//! Problems of sets' losses on a GPU, their exact answers, and what a kernel's answers are held against.

use std::ops::Range;
use std::sync::OnceLock;

use super::plain::plain;
use super::{DeviceLabels, Loss, Scratch, SetLossesPlan, set_losses};
use crate::device::{DeviceError, Gpu, Uploads};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::to_f32;
use crate::ops::check::{Checked, Deviation, SEED, deviation, room, taken, uploaded};
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};

/// A loss of sets.
#[derive(Debug)]
pub struct Problem {
    /// Which.
    pub loss: Loss,
    /// What gradients are multiplied by.
    pub scale: f32,
    /// `[B + 1]`
    pub offsets: Vec<usize>,
    /// `[N]`
    pub scores: Vec<f32>,
    /// `[N]`
    pub labels: Vec<f32>,
    known: OnceLock<(Answer, Vec<Answer>)>,
}

/// Answers to a [`Problem`], right or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `[B]`
    pub losses: Vec<f64>,
    /// `[N]`
    pub d_scores: Vec<f64>,
}

impl Problem {
    /// Sets of these sizes: normally distributed scores, some of them equal, and labels 0 to 4, some below 0.
    pub fn random(loss: Loss, sizes: &[usize], seed: u64) -> Self {
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let documents = sizes.iter().sum();
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let scores = (0..documents).map(|document| {
            let score = rng.normal() as f32;
            if document % 3 == 0 { score.round() } else { score }
        });
        let scores = scores.collect();
        let labels =
            (0..documents).map(|_| [-1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 4.0][rng.below(9) as usize]);
        let labels = labels.collect();
        Problem { loss, scale: 0.25, offsets, scores, labels, known: OnceLock::new() }
    }

    /// Sets of all kinds: some with nothing to do, one without a relevant document, and one with a score that is NaN.
    pub fn mixed(loss: Loss, seed: u64) -> Self {
        let mut problem = Problem::random(loss, &[2, 0, 270, 1, 9, 40, 10, 11, 8, 15, 7, 12, 5, 30], seed);
        // Of those with 10 and 11 documents.
        let (nan, irrelevant) = (problem.offsets[6], problem.offsets[7]);
        problem.scores[nan + 3] = f32::NAN;
        problem.labels[nan + 3..][..3].copy_from_slice(&[1.0, 0.0, 2.0]);
        problem.labels[irrelevant..][..11].iter_mut().for_each(|label| *label = label.min(0.0));
        problem
    }

    /// One set, in which a document has nearly all attention, and labels are far apart.
    pub fn extreme(loss: Loss, seed: u64) -> Self {
        let mut problem = Problem::random(loss, &[30], seed);
        problem.scores.iter_mut().for_each(|score| *score *= 10.0);
        problem.scores[7] = 60.0;
        problem.labels.iter_mut().for_each(|label| *label *= 50.0);
        problem
    }

    /// The same of other scores `[N]`.
    pub fn with_scores(&self, scores: Vec<f32>) -> Self {
        let Problem { loss, scale, ref offsets, ref labels, .. } = *self;
        let (offsets, labels) = (offsets.clone(), labels.clone());
        Problem { loss, scale, offsets, scores, labels, known: OnceLock::new() }
    }

    /// The launch's plan.
    pub fn plan(&self) -> Result<SetLossesPlan, DeviceError> {
        SetLossesPlan::new(self.labels.len(), &self.offsets)
    }

    /// The sets' documents.
    fn sets(&self) -> impl Iterator<Item = Range<usize>> {
        self.offsets.windows(2).map(|set| set[0]..set[1])
    }

    /// The answer that `of_set` gives for the scores and labels of each set.
    fn answer(&self, mut of_set: impl FnMut(&[f32], &[f32]) -> (f64, Vec<f64>)) -> Answer {
        let mut answer = Answer { losses: Vec::new(), d_scores: Vec::new() };
        for set in self.sets() {
            let (loss, gradient) = of_set(&self.scores[set.clone()], &self.labels[set]);
            answer.losses.push(loss);
            let of_score = |gradient| if loss.is_finite() { gradient } else { f64::NAN };
            answer.d_scores.extend(gradient.into_iter().map(of_score));
        }
        answer
    }

    /// The answer in f64, by the CPU's own losses.
    pub fn exact(&self) -> Answer {
        let mut scratch = Scratch::default();
        self.answer(|scores, labels| {
            let scores = wide(scores);
            let mut gradient = vec![0.0; scores.len()];
            let loss = self.loss.of_set(&mut scratch, &scores, labels, &mut gradient);
            gradient.iter_mut().for_each(|gradient| *gradient *= f64::from(self.scale));
            (loss, gradient)
        })
    }

    /// The answer of a plain evaluation in f32, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        self.answer(|scores, labels| {
            let mut gradient = vec![0.0f32; scores.len()];
            let loss = plain(self.loss, scores, labels, draw, &mut gradient);
            (loss.into(), gradient.into_iter().map(|gradient| f64::from(gradient * self.scale)).collect())
        })
    }

    /// How far a kernel's answer is off: the losses, and the gradients.
    ///
    /// Gradients in long sets are small: sets are held against those of like size.
    pub fn deviations(&self, kernel: &Answer) -> [Deviation; 2] {
        let (exact, plain) = self.known.get_or_init(|| {
            // The loss of a long set is a sum of many.
            let sizes = self.offsets.windows(2).map(|set| set[1] - set[0]);
            let results = sizes.chain([self.offsets.len() - 1]).max().unwrap_or(0);
            (self.exact(), plain_evaluations(results, |draw| self.plain(draw)))
        });
        let mut gradients = Deviation::default();
        for sizes in [0..16, 16..128, 128..usize::MAX] {
            let of_class = |answer: &Answer| -> Vec<f64> {
                let sets = self.sets().filter(|set| sizes.contains(&set.len()));
                sets.flat_map(|set| answer.d_scores.get(set).unwrap_or(&[]).to_vec()).collect()
            };
            let plain: Vec<Vec<f64>> = plain.iter().map(of_class).collect();
            let plain: Vec<&[f64]> = plain.iter().map(|values| &values[..]).collect();
            gradients = gradients.worse(deviation(&of_class(kernel), &plain, &of_class(exact), to_f32));
        }
        let losses: Vec<&[f64]> = plain.iter().map(|plain| &plain.losses[..]).collect();
        [deviation(&kernel.losses, &losses, &exact.losses, to_f32), gradients]
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let (documents, sets) = (self.labels.len(), self.offsets.len() - 1);
        let package = room(gpu, DeviceLabels::bytes(documents, sets))?;
        let labels = Uploads::default()
            .send(gpu, package, |package| DeviceLabels::new(package, &self.labels, &self.offsets))?;
        let scores = uploaded(gpu, &self.scores)?;
        let (mut losses, mut d_scores) = (taken(gpu, sets)?, taken(gpu, documents)?);
        set_losses(gpu, &mut losses, &mut d_scores, &scores, &labels, self.loss, self.scale)?;
        Ok(Answer { losses: wide(&gpu.download(&losses)?), d_scores: wide(&gpu.download(&d_scores)?) })
    }

    /// Solves it on a GPU and holds the results against the rule.
    fn hold(&self, gpu: &Gpu, kind: &str) -> Result<[Checked; 2], DeviceError> {
        let found = self.solve(gpu)?;
        let [losses, gradients] = self.deviations(&found);
        let what = |result| format!("{:?}, {kind}: {result}", self.loss);
        Ok([
            Checked::new(what("losses"), losses, || (found.losses.clone(), self.exact().losses)),
            Checked::new(what("gradients"), gradients, || (found.d_scores.clone(), self.exact().d_scores)),
        ])
    }
}

/// Computes losses on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for loss in Loss::ALL {
        checked.extend(Problem::mixed(loss, SEED).hold(gpu, "sets of all kinds")?);
        checked.extend(Problem::extreme(loss, SEED).hold(gpu, "extreme numbers")?);
    }
    Ok(checked)
}

/// The same for a set of so many documents.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for loss in Loss::ALL {
        let kind = format!("a set of {documents}");
        checked.extend(Problem::random(loss, &[documents], SEED).hold(gpu, &kind)?);
    }
    Ok(checked)
}
