//! The rbf input.

use setrank::ops::Scalar;
use setrank::ops::gemm::Aligned;
use setrank::ops::linear::{Activation, WeightGradients, Weights};
use setrank::ops::rbf::{self, Rbf};
use setrank::ops::scratch::PerThread;

use super::{assert_close, cast, check, dot, normals};

#[derive(Clone, Copy)]
struct Shape {
    features: usize,
    centers: usize,
}

/// More columns than one tile of the activations.
const SHAPE: Shape = Shape { features: 5, centers: 150 };

fn threads() -> PerThread {
    let mut threads = PerThread::default();
    threads.prepare();
    threads
}

fn run<T: Scalar>(x: &[f64], centers: &[f64], weight: &[f64], bias: &[f64], shape: Shape) -> Vec<T> {
    let (weight, bias) = (cast::<T>(weight), cast::<T>(bias));
    let mut y = vec![T::ZERO; x.len() / shape.features * bias.len()];
    let (x, centers) = (cast::<T>(x), cast::<T>(centers));
    let layer = Weights { weight: &weight, bias: &bias };
    let rbf = Rbf { centers: &centers, layer, features: shape.features };
    let mut buffer = Aligned::default();
    rbf::forward(&mut y, &x, &rbf, layer.pack_forward(&mut buffer), Activation::Identity, &threads());
    y
}

#[test]
fn matches_plain_loops() {
    let outputs = 3;
    let width = SHAPE.features * SHAPE.centers;
    let centers: Vec<f64> = normals(width, 2).iter().map(|c| 0.5 + 0.3 * c).collect();
    let (weight, bias) = (normals(outputs * width, 3), normals(outputs, 4));
    for rows in [1, 127, 128, 200] {
        let x: Vec<f64> = normals(rows * SHAPE.features, 1).iter().map(|x| 0.5 + 0.2 * x).collect();
        let mut expected = Vec::new();
        for x in x.chunks(SHAPE.features) {
            let phi: Vec<f64> = (0..width)
                .map(|column| (-(x[column / SHAPE.centers] - centers[column]).powi(2) / 0.01).exp())
                .collect();
            expected.extend(weight.chunks(width).zip(&bias).map(|(w, b)| dot(&phi, w) + b));
        }
        assert_close("f64", &run::<f64>(&x, &centers, &weight, &bias, SHAPE), &expected, 1e-12);
        assert_close("f32", &run::<f32>(&x, &centers, &weight, &bias, SHAPE), &expected, 1e-4);
    }
}

#[test]
fn gradients() {
    let (shape, outputs, rows) = (Shape { features: 2, centers: 4 }, 3, 5);
    let width = shape.features * shape.centers;
    // Centres near the features: far from them every derivative is 0.
    let x: Vec<f64> = normals(rows * shape.features, 1).iter().map(|x| 0.5 + 0.1 * x).collect();
    let centers: Vec<f64> = normals(width, 2).iter().map(|c| 0.5 + 0.1 * c).collect();
    let (weight, bias, dy) = (normals(outputs * width, 3), normals(outputs, 4), normals(rows * outputs, 5));
    let (mut d_weight, mut d_bias, mut d_centers) =
        (vec![1.0; weight.len()], vec![1.0; outputs], vec![1.0; width]);
    let gradients = WeightGradients { weight: &mut d_weight, bias: &mut d_bias };
    let layer = Weights { weight: &weight, bias: &bias };
    let rbf = Rbf { centers: &centers, layer, features: shape.features };
    rbf::backward(gradients, &mut d_centers, &dy, &x, &rbf, &threads());
    d_weight.iter_mut().chain(&mut d_bias).chain(&mut d_centers).for_each(|d| *d -= 1.0);
    let loss = |centers: &[f64], weight: &[f64], bias: &[f64]| {
        dot(&run::<f64>(&x, centers, weight, bias, shape), &dy)
    };
    check("d_weight", &weight, &d_weight, |weight| loss(&centers, weight, &bias));
    check("d_bias", &bias, &d_bias, |bias| loss(&centers, &weight, bias));
    // e^(−100·d²) is steep: differences of step 1e-3 are good to 1e-6 only where they are fourth order.
    check_steep("d_centers", &centers, &d_centers, |centers| loss(centers, &weight, &bias));
}

fn check_steep(what: &str, x: &[f64], analytic: &[f64], f: impl Fn(&[f64]) -> f64) {
    // The same check in units in which the function is as smooth as the others.
    let unit = 0.05;
    let scaled: Vec<f64> = x.iter().map(|x| x / unit).collect();
    let gradient: Vec<f64> = analytic.iter().map(|g| g * unit).collect();
    check(what, &scaled, &gradient, |scaled| f(&scaled.iter().map(|x| x * unit).collect::<Vec<_>>()));
}
