//! Attention on a GPU: the kernels of `kernels/attention.cu` and `kernels/attention_sm90.cu`, or, where they are not to be
//! fused, those of `kernels/attention_naive.cu`.

use half::bf16;

use super::naive::{self, DeviceTables, Launches};
use super::{AttentionPlan, AttentionScratch, Heads, NaivePlan, QkvGradients, Roles};
use crate::device::abi::{AttentionBackward, AttentionBlock, AttentionForward, AttentionTile};
use crate::device::{Buffer, DeviceError, Gpu, Limits, Operands, Package, parameter};
use crate::ops::dropout::Dropout;

parameter!(AttentionForward, AttentionBackward: |self| shapes(self.output_rows, self.key_rows, self.heads));

fn shapes(queries: i32, keys: i32, heads: i32) -> String {
    format!("{queries} queries, {keys} keys and {heads} heads")
}

/// A batch's sets as attention needs them on a GPU.
#[derive(Debug)]
pub struct DeviceAttention {
    plan: AttentionPlan,
    naive_tables: Option<DeviceTables>,
    groups: Buffer<AttentionTile>,
    blocks: Buffer<AttentionBlock>,
    warpgroup_tiles: Buffer<AttentionTile>,
    warpgroup_blocks: Buffer<AttentionBlock>,
    backward_warpgroup_sets: Buffer<AttentionTile>,
    backward_blocks: Buffer<AttentionBlock>,
    backward_sets: Buffer<AttentionTile>,
    d_query_tiles: Buffer<AttentionTile>,
    d_key_tiles: Buffer<AttentionTile>,
    parts: Buffer<AttentionBlock>,
}

