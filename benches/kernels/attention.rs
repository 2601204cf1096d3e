//! Attention: MSAB's among documents, and IMSAB's two between documents and inducing points.

use criterion::Criterion;
use half::bf16;
use setrank::device::{Buffer, DeviceError, Gpu, Plan};
use setrank::ops::attention::{
    AttentionPlan, AttentionScratch, DeviceAttention, Qkv, QkvGradients, Roles, attention_backward,
    attention_forward,
};

use crate::card::{Card, HEADS, HIDDEN, POINTS, SIZES, offsets};
use crate::memory::Memory;
use crate::timing::{Launch, Measured};

const ROLES: [(&str, Roles); 3] = [
    ("documents", Roles::Documents),
    ("induce", Roles::Induce { points: POINTS }),
    ("attend", Roles::Attend { points: POINTS }),
];

/// Attention over sets of one size.
struct Sets {
    attention: DeviceAttention,
    scratch: AttentionScratch,
    qkv: Vec<Buffer<bf16>>,
    heads: Buffer<bf16>,
    log_sum_exp: Buffer<f32>,
}

impl Sets {
    fn new(
        memory: &mut Memory<'_>,
        roles: Roles,
        offsets: &[usize],
        backward: bool,
    ) -> Result<Self, DeviceError> {
        let (gpu, sets, documents) = (memory.gpu, offsets.len() - 1, offsets[offsets.len() - 1]);
        let bytes = AttentionPlan::bytes_bound(sets, documents, roles, gpu.limits().fuse);
        let attention = memory
            .package(bytes, |package| DeviceAttention::new(package, gpu.limits(), roles, offsets, HEADS))?;
        let plan = attention.plan();
        let (rows, of_keys) = (plan.output_rows, 2 * plan.key_rows * HIDDEN);
        let of_queries = plan.query_rows * HIDDEN;
        let lens = match roles {
            Roles::Documents => vec![of_queries + of_keys],
            _ => vec![of_queries, of_keys],
        };
        let scratch = plan.scratch_len();
        let mut arena = memory.arena(scratch.bytes(backward))?;
        Ok(Sets {
            scratch: AttentionScratch::new(&mut arena, scratch, backward)?,
            qkv: lens.into_iter().map(|len| memory.normals(len, 1.0)).collect::<Result<_, _>>()?,
            heads: memory.taken(rows * HIDDEN)?,
            log_sum_exp: memory.taken(rows * HEADS.count)?,
            attention,
        })
    }

    /// Queues forward.
    fn forward(&mut self, gpu: &Gpu) -> Result<(), DeviceError> {
        let Sets { attention, scratch, qkv, heads, log_sum_exp } = self;
        attention_forward(gpu, attention, scratch, parts(qkv), heads, log_sum_exp, None)
    }
}

fn parts(qkv: &[Buffer<bf16>]) -> Qkv<'_> {
    match qkv {
        [q, kv] => Qkv::Apart { q, kv },
        together => Qkv::Together(&together[0]),
    }
}

/// Forward for a backward that follows.
fn forward<'a>(memory: &mut Memory<'a>, roles: Roles, offsets: &[usize]) -> Result<Launch<'a>, DeviceError> {
    let (gpu, mut sets) = (memory.gpu, Sets::new(memory, roles, offsets, false)?);
    Ok(Box::new(move || sets.forward(gpu)))
}

fn backward<'a>(memory: &mut Memory<'a>, roles: Roles, offsets: &[usize]) -> Result<Launch<'a>, DeviceError> {
    let (gpu, mut sets) = (memory.gpu, Sets::new(memory, roles, offsets, true)?);
    sets.forward(gpu)?;
    let Sets { attention, scratch, qkv, heads, log_sum_exp } = sets;
    let d_heads = memory.normals(heads.len(), 1.0)?;
    // Of queries that sets share, each set has a gradient.
    let of_keys = 2 * attention.plan().key_rows * HIDDEN;
    let mut d_qkv = match parts(&qkv) {
        Qkv::Together(qkv) => vec![memory.taken(qkv.len())?],
        Qkv::Apart { .. } => vec![memory.taken(heads.len())?, memory.taken(of_keys)?],
    };
    let mut delta = memory.taken(log_sum_exp.len())?;
    Ok(Box::new(move || {
        let gradients = match &mut d_qkv[..] {
            [q, kv] => QkvGradients::Apart { q, kv },
            together => QkvGradients::Together(&mut together[0]),
        };
        let qkv = parts(&qkv);
        attention_backward(
            gpu,
            &attention,
            &scratch,
            gradients,
            &d_heads,
            qkv,
            &heads,
            &log_sum_exp,
            &mut delta,
            false,
            None,
        )
    }))
}

/// Forward and backward of all three; by warpgroups those of them that there are such kernels for.
pub fn attention(criterion: &mut Criterion, card: &Card) {
    let (group, limits) = (&card.group("attention"), card.gpu.limits());
    for (what, roles) in ROLES {
        for size in SIZES {
            let sets = card.sets(size);
            let (offsets, documents) = (offsets(sets, size), sets * size);
            let plan = AttentionPlan::new(roles, &offsets, HEADS, limits)
                .unwrap_or_else(|error| panic!("{group}, {what}, sets of {size}: {error}"));
            let is_there = |by_warpgroups: Option<Plan>| !limits.wgmma || by_warpgroups.is_some();
            if is_there(plan.forward_by_warpgroups(false)) {
                let name = &format!("{what}, sets of {size}, forward");
                Measured::rows(group, name, documents)
                    .launches(criterion, card, |memory| forward(memory, roles, &offsets));
            }
            if is_there(plan.backward_by_warpgroups(false)) {
                let name = &format!("{what}, sets of {size}, backward");
                Measured::rows(group, name, documents)
                    .launches(criterion, card, |memory| backward(memory, roles, &offsets));
            }
        }
    }
}
