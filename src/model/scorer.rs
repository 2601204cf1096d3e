//! Scores of all documents of a data set.

use super::setrank::{Inputs, Keep, SetRank, Workspace};
use crate::data::batch::{Batch, Batcher};
use crate::{Error, Result};

/// Documents of one batch, about: enough to fill the machine, few enough to stay small in memory.
const BATCH_DOCUMENTS: usize = 4096;

/// Scores `[N]`, by row of the batcher's data set. Documents that the model does not see rank below those it
/// does, in initial order. `progress` is told the number of queries done.
///
/// A set's scores do not depend on the sets that share its batch.
pub fn score(
    model: &SetRank,
    parameters: &[f32],
    batcher: &Batcher<'_>,
    mut progress: impl FnMut(usize),
) -> Result<Vec<f32>> {
    let mut scores = vec![0.0; batcher.data().num_documents()];
    score_in_batches(model, parameters, batcher, |batch, of_batch| {
        batch.rows.iter().zip(of_batch).for_each(|(&row, &score)| scores[row] = score);
        progress(batch.queries.last().map_or(0, |&query| query + 1));
        Ok::<(), Error>(())
    })?;
    batcher.rank_dropped_below(&mut scores);
    Ok(scores)
}

/// Hands out the scores of the documents that the model sees batch by batch, queries in order: `each` is told the
/// batch and its scores, by row of the batch. An error of `each` ends the scoring.
pub fn score_in_batches<E: From<Error>>(
    model: &SetRank,
    parameters: &[f32],
    batcher: &Batcher<'_>,
    mut each: impl FnMut(&Batch, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    let data = batcher.data();
    let mut workspace = Workspace::default();
    let mut batch = Batch::default();
    let mut queries: Vec<usize> = Vec::new();
    let mut documents = 0;
    for (done, &query) in batcher.sets().iter().enumerate() {
        queries.push(query);
        documents += batcher.set_size(query);
        if documents < BATCH_DOCUMENTS && done + 1 < batcher.sets().len() {
            continue;
        }
        batcher.fill(&mut batch, &queries, None);
        let inputs = Inputs { features: &batch.features, offsets: &batch.offsets, ordinals: &batch.ordinals };
        model.forward(&mut workspace, parameters, inputs, Keep::Nothing, None);
        if let Some(at) = workspace.scores().iter().position(|score| !score.is_finite()) {
            return Err(Error::NonFinite(format!(
                "the score of document {} is {}: its features or the model's weights are extreme",
                data.positions()[batch.rows[at]] + 1,
                workspace.scores()[at]
            ))
            .into());
        }
        each(&batch, workspace.scores())?;
        queries.clear();
        documents = 0;
    }
    Ok(())
}
