//! Problems of the rbf input on a GPU, their exact answers, and what a kernel's answers are held against.

pub mod warpgroups;

use std::sync::OnceLock;

use half::bf16;

use super::device::{rbf_backward_by, rbf_forward_by};
use super::{DeviceRbf, Rbf, RbfBlocks, RbfPlan, RbfShape, SHARPNESS, backward, forward};
use crate::device::choice::MatrixKernels;
use crate::device::{DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::gemm::Aligned;
use crate::ops::linear::check::Answer;
use crate::ops::linear::{Activation, DeviceLinear, WeightGradients, Weights};
use crate::ops::partial_sums::PendingSums;
use crate::ops::scratch::PerThread;
use crate::ops::values::{added, plain_product, transposed, wide};
use crate::rng::{Rng, Stream};

/// Which of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// y
    Forward(Activation),
    /// dW and db
    Weights,
    /// d_centers
    Centers,
}

/// An rbf input of bf16 features and weights.
#[derive(Debug)]
pub struct Problem {
    /// Sizes.
    pub shape: RbfShape,
    /// What is computed.
    pub product: Product,
    /// By which blocks forward is; backward is by warpgroups where these are.
    pub blocks: RbfBlocks,
    /// `[rows, F]`
    pub features: Vec<bf16>,
    /// `[F, K]`
    pub centers: Vec<f32>,
    /// `[out, F·K]`
    weight: Vec<bf16>,
    /// `[out]`
    pub bias: Vec<f32>,
    /// `[rows, out]`
    pub dy: Vec<bf16>,
    /// `[out, width]`: what dW is added to.
    pub d_weight: Vec<f32>,
    /// `[out]`: what db is added to.
    pub d_bias: Vec<f32>,
    /// `[F, K]`: what the centres' gradient is added to.
    pub d_centers: Vec<f32>,
    known: OnceLock<(Answer, Vec<Answer>)>,
}

/// Rows of `from` values as the first of rows of `to`, with zeros behind them.
fn padded<T: Copy + Default>(values: &[T], from: usize, to: usize) -> Vec<T> {
    let zeros = vec![T::default(); to - from];
    values.chunks(from).flat_map(|row| row.iter().chain(&zeros).copied()).collect()
}

