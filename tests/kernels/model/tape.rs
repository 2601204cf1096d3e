//! A plain evaluation of a model and its gradients in which every row that a GPU stores is rounded as it stores it: what
//! the kernels' answers for a whole model are held against. Naive on purpose; with rounding that does nothing it is exact.

use half::bf16;
use setrank::ops::check::rounding::to_bf16;
use setrank::ops::dropout::Dropout;
use setrank::rng::philox4x32;

/// A matrix and the gradient of the loss by it.
#[derive(Clone, Debug)]
struct Node {
    columns: usize,
    value: Vec<f64>,
    gradient: Vec<f64>,
}

/// A node of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(usize);

/// Which rows attend to which: ranges of the rows of q, of k and v, and of the output, a set each.
pub struct Sets {
    pub queries: Vec<std::ops::Range<usize>>,
    pub keys: Vec<std::ops::Range<usize>>,
    pub outputs: Vec<std::ops::Range<usize>>,
}

enum Op {
    Linear { x: Id, weight: Id, bias: Id, relu: bool },
    Norm { x: Id, added: Option<Id>, weight: Id, bias: Id, eps: f64 },
    Attention { q: Id, k: Id, v: Id, heads: usize, sets: Sets, dropout: Option<Dropout> },
    Embed { x: Id, tables: Vec<Id>, indices: Vec<Vec<i32>> },
    Phi { x: Vec<f64>, centers: Id },
}

/// How a GPU's storage rounds.
#[derive(Clone, Copy, Debug)]
pub enum Rounding {
    /// Not at all.
    Exact,
    /// To bf16, nearest.
    Nearest,
    /// To bf16 of values that were off by a quarter of its spacing at most, drawn by a seed: another draw of the same errors.
    Disturbed(u32),
}

impl Rounding {
    fn of(self, value: f64, at: u32) -> f64 {
        match self {
            Rounding::Exact => value,
            Rounding::Nearest => to_bf16(value),
            Rounding::Disturbed(seed) => {
                let random = f64::from(philox4x32([at, 0, 0, 0], [seed, 1])[0]) / 4_294_967_296.0;
                to_bf16(value * (1.0 + (2.0 * random - 1.0) / 1024.0))
            }
        }
    }
}

/// Operations in the order in which they were done.
pub struct Tape {
    nodes: Vec<Node>,
    ops: Vec<(Op, Id)>,
    rounding: Rounding,
    drawn: u32,
}

impl Tape {
    pub fn new(rounding: Rounding) -> Self {
        Tape { nodes: Vec::new(), ops: Vec::new(), rounding, drawn: 0 }
    }

    fn round(&mut self, values: &mut [f64]) {
        for value in values {
            *value = self.rounding.of(*value, self.drawn);
            self.drawn += 1;
        }
    }

    /// A matrix that is given.
    pub fn given(&mut self, columns: usize, value: Vec<f64>) -> Id {
        let gradient = vec![0.0; value.len()];
        self.nodes.push(Node { columns, value, gradient });
        Id(self.nodes.len() - 1)
    }

    fn rows(&self, id: Id) -> usize {
        self.nodes[id.0].value.len() / self.nodes[id.0].columns
    }

    fn push(&mut self, op: Op, columns: usize, mut value: Vec<f64>, is_stored: bool) -> Id {
        if is_stored {
            self.round(&mut value);
        }
        let id = self.given(columns, value);
        self.ops.push((op, id));
        id
    }

    pub fn value(&self, id: Id) -> &[f64] {
        &self.nodes[id.0].value
    }

    /// The gradient of the loss by a matrix, after [`backward`](Self::backward).
    pub fn gradient(&self, id: Id) -> &[f64] {
        &self.nodes[id.0].gradient
    }

    /// Sets b so that of each unit's x·Wᵀ + b 0 is in the middle of the widest gap between its middle values.
    pub fn decide(&mut self, x: Id, weight: Id, bias: Id) {
        let (inputs, outputs) = (self.nodes[x.0].columns, self.value(bias).len());
        let stride = self.value(weight).len() / outputs;
        let of_unit = |weight: &[f64]| {
            let mut values: Vec<f64> = self.value(x).chunks(inputs).map(|row| dot(row, weight)).collect();
            values.sort_by(f64::total_cmp);
            let middle = &values[values.len() / 4..values.len() - values.len() / 4];
            let gaps = middle.windows(2).map(|pair| (pair[1] - pair[0], (pair[0] + pair[1]) / 2.0));
            let (_, at) = gaps.max_by(|a, b| a.0.total_cmp(&b.0)).expect("two rows");
            bf16::from_f64(-at).to_f64()
        };
        let biases: Vec<f64> = self.value(weight).chunks(stride).map(of_unit).collect();
        self.nodes[bias.0].value = biases;
    }

