//! Forward: answers, and how far they are off.

use half::bf16;

use super::{Problem, deviation, scratch_on};
use crate::device::{DeviceError, Gpu, Limits, Uploads};
use crate::ops::attention::{
    AttentionPlan, DeviceAttention, Qkv, Roles, attention_forward, forward as forward_on_cpu,
};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::to_f32;
use crate::ops::check::sums::RowOfSums;
use crate::ops::check::{Checked, Deviation, room};
use crate::ops::scratch::PerThread;
use crate::ops::values::row_times;

/// Answers to a [`Problem`], right or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `[Nq, H·D]`
    pub heads: Vec<f64>,
    /// `[H, Nq]`
    pub log_sum_exp: Vec<f64>,
}

/// The exact answer, and those of plain evaluations.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    exact: Answer,
    plain: Vec<Answer>,
}

impl Problem {
    /// The answer in f64, by the CPU's own attention.
    pub fn exact(&self) -> Answer {
        let [.., rows] = self.rows();
        let count = self.heads.count;
        let (mut heads, mut by_row) = (vec![0.0; rows * self.heads.hidden()], vec![0.0; rows * count]);
        let mut threads = PerThread::default();
        threads.prepare();
        self.on_cpu(|attention| forward_on_cpu(&mut heads, Some(&mut by_row), attention, &threads));
        let log_sum_exp = (0..count * rows).map(|at| by_row[at % rows * count + at / rows]).collect();
        Answer { heads, log_sum_exp }
    }