impl Problem {
    /// Features and centres in [0, 1], so that each centre is near to some; the rest normally distributed.
    pub fn random(shape: RbfShape, product: Product, seed: u64) -> Self {
        let RbfShape { rows, features, outputs, .. } = shape;
        let columns = shape.columns();
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut uniform = |len: usize| -> Vec<f64> { (0..len).map(|_| rng.uniform()).collect() };
        let (x, centers) = (uniform(rows * features), uniform(columns));
        let mut normal = |len: usize, scale: f64| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f64(rng.normal() * scale)).collect()
        };
        let single = |values: Vec<bf16>| values.into_iter().map(bf16::to_f32).collect();
        Problem {
            shape,
            product,
            blocks: RbfBlocks::Narrow,
            features: x.into_iter().map(bf16::from_f64).collect(),
            centers: centers.into_iter().map(|center| center as f32).collect(),
            weight: normal(outputs * columns, 1.0 / (columns as f64).sqrt()),
            bias: single(normal(outputs, 1.0)),
            dy: normal(rows * outputs, 1.0),
            d_weight: single(normal(outputs * shape.width(), 1.0)),
            d_bias: single(normal(outputs, 1.0)),
            d_centers: single(normal(columns, 1.0)),
            known: OnceLock::new(),
        }
    }

    /// The same by such blocks.
    pub fn by(self, blocks: RbfBlocks) -> Self {
        Problem { blocks, ..self }
    }

    /// The matrix instructions that backward is by.
    pub fn matrix(&self) -> MatrixKernels {
        match self.blocks {
            RbfBlocks::Warpgroups => MatrixKernels::Wgmma,
            RbfBlocks::Wide | RbfBlocks::Narrow => MatrixKernels::Mma,
        }
    }

    /// The launch's plan.
    pub fn plan(&self) -> Result<RbfPlan, DeviceError> {
        RbfPlan::new(self.shape)
    }

    /// x `[rows, stride]`
    pub fn x(&self) -> Vec<bf16> {
        padded(&self.features, self.shape.features, self.shape.stride)
    }

    /// W `[out, width]`
    pub fn weight(&self) -> Vec<bf16> {
        padded(&self.weight, self.shape.columns(), self.shape.width())
    }

    /// Names of the results.
    fn names(&self) -> &'static [&'static str] {
        match self.product {
            Product::Forward(_) => &["y"],
            Product::Weights => &["dW", "db"],
            Product::Centers => &["d_centers"],
        }
    }

    /// The answer in f64, by the CPU's own rbf input.
    fn exact(&self) -> Answer {
        let RbfShape { rows, features, outputs, .. } = self.shape;
        let columns = self.shape.columns();
        let [x, weight, dy] = [&self.features, &self.weight, &self.dy].map(|values| wide(values));
        let [centers, bias] = [&self.centers, &self.bias].map(|values| wide(values));
        let layer = Weights { weight: &weight, bias: &bias };
        let rbf = Rbf { centers: &centers, layer, features };
        let mut threads = PerThread::default();
        threads.prepare();
        if let Product::Forward(activation) = self.product {
            let mut y = vec![0.0; rows * outputs];
            let mut buffer = Aligned::default();
            forward(&mut y, &x, &rbf, layer.pack_forward(&mut buffer), activation, &threads);
            return vec![y];
        }
        let (mut d_weight, mut d_bias) = (vec![0.0; outputs * columns], vec![0.0; outputs]);
        let mut d_centers = vec![0.0; columns];
        let gradients = WeightGradients { weight: &mut d_weight, bias: &mut d_bias };
        backward(gradients, &mut d_centers, &dy, &x, &rbf, &threads);
        if self.product == Product::Centers {
            return vec![added(&self.d_centers, &d_centers)];
        }
        let d_weight = padded(&d_weight, columns, self.shape.width());
        vec![added(&self.d_weight, &d_weight), added(&self.d_bias, &d_bias)]
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let RbfShape { rows, features, centers: per_feature, outputs, .. } = self.shape;
        let columns = self.shape.columns();
        let narrow = |values: &[bf16]| values.iter().map(|value| value.to_f32()).collect::<Vec<f32>>();
        let (weight, dy) = (narrow(&self.weight), narrow(&self.dy));
        let order = |len| draw.order(len);
        let distance = |row: usize, column: usize| {
            self.features[row * features + column / per_feature].to_f32() - self.centers[column]
        };
        let bell = |distance: f32| draw.approximate.exp(-(SHARPNESS as f32) * distance * distance);
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let phi = || -> Vec<f32> {
            places.clone().map(|(row, column)| bf16::from_f32(bell(distance(row, column))).to_f32()).collect()
        };
        match self.product {
            Product::Forward(activation) => {
                let mut y = plain_product(&phi(), &weight, &order(columns), draw.sums);
                for y in y.chunks_mut(outputs) {
                    y.iter_mut().zip(&self.bias).for_each(|(y, bias)| *y += bias);
                }
                if activation == Activation::Relu {
                    y.iter_mut().for_each(|y| *y = y.max(0.0));
                }
                vec![y.into_iter().map(|y| bf16::from_f32(y).to_f64()).collect()]
            }
            Product::Weights => {
                let (dy, phi) = (transposed(&dy, outputs), transposed(&phi(), columns));
                let order = order(rows);
                let d_weight =
                    padded(&plain_product(&dy, &phi, &order, draw.sums), columns, self.shape.width());
                let d_bias = plain_product(&dy, &vec![1.0; rows], &order, draw.sums);
                vec![added(&self.d_weight, &d_weight), added(&self.d_bias, &d_bias)]
            }
            Product::Centers => {
                let d_phi = plain_product(&dy, &transposed(&weight, columns), &order(outputs), draw.sums);
                let term = |row: usize, column: usize| {
                    let distance = distance(row, column);
                    d_phi[row * columns + column] * bell(distance) * distance
                };
                let rows = order(rows);
                let sum = |column| rows.iter().fold(0.0, |sum, &row| sum + term(row, column));
                let sums: Vec<f32> =
                    (0..columns).map(|column| 2.0 * SHARPNESS as f32 * sum(column)).collect();
                vec![added(&self.d_centers, &sums)]
            }
        }
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let (exact, plain) = self.known.get_or_init(|| {
            let exact = self.exact();
            let results = exact.iter().map(Vec::len).min().unwrap_or(0);
            (exact, plain_evaluations(results, |draw| self.plain(draw)))
        });
        let round = match self.product {
            Product::Forward(_) => to_bf16,
            _ => to_f32,
        };
        let of = |at: usize| {
            let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[at][..]).collect();
            deviation(&kernel[at], &plain, &exact[at], round)
        };
        self.names().iter().enumerate().map(|(at, &name)| (name, of(at))).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let shape = self.shape;
        let (x, centers) = (uploaded(gpu, &self.x())?, uploaded(gpu, &self.centers)?);
        let (weight, bias) = (uploaded(gpu, &self.weight())?, uploaded(gpu, &self.bias)?);
        let rbf = DeviceRbf { centers: &centers, layer: DeviceLinear { weight: &weight, bias: &bias } };
        if let Product::Forward(activation) = self.product {
            let mut y = taken(gpu, shape.rows * shape.outputs)?;
            rbf_forward_by(gpu, self.blocks, &mut y, &x, rbf, activation, shape)?;
            return Ok(vec![wide(&gpu.download(&y)?)]);
        }
        let mut d_centers = uploaded(gpu, &self.d_centers)?;
        let (mut d_weight, mut d_bias) = (uploaded(gpu, &self.d_weight)?, uploaded(gpu, &self.d_bias)?);
        let dy = uploaded(gpu, &self.dy)?;
        PendingSums::of(gpu, &taken(gpu, shape.scratch_len(gpu.limits()))?, |sums| {
            let gradients = (&mut d_centers, &mut d_weight, &mut d_bias);
            let matrix = self.matrix();
            rbf_backward_by(gpu, matrix, gradients.0, gradients.1, gradients.2, &dy, &x, rbf, sums, shape)
        })?;
        let results = if self.product == Product::Centers { vec![d_centers] } else { vec![d_weight, d_bias] };
        results.iter().map(|values| Ok(wide(&gpu.download(values)?))).collect()
    }
}

