//! Problems of linear layers on a GPU, their exact answers, and what a kernel's answers are held against.

pub mod few_rows;
pub mod warpgroups;
pub mod wide;

use std::sync::OnceLock;

use half::bf16;

use super::{
    Activation, BlockSize, DeviceLinear, InputGradient, LayerGradients, Layout, LinearPlan, LinearShape,
    WeightGradients, WeightJob, Weights, WeightsPlan, backward_input, backward_weights, forward,
    linear_backward_input_by, linear_backward_weights_by, linear_forward_by, relu_backward,
};
use crate::device::choice::MatrixKernels;
use crate::device::{DeviceError, Gpu};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, taken, uploaded};
use crate::ops::gemm::{Aligned, Write};
use crate::ops::partial_sums::PendingSums;
use crate::ops::scratch::PerThread;
use crate::ops::values::{added, narrow, plain_product, transposed, wide};
use crate::rng::{Rng, Stream};

/// What follows the gradient of a layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFinish {
    /// Nothing.
    Plain,
    /// Another gradient is added.
    Added,
    /// It is 0 where another matrix is not above 0.
    Masked,
    /// Both.
    AddedAndMasked,
}

impl InputFinish {
    /// Each.
    pub const ALL: [InputFinish; 4] =
        [InputFinish::Plain, InputFinish::Added, InputFinish::Masked, InputFinish::AddedAndMasked];

    /// Whether something is added.
    pub fn adds(self) -> bool {
        matches!(self, InputFinish::Added | InputFinish::AddedAndMasked)
    }

    /// Whether it is masked.
    pub fn masks(self) -> bool {
        matches!(self, InputFinish::Masked | InputFinish::AddedAndMasked)
    }
}

/// Which of a layer's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// y
    Forward(Activation),
    /// dx
    Input(InputFinish),
    /// dx in f32, added to what is there: to `added`.
    InputAdded,
    /// dW and db
    Weights,
}

/// A product of a linear layer, of bf16 operands.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Sizes.
    pub shape: LinearShape,
    /// How y and dy stand.
    pub layout: Layout,
    /// What is computed.
    pub product: Product,
    /// Blocks of y and dx; those of dW go by the shape.
    pub blocks: BlockSize,
    /// `[rows, in]`
    pub x: Vec<bf16>,
    /// `[out, in]`
    pub weight: Vec<bf16>,
    /// `[out]`
    pub bias: Vec<f32>,
    /// `[rows, out]`, whatever the layout.
    pub dy: Vec<bf16>,
    /// `[rows, in]`: what may be added to dx, or what dx is added to.
    pub added: Vec<bf16>,
    /// `[rows, in]`: what may mask it.
    pub mask: Vec<bf16>,
    /// `[out, in]`: what dW is added to.
    pub d_weight: Vec<f32>,
    /// `[out]`: what db is added to.
    pub d_bias: Vec<f32>,
    known: OnceLock<Known>,
}

/// Values `[rows, outputs]` as a layout has them.
pub fn laid_out<T: Copy>(values: &[T], outputs: usize, layout: Layout) -> Vec<T> {
    let Layout::Heads { width } = layout else { return values.to_vec() };
    let of_head = |first: usize| values.chunks_exact(outputs).flat_map(move |row| &row[first..][..width]);
    (0..outputs).step_by(width).flat_map(of_head).copied().collect()
}

/// Results, one after the other, each row-major: y, dx, or dW and db.
pub type Answer = Vec<Vec<f64>>;

/// What answers are held against.
#[derive(Clone, Debug)]
struct Known {
    exact: Answer,
    plain: Vec<Answer>,
}

