//! Launches whose counters are known of the emulator (`tests/kernels/counters.txt`), for Nsight Compute to count on a card.

use serde_json::json;
use setrank::device::Gpu;
use setrank::ops::attention::check::Problem as AttentionProblem;
use setrank::ops::attention::{Heads, Roles};
use setrank::ops::check::{Deviation, SEED};
use setrank::ops::layer_norm::NormShape;
use setrank::ops::layer_norm::check::Problem as NormProblem;
use setrank::ops::linear::check::{Problem as LinearProblem, Product};
use setrank::ops::linear::{Activation, Layout, LinearShape};

use crate::outcome::Outcome;

/// A problem of `counters.txt`.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The kernel that is counted, the first of its name that is launched.
    pub kernel: &'static str,
    /// Its sizes, as the table has them.
    pub shape: &'static str,
    solve: fn(&Gpu) -> anyhow::Result<Vec<Deviation>>,
}

impl Counted {
    /// What the check of it is asked for by.
    pub fn name(&self) -> String {
        format!("counted/{}", self.kernel)
    }
}

/// One whose products count, one whose exponentials do, and one that is all traffic.
pub const ALL: [Counted; 3] = [
    Counted { kernel: "linear_forward", shape: "1280x256x256", solve: linear },
    Counted { kernel: "attention_forward_d32", shape: "360", solve: attention },
    Counted { kernel: "layer_norm_forward_narrow", shape: "1280x256", solve: layer_norm },
];

/// Runs one of them.
pub fn run(counted: &Counted) -> anyhow::Result<Outcome> {
    let wrong = (counted.solve)(&Gpu::new(0)?)?.into_iter().find(|deviation| !deviation.is_allowed());
    if let Some(Deviation { found, allowed, .. }) = wrong {
        anyhow::bail!("{}: off by {found:e}, allowed are {allowed:e}", counted.kernel);
    }
    Ok(Outcome::Passed(json!({ "sizes": counted.shape })))
}

fn linear(gpu: &Gpu) -> anyhow::Result<Vec<Deviation>> {
    let shape = LinearShape { rows: 1280, inputs: 256, outputs: 256 };
    let product = Product::Forward(Activation::Relu);
    let problem = LinearProblem::random(shape, Layout::Heads { width: 32 }, product, SEED);
    Ok(problem.deviations(&problem.solve(gpu)?).into_iter().map(|(_, deviation)| deviation).collect())
}

fn attention(gpu: &Gpu) -> anyhow::Result<Vec<Deviation>> {
    let problem = AttentionProblem::random(Roles::Documents, &[360], Heads { count: 8, width: 32 }, SEED);
    Ok(problem.deviations(&problem.solve(gpu)?).into())
}

fn layer_norm(gpu: &Gpu) -> anyhow::Result<Vec<Deviation>> {
    let shape = NormShape { rows: 1280, width: 256 };
    let problem = NormProblem::random(shape, Some(shape.rows), 1e-8, shape.width as u64);
    let (forward, _) = problem.solve(gpu)?;
    Ok(problem.forward_deviations(&forward).into())
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use std::fs;
    use std::path::Path;

    use setrank_emulator::driver::{self, Configuration};

    use super::*;

    /// The launches are those of the table.
    #[test]
    fn counters_are_those_of_the_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kernels/counters.txt");
        let table = fs::read_to_string(file).unwrap();
        let counting = Configuration { count: true, workers: 2, ..Configuration::default() };
        for counted in &ALL[..2] {
            let name = format!("{} {}: ", counted.kernel, counted.shape);
            let row = table.lines().find(|line| line.starts_with(&name)).unwrap();
            let found = driver::with(&counting, |driver| {
                (counted.solve)(&Gpu::new(0).unwrap()).unwrap();
                driver.counters().emulator
            });
            let found = found.unwrap();
            for part in [
                format!("wavefronts {},", found.wavefronts),
                format!("products {} ", found.mma),
                format!("exponentials {},", found.exponentials),
            ] {
                assert!(row.contains(&part), "{part} is not in {row}");
            }
        }
    }
}