/// All results.
pub const PRODUCTS: [Product; 4] = [
    Product::Forward(Activation::Identity),
    Product::Forward(Activation::Relu),
    Product::Weights,
    Product::Centers,
];

/// More than a block's rows, and backward more than a part's; several features in eight columns, and more than a tile of
/// columns; half a block of outputs, and that left over.
pub fn shapes(product: Product) -> [RbfShape; 2] {
    let rows = if matches!(product, Product::Forward(_)) { 133 } else { 261 };
    [
        RbfShape { rows, features: 3, stride: 64, centers: 7, outputs: 64 },
        RbfShape { rows, features: 2, stride: 64, centers: 50, outputs: 192 },
    ]
}

/// Outputs of two wide blocks, of two steps.
pub fn wide_shape(rows: usize) -> RbfShape {
    RbfShape { rows, features: 2, stride: 64, centers: 50, outputs: 512 }
}

/// Runs the rbf input on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, shapes, wide_shape(133))
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, |product| shapes(product).map(|shape| RbfShape { rows, ..shape }), wide_shape(rows))
}

fn of_shapes(
    gpu: &Gpu,
    shapes: impl Fn(Product) -> [RbfShape; 2],
    wide_shape: RbfShape,
) -> Result<Vec<Checked>, DeviceError> {
    let of_products = PRODUCTS
        .into_iter()
        .flat_map(|product| shapes(product).map(|shape| Problem::random(shape, product, SEED)));
    let wide = Problem::random(wide_shape, PRODUCTS[1], SEED).by(RbfBlocks::Wide);
    of_problems(gpu, of_products.chain([wide]), "rbf input")
}

/// Runs problems on the device and holds them against the CPU; what they are of is said so.
fn of_problems(
    gpu: &Gpu,
    problems: impl IntoIterator<Item = Problem>,
    what: &str,
) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for problem in problems {
        let found = problem.solve(gpu)?;
        for (at, (result, deviation)) in problem.deviations(&found).into_iter().enumerate() {
            let Problem { product, shape: RbfShape { rows, features, centers, outputs, .. }, .. } = problem;
            let what = format!(
                "{what}, {product:?}, {rows} rows, {features} features, {centers} centres, {outputs} outputs: {result}"
            );
            let results = || (found[at].clone(), problem.exact().swap_remove(at));
            checked.push(Checked::new(what, deviation, results));
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_that_replace_what_was_there_are_wrong() {
        for product in [Product::Weights, Product::Centers] {
            let problem = Problem::random(shapes(product)[0], product, 1);
            let before = match product {
                Product::Centers => vec![&problem.d_centers],
                _ => vec![&problem.d_weight, &problem.d_bias],
            };
            let right = problem.exact();
            let alone: Answer = right
                .iter()
                .zip(before)
                .map(|(sums, before)| sums.iter().zip(before).map(|(sum, &b)| sum - f64::from(b)).collect())
                .collect();
            assert!(problem.deviations(&right).iter().all(|(_, found)| found.is_allowed()));
            assert!(problem.deviations(&alone).iter().all(|(_, found)| !found.is_allowed()));
        }
    }
}
