//! Linear layers.

use proptest::prelude::*;
use setrank::ops::Scalar;
use setrank::ops::gemm::{Aligned, Write};
use setrank::ops::linear::{self, Activation, WeightGradients, WeightJob, Weights};
use setrank::ops::scratch::PerThread;

use super::{assert_close, cast, check, dot, normals};

fn plain(x: &[f64], weight: &[f64], bias: &[f64], activation: Activation) -> Vec<f64> {
    let inputs = weight.len() / bias.len();
    x.chunks(inputs)
        .flat_map(|x| {
            weight.chunks(inputs).zip(bias).map(move |(w, b)| match activation {
                Activation::Identity => dot(x, w) + b,
                Activation::Relu => (dot(x, w) + b).max(0.0),
            })
        })
        .collect()
}

fn run<T: Scalar>(x: &[f64], weight: &[f64], bias: &[f64], activation: Activation) -> Vec<T> {
    let (x, weight, bias) = (cast(x), cast(weight), cast(bias));
    let mut y = vec![T::ONE; x.len() / (weight.len() / bias.len()) * bias.len()];
    linear::forward(
        &mut y,
        &x,
        Weights { weight: &weight, bias: &bias },
        activation,
        &mut Aligned::default(),
    );
    y
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn matches_plain_loops(
        rows in 1usize..300, inputs in 1usize..40, outputs in 1usize..150, relu in any::<bool>(), seed in 0u64..99,
    ) {
        let activation = if relu { Activation::Relu } else { Activation::Identity };
        let (x, weight, bias) = (normals(rows * inputs, seed), normals(outputs * inputs, seed + 1), normals(outputs, seed + 2));
        let expected = plain(&x, &weight, &bias, activation);
        assert_close("f64", &run::<f64>(&x, &weight, &bias, activation), &expected, 1e-13);
        assert_close("f32", &run::<f32>(&x, &weight, &bias, activation), &expected, 1e-5);
    }
}

#[test]
fn gradients() {
    for (rows, inputs, outputs) in [(1, 3, 2), (5, 4, 3), (130, 2, 3), (600, 3, 2)] {
        let (x, weight, bias) =
            (normals(rows * inputs, 1), normals(outputs * inputs, 2), normals(outputs, 3));
        let dy = normals(rows * outputs, 4);
        let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
            dot(&run::<f64>(x, weight, bias, Activation::Identity), &dy)
        };
        // `Add` adds to what is there, `Set` does not look at it.
        for (write, before) in [(Write::Set, f64::NAN), (Write::Add, 2.0)] {
            let mut dx = vec![before; x.len()];
            let layer = Weights { weight: &weight[..], bias: &bias };
            linear::backward_input(&mut dx, write, &dy, layer, &mut Aligned::default());
            let added = if write == Write::Add { 2.0 } else { 0.0 };
            dx.iter_mut().for_each(|d| *d -= added);
            check("dx", &x, &dx, |x| loss(x, &weight, &bias));
        }
        let (mut d_weight, mut d_bias) = (vec![1.0; weight.len()], vec![1.0; bias.len()]);
        let gradients = WeightGradients { weight: &mut d_weight, bias: &mut d_bias };
        let mut threads = PerThread::default();
        threads.prepare();
        linear::backward_weights([WeightJob { gradients, dy: &dy, x: &x }], &threads);
        d_weight.iter_mut().chain(&mut d_bias).for_each(|d| *d -= 1.0);
        check("dW", &weight, &d_weight, |weight| loss(&x, weight, &bias));
        check("db", &bias, &d_bias, |bias| loss(&x, &weight, bias));
    }
}

#[test]
fn relu_stops_the_gradient_where_it_cut() {
    let mut dy = vec![1.0f64, 2.0, 3.0, 4.0];
    linear::relu_backward(&mut dy, &[0.5, 0.0, 1e-300, 0.0]);
    assert_eq!(dy, [1.0, 0.0, 3.0, 0.0]);
}