    /// x·Wᵀ + b, perhaps ReLU of it; f32 where it is not stored in bf16.
    pub fn linear(&mut self, x: Id, weight: Id, bias: Id, relu: bool, is_stored: bool) -> Id {
        let (inputs, outputs) = (self.nodes[x.0].columns, self.value(bias).len());
        let stride = self.value(weight).len() / outputs;
        let (weights, biases) = (self.value(weight), self.value(bias));
        let mut out = Vec::with_capacity(self.rows(x) * outputs);
        for row in self.value(x).chunks(inputs) {
            for (weight, bias) in weights.chunks(stride).zip(biases) {
                let y = dot(row, weight) + bias;
                out.push(if relu { y.max(0.0) } else { y });
            }
        }
        self.push(Op::Linear { x, weight, bias, relu }, outputs, out, is_stored)
    }

    /// LayerNorm(x + added), whose rows are repeated if they are fewer.
    pub fn norm(&mut self, x: Id, added: Option<Id>, weight: Id, bias: Id, eps: f64) -> Id {
        let columns = self.nodes[x.0].columns;
        let mut out = Vec::new();
        for row in 0..self.rows(x) {
            let (normalized, _) = self.normalized(x, added, row, eps);
            let scaled = normalized.iter().zip(self.value(weight)).zip(self.value(bias));
            out.extend(scaled.map(|((x, weight), bias)| x * weight + bias));
        }
        self.push(Op::Norm { x, added, weight, bias, eps }, columns, out, true)
    }

    /// A row without mean, over its deviation; and one over the deviation.
    fn normalized(&self, x: Id, added: Option<Id>, row: usize, eps: f64) -> (Vec<f64>, f64) {
        let columns = self.nodes[x.0].columns;
        let mut sum = self.value(x)[row * columns..][..columns].to_vec();
        if let Some(added) = added {
            let row = row % self.rows(added);
            sum.iter_mut().zip(&self.value(added)[row * columns..]).for_each(|(x, added)| *x += added);
        }
        let mean = sum.iter().sum::<f64>() / columns as f64;
        sum.iter_mut().for_each(|x| *x -= mean);
        let scale = 1.0 / (sum.iter().map(|x| x * x).sum::<f64>() / columns as f64 + eps).sqrt();
        sum.iter_mut().for_each(|x| *x *= scale);
        (sum, scale)
    }

    /// softmax(q·kᵀ/√D)·v
    pub fn attention(
        &mut self,
        [q, k, v]: [Id; 3],
        heads: usize,
        sets: Sets,
        dropout: Option<Dropout>,
    ) -> Id {
        let columns = self.nodes[q.0].columns;
        let width = columns / heads;
        let rows = sets.outputs.last().map_or(0, |range| range.end);
        let mut out = vec![0.0; rows * columns];
        for set in 0..sets.outputs.len() {
            for head in 0..heads {
                for (query, row) in sets.outputs[set].clone().enumerate() {
                    let mut weights = self.weights(q, k, heads, &sets, [set, head, query]);
                    drop(&mut weights, dropout, [set, head, query]);
                    self.round(&mut weights);
                    for (weight, key) in weights.iter().zip(sets.keys[set].clone()) {
                        let from = key * columns + head * width;
                        let to = &mut out[row * columns + head * width..][..width];
                        to.iter_mut().zip(&self.value(v)[from..]).for_each(|(to, v)| *to += weight * v);
                    }
                }
            }
        }
        self.push(Op::Attention { q, k, v, heads, sets, dropout }, columns, out, true)
    }

    /// A query's weights, before dropout.
    fn weights(&self, q: Id, k: Id, heads: usize, sets: &Sets, [set, head, query]: [usize; 3]) -> Vec<f64> {
        let columns = self.nodes[q.0].columns;
        let width = columns / heads;
        let at = |row: usize| row * columns + head * width..row * columns + (head + 1) * width;
        let q = &self.value(q)[at(sets.queries[set].start + query)];
        let scores: Vec<f64> = sets.keys[set]
            .clone()
            .map(|key| dot(q, &self.value(k)[at(key)]) / (width as f64).sqrt())
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        scores.iter().map(|score| (score - largest).exp() / total).collect()
    }

