//! Attention that is not fused: what each of its kernels is to make of what the ones before leave, and the whole of it on a
//! device.

use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;

use super::backward::mask;
use super::{BackwardProblem, Problem, Set, deviation};
use crate::device::choice::Fusion;
use crate::device::{DeviceError, Gpu, Limits};
use crate::ops::attention::{Heads, NaivePlan, Roles};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{nearest_bf16, to_f32};
use crate::ops::check::sums::RowOfSums;
use crate::ops::check::{Checked, Deviation, SEED};
use crate::ops::values::{narrow, row_times, transposed};

/// What one launch computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// q·k `[H, pairs]`
    Scores,
    /// d_heads·v `[H, pairs]`
    DWeights,
    /// Weights `[H, pairs]`, and log-sum-exps `[H, Nq]`.
    Softmax,
    /// The weights again.
    Weights,
    /// The scores' gradients `[H, pairs]`.
    DScores,
    /// weights · v `[Nq, H·D]`
    Heads,
    /// weightsᵀ · d_heads `[H, Nk, D]`
    DValues,
    /// scores' gradients · k `[H, Nq, D]`
    DQueries,
    /// Transposed scores' gradients · q `[H, Nk, D]`
    DKeys,
}

impl Step {
    /// Whether the rows of the results are keys.
    pub fn is_transposed(self) -> bool {
        matches!(self, Step::DValues | Step::DKeys)
    }

    /// Whether it sums scores' gradients, not weights.
    pub fn is_of_scores(self) -> bool {
        matches!(self, Step::DQueries | Step::DKeys)
    }

    /// Whether its results are a row for each query with a value for each key.
    fn is_of_pairs(self) -> bool {
        !matches!(self, Step::Heads | Step::DValues | Step::DQueries | Step::DKeys)
    }
}

/// A step's results, right or not: of softmax also the log-sum-exps.
pub type Results = Vec<Vec<f64>>;

/// One step of a problem, and what it is given: what the steps before leave, rounded as they store it.
#[derive(Clone, Debug)]
pub struct StepProblem {
    problem: BackwardProblem,
    plan: NaivePlan,
    step: Step,
    scores: Vec<f32>,
    d_weights: Vec<f32>,
    /// Weights, or the scores' gradients.
    weights: Vec<bf16>,
    reference: OnceLock<(Results, Vec<Results>)>,
}

impl StepProblem {
    /// Step `step` of a problem.
    ///
    /// # Errors
    ///
    /// A problem that no plan takes.
    pub fn new(forward: Problem, relu: bool, step: Step) -> Result<Self, DeviceError> {
        let problem = BackwardProblem::new(forward.with_fusion(Fusion::None), relu, SEED);
        let plan = problem.forward().plan(&Limits::SM_90)?.naive;
        let plan = plan.ok_or_else(|| DeviceError::Shapes("a plan of fused attention".into()))?;
        let (scores, d_weights, weights) = Default::default();
        let mut all =
            StepProblem { problem, plan, step, scores, d_weights, weights, reference: OnceLock::new() };
        let stored = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        all.scores = stored(all.evaluate(Step::Scores, None).remove(0));
        all.d_weights = stored(all.evaluate(Step::DWeights, None).remove(0));
        let weights = if step.is_of_scores() { Step::DScores } else { Step::Weights };
        all.weights = all.evaluate(weights, None).remove(0).into_iter().map(nearest_bf16).collect();
        Ok(all)
    }

    /// What it is a step of.
    pub fn problem(&self) -> &BackwardProblem {
        &self.problem
    }

    /// The plan.
    pub fn plan(&self) -> &NaivePlan {
        &self.plan
    }

    /// The step.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Scores `[H, pairs]`.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// The weights' gradients `[H, pairs]`.
    pub fn d_weights(&self) -> &[f32] {
        &self.d_weights
    }

    /// Weights `[H, pairs]`; of steps that sum them, scores' gradients.
    pub fn weights(&self) -> &[bf16] {
        &self.weights
    }

    /// Where the pairs of a query of a set stand, those included by which they are filled up.
    fn pairs(&self, set: &Set, head: usize, query: usize) -> Range<usize> {
        let pairs = &self.plan.pairs[set.number];
        let stride = pairs.stride as usize;
        let begin = head * self.plan.head_pairs + pairs.begin as usize + query * stride;
        begin..begin + stride
    }

