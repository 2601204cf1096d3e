//! The network's backward by matrix instructions of warpgroups, on a device that has them.

use super::super::{Blocks, FeedForwardShape};
use super::backward::{of_problems, with_and_without};
use super::warpgroups::SHAPES;
use crate::device::{DeviceError, Gpu, choice};
use crate::ops::check::Checked;

/// Runs networks on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    where_there_are_some(gpu, SHAPES)
}

/// The same for so many rows.
pub fn run_at(gpu: &Gpu, rows: usize) -> Result<Vec<Checked>, DeviceError> {
    where_there_are_some(gpu, SHAPES.map(|shape| FeedForwardShape { rows, ..shape }))
}

fn where_there_are_some(gpu: &Gpu, shapes: [FeedForwardShape; 4]) -> Result<Vec<Checked>, DeviceError> {
    match choice::check_wgmma(gpu.info()) {
        Ok(()) => of_problems(gpu, with_and_without(Blocks::Warpgroups, shapes)),
        Err(_) => Ok(Vec::new()),
    }
}
