//! What the model reads of a batch, on a GPU.

use half::bf16;
use rayon::prelude::*;

use super::sizes::{self, Extent};
use crate::config::{Encoder, ModelConfig};
use crate::data::batch::Batch;
use crate::device::{Arena, Buffer, DeviceError, Gpu};
use crate::ops::attention::{AttentionPlan, DeviceAttention, Heads, Roles};
use crate::ops::embed::DeviceOrdinals;

/// A batch on a GPU.
#[derive(Debug)]
pub struct DeviceBatch {
    /// Its size.
    pub extent: Extent,
    /// Features `[N, F]` in bf16, F filled up with zeros to a multiple of 64.
    pub(super) features: Buffer<bf16>,
    pub(super) attentions: Attentions,
    /// Of models with initial rankings.
    pub(super) ordinals: Option<DeviceOrdinals>,
}

/// Who attends to whom, in every block the same.
#[derive(Debug)]
pub(super) enum Attentions {
    Msab { within: DeviceAttention },
    Imsab { induce: DeviceAttention, attend: DeviceAttention },
}

impl DeviceBatch {
    /// Queues the copies of a batch for the model of `config`.
    pub fn new(
        gpu: &Gpu,
        arena: &mut Arena,
        config: &ModelConfig,
        batch: &Batch,
    ) -> Result<Self, DeviceError> {
        let extent = Extent::of(batch);
        let heads = Heads { count: config.num_heads, width: config.head_size() };
        let points = config.num_inducing;
        let mut attention = |roles| DeviceAttention::new(gpu, arena, roles, &batch.offsets, heads);
        let attentions = match config.encoder {
            Encoder::Msab => Attentions::Msab { within: attention(Roles::Documents)? },
            Encoder::Imsab => Attentions::Imsab {
                induce: attention(Roles::Induce { points })?,
                attend: attention(Roles::Attend { points })?,
            },
        };
        let ordinals = config
            .ordinal
            .map(|ordinal| DeviceOrdinals::new(gpu, arena, &batch.ordinals, ordinal.n_max))
            .transpose()?;
        let rows = rounded_rows(&batch.features, config.input_size(), sizes::input_width(config));
        let mut features = arena.take(rows.len())?;
        gpu.upload(&mut features, &rows)?;
        Ok(DeviceBatch { extent, features, attentions, ordinals })
    }

    /// Bytes that [`new`](Self::new) takes, at most.
    pub fn bytes(config: &ModelConfig, extent: Extent) -> usize {
        let Extent { documents, sets } = extent;
        let attention = |roles| AttentionPlan::bytes_bound(sets, documents, roles);
        let points = config.num_inducing;
        let attentions = match config.encoder {
            Encoder::Msab => attention(Roles::Documents),
            Encoder::Imsab => attention(Roles::Induce { points }) + attention(Roles::Attend { points }),
        };
        let ordinals = config
            .ordinal
            .map_or(0, |ordinal| DeviceOrdinals::bytes(documents, ordinal.rankings, ordinal.n_max));
        let features = documents * sizes::input_width(config) * size_of::<bf16>();
        attentions + ordinals + Arena::bytes_for([features])
    }
}

/// Rows of `width` values, rounded and filled up with zeros to `stride`.
fn rounded_rows(values: &[f32], width: usize, stride: usize) -> Vec<bf16> {
    let mut rows = vec![bf16::ZERO; values.len() / width * stride];
    rows.par_chunks_exact_mut(stride).zip(values.par_chunks_exact(width)).for_each(|(to, from)| {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = bf16::from_f32(from));
    });
    rows
}
