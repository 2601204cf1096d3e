//! LayerNorm of a residual sum.

use proptest::prelude::*;
use setrank::ops::Scalar;
use setrank::ops::layer_norm::{self, Norm, Saved};

use super::{assert_close, cast, check, dot, normals};

const EPS: f64 = 1e-5;

fn run<T: Scalar>(a: &[f64], b: Option<&[f64]>, weight: &[f64], bias: &[f64]) -> (Vec<T>, Saved<T>) {
    let (weight, bias) = (cast::<T>(weight), cast::<T>(bias));
    let (mut y, mut saved) = (cast::<T>(a), Saved::default());
    let b = b.map(cast::<T>);
    let norm = Norm { weight: &weight, bias: &bias, eps: EPS };
    layer_norm::forward(&mut y, b.as_deref(), &mut saved, norm);
    (y, saved)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn matches_plain_loops(rows in 1usize..300, width in 1usize..70, residual in any::<bool>(), seed in 0u64..99) {
        let (a, b) = (normals(rows * width, seed), normals(rows * width, seed + 1));
        let b = residual.then_some(&b[..]);
        let (weight, bias) = (normals(width, seed + 2), normals(width, seed + 3));
        let mut expected = Vec::new();
        for row in 0..rows {
            let here = row * width..(row + 1) * width;
            let x: Vec<f64> = here.map(|i| a[i] + b.map_or(0.0, |b| b[i])).collect();
            let mean = x.iter().sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            expected.extend(x.iter().zip(&weight).zip(&bias).map(|((x, w), b)| (x - mean) / (variance + EPS).sqrt() * w + b));
        }
        assert_close("f64", &run::<f64>(&a, b, &weight, &bias).0, &expected, 1e-11);
        if width > 2 {
            assert_close("f32", &run::<f32>(&a, b, &weight, &bias).0, &expected, 1e-3);
        }
    }
}

#[test]
fn gradients() {
    for (rows, width) in [(1, 4), (3, 5), (300, 3)] {
        let (a, b) = (normals(rows * width, 1), normals(rows * width, 2));
        let (weight, bias, dy) = (normals(width, 3), normals(width, 4), normals(rows * width, 5));
        let (_, saved) = run::<f64>(&a, Some(&b), &weight, &bias);
        let (mut d, mut d_weight, mut d_bias) = (dy.clone(), vec![1.0; width], vec![1.0; width]);
        let norm = Norm { weight: &weight, bias: &bias, eps: EPS };
        layer_norm::backward(&mut d, &saved, &mut Vec::new(), norm, (&mut d_weight, &mut d_bias));
        d_weight.iter_mut().chain(&mut d_bias).for_each(|d| *d -= 1.0);
        check("d_a", &a[..3 * width.min(a.len() / 3)], &d[..3 * width.min(a.len() / 3)], |part| {
            let a = [part, &a[part.len()..]].concat();
            dot(&run::<f64>(&a, Some(&b), &weight, &bias).0, &dy)
        });
        check("d_weight", &weight, &d_weight, |weight| dot(&run::<f64>(&a, Some(&b), weight, &bias).0, &dy));
        check("d_bias", &bias, &d_bias, |bias| dot(&run::<f64>(&a, Some(&b), &weight, bias).0, &dy));
    }
}
