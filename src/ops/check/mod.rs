//! Whether kernels compute what they should: what tests and `setrank info --devices --check` hold them to. A family's problems,
//! exact answers and plain evaluations are in the `check` of its operation.
//!
//! | file | what it holds |
//! |---|---|
//! | `rule` | how far results may be off |
//! | `draw` | what plain evaluations differ in |
//! | `sums` | how matrix products add |
//! | `approximate` | what the GPU's approximate functions may give |
//! | [`rounding`] | exact results in the types that kernels store them in |
//! | `buffers` | buffers that show what a kernel should not have written or read |
//! | `families` | all families of kernels, and a check of each |

pub(crate) mod approximate;
mod buffers;
pub(crate) mod draw;
mod families;
pub mod rounding;
mod rule;
pub(crate) mod sums;

pub(crate) use buffers::{room, taken, uploaded};
pub use families::{FAMILIES, FamilyCheck, run};
pub(crate) use rule::deviation_of;
pub use rule::{Checked, Deviation, Measure, Wrong, deviation};

/// Of the inputs of every check.
pub const SEED: u64 = 1;
