//! Problems of scores, losses and gradients in one kernel on a GPU. Each result is held against the exact answer to what the
//! kernel itself has of the step before: losses and gradients by the scores against those of its scores, for one.

use super::{ScoreLossPlan, ScoreLossResults, score_loss_scratch_len, score_losses};
use crate::device::{DeviceError, Gpu, Uploads};
use crate::ops::check::{Checked, Deviation, SEED, room, taken, uploaded};
use crate::ops::loss::{self, DeviceLabels, Loss};
use crate::ops::partial_sums::PendingSums;
use crate::ops::score::check as score;
use crate::ops::score::check::Direction;
use crate::ops::values::wide;

/// The score head over sets, and a loss of them.
#[derive(Debug)]
pub struct Problem {
    /// Rows and parameters of the head.
    pub head: score::Problem,
    /// Labels and sets; its scores count for nothing.
    pub sets: loss::check::Problem,
}

/// Scores, losses, gradients by the scores, dx, dw and db.
pub type Answer = Vec<Vec<f64>>;

impl Problem {
    /// Sets of these sizes, with labels 0 to 4 and some below 0, and normally distributed rows of `width` values, some of them
    /// the row before.
    pub fn random(loss: Loss, sizes: &[usize], width: usize, seed: u64) -> Self {
        let sets = loss::check::Problem::random(loss, sizes, seed);
        let documents = sets.labels.len();
        let mut head = score::Problem::random(Direction::Forward, documents, width, seed);
        for row in (1..documents).filter(|row| row % 5 == 0) {
            head.x.copy_within((row - 1) * width..row * width, row * width);
        }
        Problem { head, sets }
    }

    /// Sets of all kinds: some with nothing to do, and one without a relevant document.
    pub fn mixed(loss: Loss, width: usize, seed: u64) -> Self {
        let mut problem = Problem::random(loss, &[2, 0, 270, 1, 9, 40, 11, 17, 32, 33, 31], width, seed);
        let irrelevant = problem.sets.offsets[6];
        problem.sets.labels[irrelevant..][..11].iter_mut().for_each(|label| *label = label.min(0.0));
        problem
    }

    /// The launch's plan.
    pub fn plan(&self) -> Result<ScoreLossPlan, DeviceError> {
        ScoreLossPlan::new(self.sets.plan()?, self.head.width())
    }

    /// The losses of a kernel's scores.
    fn losses(&self, kernel: &Answer) -> loss::check::Problem {
        self.sets.with_scores(narrow(&kernel[0]))
    }

    /// The head's gradients by a kernel's gradients by the scores.
    fn backward(&self, kernel: &Answer) -> score::Problem {
        score::Problem { direction: Direction::Backward, d_scores: narrow(&kernel[2]), ..self.head.clone() }
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let (losses, d_scores) = (kernel[1].clone(), kernel[2].clone());
        let of_losses = self.losses(kernel).deviations(&loss::check::Answer { losses, d_scores });
        let mut all = self.head.deviations(&kernel[..1].to_vec());
        all.extend(["losses", "gradients by scores"].into_iter().zip(of_losses));
        all.extend(self.backward(kernel).deviations(&kernel[3..].to_vec()));
        all
    }

    /// The exact answers that a kernel's results are held against.
    pub fn exact(&self, kernel: &Answer) -> Answer {
        let loss::check::Answer { losses, d_scores } = self.losses(kernel).exact();
        let mut all = self.head.exact();
        all.extend([losses, d_scores]);
        all.extend(self.backward(kernel).exact());
        all
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let (sets, head) = (&self.sets, &self.head);
        let (documents, width, count) = (head.rows(), head.width(), sets.offsets.len() - 1);
        let package = room(gpu, DeviceLabels::bytes(documents, count))?;
        let labels = Uploads::default()
            .send(gpu, package, |package| DeviceLabels::new(package, &sets.labels, &sets.offsets))?;
        let [weight, bias] = [uploaded(gpu, &head.weight)?, uploaded(gpu, &head.bias)?];
        let x = uploaded(gpu, &head.x)?;
        let (mut scores, mut losses) = (taken(gpu, documents)?, taken(gpu, count)?);
        let (mut d_scores, mut dx) = (taken(gpu, documents)?, taken(gpu, documents * width)?);
        let [mut d_weight, mut d_bias] = [uploaded(gpu, &head.d_weight)?, uploaded(gpu, &head.d_bias)?];
        PendingSums::of(gpu, &taken(gpu, score_loss_scratch_len(count, width))?, |sums| {
            let results = ScoreLossResults {
                scores: &mut scores,
                losses: &mut losses,
                d_scores: &mut d_scores,
                dx: &mut dx,
                d_weight: &mut d_weight,
                d_bias: &mut d_bias,
            };
            score_losses(gpu, results, &x, &weight, &bias, &labels, sets.loss, sets.scale, sums)
        })?;
        let mut answer = Answer::new();
        for values in [&scores, &losses, &d_scores] {
            answer.push(wide(&gpu.download(values)?));
        }
        answer.push(wide(&gpu.download(&dx)?));
        for values in [&d_weight, &d_bias] {
            answer.push(wide(&gpu.download(values)?));
        }
        Ok(answer)
    }

    /// Solves it on a GPU and holds the results against the rule.
    fn hold(&self, gpu: &Gpu, kind: &str) -> Result<Vec<Checked>, DeviceError> {
        let found = self.solve(gpu)?;
        let exact = self.exact(&found);
        let (loss, width) = (self.sets.loss, self.head.width());
        let results = self.deviations(&found).into_iter().enumerate();
        let checked = results.map(|(at, (result, deviation))| {
            let what = format!("scores and {loss:?}, {kind}, rows of {width}: {result}");
            Checked::new(what, deviation, || (found[at].clone(), exact[at].clone()))
        });
        Ok(checked.collect())
    }
}

/// Values that are of f32.
fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// Computes scores, losses and gradients on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (loss, width) in Loss::ALL.into_iter().zip([64, 320, 256, 512]) {
        checked.extend(Problem::mixed(loss, width, SEED).hold(gpu, "sets of all kinds")?);
    }
    Ok(checked)
}

/// The same for a set of so many documents.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for loss in Loss::ALL {
        let kind = format!("a set of {documents}");
        checked.extend(Problem::random(loss, &[documents], 256, SEED).hold(gpu, &kind)?);
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_is_noticed() {
        let problem = Problem::random(Loss::SoftmaxCrossEntropy, &[17, 5], 64, 1);
        let mut right = vec![vec![0.0; 22]; 6];
        // What is right depends on the results before it.
        for _ in 0..3 {
            right = problem.exact(&right);
            [0, 2].into_iter().for_each(|at| right[at] = wide(&narrow(&right[at])));
        }
        assert!(problem.deviations(&right).iter().all(|(_, found)| found.is_allowed()));
        for at in 0..right.len() {
            let mut wrong = right.clone();
            let largest = wrong[at].iter().fold(0.0f64, |most, value| most.max(value.abs()));
            wrong[at][0] += 0.05 * largest;
            let (name, found) = problem.deviations(&wrong)[at];
            assert!(!found.is_allowed(), "{name}");
        }
    }
}
