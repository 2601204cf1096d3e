//! A family of kernels as the ladder takes it.

use std::sync::OnceLock;

use bytemuck::Pod;
use setrank::device::{Limits, Parameter, Plan};
use setrank::ops::check::Deviation;
use setrank_emulator::emulate::{self, Config, Sums};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::{Buffer, Launch, Pointer};

use crate::{
    attention, attention_naive, attention_sm90, embed, feed_forward, feed_forward_backward,
    feed_forward_backward_sm90, feed_forward_sm90, gather, layer_norm, linear, linear_few_rows, linear_sm90,
    linear_wide, loss, norm_linear, optimizer, partial_sums, rbf, rbf_sm90, row_sums, score, score_loss,
    unpad,
};

/// Every family: counters, resources and machine code are looked at for all of them.
pub const ALL: [&Family; 24] = [
    &gather::FAMILY,
    &unpad::FAMILY,
    &rbf::FAMILY,
    &rbf_sm90::FAMILY,
    &linear::FAMILY,
    &linear_wide::FAMILY,
    &linear_sm90::FAMILY,
    &linear_few_rows::FAMILY,
    &embed::FAMILY,
    &attention::FAMILY,
    &attention_sm90::FAMILY,
    &attention_naive::FAMILY,
    &layer_norm::FAMILY,
    &norm_linear::FAMILY,
    &feed_forward::FAMILY,
    &feed_forward_sm90::FAMILY,
    &feed_forward_backward::FAMILY,
    &feed_forward_backward_sm90::FAMILY,
    &score::FAMILY,
    &loss::FAMILY,
    &score_loss::FAMILY,
    &row_sums::FAMILY,
    &partial_sums::FAMILY,
    &optimizer::FAMILY,
];

/// What one launch is to compute.
pub trait Problem {
    /// The launch on a card of these limits; results are poisoned.
    fn launch(&self, limits: &Limits) -> Launch;

    /// How far the results that a launch left are off, by the result's name.
    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)>;
}

/// A problem on a card.
pub struct Case {
    pub limits: Limits,
    pub problem: Box<dyn Problem>,
    /// Whether it is too large for sanitizers and planted bugs, to which another case shows as much.
    pub is_large: bool,
    /// What it launches, which may take other launches to make.
    launch: OnceLock<Launch>,
}

impl Case {
    pub fn new(limits: Limits, problem: impl Problem + 'static) -> Self {
        Case { limits, problem: Box::new(problem), is_large: false, launch: OnceLock::new() }
    }

    pub fn large(self) -> Self {
        Case { is_large: true, ..self }
    }

    pub fn launch(&self) -> Launch {
        self.launch.get_or_init(|| self.problem.launch(&self.limits)).clone()
    }

    /// The results that are off by more than the rule allows.
    pub fn wrong(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        let mut found = self.problem.deviations(launch);
        found.retain(|(_, deviation)| !deviation.is_allowed());
        found
    }
}

/// What a problem's launch leaves on the emulator, whose matrix instructions add so.
pub fn emulated(problem: &impl Problem, sums: Sums) -> Launch {
    run(problem.launch(&Limits::SM_90), sums)
}

/// The same of a launch.
pub fn run(mut launch: Launch, sums: Sums) -> Launch {
    emulate::run(&Kernels::repository(), &mut launch, &Config::default().sums(sums))
        .unwrap_or_else(|report| panic!("{report}"));
    launch
}

/// A problem whose counters are budgeted.
pub struct Counted {
    /// Its sizes, as the table of counters shows them.
    pub shape: String,
    pub problem: Box<dyn Problem>,
    /// Products of warps (m16n8k16) that would do, if none were spent on padding; 0 where there is none.
    pub useful_products: f64,
}

/// A bug in the source.
pub struct Bug {
    pub what: &'static str,
    /// The file that it is in.
    pub file: &'static str,
    pub right: &'static str,
    pub wrong: &'static str,
    /// The kernels that have it begin so.
    pub kernels: &'static str,
    /// Parts of the reports by one of which it is to be found; `WRONG_RESULTS` is one.
    pub found_by: &'static [&'static str],
}