impl Problem {
    /// Normally distributed numbers, the weights so that results are of about that size too.
    pub fn random(shape: LinearShape, layout: Layout, product: Product, seed: u64) -> Self {
        let LinearShape { rows, inputs, outputs } = shape;
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let mut normal = |len: usize, scale: f64| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f64(rng.normal() * scale)).collect()
        };
        let single = |values: Vec<bf16>| values.into_iter().map(bf16::to_f32).collect();
        Problem {
            shape,
            layout,
            product,
            blocks: BlockSize::Many,
            x: normal(rows * inputs, 1.0),
            weight: normal(outputs * inputs, 1.0 / (inputs as f64).sqrt()),
            bias: single(normal(outputs, 1.0)),
            dy: normal(rows * outputs, 1.0),
            added: normal(rows * inputs, 1.0),
            mask: normal(rows * inputs, 1.0),
            d_weight: single(normal(outputs * inputs, 1.0)),
            d_bias: single(normal(outputs, 1.0)),
            known: OnceLock::new(),
        }
    }

    /// The same product by such blocks.
    pub fn by(self, blocks: BlockSize) -> Self {
        Problem { blocks, ..self }
    }

    /// The same of these x `[rows, in]`.
    pub fn of(&self, x: Vec<bf16>) -> Self {
        Problem { x, known: OnceLock::new(), ..self.clone() }
    }

    /// The launch's plan.
    pub fn plan(&self) -> Result<LinearPlan, DeviceError> {
        LinearPlan::new(self.shape, self.layout)
    }

    /// Values `[rows, out]` as the layout has them.
    pub fn laid_out<T: Copy>(&self, values: &[T]) -> Vec<T> {
        laid_out(values, self.shape.outputs, self.layout)
    }

    /// Names of the results.
    fn names(&self) -> &'static [&'static str] {
        match self.product {
            Product::Forward(_) => &["y"],
            Product::Input(_) | Product::InputAdded => &["dx"],
            Product::Weights => &["dW", "db"],
        }
    }

    /// The answer in f64, by the CPU's own layer.
    pub(in crate::ops) fn exact(&self) -> Answer {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let [x, weight, dy, more, mask] =
            [&self.x, &self.weight, &self.dy, &self.added, &self.mask].map(|values| wide(values));
        let bias = wide(&self.bias);
        let layer = Weights { weight: &weight, bias: &bias };
        let mut buffer = Aligned::default();
        match self.product {
            Product::Forward(activation) => {
                let mut y = vec![0.0; rows * outputs];
                forward(&mut y, &x, layer, activation, &mut buffer);
                vec![self.laid_out(&y)]
            }
            Product::Input(finish) => {
                let mut dx = vec![0.0; rows * inputs];
                backward_input(&mut dx, Write::Set, &dy, layer, &mut buffer);
                if finish.adds() {
                    dx.iter_mut().zip(&more).for_each(|(dx, more)| *dx += more);
                }
                if finish.masks() {
                    relu_backward(&mut dx, &mask);
                }
                vec![dx]
            }
            Product::InputAdded => {
                let mut dx = more;
                backward_input(&mut dx, Write::Add, &dy, layer, &mut buffer);
                vec![dx]
            }
            Product::Weights => {
                let (mut d_weight, mut d_bias) = (wide(&self.d_weight), wide(&self.d_bias));
                let gradients = WeightGradients { weight: &mut d_weight, bias: &mut d_bias };
                let mut threads = PerThread::default();
                threads.prepare();
                backward_weights([WeightJob { gradients, dy: &dy, x: &x }], &threads);
                vec![d_weight, d_bias]
            }
        }
    }

    /// The answer of a plain evaluation in the kernel's number types, as the draw says.
    fn plain(&self, draw: Draw) -> Answer {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let [x, weight, dy, more, mask] =
            [&self.x, &self.weight, &self.dy, &self.added, &self.mask].map(|values| narrow(values));
        let order = |len| draw.order(len);
        let rounded = |values: &[f32]| values.iter().map(|&value| bf16::from_f32(value).to_f64()).collect();
        match self.product {
            Product::Forward(activation) => {
                let mut y = plain_product(&x, &weight, &order(inputs), draw.sums);
                for y in y.chunks_mut(outputs) {
                    y.iter_mut().zip(&self.bias).for_each(|(y, bias)| *y += bias);
                }
                if activation == Activation::Relu {
                    y.iter_mut().for_each(|y| *y = y.max(0.0));
                }
                vec![rounded(&self.laid_out(&y))]
            }
            Product::Input(finish) => {
                let mut dx = plain_product(&dy, &transposed(&weight, inputs), &order(outputs), draw.sums);
                for ((dx, &more), &mask) in dx.iter_mut().zip(&more).zip(&mask) {
                    *dx += if finish.adds() { more } else { 0.0 };
                    *dx = if finish.masks() && mask <= 0.0 { 0.0 } else { *dx };
                }
                vec![rounded(&dx)]
            }
            Product::InputAdded => {
                let dx = plain_product(&dy, &transposed(&weight, inputs), &order(outputs), draw.sums);
                vec![added(&more, &dx)]
            }
            Product::Weights => {
                let (dy, x) = (transposed(&dy, outputs), transposed(&x, inputs));
                let order = order(rows);
                vec![
                    added(&self.d_weight, &plain_product(&dy, &x, &order, draw.sums)),
                    added(&self.d_bias, &plain_product(&dy, &vec![1.0; rows], &order, draw.sums)),
                ]
            }
        }
    }

    /// How far a kernel's answer is off, by the result's name.
    pub fn deviations(&self, kernel: &Answer) -> Vec<(&'static str, Deviation)> {
        let known = self.known.get_or_init(|| {
            let exact = self.exact();
            let results = exact.iter().map(Vec::len).min().unwrap_or(0);
            Known { exact, plain: plain_evaluations(results, |draw| self.plain(draw)) }
        });
        let round = match self.product {
            Product::InputAdded | Product::Weights => to_f32,
            _ => to_bf16,
        };
        let of = |at: usize| {
            let plain: Vec<&[f64]> = known.plain.iter().map(|plain| &plain[at][..]).collect();
            deviation(&kernel[at], &plain, &known.exact[at], round)
        };
        self.names().iter().enumerate().map(|(at, &name)| (name, of(at))).collect()
    }

    /// What the results of an answer are called, and how far they are off.
    fn check(&self, found: &Answer, whose: &str) -> Vec<Checked> {
        let check = |(at, (result, deviation)): (usize, (&str, Deviation))| {
            let Problem { product, layout, shape, .. } = self;
            let what = format!("{whose}, {product:?}, {layout:?}, {} rows: {result}", shape.rows);
            Checked::new(what, deviation, || (found[at].clone(), self.exact().swap_remove(at)))
        };
        self.deviations(found).into_iter().enumerate().map(check).collect()
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Answer, DeviceError> {
        let Problem { blocks, layout, shape, .. } = *self;
        let LinearShape { rows, inputs, outputs } = shape;
        let weight = uploaded(gpu, &self.weight)?;
        let answer = match self.product {
            Product::Forward(activation) => {
                let (x, bias) = (uploaded(gpu, &self.x)?, uploaded(gpu, &self.bias)?);
                let layer = DeviceLinear { weight: &weight, bias: &bias };
                let mut y = taken(gpu, rows * outputs)?;
                linear_forward_by(gpu, blocks, &mut y, layout, &x, layer, activation, shape)?;
                y
            }
            Product::Input(finish) => {
                let dy = uploaded(gpu, &self.laid_out(&self.dy))?;
                let (added, mask) = (uploaded(gpu, &self.added)?, uploaded(gpu, &self.mask)?);
                let (added, mask) = (finish.adds().then_some(&added), finish.masks().then_some(&mask));
                let finish = InputGradient { added, mask };
                let mut dx = taken(gpu, rows * inputs)?;
                linear_backward_input_by(gpu, blocks, &mut dx, &dy, layout, &weight, finish, shape)?;
                dx
            }
            Product::InputAdded => return few_rows::inputs_on(gpu, [self]).map(|[answer]| answer),
            Product::Weights => {
                return gradients_on(gpu, MatrixKernels::Mma, [self]).map(|[answer]| answer);
            }
        };
        Ok(vec![wide(&gpu.download(&answer)?)])
    }
}

