//! What the model reads of a batch, on a GPU.

use half::bf16;
use rayon::prelude::*;

use super::grids::Grids;
use super::resident::Resident;
use super::sizes::{self, Extent};
use crate::config::{Encoder, ModelConfig};
use crate::data::batch::Batch;
use crate::device::{Arena, Buffer, DeviceError, Gpu, Limits, Package, Uploads};
use crate::model::setrank::Keep;
use crate::ops::attention::{AttentionPlan, DeviceAttention, Heads, Roles};
use crate::ops::embed::DeviceOrdinals;
use crate::ops::gather::{DeviceFeatureDropout, RowNumbers, gather_rows};
use crate::ops::loss::DeviceLabels;

/// A batch on a GPU.
#[derive(Debug)]
pub struct DeviceBatch {
    /// Its size.
    pub extent: Extent,
    /// Labels, of batches that are learned from.
    pub labels: Option<DeviceLabels>,
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
    Imsab { induce: DeviceAttention, attend: Box<DeviceAttention> },
}

/// Where a batch's features come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The batch has them: they are rounded into pinned memory and copied with the rest.
    Batch,
    /// They are on the GPU with those of all other batches: [`Resident`].
    Resident {
        /// Whether some of them are dropped on the way.
        dropout: bool,
    },
    /// They are on the GPU in the grids in which the batch was handed over: [`Grids`].
    Grids,
}

/// Features that stay on the GPU, which batches take theirs from.
#[derive(Debug)]
pub enum Kept {
    /// Of all documents of a data set.
    Resident(Resident),
    /// Of the only batch there is.
    Grids(Grids),
}

impl Source {
    /// That of the features of `batch`, where features are in `kept` if anywhere.
    pub fn of(batch: &Batch, kept: Option<&Kept>) -> Self {
        match kept {
            Some(Kept::Resident(_)) => Source::Resident { dropout: batch.feature_dropout.is_some() },
            Some(Kept::Grids(_)) => Source::Grids,
            None => Source::Batch,
        }
    }
}

/// What a package has of a batch's features.
enum Packed {
    Rows(Buffer<bf16>),
    Numbers(RowNumbers, Option<DeviceFeatureDropout>),
    Nothing,
}

impl DeviceBatch {
    /// Queues the copy of a batch for the model of `config`, all of it at once; with labels where `keep` says that backward
    /// follows. Features come from `kept` where there is one, of the data that the batch is of, and those that the batch
    /// says are dropped; of grids, which are of this batch, none are.
    ///
    /// # Errors
    ///
    /// A batch that is not of such a model or of the grids, too small an arena, and what the driver refuses.
    pub fn new(
        gpu: &Gpu,
        arena: &mut Arena,
        uploads: &mut Uploads,
        config: &ModelConfig,
        batch: &Batch,
        keep: Keep,
        kept: Option<&Kept>,
    ) -> Result<Self, DeviceError> {
        let extent = Extent::of(batch);
        let room = arena.room(package_bytes(config, extent, keep, Source::of(batch, kept), gpu.limits()))?;
        let (attentions, ordinals, labels, packed) = uploads.send(gpu, room, |package| {
            let attentions = Attentions::new(package, config, &batch.offsets, gpu.limits())?;
            let ordinals = config.ordinal.map(|ordinal| ordinal.n_max);
            let ordinals =
                ordinals.map(|n_max| DeviceOrdinals::new(package, &batch.ordinals, n_max)).transpose()?;
            let labels = match keep {
                Keep::ForBackward => Some(DeviceLabels::new(package, &batch.labels, &batch.offsets)?),
                Keep::Nothing => None,
            };
            let packed = match kept {
                Some(Kept::Resident(resident)) => {
                    let numbers = resident.numbers(package, &batch.rows)?;
                    let dropout = batch.feature_dropout;
                    let dropout =
                        dropout.map(|dropout| DeviceFeatureDropout::new(package, dropout, &batch.rows));
                    Packed::Numbers(numbers, dropout.transpose()?)
                }
                Some(Kept::Grids(_)) => Packed::Nothing,
                None => {
                    let len = extent.documents * sizes::input_width(config);
                    Packed::Rows(package.put_with(len, set_features(config, batch)?)?)
                }
            };
            Ok((attentions, ordinals, labels, packed))
        })?;
        let width = sizes::input_width(config);
        let features = match (packed, kept) {
            (Packed::Numbers(numbers, dropout), Some(Kept::Resident(resident))) => {
                let mut features = arena.take(extent.documents * width)?;
                gather_rows(gpu, &mut features, resident.rows(), &numbers, dropout.as_ref(), width)?;
                features
            }
            (Packed::Nothing, Some(Kept::Grids(grids))) => {
                if batch.feature_dropout.is_some() || grids.documents() != extent.documents {
                    return Err(DeviceError::Shapes(format!(
                        "grids of {} documents, none of whose features are dropped, are of another batch",
                        grids.documents()
                    )));
                }
                let mut features = arena.take(extent.documents * width)?;
                grids.unpad(gpu, &mut features)?;
                features
            }
            (Packed::Rows(rows), _) => rows,
            (Packed::Numbers(..) | Packed::Nothing, _) => {
                return Err(DeviceError::Shapes("a batch of no features".into()));
            }
        };
        Ok(DeviceBatch { extent, labels, features, attentions, ordinals })
    }

