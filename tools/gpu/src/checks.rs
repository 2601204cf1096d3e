//! The list of all checks.

use anyhow::bail;
use setrank::config::Encoder;
use setrank::ops::check::FAMILIES;

use crate::outcome::Outcome;
use crate::{counted, families, graphs, micro, step, vectors};

/// Documents of a set at which each family is checked.
const SIZES: [usize; 3] = [1, 40, 500];

/// At most so many on an emulator.
const LARGEST_SMALL: usize = 130;

/// A check.
pub struct Check {
    /// What it is asked for by.
    pub name: String,
    /// Runs it, with sizes for an emulator or for a card.
    pub run: Box<dyn Fn(bool) -> anyhow::Result<Outcome>>,
}

impl Check {
    fn new(name: String, run: impl Fn(bool) -> anyhow::Result<Outcome> + 'static) -> Self {
        Check { name, run: Box::new(run) }
    }
}

/// All checks: what is plainer comes first.
pub fn all() -> Vec<Check> {
    let mut all = Vec::new();
    for micro in vectors::ALL {
        let folder = if micro.source == "plain" { "" } else { "ptx/" };
        all.push(Check::new(format!("{folder}{}", micro.kernel), move |_| micro::run(&micro)));
    }
    for family in FAMILIES {
        for size in SIZES {
            all.push(Check::new(format!("{}/{size}", family.name), move |small| {
                families::run(&family, if small { size.min(LARGEST_SMALL) } else { size })
            }));
        }
    }
    let encoders = [("msab", Encoder::Msab), ("imsab", Encoder::Imsab)];
    for (name, encoder) in encoders {
        all.push(Check::new(format!("step/{name}"), move |small| step::run(encoder, small)));
    }
    for (name, encoder) in encoders {
        all.push(Check::new(format!("graphs/{name}"), move |small| graphs::run(encoder, small)));
    }
    all
}

/// Launches for Nsight Compute to count.
fn counted() -> Vec<Check> {
    let of = |counted: counted::Counted| Check::new(counted.name(), move |_| counted::run(&counted));
    counted::ALL.map(of).into()
}

/// The check of a name.
pub fn named(name: &str) -> anyhow::Result<Check> {
    match all().into_iter().chain(counted()).find(|check| check.name == name) {
        Some(check) => Ok(check),
        None => bail!("there is no check `{name}`: `setrank-gpu-check list` names them"),
    }
}
