//! Problems of set attention on a GPU, their exact answers, and what a kernel's answers are held against.

use std::ops::Range;

use half::bf16;

use super::{Attention, DeviceSets, Heads, Rows, forward, set_attention_forward};
use crate::device::check::{Checked, Deviation, deviation};
use crate::device::{DeviceError, Gpu};
use crate::ops::scratch::PerThread;
use crate::rng::{Rng, Stream};

/// Set attention of bf16 queries, keys and values.
#[derive(Clone, Debug)]
pub struct Problem {
    offsets: Vec<usize>,
    heads: Heads,
    qkv: Vec<bf16>,
}

/// Answers to a [`Problem`], right or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `[N, H·D]`
    pub heads: Vec<f64>,
    /// `[H, N]`
    pub log_sum_exp: Vec<f64>,
}

impl Problem {
    /// The problem of sets that `offsets` `[B + 1]` delimit, of heads, and of qkv `[3, H, N, D]`.
    ///
    /// # Errors
    ///
    /// Offsets that do not begin at 0 or that decrease, and qkv of another size.
    pub fn new(offsets: Vec<usize>, heads: Heads, qkv: Vec<bf16>) -> Result<Self, DeviceError> {
        let refuse =
            |reason: String| Err(DeviceError::Shapes(format!("a problem of set attention: {reason}")));
        if offsets.first() != Some(&0) || !offsets.is_sorted() {
            return refuse(format!("offsets begin at 0 and do not decrease, unlike {offsets:?}"));
        }
        let problem = Problem { offsets, heads, qkv };
        let needed = [3, heads.count, problem.rows(), heads.width]
            .into_iter()
            .try_fold(1usize, |product, extent| product.checked_mul(extent));
        if needed != Some(problem.qkv.len()) {
            return refuse(format!(
                "qkv [3, H, N, D] of {} documents and {} heads of {} does not have {} values",
                problem.rows(),
                heads.count,
                heads.width,
                problem.qkv.len()
            ));
        }
        Ok(problem)
    }

    /// Normally distributed numbers for sets of these sizes.
    pub fn random(sizes: &[usize], heads: Heads, seed: u64) -> Self {
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let len = 3 * heads.hidden() * sizes.iter().sum::<usize>();
        Problem { offsets, heads, qkv: (0..len).map(|_| bf16::from_f64(rng.normal())).collect() }
    }

    /// Where the sets begin and the last ends `[B + 1]`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Heads.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// Queries, keys and values `[3, H, N, D]`.
    pub fn qkv(&self) -> &[bf16] {
        &self.qkv
    }

    /// Queries, keys and values, to be changed.
    pub fn qkv_mut(&mut self) -> &mut [bf16] {
        &mut self.qkv
    }

    /// Documents, N.
    pub fn rows(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Query, key or value (`part` 0, 1, 2) of a document and head, D values.
    fn row(&self, part: usize, head: usize, row: usize) -> &[bf16] {
        let Heads { count, width } = self.heads;
        &self.qkv[((part * count + head) * self.rows() + row) * width..][..width]
    }

    /// The answer in f64, by the CPU's own set attention.
    pub fn exact(&self) -> Answer {
        let Heads { count, width } = self.heads;
        let (rows, hidden) = (self.rows(), self.heads.hidden());
        let mut inputs = vec![0.0; rows * 3 * hidden];
        for part in 0..3 {
            for head in 0..count {
                for row in 0..rows {
                    let to = (row * 3 + part) * hidden + head * width;
                    let values = self.row(part, head, row).iter().map(|value| value.to_f64());
                    inputs[to..to + width].iter_mut().zip(values).for_each(|(to, value)| *to = value);
                }
            }
        }
        let part = |column| Rows { data: &inputs[..], stride: 3 * hidden, column };
        let attention = Attention {
            heads: self.heads,
            q: part(0),
            k: part(hidden),
            v: part(2 * hidden),
            query_offsets: &self.offsets,
            key_offsets: &self.offsets,
            shared_queries: false,
            dropout: None,
        };
        let (mut heads, mut by_row) = (vec![0.0; rows * hidden], vec![0.0; rows * count]);
        let mut threads = PerThread::default();
        threads.prepare();
        forward(&mut heads, Some(&mut by_row), &attention, &threads);
        let log_sum_exp = (0..count * rows).map(|at| by_row[at % rows * count + at / rows]).collect();
        Answer { heads, log_sum_exp }
    }

    /// The answer of a plain evaluation in the kernel's number types: scores and sums in f32 and powers of two, weights
    /// rounded to bf16 for the product with the values, results rounded to bf16. Sums go in the order that `order` gives
    /// to the numbers below a length.
    fn plain(&self, order: impl Fn(usize) -> Vec<usize>) -> Answer {
        let Heads { count, width } = self.heads;
        let rows = self.rows();
        let mut answer =
            Answer { heads: vec![0.0; rows * count * width], log_sum_exp: vec![0.0; count * rows] };
        let scale = (std::f64::consts::LOG2_E / (width as f64).sqrt()) as f32;
        let dimensions = order(width);
        for set in self.offsets.windows(2) {
            let keys = order(set[1] - set[0]);
            for head in 0..count {
                for query in set[0]..set[1] {
                    let q = self.row(0, head, query);
                    let score = |key: &usize| {
                        let k = self.row(1, head, set[0] + key);
                        dimensions.iter().map(|&d| q[d].to_f32() * k[d].to_f32()).sum::<f32>() * scale
                    };
                    let scores: Vec<f32> = keys.iter().map(score).collect();
                    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp2()).collect();
                    let sum: f32 = weights.iter().sum();
                    answer.log_sum_exp[head * rows + query] =
                        f64::from((largest + sum.log2()) * std::f32::consts::LN_2);
                    let mut result = vec![0.0f32; width];
                    for (&key, &weight) in keys.iter().zip(&weights) {
                        let weight = bf16::from_f32(weight).to_f32();
                        let value = self.row(2, head, set[0] + key);
                        result.iter_mut().zip(value).for_each(|(to, value)| *to += weight * value.to_f32());
                    }
                    let to = &mut answer.heads[(query * count + head) * width..][..width];
                    for (to, value) in to.iter_mut().zip(result) {
                        *to = bf16::from_f32(value / sum).to_f64();
                    }
                }
            }
        }
        answer
    }