    /// Queues its features from `grids` once more, which it was made of.
    ///
    /// # Errors
    ///
    /// Grids of another batch, and what the driver refuses.
    pub fn unpad(&mut self, gpu: &Gpu, grids: &Grids) -> Result<(), DeviceError> {
        grids.unpad(gpu, &mut self.features)
    }

    /// Bytes that [`new`](Self::new) takes, at most.
    pub fn bytes(config: &ModelConfig, extent: Extent, keep: Keep, source: Source, limits: &Limits) -> usize {
        let gathered = match source {
            Source::Batch => 0,
            Source::Resident { .. } | Source::Grids => feature_bytes(config, extent.documents),
        };
        package_bytes(config, extent, keep, source, limits) + gathered
    }
}

impl Attentions {
    fn new(
        package: &mut Package<'_>,
        config: &ModelConfig,
        offsets: &[usize],
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let heads = Heads { count: config.num_heads, width: config.head_size() };
        let points = config.num_inducing;
        let mut attention = |roles| DeviceAttention::new(package, limits, roles, offsets, heads);
        Ok(match config.encoder {
            Encoder::Msab => Attentions::Msab { within: attention(Roles::Documents)? },
            Encoder::Imsab => Attentions::Imsab {
                induce: attention(Roles::Induce { points })?,
                attend: attention(Roles::Attend { points })?.into(),
            },
        })
    }
}

/// Bytes of a package, at most.
fn package_bytes(config: &ModelConfig, extent: Extent, keep: Keep, source: Source, limits: &Limits) -> usize {
    let Extent { documents, sets, .. } = extent;
    let attention = |roles| AttentionPlan::bytes_bound(sets, documents, roles, limits.fuse);
    let points = config.num_inducing;
    let attentions = match config.encoder {
        Encoder::Msab => attention(Roles::Documents),
        Encoder::Imsab => attention(Roles::Induce { points }) + attention(Roles::Attend { points }),
    };
    let ordinals =
        config.ordinal.map_or(0, |ordinal| DeviceOrdinals::bytes(documents, ordinal.rankings, ordinal.n_max));
    let labels = match keep {
        Keep::ForBackward => DeviceLabels::bytes(documents, sets),
        Keep::Nothing => 0,
    };
    let features = match source {
        Source::Batch => feature_bytes(config, documents),
        Source::Grids => 0,
        Source::Resident { dropout: false } => RowNumbers::bytes(documents),
        Source::Resident { dropout: true } => {
            RowNumbers::bytes(documents) + DeviceFeatureDropout::bytes(documents)
        }
    };
    attentions + ordinals + labels + features
}

/// Bytes of the features of so many documents.
pub(super) fn feature_bytes(config: &ModelConfig, documents: usize) -> usize {
    Arena::bytes_for([documents.saturating_mul(sizes::input_width(config) * size_of::<bf16>())])
}

/// What sets rows `[N, F]` to the features of a batch, rounded and filled up with zeros.
///
/// # Errors
///
/// A batch without all features of its documents.
pub(super) fn set_features(
    config: &ModelConfig,
    batch: &Batch,
) -> Result<impl FnOnce(&mut [bf16]), DeviceError> {
    let (width, stride) = (config.input_size(), sizes::input_width(config));
    let documents = Extent::of(batch).documents;
    if batch.features.len() != documents * width {
        return Err(DeviceError::Shapes(format!(
            "a batch of {documents} documents has {} features, not {width} of each",
            batch.features.len()
        )));
    }
    Ok(move |rows: &mut [bf16]| {
        rows.par_chunks_exact_mut(stride).zip(batch.features.par_chunks_exact(width)).for_each(
            |(to, from)| {
                let (values, rest) = to.split_at_mut(width);
                values.iter_mut().zip(from).for_each(|(to, &from)| *to = bf16::from_f32(from));
                rest.fill(bf16::ZERO);
            },
        );
    })
}
