//! Each family of kernels, held against the processor by the rule of `setrank::ops::check`.

use serde_json::json;
use setrank::device::Gpu;
use setrank::ops::check::{Checked, FamilyCheck, SEED};

use crate::mismatch::Mismatch;
use crate::outcome::Outcome;

/// Runs a family for a set of `size` documents.
pub fn run(family: &FamilyCheck, size: usize) -> anyhow::Result<Outcome> {
    let gpu = Gpu::new(0)?;
    let checked = (family.run_at)(&gpu, size)?;
    if checked.is_empty() {
        let (name, (major, minor)) = (&gpu.info().name, gpu.info().capability);
        return Ok(Outcome::Skipped(format!(
            "{name} has compute capability {major}.{minor}; this family has no kernel for it, or was not built"
        )));
    }
    let mismatches = checked.iter().filter_map(mismatch).collect();
    // The result that is nearest to what is allowed.
    let largest = checked.iter().map(|checked| checked.deviation).reduce(|a, b| a.worse(b));
    let share = largest.filter(|deviation| deviation.allowed > 0.0);
    let share = share.map_or(0.0, |deviation| deviation.found / deviation.allowed);
    Ok(Outcome::of(
        mismatches,
        json!({ "documents": size, "results": checked.len(), "error_of_allowed": share }),
    ))
}

fn mismatch(checked: &Checked) -> Option<Mismatch> {
    let wrong = checked.wrong.as_ref()?;
    let shown = |values: &[f64]| values.iter().map(|value| format!("{value:e}")).collect();
    Some(Mismatch {
        what: format!(
            "{}, {} error {:.2e}, allowed {:.2e}",
            checked.what,
            checked.deviation.measure.name(),
            checked.deviation.found,
            checked.deviation.allowed
        ),
        seed: Some(SEED),
        places: wrong.places(checked.deviation.allowed),
        found: shown(&wrong.found),
        expected: shown(&wrong.exact),
    })
}