    /// How far a kernel's answer is off: the heads' results, and the log-sum-exps.
    ///
    /// Results of long sets are means of many values, and small: sets are held against those of like size.
    pub fn deviations(&self, kernel: &Answer) -> [Deviation; 2] {
        let exact = self.exact();
        let plain = [
            self.plain(|len| (0..len).collect()),
            self.plain(|len| (0..len).rev().collect()),
            self.plain(|len| (0..len).step_by(2).chain((1..len).step_by(2)).collect()),
        ];
        let log_sum_exp = plain.each_ref().map(|plain| &plain.log_sum_exp[..]);
        let mut heads = Deviation::default();
        for sizes in [0..16, 16..64, 64..256, 256..usize::MAX] {
            let of_class = |answer: &Answer| self.heads_of_sets(answer, &sizes);
            let plain = plain.each_ref().map(of_class);
            let plain = plain.each_ref().map(|values| &values[..]);
            let round = |value| bf16::from_f64(value).to_f64();
            heads = heads.worse(deviation(&of_class(kernel), &plain, &of_class(&exact), round));
        }
        [
            heads,
            deviation(&kernel.log_sum_exp, &log_sum_exp, &exact.log_sum_exp, |value| f64::from(value as f32)),
        ]
    }

    /// The heads' results of the sets of these sizes.
    fn heads_of_sets(&self, answer: &Answer, sizes: &Range<usize>) -> Vec<f64> {
        let hidden = self.heads.hidden();
        let sets = self.offsets.windows(2).map(|set| set[0]..set[1]).filter(|set| sizes.contains(&set.len()));
        let rows = sets.map(|set| set.start * hidden..set.end * hidden);
        rows.flat_map(|values| answer.heads.get(values).unwrap_or(&[]).iter().copied()).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let values = self.rows() * self.heads.hidden();
        let rows = self.rows() * self.heads.count;
        // An arena each: what a kernel wrote behind a buffer would be behind its memory.
        let arena = |bytes| gpu.arena("the check of set attention", bytes);
        // There are no more tiles than documents.
        let sets = DeviceSets::new(gpu, &mut arena(16 * self.rows())?, &self.offsets, self.heads)?;
        let mut qkv = arena(6 * values)?.take(3 * values)?;
        let mut heads = arena(2 * values)?.take(values)?;
        let mut log_sum_exp = arena(4 * rows)?.take(rows)?;
        gpu.upload(&mut qkv, &self.qkv)?;
        set_attention_forward(gpu, &sets, &qkv, &mut heads, &mut log_sum_exp)?;
        Ok(Answer {
            heads: gpu.download(&heads)?.into_iter().map(bf16::to_f64).collect(),
            log_sum_exp: gpu.download(&log_sum_exp)?.into_iter().map(f64::from).collect(),
        })
    }
}

/// Set sizes that reach every path: one document, less and more than a tile of keys or queries, several tiles; and short
/// ones, whose plan has fewer stages.
const SIZES: [&[usize]; 2] = [&[1, 40, 64, 65, 129, 300], &[2, 100]];

/// Runs set attention on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for width in [32, 64] {
        for sizes in SIZES {
            let problem = Problem::random(sizes, Heads { count: 4, width }, 1);
            let found = problem.deviations(&problem.solve(gpu)?);
            let longest = sizes[sizes.len() - 1];
            for (result, deviation) in ["heads", "log-sum-exp"].into_iter().zip(found) {
                let what = format!("set attention, head width {width}, sets up to {longest}: {result}");
                checked.push(Checked { what, deviation });
            }
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let heads = Heads { count: 2, width: 32 };
        let new = |offsets: &[usize], values| {
            Problem::new(offsets.to_vec(), heads, vec![bf16::ZERO; values]).map(|problem| problem.rows())
        };
        assert_eq!(new(&[0, 2, 2, 3], 3 * 2 * 3 * 32).unwrap(), 3);
        assert_eq!(new(&[0], 0).unwrap(), 0);
        for (offsets, values, part) in [
            (&[][..], 0, "offsets begin at 0"),
            (&[1, 2], 192, "unlike [1, 2]"),
            (&[0, 3, 2], 384, "unlike [0, 3, 2]"),
            (&[0, 3], 575, "3 documents and 2 heads of 32 does not have 575 values"),
            (&[0, usize::MAX], 0, "does not have 0 values"),
        ] {
            let message = new(offsets, values).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
