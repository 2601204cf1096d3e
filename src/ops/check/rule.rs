//! The rule that kernels are held to, and what a check of one found.
//!
//! No tolerance is chosen by hand. A kernel may be off from the same computation in f64 by twice as much as plain
//! evaluations in the kernel's own number types are, which differ in what GPUs are free in (`draw.rs`): the
//! order of sums, how those of matrix products are rounded, and the errors of approximate functions. Or it may be off by
//! twice as much as the rounding of the exact result to the type that it is stored in is, whichever is more; each is the
//! largest over results of like size. Few evaluations would often be exact by luck where there are few results; where there
//! are many, the same holds of the root mean square, which one large error of a plain evaluation does not widen.

/// What of all errors the rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// The largest.
    #[default]
    Largest,
    /// The root of their squares' mean.
    RootMeanSquare,
}

impl Measure {
    /// As in "largest error".
    pub fn name(self) -> &'static str {
        match self {
            Measure::Largest => "largest",
            Measure::RootMeanSquare => "root mean square",
        }
    }
}

/// How far a kernel's results are from the exact ones, and how far they may be: by the measure that is nearer to what is
/// allowed, or farther beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    /// Of which errors.
    pub measure: Measure,
    /// |kernel − exact| by that measure.
    pub found: f64,
    /// What the rule allows.
    pub allowed: f64,
}

impl Deviation {
    /// Whether it is within the rule.
    pub fn is_allowed(self) -> bool {
        self.found <= self.allowed
    }

    /// The one of two that is nearer to what is allowed, or farther beyond it.
    pub fn worse(self, other: Deviation) -> Deviation {
        // Products instead of shares: what is allowed may be 0. A NaN is worse than anything.
        let is_better = self.found * other.allowed <= other.found * self.allowed;
        let (better, worse) = if is_better { (self, other) } else { (other, self) };
        // Nothing found where nothing is allowed says nothing.
        if worse.allowed == 0.0 && worse.found == 0.0 { better } else { worse }
    }
}

/// From so many results on their root mean square is no luck.
const MANY: usize = 256;

/// Errors of results.
#[derive(Clone, Copy, Default)]
struct Errors {
    count: usize,
    largest: f64,
    squares: f64,
}

impl Errors {
    fn add(&mut self, error: f64) {
        self.count += 1;
        self.largest = self.largest.max(error);
        self.squares += error * error;
    }

    /// 0 of none.
    fn root_mean_square(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

/// Holds `kernel` against the rule; all are values of the same results, `plain` once for each order of sums, and `round`
/// rounds to the type that they are stored in. Where the exact value is not finite, the kernel's must not be either.
pub fn deviation(kernel: &[f64], plain: &[&[f64]], exact: &[f64], round: impl Fn(f64) -> f64) -> Deviation {
    let wrong = Deviation { measure: Measure::Largest, found: f64::INFINITY, allowed: 0.0 };
    if kernel.len() != exact.len() {
        return wrong;
    }
    let mut found = Errors::default();
    // Of each plain evaluation, and of rounding alone.
    let mut measures = vec![Errors::default(); plain.len() + 1];
    for (at, (&kernel, &exact)) in kernel.iter().zip(exact).enumerate() {
        if !exact.is_finite() {
            if kernel.is_finite() {
                return wrong;
            }
            continue;
        }
        // A NaN is no small error.
        let error = (kernel - exact).abs();
        found.add(if error.is_nan() { f64::INFINITY } else { error });
        let values = plain.iter().map(|plain| plain[at]).chain([round(exact)]);
        for (errors, value) in measures.iter_mut().zip(values) {
            // One that overflowed is no measure.
            let error = (value - exact).abs();
            if error.is_finite() {
                errors.add(error);
            }
        }
    }
    let bound = |measure, of: fn(&Errors) -> f64| Deviation {
        measure,
        found: of(&found),
        allowed: 2.0 * measures.iter().map(of).fold(0.0, f64::max),
    };
    let largest = bound(Measure::Largest, |errors| errors.largest);
    if found.count < MANY {
        return largest;
    }
    largest.worse(bound(Measure::RootMeanSquare, Errors::root_mean_square))
}

/// As [`deviation`], of one result of whole answers.
pub(crate) fn deviation_of<A>(
    kernel: &A,
    plain: &[A],
    exact: &A,
    result: impl Fn(&A) -> Vec<f64>,
    round: impl Fn(f64) -> f64,
) -> Deviation {
    let plain: Vec<Vec<f64>> = plain.iter().map(&result).collect();
    let plain: Vec<&[f64]> = plain.iter().map(Vec::as_slice).collect();
    deviation(&result(kernel), &plain, &result(exact), round)
}

/// What the check of a kernel found.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Which kernel, with which sizes.
    pub what: String,
    /// How far off it is at most.
    pub deviation: Deviation,
    /// The results, where they are off by more than the rule allows.
    pub wrong: Option<Wrong>,
}

/// Results that are wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    /// What the kernel computed.
    pub found: Vec<f64>,
    /// What is right.
    pub exact: Vec<f64>,
}

