//! Backward.

use half::bf16;
use setrank::device::{Gpu, Limits};
use setrank::ops::attention::check::{BackwardProblem, Problem};
use setrank::ops::attention::{Heads, Roles};
use setrank::ops::check::Deviation;
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::Launch;

use crate::attention::backward::{Whole, of_whole_sets};
use crate::attention::counted::{ONE_HEAD, Row, row};
use crate::attention::far_below;
use crate::family::{self, Case, Counted};

/// A problem whose sets are all warpgroups', be they as small as these can take.
pub struct ByWarpgroups(pub BackwardProblem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let forward = problem.forward();
        let warpgroups = forward.backward_warpgroups();
        let launch = warpgroups.launch(forward.heads(), forward.dropout().is_some());
        of_whole_sets(problem, &forward.plan(limits).unwrap(), launch, &warpgroups.sets, None)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        Whole(self.0.clone()).deviations(launch)
    }
}

fn documents(sizes: &[usize], count: usize, width: usize, rate: f64) -> Problem {
    Problem::random(Roles::Documents, sizes, Heads { count, width }, width as u64).with_dropout(rate)
}

/// Sets of one pass, and with dropout of two, in the last of which warpgroups have other numbers of blocks of keys, or none;
/// last tiles of queries of one half and of both, and last blocks of keys in which warps have all their keys, some, or none.
pub fn cases() -> Vec<Case> {
    let case = |sizes: &[usize], count, width, rate| {
        let mut problem = documents(sizes, count, width, rate);
        if let [first, second] = sizes {
            far_below(&mut problem, *first..first + second, *first..first + second);
        }
        Case::new(Limits::SM_90, ByWarpgroups(BackwardProblem::new(problem, width == 64, 1)))
    };
    vec![
        case(&[152], 1, 32, 0.0),
        case(&[258, 98], 1, 32, 0.3),
        case(&[97], 2, 64, 0.0),
        case(&[131], 1, 64, 0.3),
    ]
}

/// Sizes as Istella's are.
const MIXED: [usize; 5] = [439, 371, 330, 282, 123];

pub fn counted() -> Vec<Counted> {
    let of = |shape: &str, sizes: &[usize], width| Counted {
        shape: shape.into(),
        problem: Box::new(ByWarpgroups(BackwardProblem::new(documents(sizes, 1, width, 0.0), false, 1))),
        useful_products: (5 * width * sizes.iter().map(|n| n * n).sum::<usize>()) as f64 / 2048.0,
    };
    vec![of(ONE_HEAD.name, &[360], 32), of("mixed", &MIXED, 32), of(ONE_HEAD.name, &[360], 64)]
}

/// Of warps' products, heads of 32 have 1.7 wavefronts and heads of 64 2.5. Pairs of log-sum-exps, which all rows of keys
/// share, are no conflicts, but two wavefronts of a few bytes.
#[test]
fn backward_reaches_its_aims() {
    let pairs = |sizes: &[usize]| sizes.iter().map(|n| (n * n) as f64).sum::<f64>();
    for (kernel, shape, width, sizes, wavefronts) in [
        ("attention_backward_wgmma_d32", ONE_HEAD.name, 32.0, &[360][..], 1.42),
        ("attention_backward_wgmma_d32", "mixed", 32.0, &MIXED, 1.42),
        ("attention_backward_wgmma_d64", ONE_HEAD.name, 64.0, &[360], 1.3),
    ] {
        let Row { bytes, wavefronts: found, conflicts, products, exponentials, .. } = row(kernel, shape);
        let least = sizes.iter().sum::<usize>() as f64 * (16.0 * width + 4.0);
        let useful = 5.0 * width * pairs(sizes) / 2048.0 / products;
        assert!(bytes <= 1.1 * least && conflicts <= 1.11, "{kernel} {shape}: {bytes} bytes, {conflicts}");
        assert!(useful >= 0.88, "{kernel} {shape}: {useful} of the products are useful");
        assert!(exponentials <= 1.1 * pairs(sizes), "{kernel} {shape}: {exponentials} exponentials");
        assert!(found <= wavefronts * products, "{kernel} {shape}: {found} wavefronts, {products} products");
    }
}

/// Sets of warpgroups beside those of other kernels.
#[test]
fn sets_of_both_kinds() {
    let configuration = Configuration::default();
    driver::with(&configuration, |_| {
        let gpu = Gpu::new(0).unwrap();
        let forward = documents(&[40, 130, 120, 0], 1, 32, 0.0).with_wgmma();
        for checked in BackwardProblem::new(forward, true, 9).hold(&gpu, "of both kinds").unwrap() {
            assert!(checked.deviation.is_allowed(), "{checked:?}");
        }
    })
    .unwrap();
}

#[test]
fn what_is_not_a_number_stays_in_its_set() {
    let results = |problem: Problem| {
        let problem = BackwardProblem::new(problem, false, 6);
        let mut launch = family::Problem::launch(&ByWarpgroups(problem), &Limits::SM_90);
        emulate::run(&Kernels::repository(), &mut launch, &Config::default().workers(2)).unwrap();
        ["d_q", "d_kv"].map(|name| family::result::<u16>(&launch, name)).concat()
    };
    let clean = documents(&[97, 100, 98], 1, 32, 0.0);
    let expected = results(clean.clone());
    for part in 0..3 {
        let mut bad = clean.clone();
        let [q, kv] = bad.qkv_mut();
        let (values, begin) = if part == 0 { (q, 0) } else { (kv, (part - 1) * 295) };
        values[(begin + 97 + 10) * 32 + 3] = bf16::NAN;
        let found = results(bad);
        for (rows, clean) in found.chunks_exact(295 * 32).zip(expected.chunks_exact(295 * 32)) {
            let others = |rows: &[u16]| [&rows[..97 * 32], &rows[197 * 32..]].concat();
            assert_eq!(others(rows), others(clean), "part {part}");
        }
        assert!(found != expected);
    }
}
