//! All families of kernels, and a check of each.

use super::Checked;
use crate::device::{DeviceError, Gpu};
use crate::ops::{
    attention, embed, feed_forward, gather, layer_norm, linear, loss, norm_linear, optimizer, partial_sums,
    rbf, row_sums, score, score_loss, unpad,
};

/// The checks of a family of kernels, each on the device and held against the CPU.
#[derive(Clone, Copy, Debug)]
pub struct FamilyCheck {
    /// The name of its file in `kernels/`.
    pub name: &'static str,
    /// Small problems that between them reach every kernel; none where the device has none of them.
    pub run: fn(&Gpu) -> Result<Vec<Checked>, DeviceError>,
    /// Every kernel for a set of so many documents, or whatever it has in their place.
    pub run_at: fn(&Gpu, usize) -> Result<Vec<Checked>, DeviceError>,
}

macro_rules! families {
    ($($name:literal: $($module:ident)::*),*) => {
        [$(FamilyCheck { name: $name, run: $($module)::*::run, run_at: $($module)::*::run_at }),*]
    };
}

/// Every family.
pub const FAMILIES: [FamilyCheck; 24] = families![
    "gather": gather::check,
    "unpad": unpad::check,
    "rbf": rbf::check,
    "rbf_sm90": rbf::check::warpgroups,
    "linear": linear::check,
    "linear_wide": linear::check::wide,
    "linear_sm90": linear::check::warpgroups,
    "linear_few_rows": linear::check::few_rows,
    "embed": embed::check,
    "attention": attention::check,
    "attention_sm90": attention::check::warpgroups,
    "attention_naive": attention::check::naive,
    "layer_norm": layer_norm::check,
    "norm_linear": norm_linear::check,
    "feed_forward": feed_forward::check,
    "feed_forward_sm90": feed_forward::check::warpgroups,
    "feed_forward_backward": feed_forward::check::backward,
    "feed_forward_backward_sm90": feed_forward::check::backward_warpgroups,
    "score": score::check,
    "loss": loss::check,
    "score_loss": score_loss::check,
    "row_sums": row_sums::check,
    "partial_sums": partial_sums::check,
    "optimizer": optimizer::check
];

/// Runs every family of kernels on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for family in FAMILIES {
        checked.extend((family.run)(gpu)?);
    }
    Ok(checked)
}
