//! The row-wise network by matrix instructions of warpgroups, on a device that has them.

use super::super::{Blocks, FeedForwardShape};
use super::{of_problems, projecting};
use crate::device::{DeviceError, Gpu, choice};
use crate::ops::check::{Checked, SEED};

/// Clusters of full blocks, of one with a warpgroup alone, and of one without rows; every width, and weights that go round and
/// that do not.
pub const SHAPES: [FeedForwardShape; 4] = [
    FeedForwardShape { rows: 259, width: 64, inner: 448 },
    FeedForwardShape { rows: 70, width: 128, inner: 128 },
    FeedForwardShape { rows: 20, width: 192, inner: 64 },
    FeedForwardShape { rows: 65, width: 256, inner: 320 },
];

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
        Ok(()) => of_problems(gpu, projecting(Blocks::Warpgroups, shapes, SEED)),
        Err(_) => Ok(Vec::new()),
    }
}