    /// Products of a row `[D]` with columns `[D, n]`.
    fn products(&self, draw: Option<Draw>, row: &[f32], columns: &[f32]) -> Vec<f64> {
        let n = columns.len() / row.len();
        let exact = |column: usize| -> f64 {
            row.iter().enumerate().map(|(d, &a)| f64::from(a) * f64::from(columns[d * n + column])).sum()
        };
        match draw {
            None => (0..n).map(exact).collect(),
            Some(draw) => {
                let products = row_times(row, columns, n, &draw.order(row.len()), draw.sums);
                products.into_iter().map(f64::from).collect()
            }
        }
    }

    /// Weights and log-sum-exp of a row of scores.
    fn softmax(&self, draw: Option<Draw>, row: usize, scores: &[f32]) -> (Vec<f64>, f64) {
        let scale = self.problem.forward().scale_log2e();
        let Some(draw) = draw else {
            let scale = 1.0 / (self.plan.heads.width as f64).sqrt();
            let scaled: Vec<f64> = scores.iter().map(|&score| f64::from(score) * scale).collect();
            let largest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum_exp = largest + scaled.iter().map(|score| (score - largest).exp()).sum::<f64>().ln();
            return (scaled.iter().map(|score| (score - log_sum_exp).exp()).collect(), log_sum_exp);
        };
        let scaled: Vec<f32> = scores.iter().map(|score| score * scale).collect();
        let reference = draw.reference(row, &scaled);
        let weigh = |score: &f32| draw.approximate.exp2(score.mul_add(scale, -reference));
        let weights: Vec<f32> = scores.iter().map(weigh).collect();
        let sum: f32 = draw.order(weights.len()).into_iter().map(|key| weights[key]).sum();
        let log_sum_exp = (reference + draw.approximate.log2(sum)) * std::f32::consts::LN_2;
        let share = 1.0 / sum;
        (weights.into_iter().map(|weight| f64::from(weight * share)).collect(), f64::from(log_sum_exp))
    }

    /// The weight of a score, given the log-sum-exp of its row.
    fn weight(&self, draw: Option<Draw>, score: f32, log_sum_exp: f32) -> f64 {
        match draw {
            None => {
                let scale = 1.0 / (self.plan.heads.width as f64).sqrt();
                (f64::from(score) * scale - f64::from(log_sum_exp)).exp()
            }
            Some(draw) => {
                let log2_sum = log_sum_exp * std::f32::consts::LOG2_E;
                let power = score.mul_add(self.problem.forward().scale_log2e(), -log2_sum);
                f64::from(draw.approximate.exp2(power))
            }
        }
    }

    /// A step's results: exactly, or in the kernels' types.
    fn evaluate(&self, step: Step, draw: Option<Draw>) -> Results {
        if step.is_of_pairs() { self.of_pairs(step, draw) } else { vec![self.of_rows(step, draw)] }
    }

    /// A value as it is stored in bf16 where evaluation is in the kernels' types.
    fn rounded(draw: Option<Draw>, value: f64) -> f64 {
        if draw.is_some() { bf16::from_f32(value as f32).to_f64() } else { value }
    }

