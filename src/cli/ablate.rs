//! `setrank bench --ablate`: the rungs of `--fuse` one beside the other.

use anyhow::bail;
use setrank::bench::ablation::{Ablation, REFERENCE_SIZES, Timing, label};
use setrank::bench::{Mode, Plan, largest};
use setrank::device::choice::{self, Device, KernelChoice, MatrixKernels};
use setrank::device::probe;

/// What is counted of the plan, and on a GPU measured.
pub fn run(
    plan: &Plan,
    rounds: usize,
    measure_peak: impl Fn() -> setrank::Result<Option<f64>>,
) -> anyhow::Result<Ablation> {
    if plan.mode != Mode::Train {
        bail!("--ablate is of a training step: setrank bench train --ablate");
    }
    let mut found = Ablation::new(&plan.config, &plan.sizes);
    let Device::Gpu(kernels) = plan.device else {
        if found.is_counted() {
            return Ok(found);
        }
        bail!(
            "--ablate without a GPU tells what was counted, of the model of full size (leave --hidden, --blocks and the like \
             out) on sets of {} documents: use --sizes, or --device cuda to measure any other",
            REFERENCE_SIZES.map(|size| size.to_string()).join(" or ")
        );
    };
    let wgmma = choice::check_wgmma(&probe::first_usable()?);
    for rung in &mut found.rungs {
        let (fuse, matrix) = (rung.fuse, rung.matrix);
        let name = label((fuse, matrix));
        if let (MatrixKernels::Wgmma, Err(why)) = (matrix, &wgmma) {
            tell!("{name}: not measured, as {why}");
            continue;
        }
        let device = Device::Gpu(KernelChoice { fuse, matrix, ..kernels });
        let plan = Plan { device, ..plan.clone() };
        plan.check()?;
        let before = measure_peak()?;
        let report = plan.run(rounds)?.with_peak(largest([before, measure_peak()?]));
        tell!("{name}: {} documents a second", report.docs_per_s.round());
        if let Some(gpu) = report.gpu {
            let (docs_per_s, launches) = (report.docs_per_s, gpu.launches_per_step);
            rung.measured = Some(Timing { docs_per_s, launches, share_of_floor: gpu.share_of_floor });
            found.gpu = Some(gpu.name);
        }
    }
    Ok(found)
}
