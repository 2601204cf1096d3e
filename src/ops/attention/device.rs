//! Set attention on a GPU: the kernels of `kernels/attention.cu`.

use half::bf16;

use super::{Heads, SetAttentionPlan};
use crate::device::abi::{SetAttentionForward, SetAttentionTile};
use crate::device::{Arena, Buffer, DeviceError, Gpu, Parameter};

// SAFETY: bindgen makes it of the header that the kernels are compiled with.
unsafe impl cudarc::driver::DeviceRepr for SetAttentionForward {}
// SAFETY: as above.
unsafe impl Parameter for SetAttentionForward {
    fn shapes(&self) -> String {
        format!("{} documents and {} heads", self.rows, self.heads)
    }
}

/// A batch's sets as set attention needs them on a GPU.
#[derive(Debug)]
pub struct DeviceSets {
    plan: SetAttentionPlan,
    tiles: Buffer<SetAttentionTile>,
}

impl DeviceSets {
    /// Plans set attention over the sets that `offsets` `[B + 1]` delimit, and queues the copy of the plan.
    pub fn new(gpu: &Gpu, arena: &mut Arena, offsets: &[usize], heads: Heads) -> Result<Self, DeviceError> {
        let plan = SetAttentionPlan::new(offsets, heads, gpu.limits())?;
        let mut tiles = arena.take(plan.tiles.len())?;
        gpu.upload(&mut tiles, &plan.tiles)?;
        Ok(DeviceSets { plan, tiles })
    }

    /// The plan.
    pub fn plan(&self) -> &SetAttentionPlan {
        &self.plan
    }
}

/// Queues heads `[N, H·D]` = softmax(q·kᵀ/√D)·v inside each set, and log-sum-exp `[H, N]`, of qkv `[3, H, N, D]`.
///
/// # Errors
///
/// Sizes that do not fit the sets, buffers of another GPU, and what the driver refuses.
pub fn set_attention_forward(
    gpu: &Gpu,
    sets: &DeviceSets,
    qkv: &Buffer<bf16>,
    heads: &mut Buffer<bf16>,
    log_sum_exp: &mut Buffer<f32>,
) -> Result<(), DeviceError> {
    let plan = &sets.plan;
    let values = plan.rows * plan.heads.hidden();
    for (name, found, needed) in [
        ("qkv [3, H, N, D]", qkv.len(), 3 * values),
        ("heads [N, H·D]", heads.len(), values),
        ("log-sum-exp [H, N]", log_sum_exp.len(), plan.rows * plan.heads.count),
    ] {
        if found != needed {
            return Err(DeviceError::Shapes(format!(
                "set attention of {} documents and {} heads of {}: {name} has {found} values, not {needed}",
                plan.rows, plan.heads.count, plan.heads.width
            )));
        }
    }
    gpu.owns(&sets.tiles)?;
    gpu.owns(qkv)?;
    gpu.owns(heads)?;
    gpu.owns(log_sum_exp)?;
    let Some(launch) = plan.forward() else { return Ok(()) };
    let parameter = SetAttentionForward {
        qkv: qkv.pointer(),
        tiles: sets.tiles.pointer(),
        output: heads.pointer_mut(),
        log_sum_exp: log_sum_exp.pointer_mut(),
        ..plan.forward_numbers()
    };
    // SAFETY: the buffers have the kernel's sizes, the tiles lie inside of the batch, and memory that is given back is
    // freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}
