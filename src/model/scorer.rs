//! Scores of all documents of a data set, by whatever device.

use std::collections::VecDeque;

use super::setrank::{Inputs, Keep, SetRank, Workspace};
use crate::data::batch::{Batch, Batcher, Extent};
use crate::device::DeviceError;
use crate::device::choice::{Device, KernelChoice};
use crate::{Error, Result};

/// Documents of one batch, about: enough to fill the machine, few enough to stay small in memory.
const BATCH_DOCUMENTS: usize = 4096;

/// A model that scores batches on some device.
pub trait Scorer {
    /// Whether [`begin`](Self::begin) comes back before a batch is scored, so that the next one is better begun before its
    /// scores are asked for.
    fn runs_ahead(&self) -> bool;

    /// Begins to score a batch. A set's scores do not depend on the sets that share its batch.
    fn begin(&mut self, batch: &Batch) -> Result<()>;

    /// Scores `[N]` of the oldest batch that was begun and not finished.
    fn finish(&mut self) -> Result<&[f32]>;
}

/// A model that scores on the processor.
#[derive(Debug)]
pub struct CpuScorer<'a> {
    model: &'a SetRank,
    parameters: &'a [f32],
    workspace: Workspace<f32>,
}

impl<'a> CpuScorer<'a> {
    /// The model with `parameters` laid out as its table says.
    pub fn new(model: &'a SetRank, parameters: &'a [f32]) -> Self {
        CpuScorer { model, parameters, workspace: Workspace::of_same_parameters() }
    }
}

impl Scorer for CpuScorer<'_> {
    fn runs_ahead(&self) -> bool {
        false
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        let inputs = Inputs { features: &batch.features, offsets: &batch.offsets, ordinals: &batch.ordinals };
        self.model.forward(&mut self.workspace, self.parameters, inputs, Keep::Nothing, None);
        Ok(())
    }

    fn finish(&mut self) -> Result<&[f32]> {
        Ok(self.workspace.scores())
    }
}

/// The model on `device`, which [`choose`](crate::model::device::choose) has found to be there.
///
/// # Errors
///
/// What keeps a GPU from being used, or from computing this model.
pub fn on<'a>(
    device: Device,
    model: &'a SetRank,
    parameters: &'a [f32],
) -> Result<Box<dyn Scorer + 'a>, DeviceError> {
    match device {
        Device::Gpu(kernels) => on_gpu(kernels, model, parameters),
        Device::Cpu => Ok(Box::new(CpuScorer::new(model, parameters))),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(
    kernels: KernelChoice,
    model: &SetRank,
    parameters: &[f32],
) -> Result<Box<dyn Scorer>, DeviceError> {
    let gpu = crate::device::Gpu::first(kernels)?;
    Ok(Box::new(super::gpu::GpuScorer::new(gpu, model.config(), parameters)?))
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: KernelChoice, _: &SetRank, _: &[f32]) -> Result<Box<dyn Scorer>, DeviceError> {
    Err(crate::device::Unavailable::NotBuilt.into())
}

/// Scores `[N]`, by row of the batcher's data set. Documents that the model does not see rank below those it
/// does, in initial order. `progress` is told the number of queries done.
pub fn score(
    scorer: &mut dyn Scorer,
    batcher: &Batcher<'_>,
    mut progress: impl FnMut(usize),
) -> Result<Vec<f32>> {
    let mut scores = vec![0.0; batcher.data().num_documents()];
    score_in_batches(scorer, batcher, |batch, of_batch| {
        batch.rows.iter().zip(of_batch).for_each(|(&row, &score)| scores[row] = score);
        progress(batch.queries.last().map_or(0, |&query| query + 1));
        Ok::<(), Error>(())
    })?;
    batcher.rank_dropped_below(&mut scores);
    Ok(scores)
}

/// The most that there is of everything in the batches in which a data set is scored.
pub fn largest(batcher: &Batcher<'_>) -> Extent {
    extents(batcher).into_iter().fold(Extent::default(), Extent::max)
}

/// The batches in which a data set is scored.
pub fn extents(batcher: &Batcher<'_>) -> Vec<Extent> {
    let of_run = |run: &&[usize]| Extent::of_sizes(run.iter().map(|&query| batcher.set_size(query)));
    batcher.runs(BATCH_DOCUMENTS).iter().map(of_run).collect()
}

/// Hands out the scores of the documents that the model sees batch by batch, queries in order: `each` is told the
/// batch and its scores, by row of the batch. An error of `each` ends the scoring.
///
/// On a device that runs ahead, a batch is filled while the one before is scored.
pub fn score_in_batches<E: From<Error>>(
    scorer: &mut dyn Scorer,
    batcher: &Batcher<'_>,
    mut each: impl FnMut(&Batch, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    let ahead = usize::from(scorer.runs_ahead());
    let mut begun: VecDeque<Batch> = VecDeque::new();
    let mut idle = Vec::new();
    let runs = batcher.runs(BATCH_DOCUMENTS);
    let mut runs = runs.iter();
    loop {
        let run = runs.next();
        if let Some(queries) = run {
            let mut batch = idle.pop().unwrap_or_default();
            batcher.fill(&mut batch, queries, None);
            scorer.begin(&batch)?;
            begun.push_back(batch);
        }
        if begun.len() > ahead || run.is_none() {
            let Some(batch) = begun.pop_front() else { return Ok(()) };
            let scores = scorer.finish()?;
            check_finite(batcher, &batch, scores)?;
            each(&batch, scores)?;
            idle.push(batch);
        }
    }
}

fn check_finite(batcher: &Batcher<'_>, batch: &Batch, scores: &[f32]) -> Result<()> {
    let Some(at) = scores.iter().position(|score| !score.is_finite()) else { return Ok(()) };
    Err(Error::NonFinite(format!(
        "the score of document {} is {}: its features or the model's weights are extreme",
        batcher.data().positions()[batch.rows[at]] + 1,
        scores[at]
    )))
}