/// A bug in a launch.
pub struct WrongLaunch {
    pub what: &'static str,
    pub change: fn(&mut Launch),
    /// The kernels that it is a bug of begin so.
    pub kernels: &'static str,
    /// As in [`Bug`].
    pub found_by: &'static [&'static str],
}

/// Those that most families have.
impl WrongLaunch {
    pub const fn too_little_shared_memory(kernels: &'static str) -> Self {
        WrongLaunch {
            what: "too little shared memory",
            change: |launch| launch.shared_bytes -= 16,
            kernels,
            found_by: &["bytes of shared memory"],
        }
    }

    pub const fn a_block_too_few(kernels: &'static str) -> Self {
        WrongLaunch {
            what: "a block too few",
            change: |launch| launch.grid[0] -= 1,
            kernels,
            found_by: &[WRONG_RESULTS],
        }
    }

    /// Of clusters of two blocks; a cluster too many may have no rows, and harm nothing.
    pub const fn a_cluster_too_few(kernels: &'static str) -> Self {
        Self {
            what: "a cluster too few",
            change: |launch| launch.grid[0] -= 2,
            kernels,
            found_by: &[WRONG_RESULTS],
        }
    }

    pub const fn a_block_too_many(kernels: &'static str, found_by: &'static [&'static str]) -> Self {
        WrongLaunch { what: "a block too many", change: |launch| launch.grid[0] += 1, kernels, found_by }
    }
}

/// The variable of the environment that has tables of counters written anew.
pub const ACCEPT_COUNTERS: &str = "SETRANK_ACCEPT_COUNTERS";

/// How results that are off are told.
pub const WRONG_RESULTS: &str = "wrong results";

/// A family of kernels.
pub struct Family {
    /// `kernels/<name>.cu`
    pub name: &'static str,
    /// Small problems, one for each kernel at least, that together reach every path.
    pub cases: fn() -> Vec<Case>,
    /// Problems of the sizes that matter.
    pub counted: fn() -> Vec<Counted>,
    pub bugs: &'static [Bug],
    pub wrong_launches: &'static [WrongLaunch],
}

impl Family {
    pub fn source(&self) -> String {
        format!("{}.cu", self.name)
    }
}

/// A launch of `plan` with a parameter whose pointers, at these bytes of it, are to these buffers.
pub fn launch<P: Parameter>(plan: Plan, parameter: &P, buffers: Vec<(usize, &str, Vec<u8>)>) -> Launch {
    // SAFETY: a parameter has no padding.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const *parameter).cast::<u8>(), size_of::<P>()) };
    let pointers = buffers.iter().enumerate();
    Launch {
        kernel: plan.kernel.into(),
        grid: plan.grid,
        block: [plan.block, 1, 1],
        shared_bytes: plan.shared_bytes,
        parameter: bytes.to_vec(),
        pointers: pointers.map(|(buffer, &(at, ..))| Pointer { at, buffer, offset: 0 }).collect(),
        buffers: buffers.into_iter().map(|(_, name, bytes)| Buffer { name: name.into(), bytes }).collect(),
    }
}

/// The bytes of a buffer of these values.
pub fn given<T: Pod>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The bytes of a buffer for `len` results: NaN as floats.
pub fn poisoned<T: Pod>(len: usize) -> Vec<u8> {
    vec![0xFF; len * size_of::<T>()]
}

/// What a launch left in the buffer of this name.
pub fn result<T: Pod>(launch: &Launch, name: &str) -> Vec<T> {
    let buffer = launch.buffers.iter().find(|buffer| buffer.name == name);
    let bytes = &buffer.unwrap_or_else(|| panic!("the launch has no buffer `{name}`")).bytes;
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The bytes of the buffer of this name; `None` where there is none.
pub fn bytes(launch: &Launch, name: &str) -> Option<Vec<u8>> {
    launch.buffers.iter().find(|buffer| buffer.name == name).map(|buffer| buffer.bytes.clone())
}

#[test]
fn every_source_is_a_family() {
    use std::path::Path;

    let sources = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")).unwrap();
    let mut sources: Vec<String> = sources
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".cu"))
        .collect();
    let mut families: Vec<String> = ALL.iter().map(|family| family.source()).collect();
    sources.sort();
    families.sort();
    assert_eq!(sources, families, "kernels/*.cu, and the families that are tested");
}