    /// x + the rows of tables that belong to each row.
    pub fn embed(&mut self, x: Id, tables: &[Id], indices: &[Vec<i32>]) -> Id {
        let columns = self.nodes[x.0].columns;
        let mut out = self.value(x).to_vec();
        for (table, indices) in tables.iter().zip(indices) {
            for (row, index) in out.chunks_mut(columns).zip(indices) {
                if let Ok(index) = usize::try_from(*index) {
                    let table = &self.value(*table)[index * columns..];
                    row.iter_mut().zip(table).for_each(|(x, table)| *x += table);
                }
            }
        }
        let op = Op::Embed { x, tables: tables.to_vec(), indices: indices.to_vec() };
        self.push(op, columns, out, true)
    }

    /// exp(−100·(x − μ)²) of every feature and each of its centres.
    pub fn phi(&mut self, x: &[f64], centers: Id) -> Id {
        let per_feature = self.nodes[centers.0].columns;
        let features = self.rows(centers);
        let mut out = Vec::new();
        for row in x.chunks(features) {
            for (x, centers) in row.iter().zip(self.value(centers).chunks(per_feature)) {
                out.extend(centers.iter().map(|center| (-100.0 * (x - center) * (x - center)).exp()));
            }
        }
        self.push(Op::Phi { x: x.to_vec(), centers }, features * per_feature, out, true)
    }

    /// Gradients of all nodes, given that of the last, which is not rounded.
    pub fn backward(&mut self, of_last: &[f64]) {
        let last = self.ops.last().expect("something was computed").1;
        self.nodes[last.0].gradient = of_last.to_vec();
        while let Some((op, id)) = self.ops.pop() {
            let mut gradient = std::mem::take(&mut self.nodes[id.0].gradient);
            if id != last && !matches!(op, Op::Phi { .. }) {
                self.round(&mut gradient);
            }
            match op {
                Op::Linear { x, weight, bias, relu } => {
                    if relu {
                        let y = self.value(id).to_vec();
                        gradient.iter_mut().zip(y).for_each(|(d, y)| *d *= f64::from(y > 0.0));
                    }
                    self.linear_backward(&gradient, x, weight, bias);
                }
                Op::Norm { x, added, weight, bias, eps } => {
                    self.norm_backward(&gradient, x, added, [weight, bias], eps)
                }
                Op::Attention { q, k, v, heads, sets, dropout } => {
                    let out = self.value(id).to_vec();
                    self.attention_backward([&gradient, &out], [q, k, v], heads, &sets, dropout);
                }
                Op::Embed { x, tables, indices } => {
                    self.add(x, 0, &gradient);
                    let columns = self.nodes[x.0].columns;
                    for (table, indices) in tables.iter().zip(indices) {
                        for (row, index) in gradient.chunks(columns).zip(indices) {
                            if let Ok(index) = usize::try_from(index) {
                                self.add(*table, index * columns, row);
                            }
                        }
                    }
                }
                Op::Phi { x, centers } => {
                    let features = self.rows(centers);
                    let width = self.nodes[id.0].columns;
                    let per_feature = self.nodes[centers.0].columns;
                    for (row, x) in x.chunks(features).enumerate() {
                        for column in 0..width {
                            let at = row * width + column;
                            let distance = x[column / per_feature] - self.value(centers)[column];
                            let d = gradient[at] * self.value(id)[at] * 200.0 * distance;
                            self.nodes[centers.0].gradient[column] += d;
                        }
                    }
                }
            }
            self.nodes[id.0].gradient = gradient;
        }
    }

    fn add(&mut self, id: Id, at: usize, values: &[f64]) {
        let to = &mut self.nodes[id.0].gradient[at..][..values.len()];
        to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
    }

    fn linear_backward(&mut self, gradient: &[f64], x: Id, weight: Id, bias: Id) {
        let (inputs, outputs) = (self.nodes[x.0].columns, self.value(bias).len());
        let stride = self.value(weight).len() / outputs;
        let [mut of_x, mut of_weight] = [x, weight].map(|id| std::mem::take(&mut self.nodes[id.0].gradient));
        for (row, d) in gradient.chunks(outputs).enumerate() {
            self.add(bias, 0, d);
            let in_row = row * inputs..(row + 1) * inputs;
            // Behind a ReLU many are 0.
            for (output, &d) in d.iter().enumerate().filter(|(_, d)| **d != 0.0) {
                let in_weight = output * stride..output * stride + inputs;
                add_times(&mut of_x[in_row.clone()], d, &self.value(weight)[in_weight.clone()]);
                add_times(&mut of_weight[in_weight], d, &self.value(x)[in_row.clone()]);
            }
        }
        self.nodes[x.0].gradient = of_x;
        self.nodes[weight.0].gradient = of_weight;
    }