    fn of_pairs(&self, step: Step, draw: Option<Draw>) -> Results {
        let forward = self.problem.forward();
        let (inputs, d_heads) = (forward.singles(), narrow(self.problem.d_heads()));
        let (heads, sums) = (narrow(self.problem.heads()), self.problem.log_sum_exp());
        let Heads { count, width } = self.plan.heads;
        let rows = sums.len() / count;
        let mut pairs = vec![0.0; self.plan.values()];
        let mut log_sum_exps = vec![0.0; sums.len()];
        let keep = f64::from(forward.keep());
        for set in forward.sets() {
            for head in 0..count {
                let keys = inputs.key_columns(head, &set.keys);
                let values = inputs.value_columns(head, &set.keys);
                for (number, (query, output)) in set.queries.clone().zip(set.outputs.clone()).enumerate() {
                    let here = self.pairs(&set, head, number);
                    let here = here.start..here.start + set.keys.len();
                    let at = head * rows + output;
                    let of_head =
                        |values: &'_ [f32]| values[(output * count + head) * width..][..width].to_vec();
                    let kept = forward.kept(&set, head, number);
                    let again = |key: usize| self.weight(draw, self.scores[here.start + key], sums[at]);
                    let dropped = |key: usize, weight: f64| weight * f64::from(kept[key]) * keep;
                    let found: Vec<f64> = match step {
                        Step::Scores => self.products(draw, inputs.query(head, query), &keys),
                        Step::DWeights => self.products(draw, &of_head(&d_heads), &values),
                        Step::Softmax => {
                            let (weights, sum) = self.softmax(draw, at, &self.scores[here.clone()]);
                            log_sum_exps[at] = sum;
                            let weights = weights.into_iter().enumerate();
                            weights.map(|(key, weight)| Self::rounded(draw, dropped(key, weight))).collect()
                        }
                        Step::Weights => {
                            let weights = (0..set.keys.len()).map(|key| dropped(key, again(key)));
                            weights.map(|weight| Self::rounded(draw, weight)).collect()
                        }
                        _ => {
                            let (d_out, out) = (of_head(&d_heads), of_head(&heads));
                            // Of a column each: sums of these go in the order of the products.
                            let [delta] = self.products(draw, &d_out, &transposed(&out, width))[..] else {
                                continue;
                            };
                            let d_score = |key: usize| {
                                let d_weight = f64::from(self.d_weights[here.start + key]);
                                again(key) * (dropped(key, d_weight) - delta)
                            };
                            (0..set.keys.len()).map(|key| Self::rounded(draw, d_score(key))).collect()
                        }
                    };
                    pairs[here].copy_from_slice(&found);
                }
            }
        }
        if step == Step::Softmax { vec![pairs, log_sum_exps] } else { vec![pairs] }
    }

    fn of_rows(&self, step: Step, draw: Option<Draw>) -> Vec<f64> {
        let forward = self.problem.forward();
        let (inputs, d_heads, weights) =
            (forward.singles(), narrow(self.problem.d_heads()), narrow(&self.weights));
        let Heads { count, width } = self.plan.heads;
        let [query_rows, key_rows, output_rows] = self.plan.rows;
        let rows = if step.is_transposed() { key_rows } else { output_rows };
        let factor = if step.is_of_scores() { 1.0 / (width as f64).sqrt() } else { 1.0 };
        let mut results = vec![0.0; rows * count * width];
        for set in forward.sets() {
            for head in 0..count {
                let of_keys = |key: usize| match step {
                    Step::Heads => inputs.value(head, set.keys.start + key),
                    _ => inputs.key(head, set.keys.start + key),
                };
                let of_queries = |query: usize| match step {
                    Step::DValues => {
                        &d_heads[((set.outputs.start + query) * count + head) * width..][..width]
                    }
                    _ => inputs.query(head, set.queries.start + query),
                };
                let weight = |query: usize, key: usize| weights[self.pairs(&set, head, query).start + key];
                let [own, others] = if step.is_transposed() {
                    [set.keys.len(), set.queries.len()]
                } else {
                    [set.queries.len(), set.keys.len()]
                };
                for row in 0..own {
                    let term = |other: usize| {
                        if step.is_transposed() {
                            (weight(other, row), of_queries(other))
                        } else {
                            (weight(row, other), of_keys(other))
                        }
                    };
                    let sums = sums_of(draw, (0..others).map(term).collect(), width);
                    let begin = match step {
                        Step::Heads => ((set.outputs.start + row) * count + head) * width,
                        Step::DQueries => (head * output_rows + set.outputs.start + row) * width,
                        _ => (head * key_rows + set.keys.start + row) * width,
                    };
                    let to = &mut results[begin..][..width];
                    let scaled = sums.into_iter().map(|sum| Self::rounded(draw, sum * factor));
                    to.iter_mut().zip(scaled).for_each(|(to, value)| *to = value);
                    if self.problem.relu() && step == Step::DQueries {
                        let from = (head * query_rows + set.queries.start + row) * width;
                        mask(to, &forward.q()[from..][..width]);
                    }
                }
            }
        }
        if self.problem.relu() && step.is_transposed() {
            let [keys, values] = [0, 1].map(|half| &forward.kv()[half * results.len()..][..results.len()]);
            mask(&mut results, if step == Step::DKeys { keys } else { values });
        }
        results
    }

