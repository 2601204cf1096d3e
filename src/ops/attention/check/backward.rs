//! Backward: problems, gradients, and how far they are off.

use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;

use super::{Problem, Set, deviation, normal, row_of, scratch_on};
use crate::device::{DeviceError, Gpu};
use crate::ops::attention::plan::has_few_points;
use crate::ops::attention::{
    Heads, Qkv, QkvGradients, Roles, attention_backward, backward as backward_on_cpu,
};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{nearest_bf16, to_f32};
use crate::ops::check::sums::RowOfSums;
use crate::ops::check::{Checked, Deviation};
use crate::ops::scratch::PerThread;
use crate::ops::values::{narrow, row_times, wide};
use crate::rng::{Rng, Stream};

/// The backward of a [`Problem`], given what forward leaves and the gradient of its results.
#[derive(Clone, Debug)]
pub struct BackwardProblem {
    forward: Problem,
    relu: bool,
    heads: Vec<bf16>,
    /// What δ is of: `heads`, or where kernels sum the weights instead, what they would be if they were not rounded.
    of_delta: Vec<f64>,
    log_sum_exp: Vec<f32>,
    d_heads: Vec<bf16>,
    reference: OnceLock<Reference>,
}

/// Answers to a [`BackwardProblem`], right or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[H, Nq, D]`
    pub d_q: Vec<f64>,
    /// `[2, H, Nk, D]`
    pub d_kv: Vec<f64>,
    /// Σ heads·d_heads `[H, Nq]`
    pub delta: Vec<f64>,
}

/// The exact gradients, and those of plain evaluations.
#[derive(Clone, Debug)]
struct Reference {
    exact: Gradients,
    plain: Vec<Gradients>,
}

impl BackwardProblem {
    /// The backward of `forward`, of normally distributed gradients; with `relu`, q, k and v pass through one first.
    pub fn new(mut forward: Problem, relu: bool, seed: u64) -> Self {
        if relu {
            for values in forward.qkv_mut() {
                values.iter_mut().for_each(|value| *value = value.max(bf16::ZERO));
            }
        }
        let answer = forward.exact();
        let mut rng = Rng::new(seed, Stream::Synth, 1);
        let heads: Vec<bf16> = answer.heads.iter().map(|&value| nearest_bf16(value)).collect();
        BackwardProblem {
            relu,
            d_heads: normal(&mut rng, heads.len()),
            of_delta: if sums_weights(&forward) { answer.heads } else { wide(&heads) },
            heads,
            log_sum_exp: answer.log_sum_exp.into_iter().map(|value| value as f32).collect(),
            forward,
            reference: OnceLock::new(),
        }
    }

    /// What it is the backward of.
    pub fn forward(&self) -> &Problem {
        &self.forward
    }

    /// Whether q, k and v are stored behind a ReLU.
    pub fn relu(&self) -> bool {
        self.relu
    }

    /// Forward's results `[Nq, H·D]`.
    pub fn heads(&self) -> &[bf16] {
        &self.heads
    }

    /// Forward's log-sum-exps `[H, Nq]`.
    pub fn log_sum_exp(&self) -> &[f32] {
        &self.log_sum_exp
    }

    /// The results' gradient `[Nq, H·D]`.
    pub fn d_heads(&self) -> &[bf16] {
        &self.d_heads
    }

    /// Rows of the results.
    fn rows(&self) -> usize {
        let [.., rows] = self.forward.rows();
        rows
    }