    /// The answer of a plain evaluation in the kernel's number types: scores and sums in f32 and powers of two, weights
    /// rounded to bf16 for the product with the values, before they are divided by their sum where they are fused with it,
    /// results rounded to bf16. Sums go as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let (count, width) = (self.heads.count, self.heads.width);
        let [.., rows] = self.rows();
        let mut answer =
            Answer { heads: vec![0.0; rows * count * width], log_sum_exp: vec![0.0; count * rows] };
        let (inputs, dimensions) = (self.singles(), draw.order(width));
        for set in self.sets() {
            let keys = draw.order(set.keys.len());
            for head in 0..count {
                let columns = inputs.key_columns(head, &set.keys);
                for (number, (query, output)) in set.queries.clone().zip(set.outputs.clone()).enumerate() {
                    let q = inputs.query(head, query);
                    let by_key = row_times(q, &columns, keys.len(), &dimensions, draw.sums);
                    let scores: Vec<f32> = keys.iter().map(|&key| by_key[key]).collect();
                    // Scaled in one operation with the difference, whose result is hardly ever exactly 0.
                    let scale = self.scale_log2e();
                    let scaled: Vec<f32> = scores.iter().map(|score| score * scale).collect();
                    let reference = draw.reference(head * rows + output, &scaled);
                    let weights: Vec<f32> = scores
                        .iter()
                        .map(|score| draw.approximate.exp2(score.mul_add(scale, -reference)))
                        .collect();
                    let sum: f32 = weights.iter().sum();
                    answer.log_sum_exp[head * rows + output] =
                        f64::from((reference + draw.approximate.log2(sum)) * std::f32::consts::LN_2);
                    let kept = self.kept(&set, head, number);
                    let share = self.keep() / sum;
                    let [before, behind] = if self.is_naive() { [share, 1.0] } else { [1.0, share] };
                    let mut result = RowOfSums::new(draw.sums, width);
                    for (&key, &weight) in keys.iter().zip(&weights) {
                        let weight = bf16::from_f32(weight * before * kept[key]).to_f32();
                        result.add(weight, inputs.value(head, set.keys.start + key));
                    }
                    let to = &mut answer.heads[(output * count + head) * width..][..width];
                    for (to, value) in to.iter_mut().zip(result.values()) {
                        *to = bf16::from_f32(value * behind).to_f64();
                    }
                }
            }
        }
        answer
    }

    /// How far a kernel's answer is off: the heads' results, and the log-sum-exps.
    pub fn deviations(&self, kernel: &Answer) -> [Deviation; 2] {
        let Reference { exact, plain } = self.reference.get_or_init(|| {
            let exact = self.exact();
            let plain = plain_evaluations(exact.log_sum_exp.len(), |draw| self.plain(draw));
            Reference { exact, plain }
        });
        let heads: Vec<&[f64]> = plain.iter().map(|plain| &plain.heads[..]).collect();
        let log_sum_exp: Vec<&[f64]> = plain.iter().map(|plain| &plain.log_sum_exp[..]).collect();
        let hidden = self.heads.hidden();
        [
            self.by_size(&kernel.heads, &heads, &exact.heads, |set| {
                std::iter::once(set.outputs.start * hidden..set.outputs.end * hidden)
            }),
            deviation(&kernel.log_sum_exp, &log_sum_exp, &exact.log_sum_exp, to_f32),
        ]
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let [_, _, rows] = self.rows();
        // An arena each, so that an emulator or a sanitizer finds what a kernel writes behind a buffer.
        let arena = |bytes| gpu.arena("the check of attention", bytes);
        let attention = self.on_device(gpu)?;
        let mut heads = arena(2 * rows * self.heads.hidden())?.take(rows * self.heads.hidden())?;
        let mut log_sum_exp = arena(4 * rows * self.heads.count)?.take(rows * self.heads.count)?;
        let (mut q, mut kv, mut qkv) = (None, None, None);
        let qkv = if self.roles == Roles::Documents {
            let values = [&self.q[..], &self.kv].concat();
            let qkv = qkv.insert(arena(2 * values.len())?.take(values.len())?);
            gpu.upload(qkv, &values)?;
            Qkv::Together(qkv)
        } else {
            let q = q.insert(arena(2 * self.q.len())?.take(self.q.len())?);
            let kv = kv.insert(arena(2 * self.kv.len())?.take(self.kv.len())?);
            gpu.upload(q, &self.q)?;
            gpu.upload(kv, &self.kv)?;
            Qkv::Apart { q, kv }
        };
        let scratch = scratch_on(gpu, &attention, false)?;
        let dropout = self.dropout();
        attention_forward(gpu, &attention, &scratch, qkv, &mut heads, &mut log_sum_exp, dropout)?;
        Ok(Answer {
            heads: gpu.download(&heads)?.into_iter().map(bf16::to_f64).collect(),
            log_sum_exp: gpu.download(&log_sum_exp)?.into_iter().map(f64::from).collect(),
        })
    }

    /// Solves it on a GPU and holds the results against the rule.
    pub(super) fn hold(&self, gpu: &Gpu, what: &str) -> Result<[Checked; 2], DeviceError> {
        let found = self.solve(gpu)?;
        let [heads, log_sum_exp] = self.deviations(&found);
        let what = |result| format!("attention, forward, {what}: {result}");
        Ok([
            Checked::new(what("heads"), heads, || (found.heads.clone(), self.exact().heads)),
            Checked::new(what("log-sum-exps"), log_sum_exp, || {
                (found.log_sum_exp.clone(), self.exact().log_sum_exp)
            }),
        ])
    }

    /// The plan, in a package that is as large as the bound says.
    pub(super) fn on_device(&self, gpu: &Gpu) -> Result<DeviceAttention, DeviceError> {
        let limits = Limits { wgmma: self.wgmma || gpu.limits().wgmma, fuse: self.fuse, ..*gpu.limits() };
        let (sets, documents) = (self.offsets.len() - 1, self.offsets[self.offsets.len() - 1]);
        let bytes = AttentionPlan::bytes_bound(sets, documents, self.roles, self.fuse);
        Uploads::default().send(gpu, room(gpu, bytes)?, |package| {
            DeviceAttention::new(package, &limits, self.roles, &self.offsets, self.heads)
        })
    }
}
