//! What the GPU's approximate functions may give.

use crate::rng::philox4x32;

/// One draw of the errors that approximate functions are allowed by the PTX ISA: a GPU's own are unknown, but depend on
/// the argument alone. Each is the largest that is allowed, up or down: where one value counts, a smaller one would be
/// luck. Draw 0 has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Approximate(pub u32);

/// Largest error, relative but for logarithms near 0: `ex2.approx`, `lg2.approx`.
const LARGEST: f64 = 1.0 / (1 << 22) as f64;

impl Approximate {
    /// 2ˣ; exact where x is whole.
    pub fn exp2(self, x: f32) -> f32 {
        let exact = f64::from(x).exp2();
        if x.fract() == 0.0 { exact as f32 } else { (exact * (1.0 + self.error(x))) as f32 }
    }

    /// log₂ x; exact where x is 1.
    pub fn log2(self, x: f32) -> f32 {
        let exact = f64::from(x).log2();
        let is_absolute = (0.5..2.0).contains(&x) && x != 1.0;
        (if is_absolute { exact + self.error(x) } else { exact * (1.0 + self.error(x)) }) as f32
    }

    /// eˣ, as kernels make it of [`exp2`](Self::exp2).
    pub fn exp(self, x: f32) -> f32 {
        self.exp2(x * std::f32::consts::LOG2_E)
    }

    fn error(self, x: f32) -> f64 {
        if self.0 == 0 {
            return 0.0;
        }
        let [random, ..] = philox4x32([x.to_bits(), 0, 0, 0], [self.0, 0]);
        if random % 2 == 0 { LARGEST } else { -LARGEST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_within_what_is_allowed() {
        let (mut largest, mut of_logs) = (0.0f64, 0.0f64);
        for x in (1..2000).map(|number| number as f32 * 0.013) {
            let off = (f64::from(Approximate(1).exp2(-x)) / f64::from(-x).exp2() - 1.0).abs();
            largest = largest.max(off);
            let log = f64::from(x).log2();
            let off = (f64::from(Approximate(1).log2(x)) - log).abs();
            of_logs = of_logs.max(if (0.5..2.0).contains(&x) { off } else { off / log.abs() });
        }
        // The result is rounded on top.
        for largest in [largest, of_logs] {
            assert!((0.9..1.3).contains(&(largest / LARGEST)), "{largest:e}");
        }
        assert_eq!(Approximate(0).exp2(0.3), 0.3f32.exp2());
        assert_ne!(Approximate(1).exp2(0.3), Approximate(2).exp2(0.3));
    }

    #[test]
    fn what_is_exact_stays_so() {
        let of = Approximate(3);
        assert_eq!([0.0, -3.0, 5.0, f32::NEG_INFINITY].map(|x| of.exp2(x)), [1.0, 0.125, 32.0, 0.0]);
        assert_eq!((of.log2(1.0), of.log2(0.0)), (0.0, f32::NEG_INFINITY));
        assert!(of.exp2(f32::NAN).is_nan() && of.exp2(f32::INFINITY) == f32::INFINITY);
    }
}