    /// D values of `[Nq, H·D]`.
    fn of_head<'a>(&self, values: &'a [f32], head: usize, row: usize) -> &'a [f32] {
        let Heads { count, width } = self.forward.heads;
        &values[(row * count + head) * width..][..width]
    }

    /// The gradients in f64, by the CPU's own attention.
    pub fn exact(&self) -> Gradients {
        let Heads { count, width } = self.forward.heads;
        let (hidden, rows) = (count * width, self.rows());
        let (heads, d_heads) = (&self.of_delta, wide(&self.d_heads));
        let by_row: Vec<f64> =
            (0..rows * count).map(|at| f64::from(self.log_sum_exp[at % count * rows + at / count])).collect();
        let (mut q, mut kv) = (vec![0.0; rows * hidden], vec![0.0; self.forward.kv.len()]);
        let mut threads = PerThread::default();
        threads.prepare();
        self.forward.on_cpu(|attention| {
            let gradients = QkvGradients::Apart { q: &mut q[..], kv: &mut kv[..] };
            backward_on_cpu(gradients, &d_heads, heads, &by_row, attention, &threads);
        });
        let delta = (0..count * rows).map(|at| {
            let here = (at % rows * count + at / rows) * width;
            (here..here + width).map(|at| heads[at] * d_heads[at]).sum()
        });
        let mut gradients = Gradients {
            d_q: by_heads(&q, self.forward.heads, 1),
            d_kv: by_heads(&kv, self.forward.heads, 2),
            delta: delta.collect(),
        };
        self.through_relu(&mut gradients);
        gradients
    }

    /// Gradients in front of the ReLU.
    fn through_relu(&self, gradients: &mut Gradients) {
        if !self.relu {
            return;
        }
        let Heads { count, width } = self.forward.heads;
        let rows = self.rows();
        let [query_rows, ..] = self.forward.rows();
        for set in self.forward.sets() {
            for (query, output) in set.queries.clone().zip(set.outputs.clone()) {
                for head in 0..count {
                    let to = &mut gradients.d_q[(head * rows + output) * width..][..width];
                    mask(to, row_of(&self.forward.q, self.forward.heads, query_rows, head, query));
                }
            }
        }
        mask(&mut gradients.d_kv, &self.forward.kv);
    }

    /// The gradients of a plain evaluation in the kernels' number types: products, weights and sums in f32, weights and
    /// their gradients rounded to bf16 for the products behind them, results rounded to bf16. Sums go as the
    /// draw says.
    fn plain(&self, draw: Draw) -> Gradients {
        let Heads { count, width } = self.forward.heads;
        let [_, key_rows, rows] = self.forward.rows();
        let mut gradients = Gradients {
            d_q: vec![0.0; rows * count * width],
            d_kv: vec![0.0; self.forward.kv.len()],
            delta: vec![0.0; count * rows],
        };
        let inputs = self.forward.singles();
        let (heads, d_heads) = (narrow(&self.heads), narrow(&self.d_heads));
        let dimensions = draw.order(width);
        // Of one key, δ and d_out·v are the same number: in the same order their difference would be 0 by luck.
        let backwards = |a: &[f32], b: &[f32]| -> f32 { dimensions.iter().rev().map(|&d| a[d] * b[d]).sum() };
        let add = |to: &mut RowOfSums, weight: f32, values: &[f32]| {
            to.add(bf16::from_f32(weight).to_f32(), values);
        };
        let store = |to: &mut [f64], from: &RowOfSums, factor: f32| {
            let values = to.iter_mut().zip(from.values());
            values.for_each(|(to, from)| *to = bf16::from_f32(from * factor).to_f64());
        };
        let (scale, keep) = (1.0 / (width as f32).sqrt(), self.forward.keep());
        // Of the weights for the gradient of v: before they are rounded, and behind the sum.
        let [before, behind] = if self.forward.is_naive() { [keep, 1.0] } else { [1.0, keep] };
        for set in self.forward.sets() {
            for head in 0..count {
                let keys = inputs.key_columns(head, &set.keys);
                let values = inputs.value_columns(head, &set.keys);
                let [mut d_k, mut d_v] =
                    [(); 2].map(|()| vec![RowOfSums::new(draw.sums, width); set.keys.len()]);
                for number in draw.order(set.queries.len()) {
                    let (query, output) = (set.queries.start + number, set.outputs.start + number);
                    let q = inputs.query(head, query);
                    let d_out = self.of_head(&d_heads, head, output);
                    let log2_sum = self.log_sum_exp[head * rows + output] * std::f32::consts::LOG2_E;
                    let kept = self.forward.kept(&set, head, number);
                    let by_key = |row: &[f32], columns: &[f32]| {
                        row_times(row, columns, set.keys.len(), &dimensions, draw.sums)
                    };
                    let (scores, d_weights) = (by_key(q, &keys), by_key(d_out, &values));
                    let weigh = |key: usize| {
                        let power = scores[key] * self.forward.scale_log2e() - log2_sum;
                        (key, draw.approximate.exp2(power), d_weights[key] * (kept[key] * keep))
                    };
                    let weights: Vec<(usize, f32, f32)> =
                        draw.order(set.keys.len()).into_iter().map(weigh).collect();
                    let delta = if sums_weights(&self.forward) {
                        let d_weight =
                            |key: usize| backwards(inputs.value(head, set.keys.start + key), d_out);
                        weights
                            .iter()
                            .map(|&(key, weight, _)| weight * d_weight(key) * (kept[key] * keep))
                            .sum()
                    } else {
                        backwards(self.of_head(&heads, head, output), d_out)
                    };
                    gradients.delta[head * rows + output] = f64::from(delta);
                    let mut d_q = RowOfSums::new(draw.sums, width);
                    for (key, weight, d_weight) in weights {
                        let d_score = weight * (d_weight - delta);
                        add(&mut d_q, d_score, inputs.key(head, set.keys.start + key));
                        add(&mut d_k[key], d_score, q);
                        add(&mut d_v[key], weight * kept[key] * before, d_out);
                    }
                    store(&mut gradients.d_q[(head * rows + output) * width..][..width], &d_q, scale);
                }
                for (part, rows, factor) in [(0, &d_k, scale), (1, &d_v, behind)] {
                    let begin = ((part * count + head) * key_rows + set.keys.start) * width;
                    let to = gradients.d_kv[begin..].chunks_exact_mut(width);
                    to.zip(rows).for_each(|(to, row)| store(to, row, factor));
                }
            }
        }
        self.through_relu(&mut gradients);
        gradients
    }

    fn reference(&self) -> &Reference {
        self.reference.get_or_init(|| {
            let exact = self.exact();
            let plain = plain_evaluations(exact.delta.len(), |draw| self.plain(draw));
            Reference { exact, plain }
        })
    }

    /// How far the gradient of q is off.
    pub fn deviation_of_queries(&self, d_q: &[f64]) -> Deviation {
        let Reference { exact, plain } = self.reference();
        let rows = self.rows();
        let places = |set: &Set| self.runs(0..1, rows, &set.outputs);
        let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain.d_q[..]).collect();
        self.forward.by_size(d_q, &plain, &exact.d_q, places)
    }

    /// How far δ is off, which only kernels of sets leave that do not stay on the chip.
    pub fn deviation_of_delta(&self, delta: &[f64]) -> Deviation {
        let Reference { exact, plain } = self.reference();
        let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain.delta[..]).collect();
        deviation(delta, &plain, &exact.delta, to_f32)
    }

    /// How far the gradients of k and v are off.
    pub fn deviations_of_keys(&self, d_kv: &[f64]) -> [Deviation; 2] {
        let Reference { exact, plain } = self.reference();
        let [_, rows, _] = self.forward.rows();
        let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain.d_kv[..]).collect();
        [0..1, 1..2].map(|part| {
            let places = |set: &Set| self.runs(part.clone(), rows, &set.keys);
            self.forward.by_size(d_kv, &plain, &exact.d_kv, places)
        })
    }

    /// Where rows `set` of the parts stand in `[parts, H, rows, D]`.
    fn runs(&self, parts: Range<usize>, rows: usize, set: &Range<usize>) -> Vec<Range<usize>> {
        let Heads { count, width } = self.forward.heads;
        let begins = (parts.start * count..parts.end * count).map(|head| head * rows);
        begins.map(|begin| (begin + set.start) * width..(begin + set.end) * width).collect()
    }

    /// The gradients of a GPU: of q `[H, Nq, D]`, and of k and v `[2, H, Nk, D]`.
    pub fn solve(&self, gpu: &Gpu) -> Result<[Vec<f64>; 2], DeviceError> {
        let forward = &self.forward;
        let arena = |bytes| gpu.arena("the check of attention", bytes);
        let upload = |values: &[bf16]| {
            let mut buffer = arena(2 * values.len())?.take(values.len())?;
            gpu.upload(&mut buffer, values)?;
            Ok::<_, DeviceError>(buffer)
        };
        let empty = |len: usize| arena(2 * len)?.take::<bf16>(len);
        let attention = forward.on_device(gpu)?;
        let scratch = scratch_on(gpu, &attention, true)?;
        let (d_heads, heads) = (upload(&self.d_heads)?, upload(&self.heads)?);
        let sums = self.log_sum_exp.len();
        let mut log_sum_exp = arena(4 * sums)?.take(sums)?;
        gpu.upload(&mut log_sum_exp, &self.log_sum_exp)?;
        let mut delta = arena(4 * sums)?.take(sums)?;
        let (d_q_len, d_kv_len) = (self.d_heads.len(), forward.kv.len());
        let mut run = |gradients: QkvGradients<'_, _>, qkv: Qkv<'_>| {
            let (relu, dropout) = (self.relu, forward.dropout());
            attention_backward(
                gpu,
                &attention,
                &scratch,
                gradients,
                &d_heads,
                qkv,
                &heads,
                &log_sum_exp,
                &mut delta,
                relu,
                dropout,
            )
        };
        if forward.roles == Roles::Documents {
            let mut gradients = empty(d_q_len + d_kv_len)?;
            let qkv = upload(&[&forward.q[..], &forward.kv].concat())?;
            run(QkvGradients::Together(&mut gradients), Qkv::Together(&qkv))?;
            let mut d_q = wide(&gpu.download(&gradients)?);
            let d_kv = d_q.split_off(d_q_len);
            Ok([d_q, d_kv])
        } else {
            let (mut d_q, mut d_kv) = (empty(d_q_len)?, empty(d_kv_len)?);
            let (q, kv) = (upload(&forward.q)?, upload(&forward.kv)?);
            run(QkvGradients::Apart { q: &mut d_q, kv: &mut d_kv }, Qkv::Apart { q: &q, kv: &kv })?;
            Ok([wide(&gpu.download(&d_q)?), wide(&gpu.download(&d_kv)?)])
        }
    }

    /// Solves it on a GPU and holds the results against the rule.
    pub fn hold(&self, gpu: &Gpu, what: &str) -> Result<[Checked; 3], DeviceError> {
        let [found_q, found_kv] = self.solve(gpu)?;
        let [d_k, d_v] = self.deviations_of_keys(&found_kv);
        let what = |result: &str| format!("attention, backward, {what}: {result}");
        let of_half = |which| (half_of(&found_kv, which), half_of(&self.exact().d_kv, which));
        Ok([
            Checked::new(what("gradient of q"), self.deviation_of_queries(&found_q), || {
                (found_q.clone(), self.exact().d_q)
            }),
            Checked::new(what("gradient of k"), d_k, || of_half(0)),
            Checked::new(what("gradient of v"), d_v, || of_half(1)),
        ])
    }
}

/// Whether δ is Σ p·d p over the keys, which are the points' and few, and not Σ heads·d heads.
fn sums_weights(problem: &Problem) -> bool {
    matches!(problem.roles, Roles::Attend { .. }) && has_few_points(problem.roles, problem.fuse)
}

/// The first or the second half.
fn half_of(values: &[f64], which: usize) -> Vec<f64> {
    let half = values.len() / 2;
    values[which * half..][..half].to_vec()
}

/// Keeps what belongs to positive values.
pub(super) fn mask(gradients: &mut [f64], values: &[bf16]) {
    for (gradient, value) in gradients.iter_mut().zip(values) {
        if value.to_f64() <= 0.0 || value.is_nan() {
            *gradient = 0.0;
        }
    }
}

/// Rows `[rows, parts·H·D]` as `[parts, H, rows, D]`.
fn by_heads(values: &[f64], heads: Heads, parts: usize) -> Vec<f64> {
    let runs = parts * heads.count;
    let rows = values.len() / (runs * heads.width);
    (0..runs * rows).flat_map(|at| row_of(values, heads, runs, at % rows, at / rows).to_vec()).collect()
}