/// The gradients of the parameters of layers, by a GPU that computes them at once by such instructions.
fn gradients_on<const LAYERS: usize>(
    gpu: &Gpu,
    matrix: MatrixKernels,
    problems: [&Problem; LAYERS],
) -> Result<[Answer; LAYERS], DeviceError> {
    let layers = problems.iter().map(|problem| {
        let gradients = [uploaded(gpu, &problem.d_weight)?, uploaded(gpu, &problem.d_bias)?];
        let (dy, x) = (uploaded(gpu, &problem.laid_out(&problem.dy))?, uploaded(gpu, &problem.x)?);
        Ok(LayerGradients { gradients, dy, layout: problem.layout, x, shape: problem.shape })
    });
    let layers = layers.collect::<Result<Vec<_>, DeviceError>>()?;
    let scratch = taken(gpu, WeightsPlan::scratch_len_of(&problems.map(|problem| problem.shape)))?;
    PendingSums::of(gpu, &scratch, |sums| linear_backward_weights_by(gpu, matrix, &layers, sums))?;
    let mut answers = [const { Vec::new() }; LAYERS];
    for (answer, layer) in answers.iter_mut().zip(&layers) {
        let [weight, bias] = layer.gradients.each_ref().map(|buffer| gpu.download(buffer));
        *answer = vec![wide(&weight?), wide(&bias?)];
    }
    Ok(answers)
}

