//! `setrank info --devices`.

use std::io::Write;

use anyhow::bail;
use serde_json::{Value, json};
use setrank::bench::machine;
use setrank::device::probe::{self, GpuInfo};
use setrank::device::{Bytes, Unavailable, choice};
use setrank::model::device::best_here;
use setrank::ops::simd::Level;

/// Lists the devices and which one `--device auto` takes; with `check` runs the kernels on each GPU.
pub fn run(json: bool, check: bool) -> anyhow::Result<()> {
    let gpus = probe::gpus();
    if let (Err(reason), true) = (&gpus, check) {
        bail!("nothing to check: {reason}");
    }
    let chosen = best_here();
    let device = if chosen.device.is_gpu() { "cuda" } else { "cpu" };
    let mut out = std::io::stdout().lock();
    if !json {
        writeln!(out, "cpu: {}, {} core(s), {}", machine::cpu_name(), machine::cores(), best_level())?;
        match &gpus {
            Ok(gpus) => gpus.iter().try_for_each(|gpu| writeln!(out, "{}", Line(gpu)))?,
            Err(reason) => writeln!(out, "cuda: none: {reason}")?,
        }
        writeln!(out, "auto: {device}: {}", chosen.reason)?;
    }
    // One GPU that fails is not to hide what the others do.
    let mut checks = Vec::new();
    let mut failures = Vec::new();
    for gpu in gpus.iter().flatten().filter(|_| check) {
        match check_gpu(gpu) {
            Ok(checked) => checks.extend(checked),
            Err(error) => {
                let device = format!("cuda:{}", gpu.ordinal);
                tell!("{device}: not checked: {error:#}");
                failures.push(json!({ "device": device, "reason": format!("{error:#}") }));
            }
        }
    }
    if json {
        let listed: Vec<Value> = gpus.iter().flatten().map(describe).collect();
        let report = json!({
            "cpu": { "name": machine::cpu_name(), "cores": machine::cores(), "simd": best_level() },
            "gpus": listed,
            "no_gpus": gpus.as_ref().err().map(Unavailable::to_string),
            "auto": { "device": device, "reason": chosen.reason },
            "checks": checks.iter().map(Check::to_json).collect::<Vec<_>>(),
            "failures": failures,
        });
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        checks.iter().try_for_each(|check| writeln!(out, "{check}"))?;
    }
    out.flush()?;
    let wrong = checks.iter().filter(|check| !check.right).count();
    let failed = failures.len();
    match (failed, wrong) {
        (0, 0) => Ok(()),
        (_, 0) => bail!("{failed} GPU(s) could not be checked"),
        _ => {
            let unchecked =
                if failed > 0 { format!("; {failed} GPU(s) could not be checked") } else { String::new() };
            bail!(
                "{wrong} result(s) are not what the CPU computes: the GPU, its driver or this program is at fault{unchecked}"
            )
        }
    }
}

fn best_level() -> &'static str {
    Level::available().last().expect("every machine has the portable level").name()
}

fn describe(gpu: &GpuInfo) -> Value {
    json!({
        "device": format!("cuda:{}", gpu.ordinal),
        "name": gpu.name,
        "compute_capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
        "memory_bytes": gpu.memory,
        "multiprocessors": gpu.multiprocessors,
        "shared_bytes_per_block": gpu.shared_per_block,
        "kernels": kernels(gpu),
        "unusable": gpu.check().err().map(|reason| reason.to_string()),
    })
}

/// What `--kernels` can be on a GPU.
fn kernels(gpu: &GpuInfo) -> Vec<&'static str> {
    let has_wgmma = choice::check_wgmma(gpu).is_ok();
    ["mma", "wgmma"].into_iter().take(1 + usize::from(has_wgmma)).collect()
}

/// A GPU in a line.
struct Line<'a>(&'a GpuInfo);

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gpu = self.0;
        write!(
            f,
            "cuda:{}: {}, compute capability {}.{}, {}, {} multiprocessors",
            gpu.ordinal,
            gpu.name,
            gpu.capability.0,
            gpu.capability.1,
            Bytes(gpu.memory),
            gpu.multiprocessors
        )?;
        match gpu.check() {
            Ok(()) => write!(f, ", kernels by {}", kernels(gpu).join(" or ")),
            Err(reason) => write!(f, "; cannot be used: {reason}"),
        }
    }
}

/// What the check of one kernel on one GPU found.
struct Check {
    ordinal: usize,
    what: String,
    measure: &'static str,
    found: f64,
    allowed: f64,
    right: bool,
}

impl Check {
    fn to_json(&self) -> Value {
        json!({
            "device": format!("cuda:{}", self.ordinal),
            "what": self.what,
            "measure": self.measure,
            "error": self.found,
            "allowed": self.allowed,
            "right": self.right,
        })
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Check { ordinal, what, measure, found, allowed, right } = self;
        let verdict = if *right { "right" } else { "WRONG" };
        write!(f, "cuda:{ordinal}: {what}: {verdict} ({measure} error {found:.2e}, allowed {allowed:.2e})")
    }
}

#[cfg(feature = "cuda")]
fn check_gpu(gpu: &GpuInfo) -> anyhow::Result<Vec<Check>> {
    use setrank::device::Gpu;
    use setrank::ops::check;
    let checked = check::run(&Gpu::new(gpu.ordinal)?)?;
    Ok(checked
        .into_iter()
        .map(|checked| Check {
            ordinal: gpu.ordinal,
            what: checked.what,
            measure: checked.deviation.measure.name(),
            found: checked.deviation.found,
            allowed: checked.deviation.allowed,
            right: checked.deviation.is_allowed(),
        })
        .collect())
}

#[cfg(not(feature = "cuda"))]
fn check_gpu(_: &GpuInfo) -> anyhow::Result<Vec<Check>> {
    Err(Unavailable::NotBuilt.into())
}