impl Checked {
    /// Takes the results that `results` gives, found and exact, if they are wrong.
    pub(crate) fn new(
        what: String,
        deviation: Deviation,
        results: impl FnOnce() -> (Vec<f64>, Vec<f64>),
    ) -> Self {
        let wrong = (!deviation.is_allowed()).then(|| {
            let (found, exact) = results();
            Wrong { found, exact }
        });
        Checked { what, deviation, wrong }
    }
}

impl Wrong {
    /// The places of values that are off by more than `allowed`, or that are missing.
    pub fn places(&self, allowed: f64) -> Vec<usize> {
        let places = 0..self.found.len().max(self.exact.len());
        let is_wrong = |&at: &usize| match (self.found.get(at), self.exact.get(at)) {
            (Some(found), Some(exact)) if exact.is_finite() => {
                let error = (found - exact).abs();
                error.is_nan() || error > allowed
            }
            (Some(found), Some(_)) => found.is_finite(),
            _ => true,
        };
        places.filter(is_wrong).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::rounding::to_f32;

    fn of(kernel: &[f64], plain: &[f64], exact: &[f64]) -> Deviation {
        deviation(kernel, &[plain], exact, to_f32)
    }

    #[test]
    fn twice_the_plain_error_is_allowed() {
        assert!(of(&[1.0019], &[1.001], &[1.0]).is_allowed());
        assert!(!of(&[1.003], &[1.001], &[1.0]).is_allowed());
        assert!(of(&[1.0, 2.0], &[1.0, 2.0], &[1.0, 2.0]).is_allowed());
        assert!(of(&[0.1f32.into()], &[0.1f32.into()], &[0.1]).is_allowed());
    }

    #[test]
    fn what_is_not_finite_must_be_found() {
        assert!(!of(&[f64::NAN], &[1.0], &[1.0]).is_allowed());
        assert!(!of(&[2.0], &[f64::INFINITY], &[1.0]).is_allowed());
        assert!(!of(&[f64::INFINITY], &[1e300], &[1e300]).is_allowed());
        assert!(!of(&[], &[], &[1.0]).is_allowed());
        assert!(!of(&[1.0], &[1.0], &[f64::NAN]).is_allowed());
        assert!(of(&[f64::NAN], &[1.0], &[f64::INFINITY]).is_allowed());
    }

    #[test]
    fn wrong_places_are_those_beyond_what_is_allowed() {
        let wrong = Wrong {
            found: vec![1.0, 2.5, f64::NAN, 4.0, 5.0, 6.0],
            exact: vec![1.25, 2.0, 3.0, f64::INFINITY, 5.0],
        };
        assert_eq!(wrong.places(0.25), [1, 2, 3, 5]);
        let deviation = of(&[1.0], &[1.0], &[1.0]);
        assert_eq!(Checked::new(String::new(), deviation, || unreachable!()).wrong, None);
        let deviation = of(&[1.5], &[1.0], &[1.0]);
        let checked = Checked::new(String::new(), deviation, || (vec![1.5], vec![1.0]));
        assert_eq!(checked.wrong.unwrap().places(deviation.allowed), [0]);
    }

    #[test]
    fn the_worse_of_two_is_kept() {
        let of = |found, allowed| Deviation { found, allowed, ..Deviation::default() };
        for (a, b) in [
            (of(0.5, 1.0), of(0.2, 0.3)),
            (of(0.5, 1.0), of(1e-9, 0.0)),
            (of(0.9, 1.0), of(0.2, 0.1)),
            (of(0.0, 0.0), of(0.1, 1.0)),
            (of(0.0, 1.0), of(f64::INFINITY, 1.0)),
            (of(0.0, 0.0), of(f64::INFINITY, 0.0)),
        ] {
            assert_eq!((a.worse(b), b.worse(a)), (b, b), "{a:?} {b:?}");
        }
    }

    #[test]
    fn many_small_errors_are_wrong() {
        // One large error of the plain evaluation allows one, not many.
        let exact = vec![1.0; MANY];
        let mut plain = exact.clone();
        plain[0] = 1.5;
        let off = |count: usize| -> Deviation {
            let kernel: Vec<f64> = (0..MANY).map(|at| if at < count { 1.4 } else { 1.0 }).collect();
            of(&kernel, &plain, &exact)
        };
        assert!(off(1).is_allowed() && off(6).is_allowed());
        assert!(!off(7).is_allowed() && off(7).measure == Measure::RootMeanSquare);
        let few = of(&[1.4; 100], &plain[..100], &exact[..100]);
        assert!(few.is_allowed() && few.measure == Measure::Largest);
    }

    #[test]
    fn the_worst_order_counts() {
        let orders = [&[1.0, 2.001][..], &[1.002, 2.0]];
        let of = |kernel: &[f64]| deviation(kernel, &orders, &[1.0, 2.0], |value| value);
        assert!(of(&[1.0, 2.0039]).is_allowed() && !of(&[1.0, 2.0041]).is_allowed());
    }
}