/// Layers whose parameters' gradients one launch computes: of any widths, rows and layouts.
pub fn group(rows: [usize; 3], seed: u64) -> [Problem; 3] {
    let [a, b, c] = rows;
    [
        (LinearShape { rows: a, inputs: 64, outputs: 192 }, Layout::Rows),
        (LinearShape { rows: b, inputs: 128, outputs: 64 }, Layout::Heads { width: 32 }),
        (LinearShape { rows: c, inputs: 64, outputs: 128 }, Layout::Heads { width: 64 }),
    ]
    .map(|(shape, layout)| Problem::random(shape, layout, Product::Weights, seed + shape.inputs as u64))
}

/// All products: with and without what may follow them, and for each layout.
pub const PRODUCTS: [(Product, Layout); 9] = [
    (Product::Forward(Activation::Identity), Layout::Heads { width: 32 }),
    (Product::Forward(Activation::Relu), Layout::Rows),
    (Product::Forward(Activation::Relu), Layout::Heads { width: 64 }),
    (Product::Input(InputFinish::Plain), Layout::Rows),
    (Product::Input(InputFinish::Added), Layout::Heads { width: 32 }),
    (Product::Input(InputFinish::Masked), Layout::Heads { width: 64 }),
    (Product::Input(InputFinish::AddedAndMasked), Layout::Heads { width: 32 }),
    (Product::Weights, Layout::Rows),
    (Product::Weights, Layout::Heads { width: 32 }),
];

/// More than a block's rows; and for the parameters more than a part's, and half a block of outputs left over.
pub fn shape(product: Product) -> LinearShape {
    match product {
        Product::Weights => LinearShape { rows: 261, inputs: 64, outputs: 192 },
        _ => LinearShape { rows: 133, inputs: 128, outputs: 128 },
    }
}

/// Runs linear layers on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, shape, [300, 1, 70])
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, |product| LinearShape { rows, ..shape(product) }, [rows; 3])
}

fn of_shapes(
    gpu: &Gpu,
    shape: impl Fn(Product) -> LinearShape,
    rows_of_group: [usize; 3],
) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (product, layout) in PRODUCTS {
        let problem = Problem::random(shape(product), layout, product, SEED);
        checked.extend(problem.check(&problem.solve(gpu)?, "linear layer"));
    }
    let problems = group(rows_of_group, SEED);
    for (problem, found) in problems.iter().zip(gradients_on(gpu, MatrixKernels::Mma, problems.each_ref())?) {
        checked.extend(problem.check(&found, "one of several linear layers"));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_that_replace_what_was_there_are_wrong() {
        let problem = Problem::random(shape(Product::Weights), Layout::Rows, Product::Weights, 1);
        let right = problem.exact();
        let without = |at: usize, before: &[f32]| -> Vec<f64> {
            right[at].iter().zip(before).map(|(sum, &before)| sum - f64::from(before)).collect()
        };
        let alone = vec![without(0, &problem.d_weight), without(1, &problem.d_bias)];
        assert!(problem.deviations(&right).iter().all(|(_, found)| found.is_allowed()));
        assert!(problem.deviations(&alone).iter().all(|(_, found)| !found.is_allowed()));
    }
}