    fn norm_backward(
        &mut self,
        gradient: &[f64],
        x: Id,
        added: Option<Id>,
        [weight, bias]: [Id; 2],
        eps: f64,
    ) {
        let columns = self.nodes[x.0].columns;
        for (row, d) in gradient.chunks(columns).enumerate() {
            let (normalized, scale) = self.normalized(x, added, row, eps);
            let of_weight: Vec<f64> = d.iter().zip(&normalized).map(|(d, x)| d * x).collect();
            self.add(bias, 0, d);
            self.add(weight, 0, &of_weight);
            let d: Vec<f64> = d.iter().zip(self.value(weight)).map(|(d, weight)| d * weight).collect();
            let mean = d.iter().sum::<f64>() / columns as f64;
            let along = dot(&d, &normalized) / columns as f64;
            let mut of_sum: Vec<f64> =
                d.iter().zip(&normalized).map(|(d, x)| scale * (d - mean - x * along)).collect();
            self.round(&mut of_sum);
            self.add(x, row * columns, &of_sum);
            if let Some(added) = added {
                let row = row % self.rows(added);
                self.add(added, row * columns, &of_sum);
            }
        }
    }

    fn attention_backward(
        &mut self,
        [gradient, out]: [&[f64]; 2],
        [q, k, v]: [Id; 3],
        heads: usize,
        sets: &Sets,
        dropout: Option<Dropout>,
    ) {
        let columns = self.nodes[q.0].columns;
        let width = columns / heads;
        for set in 0..sets.outputs.len() {
            for head in 0..heads {
                for (query, row) in sets.outputs[set].clone().enumerate() {
                    let d = &gradient[row * columns + head * width..][..width];
                    let at = |row: usize| row * columns + head * width;
                    let weights = self.weights(q, k, heads, sets, [set, head, query]);
                    let mut of_weights: Vec<f64> = sets.keys[set]
                        .clone()
                        .map(|row| dot(d, &self.value(v)[at(row)..][..width]))
                        .collect();
                    drop(&mut of_weights, dropout, [set, head, query]);
                    // Σ weights·their gradients, as kernels take it: of the results as they are stored.
                    let delta = dot(d, &out[row * columns + head * width..][..width]);
                    let mut of_scores: Vec<f64> =
                        weights.iter().zip(&of_weights).map(|(weight, d)| weight * (d - delta)).collect();
                    let mut kept = weights;
                    drop(&mut kept, dropout, [set, head, query]);
                    self.round(&mut of_scores);
                    self.round(&mut kept);
                    let q_row = sets.queries[set].start + query;
                    let scale = 1.0 / (width as f64).sqrt();
                    let [mut of_q, mut of_k, mut of_v] =
                        [q, k, v].map(|id| std::mem::take(&mut self.nodes[id.0].gradient));
                    for (key, key_row) in sets.keys[set].clone().enumerate() {
                        let (query, key_at) =
                            (at(q_row)..at(q_row) + width, at(key_row)..at(key_row) + width);
                        let of_score = scale * of_scores[key];
                        add_times(&mut of_q[query.clone()], of_score, &self.value(k)[key_at.clone()]);
                        add_times(&mut of_k[key_at.clone()], of_score, &self.value(q)[query]);
                        add_times(&mut of_v[key_at], kept[key], d);
                    }
                    for (id, gradient) in [(q, of_q), (k, of_k), (v, of_v)] {
                        self.nodes[id.0].gradient = gradient;
                    }
                }
            }
        }
    }
}

/// Dropout of a query's weights, or of their gradient.
fn drop(weights: &mut [f64], dropout: Option<Dropout>, place: [usize; 3]) {
    if let Some(dropout) = dropout {
        dropout.apply(weights, 0, place);
    }
}

/// to += factor · from
fn add_times(to: &mut [f64], factor: f64, from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

/// In several sums, which processors add side by side.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, rest_of_a), (b, rest_of_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for at in 0..8 {
            sums[at] += a[at] * b[at];
        }
    }
    let rest: f64 = rest_of_a.iter().zip(rest_of_b).map(|(a, b)| a * b).sum();
    rest + sums.iter().sum::<f64>()
}