    /// How far results are off, by their names.
    pub fn deviations(&self, found: &Results) -> Vec<(&'static str, Deviation)> {
        let (exact, plain) = self.reference.get_or_init(|| {
            let exact = self.evaluate(self.step, None);
            let plain = plain_evaluations(exact[0].len(), |draw| self.evaluate(self.step, Some(draw)));
            (exact, plain)
        });
        let plain_of =
            |which: usize| -> Vec<&[f64]> { plain.iter().map(|results| &results[which][..]).collect() };
        let (name, is_single) = match self.step {
            Step::Scores => ("scores", true),
            Step::DWeights => ("d weights", true),
            Step::Softmax | Step::Weights => ("weights", false),
            Step::DScores => ("d scores", false),
            Step::Heads => ("heads", false),
            Step::DValues => ("d v", false),
            Step::DQueries => ("d q", false),
            Step::DKeys => ("d k", false),
        };
        let first = if is_single {
            deviation(&found[0], &plain_of(0), &exact[0], to_f32)
        } else {
            self.problem.forward().by_size(&found[0], &plain_of(0), &exact[0], |set| self.places(set))
        };
        let sums = found.get(1).map(|sums| deviation(sums, &plain_of(1), &exact[1], to_f32));
        std::iter::once((name, first)).chain(sums.map(|sums| ("log-sum-exp", sums))).collect()
    }

    /// Where the results of a set stand.
    fn places(&self, set: &Set) -> Vec<Range<usize>> {
        let Heads { count, width } = self.plan.heads;
        let [_, key_rows, output_rows] = self.plan.rows;
        let by_heads = |rows: usize, of_set: &Range<usize>| -> Vec<Range<usize>> {
            let begins = (0..count).map(|head| head * rows);
            begins.map(|begin| (begin + of_set.start) * width..(begin + of_set.end) * width).collect()
        };
        match self.step {
            Step::Heads => {
                let hidden = count * width;
                std::iter::once(set.outputs.start * hidden..set.outputs.end * hidden).collect()
            }
            Step::DQueries => by_heads(output_rows, &set.outputs),
            Step::DValues | Step::DKeys => by_heads(key_rows, &set.keys),
            _ => (0..count)
                .flat_map(|head| (0..set.queries.len()).map(move |query| (head, query)))
                .map(|(head, query)| self.pairs(set, head, query))
                .collect(),
        }
    }
}

/// Σ weight · row.
fn sums_of(draw: Option<Draw>, terms: Vec<(f32, &[f32])>, width: usize) -> Vec<f64> {
    let Some(draw) = draw else {
        let mut sums = vec![0.0; width];
        for (weight, row) in terms {
            sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(weight) * f64::from(value));
        }
        return sums;
    };
    let mut sums = RowOfSums::new(draw.sums, width);
    for at in draw.order(terms.len()) {
        let (weight, row) = terms[at];
        sums.add(weight, row);
    }
    sums.values().map(f64::from).collect()
}

/// Who attends to whom in the check, and sets of less and more than a tile.
const RUNS: [(&str, Roles, &[usize]); 3] = [
    ("documents", Roles::Documents, &[1, 2, 40, 65, 130]),
    ("points to documents", Roles::Induce { points: 20 }, &[1, 70]),
    ("documents to points", Roles::Attend { points: 20 }, &[1, 70]),
];

/// Runs it on the device, with every kernel, and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_sizes(gpu, RUNS)
}

/// The same for a set of so many documents.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    let sizes = [documents];
    of_sizes(gpu, RUNS.map(|(who, roles, _)| (who, roles, &sizes[..])))
}

fn of_sizes(gpu: &Gpu, runs: [(&str, Roles, &[usize]); 3]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (width, dropout) in [(32, 0.0), (64, 0.2)] {
        for (who, roles, sizes) in runs {
            let problem = Problem::random(roles, sizes, Heads { count: 2, width }, SEED);
            let problem = problem.with_dropout(dropout).with_fusion(Fusion::None);
            let what = format!("not fused, head width {width}, dropout {dropout}, {who}");
            checked.extend(problem.hold(gpu, &what)?);
            checked.extend(BackwardProblem::new(problem, dropout > 0.0, SEED + 1).hold(gpu, &what)?);
        }
    }
    Ok(checked)
}
