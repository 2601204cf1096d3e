//! Features of a data set that stay on the GPU, for batches to be gathered from.

use half::bf16;

use super::batch::{feature_bytes, set_features};
use super::sizes;
use crate::config::ModelConfig;
use crate::data::batch::{Batch, Batcher, Extent};
use crate::device::{Buffer, DeviceError, Gpu, Package, Uploads};
use crate::ops::gather::RowNumbers;

/// Documents that are uploaded at once, about.
const AT_ONCE: usize = 4096;

/// The features of all documents that a model sees of a data set, on a GPU.
#[derive(Debug)]
pub struct Resident {
    /// `[documents, F]` in bf16, F filled up with zeros to a multiple of 64.
    rows: Buffer<bf16>,
    /// By row of the data set `[N]`: the row here; −1 where the model does not see it.
    places: Vec<i32>,
    documents: usize,
}

impl Resident {
    /// Bytes of the GPU's memory that the features take.
    pub fn bytes(config: &ModelConfig, batcher: &Batcher<'_>) -> usize {
        feature_bytes(config, documents(batcher))
    }

    /// Queues the upload of all features for the model of `config`.
    ///
    /// # Errors
    ///
    /// Too little memory, more documents than 32 bits count, and what the driver refuses.
    pub fn new(
        gpu: &Gpu,
        uploads: &mut Uploads,
        config: &ModelConfig,
        batcher: &Batcher<'_>,
    ) -> Result<Self, DeviceError> {
        let (documents, width) = (documents(batcher), sizes::input_width(config));
        if i32::try_from(documents).is_err() {
            return Err(DeviceError::Shapes(format!("{documents} documents: more than kernels count")));
        }
        let mut arena =
            gpu.arena(&format!("the features of {documents} documents"), Self::bytes(config, batcher))?;
        let rows = arena.take(documents * width)?;
        let mut places = vec![-1; batcher.data().num_documents()];
        let (mut batch, mut done) = (Batch::default(), 0);
        for queries in batcher.runs(AT_ONCE) {
            batcher.fill(&mut batch, queries, None);
            let end = done + Extent::of(&batch).documents;
            let mut to = rows.part(done * width..end * width)?;
            uploads.fill(gpu, &mut to, set_features(config, &batch)?)?;
            for (place, &row) in (done..).zip(&batch.rows) {
                places[row] = place as i32;
            }
            done = end;
        }
        Ok(Resident { rows, places, documents })
    }

    /// Queues the upload of the features of one batch, whose rows are numbered as its documents are.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn of_batch(
        gpu: &Gpu,
        uploads: &mut Uploads,
        config: &ModelConfig,
        batch: &Batch,
    ) -> Result<Self, DeviceError> {
        let documents = Extent::of(batch).documents;
        let bytes = feature_bytes(config, documents);
        let mut arena = gpu.arena(&format!("the features of {documents} documents"), bytes)?;
        let mut rows = arena.take(documents * sizes::input_width(config))?;
        uploads.fill(gpu, &mut rows, set_features(config, batch)?)?;
        Ok(Resident { rows, places: (0..documents as i32).collect(), documents })
    }

    /// All features `[documents, F]`.
    pub(super) fn rows(&self) -> &Buffer<bf16> {
        &self.rows
    }

    /// Puts where the documents of these rows of the data set stand into `package`.
    pub(super) fn numbers(
        &self,
        package: &mut Package<'_>,
        rows: &[usize],
    ) -> Result<RowNumbers, DeviceError> {
        let place = |&row: &usize| self.places.get(row).copied().unwrap_or(-1);
        let numbers: Vec<i32> = rows.iter().map(place).collect();
        RowNumbers::new(package, &numbers, self.documents)
    }
}

/// Documents that the model sees.
fn documents(batcher: &Batcher<'_>) -> usize {
    batcher.sets().iter().map(|&query| batcher.set_size(query)).sum()
}