impl DeviceAttention {
    /// Plans attention over the sets that `offsets` `[B + 1]` delimit, and puts the plan into `package`.
    pub fn new(
        package: &mut Package<'_>,
        limits: &Limits,
        roles: Roles,
        offsets: &[usize],
        heads: Heads,
    ) -> Result<Self, DeviceError> {
        let plan = AttentionPlan::new(roles, offsets, heads, limits)?;
        Ok(DeviceAttention {
            naive_tables: plan.naive.as_ref().map(|plan| DeviceTables::new(package, plan)).transpose()?,
            groups: package.put(&plan.forward_groups.tiles)?,
            blocks: package.put(&plan.forward_groups.blocks)?,
            warpgroup_tiles: package.put(&plan.forward_warpgroups.tiles)?,
            warpgroup_blocks: package.put(&plan.forward_warpgroups.blocks)?,
            backward_warpgroup_sets: package.put(&plan.backward_warpgroups.sets)?,
            backward_blocks: package.put(&plan.backward_blocks)?,
            backward_sets: package.put(&plan.backward_sets)?,
            d_query_tiles: package.put(&plan.d_query_tiles)?,
            d_key_tiles: package.put(&plan.d_key_tiles)?,
            parts: package.put(&plan.parts.sets)?,
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &AttentionPlan {
        &self.plan
    }

    /// The plan and tables of attention that is not fused.
    pub(super) fn naive(&self) -> Option<(&NaivePlan, &DeviceTables)> {
        self.plan.naive.as_ref().zip(self.naive_tables.as_ref())
    }

    /// The values of a head, of q and of k and v.
    fn lens(&self) -> [usize; 3] {
        let hidden = self.plan.heads.hidden();
        [self.plan.output_rows, self.plan.query_rows, 2 * self.plan.key_rows].map(|rows| rows * hidden)
    }

    /// Refuses q, k and v as one where they are not of the same rows.
    fn may_be_together(&self) -> Result<(), DeviceError> {
        match self.plan.roles {
            Roles::Documents => Ok(()),
            roles => Err(DeviceError::Shapes(format!(
                "attention on a GPU: q, k and v are together among documents alone, not for {roles:?}"
            ))),
        }
    }
}

/// Where q, k and v are.
#[derive(Clone, Copy, Debug)]
pub enum Qkv<'a> {
    /// `[3, H, N, D]`, of documents among themselves.
    Together(&'a Buffer<bf16>),
    /// Apart.
    Apart {
        /// `[H, Nq, D]`, or `[H, M, D]` where queries are shared.
        q: &'a Buffer<bf16>,
        /// `[2, H, Nk, D]`
        kv: &'a Buffer<bf16>,
    },
}

impl Qkv<'_> {
    /// Notes them, and gives where q, and k and v, stand.
    fn note(
        self,
        operands: &mut Operands<'_>,
        attention: &DeviceAttention,
    ) -> Result<[*const u16; 2], DeviceError> {
        let [_, q_len, kv_len] = attention.lens();
        match self {
            Qkv::Together(qkv) => {
                attention.may_be_together()?;
                operands.reads("qkv [3, H, N, D]", qkv, q_len + kv_len)?;
                Ok([qkv.pointer(), qkv.pointer::<u16>().wrapping_add(q_len)])
            }
            Qkv::Apart { q, kv } => {
                operands.reads("q [H, Nq, D]", q, q_len)?;
                operands.reads("kv [2, H, Nk, D]", kv, kv_len)?;
                Ok([q.pointer(), kv.pointer()])
            }
        }
    }
}

/// Queues heads `[Nq, H·D]` = softmax(q·kᵀ/√D)·v of each set, and log-sum-exp `[H, Nq]`.
///
/// Dropout drops weights behind the softmax and scales the others; the log-sum-exps are of all of them. `scratch` is of
/// [`AttentionPlan::scratch_len`] or more.
///
/// # Errors
///
/// Sizes that do not fit the sets, buffers of another GPU or that overlap, and what the driver refuses.
pub fn attention_forward(
    gpu: &Gpu,
    attention: &DeviceAttention,
    scratch: &AttentionScratch,
    qkv: Qkv<'_>,
    heads: &mut Buffer<bf16>,
    log_sum_exp: &mut Buffer<f32>,
    dropout: Option<&Dropout>,
) -> Result<(), DeviceError> {
    let plan = &attention.plan;
    let [values, ..] = attention.lens();
    let mut operands = Operands::new(gpu, "attention, forward");
    operands.reads("groups", &attention.groups, plan.forward_groups.tiles.len())?;
    operands.reads("blocks", &attention.blocks, plan.forward_groups.blocks.len())?;
    let warpgroups = &plan.forward_warpgroups;
    operands.reads("tiles of warpgroups", &attention.warpgroup_tiles, warpgroups.tiles.len())?;
    operands.reads("blocks of warpgroups", &attention.warpgroup_blocks, warpgroups.blocks.len())?;
    operands.reads("parts of sets", &attention.parts, plan.parts.sets.len())?;
    let [q, kv] = qkv.note(&mut operands, attention)?;
    operands.writes("heads [Nq, H·D]", heads, values)?;
    operands.writes("log-sum-exp [H, Nq]", log_sum_exp, plan.output_rows * plan.heads.count)?;
    let scratch = scratch.note(&mut operands, plan.scratch_len(), false)?;
    if let Some(launches) = Launches::new(gpu, attention, scratch, &mut operands, dropout)? {
        let (heads, log_sum_exp) = (heads.pointer_mut(), log_sum_exp.pointer_mut());
        return launches.forward(&naive::Forward { q, kv, heads, log_sum_exp });
    }
    let parameter = AttentionForward {
        q,
        kv,
        output: heads.pointer_mut(),
        log_sum_exp: log_sum_exp.pointer_mut(),
        partials: scratch.partials,
        ..plan.forward_numbers(dropout)
    };
    if let Some(launch) = plan.forward_by_warpgroups(dropout.is_some()) {
        let (tiles, blocks) = (attention.warpgroup_tiles.pointer(), attention.warpgroup_blocks.pointer());
        let parameter = AttentionForward { tiles, blocks, ..parameter };
        // SAFETY: the buffers have the kernel's sizes, the tiles lie inside of the batch, and memory that is given back is
        // freed in the stream's order.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    if let Some(launch) = plan.forward(dropout.is_some()) {
        let (tiles, blocks) = (attention.groups.pointer(), attention.blocks.pointer());
        let parameter = AttentionForward { tiles, blocks, ..parameter };
        // SAFETY: as above.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    if let Some(launch) = plan.combine_forward() {
        let (tiles, blocks) = (attention.groups.pointer(), attention.parts.pointer());
        let parameter = AttentionForward { tiles, blocks, ..parameter };
        // SAFETY: as above.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    Ok(())
}

impl QkvGradients<'_, Buffer<bf16>> {
    /// Notes them, and gives where those of q, and of k and v, go.
    fn note(
        self,
        operands: &mut Operands<'_>,
        attention: &DeviceAttention,
    ) -> Result<[*mut u16; 2], DeviceError> {
        let [q_len, _, kv_len] = attention.lens();
        match self {
            QkvGradients::Together(qkv) => {
                attention.may_be_together()?;
                operands.writes("d qkv [3, H, N, D]", qkv, q_len + kv_len)?;
                let q = qkv.pointer_mut::<u16>();
                Ok([q, q.wrapping_add(q_len)])
            }
            QkvGradients::Apart { q, kv } => {
                operands.writes("d q [H, Nq, D]", q, q_len)?;
                operands.writes("d kv [2, H, Nk, D]", kv, kv_len)?;
                Ok([q.pointer_mut(), kv.pointer_mut()])
            }
        }
    }
}

/// Queues the gradients of q, k and v, where `d_heads` `[Nq, H·D]` is that of `heads`, and forward left `heads` and
/// log-sum-exp `[H, Nq]`; all are set. `delta` `[H, Nq]` is scratch, and so is `scratch`, as in forward. With `relu`, q, k and v
/// are stored behind a ReLU, and the gradients are those in front of it. Dropout is that of forward.
///
/// # Errors
///
/// As [`attention_forward`].
#[allow(clippy::too_many_arguments, reason = "each is a tensor of its own")]
pub fn attention_backward(
    gpu: &Gpu,
    attention: &DeviceAttention,
    scratch: &AttentionScratch,
    gradients: QkvGradients<'_, Buffer<bf16>>,
    d_heads: &Buffer<bf16>,
    qkv: Qkv<'_>,
    heads: &Buffer<bf16>,
    log_sum_exp: &Buffer<f32>,
    delta: &mut Buffer<f32>,
    relu: bool,
    dropout: Option<&Dropout>,
) -> Result<(), DeviceError> {
    let plan = &attention.plan;
    let [values, ..] = attention.lens();
    let sums = plan.output_rows * plan.heads.count;
    let mut operands = Operands::new(gpu, "attention, backward");
    let of_warpgroups = &attention.backward_warpgroup_sets;
    operands.reads("sets of warpgroups", of_warpgroups, plan.backward_warpgroups.sets.len())?;
    operands.reads("blocks of sets", &attention.backward_blocks, plan.backward_blocks.len())?;
    operands.reads("sets", &attention.backward_sets, plan.backward_sets.len())?;
    operands.reads("tiles of queries", &attention.d_query_tiles, plan.d_query_tiles.len())?;
    operands.reads("tiles of keys", &attention.d_key_tiles, plan.d_key_tiles.len())?;
    operands.reads("parts of sets", &attention.parts, plan.parts.sets.len())?;
    operands.reads("d heads [Nq, H·D]", d_heads, values)?;
    let [q, kv] = qkv.note(&mut operands, attention)?;
    operands.reads("heads [Nq, H·D]", heads, values)?;
    operands.reads("log-sum-exp [H, Nq]", log_sum_exp, sums)?;
    operands.scratch("delta [H, Nq]", delta, sums)?;
    let [d_q, d_kv] = gradients.note(&mut operands, attention)?;
    let scratch = scratch.note(&mut operands, plan.scratch_len(), true)?;
    if let Some(launches) = Launches::new(gpu, attention, scratch, &mut operands, dropout)? {
        let (heads, d_heads, log_sum_exp) = (heads.pointer(), d_heads.pointer(), log_sum_exp.pointer());
        return launches.backward(&naive::Backward { q, kv, heads, d_heads, log_sum_exp, d_q, d_kv, relu });
    }
    let parameter = AttentionBackward {
        q,
        kv,
        output: heads.pointer(),
        d_output: d_heads.pointer(),
        log_sum_exp: log_sum_exp.pointer(),
        delta: delta.pointer_mut(),
        d_q,
        d_kv,
        partials: scratch.partials,
        ..plan.backward_numbers(relu, dropout)
    };
    if let Some(launch) = plan.backward_by_warpgroups(dropout.is_some()) {
        let parameter = AttentionBackward { tiles: of_warpgroups.pointer(), ..parameter };
        // SAFETY: the buffers have the kernel's sizes, the sets lie inside of the batch, and memory that is given back is
        // freed in the stream's order.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    if let Some(launch) = plan.backward(dropout.is_some()) {
        let (tiles, blocks) = (attention.backward_sets.pointer(), attention.backward_blocks.pointer());
        let parameter = AttentionBackward { tiles, blocks, ..parameter };
        // SAFETY: as above.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    if let Some(launch) = plan.combine_backward() {
        let (tiles, blocks) = (attention.backward_sets.pointer(), attention.parts.pointer());
        let parameter = AttentionBackward { tiles, blocks, ..parameter };
        // SAFETY: as above.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    if let Some(launch) = plan.d_queries(dropout.is_some()) {
        let parameter = AttentionBackward { tiles: attention.d_query_tiles.pointer(), ..parameter };
        // SAFETY: as above.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    if let Some(launch) = plan.d_keys(dropout.is_some()) {
        let parameter = AttentionBackward { tiles: attention.d_key_tiles.pointer(), ..parameter };
        // SAFETY: as above.
        unsafe { gpu.launch(&launch, &parameter) }?;
    }
    Ok(())
}
